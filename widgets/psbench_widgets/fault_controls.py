"""Actions of the user in the drawing of a running run."""

from __future__ import annotations

from psbench.errors import ParameterError
from psbench.runs.fork import Fork
from psbench_widgets.bridge import Job


def press_live(job: Job, change: Fork) -> None:
    """Apply a change to a live run as a fork would: lose a worker, return it, set its speed, or switch.

    What became of it is said by the run (`Control.said`).

    Raises
    ------
    ParameterError
        If that cannot be done to a run under way on machines of this world.
    """
    if change.switch:
        job.control.switch()
    elif change.kill and change.worker is not None:
        job.control.press(change.worker, "lost")
    elif change.back and change.worker is not None:
        job.control.press(change.worker, "back")
    elif change.speed is not None and change.worker is not None:
        job.control.press(change.worker, "speed", change.speed)
    elif change.link is not None:
        raise ParameterError("a live run's link cannot be throttled: psbench does not control the network")
    else:
        raise ParameterError("a live run cannot change its strategy or bound; it can only switch")
