"""Fuzz the engine: random schedules of events, invariants after each, progress once the faults end.

A schedule lists every choice that a cluster leaves open: whose step ends next, whose message arrives, who
dies, joins or speaks twice, when a timer, an evaluation or a measurement comes, when the engine is saved.
The engine is pure, so a schedule fails always or never, and a failing one can be shrunk.
"""

from typing import TYPE_CHECKING

from psbench.system.lazy import lazy_names

if TYPE_CHECKING:
    from psbench_fuzz.campaign import Campaign, Finding, run_campaign
    from psbench_fuzz.liveness import play
    from psbench_fuzz.schedule import Schedule

__all__ = ["Campaign", "Finding", "Schedule", "play", "run_campaign"]
__getattr__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(("Campaign", "Finding", "run_campaign"), "campaign"),
        **{"Schedule": "schedule", "play": "liveness"},
    },
)
