"""Parts of test scenes: they answer from a list or a clock, and push vectors that identify their origin.

In a scene the model is the number of its version, and a gradient the number of its step
(`psbench.testing.watched`); these parts keep it so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import PrivateAttr

from psbench.core import ClusterView, Communication, Consistency, Push, Pushed, Vote, parameter
from psbench.core.actions import (
    Action,
    Cancel,
    Commit,
    Discard,
    Drop,
    Hold,
    Measure,
    Orders,
    Readmit,
    Release,
    SetTimer,
    Tell,
)
from psbench.core.arithmetic import State, Step, Vector, WorkerStep
from psbench.core.part import REGISTRY, Part
from psbench.core.peer_to_peer import MixedSteps
from psbench.core.view import Status
from psbench.core.worker_policy import Directive, WorkerPolicy
from psbench.strategies.aggregation.mixing import NeighbourAverage

#: seconds between a timer and the answer that sets it
LATER_S = 0.033


class Scripted(Consistency):
    """Answer pushes from a cyclic script.

    `commit`: commit all pending pushes and release all that wait. `hold`: let the worker wait for another
    push. `discard`: discard the push. `cancel`: commit and restart all that compute. `drop`: commit
    and drop another worker, which a timer readmits. `measure`: measure the loss, then commit.
    """

    name = "scripted"
    cancels: ClassVar[bool] = True

    script: tuple[str, ...] = parameter(("commit",), "answers to pushes, in turn")

    _pushes: int = PrivateAttr(default=0)

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Answer a push by the next line of the script."""
        line = self.script[self._pushes % len(self.script)]
        self._pushes += 1
        return _LINES[line](push, view)

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        """Release all waiting workers, so that none waits for a worker that has left."""
        return [Release(each) for each in view.waiting]

    def on_measured(self, facts: dict[str, Any], view: ClusterView) -> list[Action]:
        """Commit when numbers arrive."""
        return _commit(view)

    def on_timer(self, key: str, view: ClusterView) -> list[Action]:
        """Readmit a worker."""
        return [Readmit(int(key))]


def _commit(view: ClusterView) -> list[Action]:
    commit: list[Action] = [Commit(view.buffered())] if view.pending else []
    return [*commit, *(Release(worker) for worker in view.waiting)]


def _hold(push: Push, view: ClusterView) -> list[Action]:
    """Hold the worker if another one computes; a later line answers its push."""
    return [Hold(push.worker, "the script")] if view.num_computing else _commit(view)


def _cancel(push: Push, view: ClusterView) -> list[Action]:
    late = view.computing
    voids = [Cancel(worker) for worker in late]
    return [*_commit(view), *voids, *(Release(worker) for worker in late)]


def _drop(push: Push, view: ClusterView) -> list[Action]:
    others = [worker for worker in view.computing if worker != push.worker]
    answer = _commit(view)
    if not others:
        return answer
    return [*answer, Drop(others[0], "the script"), SetTimer(view.now + LATER_S, str(others[0]))]


_LINES: dict[str, Callable[[Push, ClusterView], list[Action]]] = {
    "commit": lambda push, view: _commit(view),
    "hold": _hold,
    "discard": lambda push, view: [Discard(push, "the script"), Release(push.worker)],
    "cancel": _cancel,
    "drop": _drop,
    "measure": lambda push, view: [Measure("consistency", {"model_loss": None})],
}


class Telling(Consistency):
    """Commit every push separately; a timer orders computing workers to push."""

    name = "telling"
    singly: ClassVar[bool] = True
    waits_for = "none"

    def on_start(self, view: ClusterView) -> list[Action]:
        """Release all workers, and set the timer."""
        return [*super().on_start(view), SetTimer(view.now + LATER_S, "tell")]

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Commit, and release the worker."""
        return [Commit([push]), Release(push.worker)]

    def on_timer(self, key: str, view: ClusterView) -> list[Action]:
        """Order all computing workers to push, and set the timer."""
        ordered: list[Action] = [Tell(worker, {"push": True}) for worker in view.computing]
        return [*ordered, SetTimer(view.now + LATER_S, key)]


class _Rounds(WorkerPolicy):
    """Push after that many steps; 0: only on request."""

    steps: int
    done: int = 0

    def after_step(self, stats: Mapping[str, float]) -> Directive:
        """Count."""
        self.done += 1
        if self.done != self.steps:
            return "continue"
        self.done = 0
        return "push"

    def on_orders(self, orders: Orders) -> None:
        """Restart the count with the release of a round."""
        self.done = 0


class LastGradient(Communication):
    """Push the gradient of the last of several steps."""

    name = "last_gradient"

    steps: int = parameter(2, "steps between two pushes; 0: until an order", ge=0)

    def worker_policy(self) -> WorkerPolicy:
        """Return the policy that counts."""
        return _Rounds(steps=self.steps)

    def on_release(self, worker: int, view: ClusterView) -> Orders:
        """Order the worker to begin a round."""
        return {"round": True}

    def step(self, w: Vector, gradient: Vector, state: State, own: WorkerStep) -> None:
        """Store the gradient of the last step, instead of a mean."""
        state["gradient"] = gradient


class _Votes(WorkerPolicy):
    def after_step(self, stats: Mapping[str, float]) -> Directive:
        """Vote."""
        return "vote"

    def vote_value(self) -> float:
        """Return a constant."""
        return 1.0


class Votes(LastGradient):
    """Vote after every step; every second unanimous vote makes all workers push."""

    name = "votes"
    pushes: ClassVar[Any] = "together"

    _asked: int = PrivateAttr(default=0)

    def worker_policy(self) -> WorkerPolicy:
        """Return the policy that votes."""
        return _Votes()

    def on_release(self, worker: int, view: ClusterView) -> Orders:
        """Give no orders."""
        return {}

    def on_vote(self, vote: Vote, view: ClusterView) -> list[Action]:
        """Answer once all workers have voted."""
        if view.num_computing:
            return [Hold(vote.worker, "the script")]
        self._asked += 1
        then = "push" if self._asked % 2 == 0 else "step"
        voted = sorted(each.id for each in view.workers.values() if each.status is Status.VOTED)
        return [Release(worker, then=then) for worker in voted]


class NextNumber(NeighbourAverage):
    """A mixture of equal versions is the next version; of different versions it is -1, which is invalid."""

    name = "next_number"
    linear: ClassVar[bool] = True

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        """Count."""
        found = {float(push.vector[0]) for push in pushes}
        x.fill_(found.pop() + 1 if len(found) == 1 else -1)


class StandStill(MixedSteps):
    """Continue from the mixture, without local steps."""

    name = "stand_still"

    def worker_policy(self) -> WorkerPolicy:
        """Return the policy that pushes every step."""
        return WorkerPolicy()

    def step(self, w: Vector, gradient: Vector, state: State, own: WorkerStep) -> None:
        """Leave the model as it is."""


# lists and the panel offer what is registered, and these are tools
for _tool in (Scripted, Telling, LastGradient, Votes, NextNumber, StandStill):
    _tool_of: type[Part] = _tool
    del REGISTRY[_tool_of.domain][_tool_of.name]
