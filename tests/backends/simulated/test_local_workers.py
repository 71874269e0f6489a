"""Workers that decide after each step, in virtual time, against plain torch."""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal

import pytest
import torch
from pydantic import PrivateAttr
from torch.nn import functional
from toybox import take_out

from psbench.core.actions import Action, Hold, Measure, Release, Tell
from psbench.core.events import Push, Vote
from psbench.core.log import Kind
from psbench.core.own_steps import OwnSteps
from psbench.core.parts import Communication, Stragglers
from psbench.core.specification import parameter
from psbench.core.strategy import Strategy
from psbench.core.view import ClusterView, Status
from psbench.core.worker_policy import Directive, WorkerPolicy
from psbench.optimization.optimizer import SGD
from psbench.runs.execution import run
from psbench.strategies import make_strategy
from psbench.strategies.aggregation import Mean
from psbench.strategies.communication import EveryStep
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster
from psbench.training.batches import Batches
from psbench.training.build import Workload
from psbench.training.local_model import LocalModel
from psbench.training.trainer import StepResult

# -------------------------------------------------------------------- toy parts


class PairHalf(WorkerPolicy):
    """Pushes at every second step."""

    odd: bool = False

    def after_step(self, stats: Any) -> Directive:
        self.odd = not self.odd
        return "continue" if self.odd else "push"


class Pairs(Communication):
    """The mean gradient of two batches from one model."""

    name: ClassVar[str] = "virtual_pairs"
    accumulates: ClassVar[bool] = True

    def worker_policy(self) -> WorkerPolicy:
        return PairHalf()


class VoterHalf(WorkerPolicy):
    """Votes after every step with the squared norm of its gradient."""

    norm: float = 0.0

    def after_step(self, stats: Any) -> Directive:
        self.norm = stats["grad_norm_sq"]
        return "vote"

    def vote_value(self) -> float:
        return self.norm


class Votes(OwnSteps):
    """Everybody pushes at every `period`-th round of votes; 0 is never."""

    name: ClassVar[str] = "virtual_votes"
    pushes: ClassVar[Literal["always", "alone", "together"]] = "together"
    reads: ClassVar[tuple[str, ...]] = ("grad_norm_sq",)
    period: int = parameter(0, "rounds of votes from one push to the next", ge=0)
    _round: int = PrivateAttr(0)

    def worker_policy(self) -> WorkerPolicy:
        return VoterHalf()

    def on_vote(self, vote: Vote, view: ClusterView) -> list[Action]:
        if view.num_computing:
            return [Hold(vote.worker, "vote")]
        self._round += 1
        then: Any = "push" if self.period and self._round % self.period == 0 else "step"
        return [Release(w.id, then=then) for w in view.workers.values() if w.status == Status.VOTED]


class Reply(Mean):
    """The mean gradient, which the workers apply themselves."""

    name: ClassVar[str] = "virtual_reply"
    reply: ClassVar[Literal["model", "aggregate"]] = "aggregate"


class Halver(Stragglers):
    """Tells a worker that reports once to halve its batch."""

    name: ClassVar[str] = "virtual_halver"
    varies_batch: ClassVar[bool] = True

    def on_report(self, report: Any, view: ClusterView) -> list[Action]:
        own = view.workers[report.worker]
        return [Tell(report.worker, {"batch_size": 2})] if own.batch_size > 2 else []


class ReportHalf(WorkerPolicy):
    """Reports after three steps of four."""

    steps: int = 0

    def after_step(self, stats: Any) -> Directive:
        self.steps += 1
        return "report" if self.steps % 4 else "push"


class Reports(Communication):
    """Three reports, then a push of all four batches."""

    name: ClassVar[str] = "virtual_reports"
    accumulates: ClassVar[bool] = True

    def worker_policy(self) -> WorkerPolicy:
        return ReportHalf()


class Curious(Mean):
    """Asks for every kind of number before it applies, and remembers the answers."""

    name: ClassVar[str] = "virtual_curious"
    measures: ClassVar[tuple[str, ...]] = ("model_loss", "train_loss", "distance_sq")
    _pushes: list[int] = PrivateAttr(default_factory=list)

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        self._pushes = [push.id for push in pushes]
        far = {f"distance_sq:{push.id}": push.id for push in pushes}
        return [Measure("aggregation", {"model_loss": None, "train_loss": None} | far)]

    def on_measured(self, facts: dict[str, Any], view: ClusterView) -> list[Action]:
        return super().on_commit([view.pending[number] for number in self._pushes], view)


take_out("virtual_")

# -------------------------------------------------------------------- plain torch


def alone(experiment, worker, steps):
    """Return the parameters of one worker that trains by itself, with plain torch."""
    workload = Workload.build(experiment)
    module = experiment.model.build(workload.data.input_shape, workload.data.num_classes, workload.streams)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    batches = Batches(workload.shards[worker], workload.streams, worker)
    for _ in range(steps):
        where = torch.from_numpy(batches.take(workload.batch_sizes[worker]))
        optimizer.zero_grad()
        functional.cross_entropy(
            module(workload.data.train_x[where]), workload.data.train_y[where]
        ).backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


# -------------------------------------------------------------------- tests


