"""Parts that use what no strategy of the catalogue uses yet, so that the engine's side of it is proven."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import PrivateAttr
from toybox import take_out

from psbench.core.actions import Action, Apply, Hold, Measure, Note, Release, SetTimer, SwitchTo, Tell
from psbench.core.events import Evaluated, Push, Report, Vote
from psbench.core.parts import Aggregation, Communication, Stragglers, Switching
from psbench.core.specification import parameter
from psbench.core.view import ClusterView, Status
from psbench.core.worker_policy import WorkerPolicy
from psbench.strategies.consistency import ASP, BSP


class VoterHalf(WorkerPolicy):
    """Votes after every step."""

    def after_step(self, stats: dict[str, float]) -> Literal["continue", "report", "vote", "push"]:
        return "vote"

    def vote_value(self) -> float:
        return 0.5


class Poll(Communication):
    """All push if one worker's vote is above the threshold, as in SelSync; else all take another step."""

    name: ClassVar[str] = "toy_poll"
    pushes: ClassVar[Literal["always", "alone", "together"]] = "together"
    threshold: float = parameter(0.5, "vote above which all push", ge=0, le=1)
    _votes: dict[str, float] = PrivateAttr(default_factory=dict)

    def worker_policy(self) -> WorkerPolicy:
        return VoterHalf()

    def on_vote(self, vote: Vote, view: ClusterView) -> list[Action]:
        self._votes = {**self._votes, str(vote.worker): vote.value}
        return self._count(view) or [Hold(vote.worker, "vote")]

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        self._votes = {who: value for who, value in self._votes.items() if who != str(worker)}
        return self._count(view)

    def _count(self, view: ClusterView) -> list[Action]:
        voted = [w.id for w in view.workers.values() if w.status == Status.VOTED]
        if view.num_computing or not voted:
            return []
        then: Any = "push" if max(self._votes.values()) > self.threshold else "step"
        self._votes = {}
        return [Release(worker, then=then) for worker in voted]


class EveryOther(WorkerPolicy):
    """Reports after odd steps and pushes after even ones; told to push, it pushes at the next step."""

    push_ordered: bool = False
    odd: bool = False

    def after_step(self, stats: dict[str, float]) -> Literal["continue", "report", "vote", "push"]:
        self.odd = not self.odd
        return "report" if self.odd and not self.push_ordered else "push"

    def on_orders(self, orders: dict[str, Any]) -> None:
        self.push_ordered = bool(orders.get("push", False))


class Reporting(Communication):
    """A push every two steps, a report in between; it may be told to push."""

    name: ClassVar[str] = "toy_reporting"
    accumulates: ClassVar[bool] = True
    pushes: ClassVar[Literal["always", "alone", "together"]] = "alone"

    def worker_policy(self) -> WorkerPolicy:
        return EveryOther()


class Sizing(Stragglers):
    """Halves the batch of a worker that reports a large cost, once; tells it so while it computes."""

    name: ClassVar[str] = "toy_sizing"
    reads: ClassVar[tuple[str, ...]] = ("cost",)
    _small: list[int] = PrivateAttr(default_factory=list)

    def on_report(self, report: Report, view: ClusterView) -> list[Action]:
        if report.stats["cost"] < 0.5 or report.worker in self._small:
            return []
        self._small = [*self._small, report.worker]
        return [Tell(report.worker, {"batch_size": 2})]

    def on_release(self, worker: int, view: ClusterView) -> dict[str, Any]:
        return {"batch_size": 2} if worker in self._small else {}


class Weighing(Aggregation):
    """Weighs pushes by a number that must be measured first."""

    name: ClassVar[str] = "toy_weighing"
    measures: ClassVar[tuple[str, ...]] = ("model_loss", "distance_sq")

    _pushes: list[int] = PrivateAttr(default_factory=list)

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        self._pushes = [push.id for push in pushes]
        return [Measure("aggregation", {"model_loss": None, "distance_sq": pushes[0].id})]

    def on_measured(self, facts: dict[str, Any], view: ClusterView) -> list[Action]:
        pushes = [view.pending[number] for number in self._pushes]
        return [Apply(pushes, [facts["model_loss"]] * len(pushes), numbers={"keep": 0.5})]


class Alarm(ASP):
    """ASP that releases a worker two seconds after its push."""

    name: ClassVar[str] = "toy_alarm"
    waits_for: ClassVar[Literal["none", "some", "all"]] = "some"

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        commit, _ = super().on_push(push, view)
        return [commit, Hold(push.worker, "alarm"), SetTimer(view.now + 2.0, str(push.worker))]

    def on_timer(self, key: str, view: ClusterView) -> list[Action]:
        worker = view.workers[int(key)]
        return [Release(worker.id)] if worker.status == Status.PUSHED else [Note(f"{key} needs no waking")]


class Impatient(Switching):
    """Switches after so many versions, cancelling what is under way; back again after as many more."""

    name: ClassVar[str] = "toy_impatient"
    versions: int = parameter(3, "versions under each strategy", ge=1)
    drain: Literal["finish", "cancel"] = parameter("cancel", "what becomes of work under way")

    def on_applied(self, view: ClusterView) -> list[Action]:
        if view.version % self.versions:
            return []
        return [SwitchTo(1 - view.composition, "impatient", drain=self.drain)]

    def on_evaluated(self, event: Evaluated, view: ClusterView) -> list[Action]:
        return [Note(f"saw {event.values['val_loss']:g}")]


class SilentBSP(BSP):
    """Lets a worker push without an answer, which is wrong."""

    name: ClassVar[str] = "toy_silent"

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        return [a for a in super().on_push(push, view) if not isinstance(a, Hold)]


take_out("toy_")
