"""State of a run that a replica of the servers stores, and state that only the workers hold."""

from __future__ import annotations

from psbench.core.collective import Collective, Jobs
from psbench.core.compatibility import Composition
from psbench.core.own_steps import OwnSteps
from psbench.core.peer_to_peer import PeerToPeer
from psbench.core.shared_memory import SharedMemory


def keeps_on_workers(strategy: Composition) -> bool:
    """Return whether waiting workers have a state besides their data position: models, or residuals."""
    m = strategy.communication
    if strategy.aggregation.exchanges:
        return True
    return isinstance(m, OwnSteps) or (m.is_encoded and not isinstance(strategy.placement, Collective))


def unreplicable(strategy: Composition) -> str:
    """Return why a replica cannot hold the whole state of such a run; empty if it can.

    What it holds is of the servers, the engine, and workers that wait: one that computes is not asked, as it
    would have to be waited for.
    """
    c, m, p = strategy.consistency, strategy.communication, strategy.placement
    if isinstance(p, (Jobs, PeerToPeer)):
        return "it has no servers"
    if isinstance(p, SharedMemory):
        return "workers change its model between versions, too"
    if m.overlaps:
        return f"under {m.name} workers compute while they wait"
    if m.pushes == "together":
        return f"under {m.name} workers vote in the middle of a push"
    if m.accumulates:
        return f"under {m.name} workers have counters of their own"
    if c.cancels and keeps_on_workers(strategy):
        return f"{c.name} releases workers that compute, and these have residuals or models of their own"
    if p.moves:
        return "parameters move between its servers"
    parts = (c, strategy.aggregation, m, strategy.stragglers)
    if measuring := [part.name for part in parts if part.measures]:
        return f"{measuring[0]} measures in the middle of an answer"
    return ""


def must_not_lag(strategy: Composition) -> str:
    """Return why a replica needs the state of every update of such a run; empty if it does not.

    What workers hold is asked for while they wait, and a lagging replica asks only now and then.
    """
    if keeps_on_workers(strategy) and not strategy.consistency.barrier:
        return (
            f"its workers have models or residuals of their own, and under {strategy.consistency.name} some "
            "compute whenever a state is sent"
        )
    return ""