@pytest.mark.parametrize("name", ["asp", "local_sgd", "selsync"])
def test_a_workers_stored_model_stays_as_it_was(name):
    """A live worker stores it at each release, for a checkpoint that may be due while it computes."""
    model, none = LocalModel(make_strategy(name).compositions[0], SGD(lr=1.0, momentum=0.5)), torch.zeros(0)
    model.load(torch.ones(3), none)
    model.stepped(StepResult(torch.ones(3), none, 0.0), 1, 0.0)
    model.keep()
    state = model.state_dict()
    copies = {name: tensor.clone() for name, tensor in state.items()}
    for _ in range(2):
        model.stepped(StepResult(torch.full((3,), 2.0), none, 0.0), 1, 1.0)
        model.keep()
        model.payload()
    model.load(torch.full((3,), 7.0), none)
    assert {name: tensor.tolist() for name, tensor in state.items()} == {
        name: tensor.tolist() for name, tensor in copies.items()
    }


def test_two_accumulated_batches_are_one_of_twice_the_size():
    pairs = Strategy(consistency="bsp", communication=Pairs())
    ours = run(toy_experiment(pairs, stop={"updates": 6}))
    theirs = run(toy_experiment("bsp", batch_size=24, stop={"updates": 6}))
    torch.testing.assert_close(ours.parameters, theirs.parameters, rtol=1e-5, atol=1e-6)
    assert set(ours.log.of_kind(Kind.PUSH)["steps"]) == {2}


def test_who_never_pushes_trains_alone_and_the_mean_is_taken_away():
    never = Strategy(consistency="bsp", aggregation=Reply(), communication=Votes())
    experiment = toy_experiment(never, stop={"epochs": 1})  # 96 samples: 8 rounds of three times 4
    done = run(experiment)
    assert done.meta["reason"] == "1 epoch is done"
    expected = sum(alone(experiment, worker, 8) for worker in range(3)) / 3
    torch.testing.assert_close(done.parameters, expected, rtol=1e-5, atol=1e-6)
    assert not len(done.log.of_kind(Kind.PUSH)["id"])


def test_who_always_pushes_a_gradient_and_applies_the_mean_is_bsp():
    always = Strategy(consistency="bsp", aggregation=Reply(), communication=Votes(period=1))
    ours, theirs = (run(toy_experiment(s, stop={"epochs": 2})) for s in (always, "bsp"))
    torch.testing.assert_close(ours.parameters, theirs.parameters, rtol=1e-5, atol=1e-6)


def test_votes_cost_a_message_each_way_and_no_bytes():
    cluster = toy_cluster([1.0, 1.0], latency_s=0.25)
    never = Strategy(consistency="bsp", aggregation=Reply(), communication=Votes())
    done = run(toy_experiment(never, cluster=cluster, stop={"epochs": 1}))
    votes = done.log.of_kind(Kind.VOTE)["time_s"][::2]
    step = done.log.of_kind(Kind.VOTE)["compute_s"][0]
    assert votes[1] - votes[0] == pytest.approx(0.5 + step)
    assert done.log.of_kind(Kind.RELEASE)["bytes"][2:].sum() == 0


def test_16_bits_on_the_wire_lose_digits_and_halve_the_bytes():
    exact, half = (run(toy_experiment("bsp", stop={"updates": 4})), run(toy_experiment(
        Strategy(consistency="bsp", communication=EveryStep(codec="fp16")), stop={"updates": 4}
    )))  # fmt: skip
    assert not torch.equal(exact.parameters, half.parameters)
    torch.testing.assert_close(exact.parameters, half.parameters, rtol=5e-3, atol=5e-3)
    assert set(half.log.of_kind(Kind.PUSH)["bytes"] * 2) == set(exact.log.of_kind(Kind.PUSH)["bytes"])


def test_orders_told_reach_a_worker_between_two_steps():
    reporting = Strategy(consistency="asp", communication=Reports(), stragglers=Halver())
    done = run(toy_experiment(reporting, stop={"updates": 3}))
    first = done.log.of_kind(Kind.PUSH)["samples"][0]
    assert first == 4 + 4 + 2 + 2  # told after the first report, while it computes the second step
    assert len(done.log.of_kind(Kind.TELL)["worker"]) == 3


def test_numbers_are_measured_and_take_their_time():
    asks = Strategy(consistency="asp", aggregation=Curious())
    done = run(toy_experiment(asks, stop={"updates": 8}))
    facts = [json.loads(done.log.text(text)) for text in done.log.of_kind(Kind.MEASURED)["text"]]
    assert len(facts) == 8
    distances = [next(v for k, v in fact.items() if k.startswith("distance_sq")) for fact in facts]
    assert distances[0] == 0.0
    assert max(distances) > 0.0
    assert all(fact["train_loss"] > 0 for fact in facts)
    asked = done.log.of_kind(Kind.MEASURE)["time_s"][:8]
    assert (done.log.of_kind(Kind.MEASURED)["time_s"] > asked).all()


def test_a_model_that_others_delay_begins_its_steps_later():
    """Two models, and later two pushes, share a link: both pairs take twice a message's time alone."""

    def version_s(mbit):
        cluster = toy_cluster([1.0, 1.0], server_bandwidth_mbit_s=mbit, link_sharing="equal")
        local = {"name": "local_sgd", "local_steps": 1}
        done = run(toy_experiment(local, cluster=cluster, timing_only=True, stop={"updates": 1}))
        return float(done.log.of_kind(Kind.APPLY)["time_s"][-1]), done.meta["model_bytes"]

    (slow_s, model_bytes), (fast_s, _) = version_s(0.01), version_s(1e9)
    assert slow_s - fast_s == pytest.approx(4 * 8 * model_bytes / 0.01e6, rel=1e-6)
