"""Draining before a switch: no worker starts a step until all work in progress has ended."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from psbench.core import actions as act
from psbench.core.actions import Action
from psbench.core.strategy import Strategy
from psbench.core.view import ClusterView, Status
from psbench.errors import ProtocolError


class Drain:
    """A switch in progress: the work that must end first, and the workers that wait for it.

    Parameters
    ----------
    switch : SwitchTo
        Performed when no worker is under way and the buffer of pushes is empty.

    Attributes
    ----------
    parked : set of int
        Workers whose release is withheld.
    """

    def __init__(self, switch: act.SwitchTo) -> None:
        self.switch = switch
        self.parked: set[int] = set()
        self._swept = False  # whether the work under way at the start has been ended

    def next_actions(self, view: ClusterView, composition: Strategy) -> list[Action]:
        """Return the next actions; the drain is complete if there are none and no worker computes."""
        actions = [] if self._swept else self._sweep(view, composition)
        if actions or view.num_under_way:
            return actions
        # workers that overlap compute although they have pushed: they push the rest, and stop
        overlapping: list[Action] = [act.Release(w.id) for w in view.workers.values() if w.overlapping]
        return overlapping or (_empty_buffer(view, composition) if view.pending else [])

    def _sweep(self, view: ClusterView, composition: Strategy) -> list[Action]:
        """End the work in progress; call this once the answer is complete."""
        self._swept = True
        communication = composition.communication
        # cancelling would lose steps that were not pushed
        may_cancel = not (composition.own_steps or communication.accumulates)
        cancels = self.switch.drain == "cancel" and may_cancel
        actions: list[Action] = []
        for worker in view.workers.values():
            if worker.status is Status.VOTED:
                actions.append(act.Release(worker.id, then="push"))
            elif worker.status is Status.COMPUTING and cancels:
                actions += [act.Cancel(worker.id), act.Release(worker.id)]
            elif worker.status is Status.COMPUTING and communication.pushes != "always":
                actions.append(act.Tell(worker.id, {"push": True}))
        return actions

    def state_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"switch": asdict(self.switch), "parked": sorted(self.parked), "swept": self._swept}

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> Drain:
        drain = cls(act.SwitchTo(**state["switch"]))
        drain.parked, drain._swept = set(state["parked"]), state["swept"]
        return drain


def _empty_buffer(view: ClusterView, composition: Strategy) -> list[Action]:
    actions = composition.consistency.on_drained(view)
    named = {push.id for a in actions if isinstance(a, act.Commit) for push in a.pushes}
    named |= {a.push.id for a in actions if isinstance(a, act.Discard)}
    if not named >= view.pending.keys():
        raise ProtocolError(
            f"{composition.consistency.name!r}: on_drained must Commit or Discard every pending push; "
            f"left over: {sorted(view.pending.keys() - named)}"
        )
    return actions
