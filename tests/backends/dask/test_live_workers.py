"""Workers that decide after each step: against the simulator, and what only a live run can show."""

from __future__ import annotations

import json
import math
from typing import Any, ClassVar

import pytest
import torch
from threaded_run import ThreadedRun

from psbench.backends.control import Control
from psbench.backends.dask.protocol.messages import ApplyUpdate, RequestStop, Update
from psbench.backends.dask.server.parameter_slice import ParameterSlice
from psbench.backends.dask.worker.worker import Worker
from psbench.backends.partition import even_ranges
from psbench.backends.simulated.simulation import run_simulated
from psbench.core.actions import Action, SetTimer, Tell
from psbench.core.events import Report
from psbench.core.log import EventLog, Kind
from psbench.core.parts import Stragglers
from psbench.core.strategy import Strategy
from psbench.core.view import ClusterView
from psbench.core.worker_policy import Directive, WorkerPolicy
from psbench.experiment import Experiment
from psbench.metrics import evaluations
from psbench.optimization.optimizer import SGD
from psbench.seeds import Streams
from psbench.strategies.communication import LocalSGD
from psbench.training.build import Workload

pytestmark = pytest.mark.usefixtures("one_torch_thread")

SERVERS = {"name": "parameter_server", "servers": 3}
ADDING = {"name": "power_sgd", "start_iter": 4, "placement": {"name": "summing_servers", "servers": 2}}
PA = {"name": "selsync", "delta": 0.05}
GA = PA | {"aggregate": "gradient"}
HALFWAY = {"rule": {"name": "after", "fraction": 0.5}}


def experiment(strategy: Any, workers: int = 2, **changes: Any) -> Experiment:
    settings: dict[str, Any] = {
        "strategy": strategy,
        "cluster": {"workers": workers, "step_time": "constant"},
        "batch_size": 12 * workers,
        "stop": {"epochs": 0.4},
        "evaluate_every": 0.2,
        "backend": "dask",
    }
    return Experiment(**settings | changes)


def played(strategy: Any, workers: int = 2, **changes: Any) -> ThreadedRun:
    done = ThreadedRun(experiment(strategy, workers, **changes)).run()
    assert done.error is None
    return done


def simulated(spec: Experiment) -> tuple[torch.Tensor, EventLog]:
    log = EventLog()
    parameters = run_simulated(Workload.build(spec), log, Control()).parameters
    assert parameters is not None
    return parameters, log


def count(log: EventLog, kind: Kind) -> int:
    return log.rows()["kind"].tolist().count(kind)


def texts(log: EventLog, kind: Kind) -> list[str]:
    return [log.text(number) for number in log.of_kind(kind)["text"]]


# -------------------------------------------------------------------- against the simulator

DETERMINED = [
    {"name": "local_sgd", "local_steps": 3, "placement": SERVERS},
    {"name": "local_sgd", "codec": "fp16"},
    {"name": "bsp", "codec": "fp16", "placement": SERVERS},
    PA,
    GA,
    GA | {"codec": "fp16", "codec_down": "sign", "placement": SERVERS},
    GA | {"placement": "all_reduce"},
    {"name": "local_sgd", "placement": "all_reduce"},
    {"name": "adacomm", "block_momentum": 0.3, "placement": SERVERS},
    {"name": "strategy_switch", "first": "bsp", "second": GA} | HALFWAY,
    {"name": "strategy_switch", "first": {"name": "bsp", "codec": "fp16"}, "second": "adacomm"} | HALFWAY,
    # residuals are handed on: to other codecs and servers, to none, to a ring
    {"name": "strategy_switch", "first": {"name": "bsp", "codec": "top_k", "placement": SERVERS}}
    | {"second": {"name": "bsp", "codec": "sign"}}
    | HALFWAY,
    {"name": "strategy_switch", "first": "double_squeeze", "second": {"name": "bsp", "placement": SERVERS}}
    | HALFWAY,
    {"name": "strategy_switch", "first": {"name": "bsp", "codec": "top_k"}, "second": "all_reduce"} | HALFWAY,
    {"name": "strategy_switch", "first": {"name": "power_sgd", "start_iter": 2}, "second": "bsp"} | HALFWAY,
    # servers that hold slices, that add up, and that hold slices again
    {"name": "strategy_switch", "first": {"name": "bsp", "placement": SERVERS}, "second": ADDING}
    | HALFWAY
    | {"then": [{"to": {"name": "bsp", "placement": SERVERS}, "rule": {"name": "after", "fraction": 0.8}}]},
    {"name": "strategy_switch", "first": {"name": "local_sgd", "codec": "top_k"}, "second": "local_sgd"}
    | HALFWAY,
]


@pytest.mark.by_day(3)
@pytest.mark.parametrize("strategy", DETERMINED, ids=json.dumps)
def test_where_the_order_is_determined_it_equals_the_simulated_run(strategy: Any) -> None:
    done = played(strategy)
    parameters, log = simulated(done.experiment)
    assert torch.equal(done.parameters, parameters)
    assert texts(done.log, Kind.EVALUATED) == texts(log, Kind.EVALUATED)
    for kind in (Kind.PUSH, Kind.VOTE, Kind.APPLY, Kind.RELEASE):
        assert count(done.log, kind) == count(log, kind)
    told, expected = done.log.of_kind(Kind.PUSH), log.of_kind(Kind.PUSH)
    for name in ("samples", "steps", "bytes", "version"):
        assert sorted(told[name]) == sorted(expected[name])
    assert (told["send_s"] >= 0).all()
    assert (told["send_s"] <= told["time_s"]).all()


@pytest.mark.parametrize("second", [PA, GA | {"placement": "all_reduce"}], ids=json.dumps)
def test_an_evaluation_at_a_switch_equals_the_simulated_one(second: Any) -> None:
    """The models that were asked for with the releases after it never came, and the run did not end."""
    switch = {"name": "strategy_switch", "first": PA, "second": second} | HALFWAY
    done = played(switch, evaluate_every=0.0001, stop={"epochs": 0.15})
    assert texts(done.log, Kind.EVALUATED) == texts(simulated(done.experiment)[1], Kind.EVALUATED)


def test_a_run_ends_at_the_accuracy_that_was_asked_for() -> None:
    done = played("bsp", stop={"target_accuracy": 0.01, "epochs": 1000}, evaluate_every=0.1)
    assert (done.outcome.status, done.outcome.reason) == ("finished", "validation accuracy reached 0.01")


@pytest.mark.parametrize("strategy", ["local_sgd", PA], ids=json.dumps)
def test_the_mean_of_the_models_is_of_the_update_that_ends_the_run(strategy: Any) -> None:
    """And not of a moment later, when some have taken another step."""
    done = played(strategy, stop={"updates": 2})
    assert torch.equal(done.parameters, simulated(done.experiment)[0])


@pytest.mark.parametrize("name", ["local_sgd", "diloco", "streaming_diloco"])
def test_a_round_longer_than_the_run_ends_with_its_epochs(name: str) -> None:
    """And the bytes of its evaluation are those of one round: two models a worker."""
    done = played({"name": name, "local_steps": 100_000})
    log = simulated(done.experiment)[1]
    steps = log.of_kind(Kind.PUSH)["steps"].tolist()
    assert done.log.of_kind(Kind.PUSH)["steps"].tolist() == steps
    workload = Workload.build(done.experiment)
    assert steps == [math.ceil(0.4 * len(workload.data.train_y) / 24)] * 2
    found = evaluations(done.log)["bytes"].tolist()
    assert found == evaluations(log)["bytes"].tolist()
    if name != "streaming_diloco":  # which pushes a fragment
        assert found[-1] == 2 * 2 * 4 * workload.model.num_parameters


class Remembers(Worker):
    """Keeps the model that it sent last."""

    sent: Any = None

    def _send_model(self, tag: int) -> None:
        self.sent = self.model.parameters.clone()
        super()._send_model(tag)


def test_a_drifting_run_that_is_stopped_leaves_the_mean_of_its_models() -> None:
    asked: list[bool] = []

    def on_rows(done: ThreadedRun, client: Any) -> None:
        if count(done.log, Kind.VOTE) > 50 and not asked:
            asked.append(True)
            client.send(RequestStop(checkpoint=False))

    never = {"name": "selsync", "delta": 1e9}
    done = ThreadedRun(experiment(never, stop={"updates": 10**9}), Remembers).run(on_rows)
    first, second = (done.workers[worker].sent for worker in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(done.parameters, (first + second) / 2)


# -------------------------------------------------------------------- 16-bit floats


def test_16_bit_floats_in_a_ring_leave_the_replicas_identical() -> None:
    done = played({"name": "all_reduce", "codec": "fp16"}, 3, stop={"updates": 6})
    replicas = [worker.member.replica.parameters for worker in done.workers.values()]
    assert all(torch.equal(replica, replicas[0]) for replica in replicas)
    whole = played("all_reduce", 3, stop={"updates": 6})
    assert not torch.equal(replicas[0], whole.parameters)
    torch.testing.assert_close(replicas[0], whole.parameters, rtol=0.01, atol=0.01)
    half, full = (c.log.of_kind(Kind.PUSH)["bytes"][0] for c in (done, whole))
    assert abs(int(half) * 2 - int(full)) <= 2


@pytest.mark.parametrize("placement", [SERVERS, "all_reduce"])
def test_what_is_too_large_for_16_bit_floats_ends_the_run(placement: Any) -> None:
    spec = {"name": "local_sgd", "local_steps": 1, "codec": "fp16", "placement": placement}
    done = played(spec, optimizer={"name": "sgd", "lr": 1e7})
    assert done.outcome.status == "diverged"
    assert "too large for the codec" in done.outcome.reason


# -------------------------------------------------------------------- Tell, Wake, Measure


class WakesAndTells(Stragglers):
    """Tells all that compute to push, every 30 ms (nameless, so that it is not registered)."""

    name: ClassVar[str] = ""

    def start(self, view: ClusterView) -> list[Action]:
        return [SetTimer(view.now + 0.03, "push")]

    def on_timer(self, key: str, view: ClusterView) -> list[Action]:
        return [SetTimer(view.now + 0.03, key), *(Tell(w, {"push": True}) for w in view.computing)]


@pytest.mark.parametrize("placement", ["parameter_server", "all_reduce"])
def test_wakes_come_in_time_and_orders_reach_workers_between_two_steps(placement: str) -> None:
    talk = LocalSGD(local_steps=10**6)  # nobody pushes without being told
    parts = {"consistency": "bsp", "aggregation": "model_average", "communication": talk}
    strategy = Strategy(**parts, stragglers=WakesAndTells(), placement=placement)
    done = played(strategy, stop={"updates": 5})
    pushes, timers = done.log.of_kind(Kind.PUSH), done.log.of_kind(Kind.TIMER)
    assert count(done.log, Kind.PUSH) >= 10
    assert max(pushes["steps"]) > 1
    assert count(done.log, Kind.TIMER) >= 5
    due = done.log.of_kind(Kind.SET_TIMER)["compute_s"][: count(done.log, Kind.TIMER)]
    assert min(timers["time_s"] - due) >= 0


class ReportingHalf(WorkerPolicy):
    """Reports every step, and pushes every two-hundredth."""

    steps: int = 0

    def after_step(self, stats: Any) -> Directive:
        self.steps += 1
        return "push" if self.steps % 200 == 0 else "report"


class Reporting(LocalSGD):
    """See its half."""

    name: ClassVar[str] = ""

    def worker_policy(self) -> WorkerPolicy:
        return ReportingHalf()


class AnswersReports(Stragglers):
    """Orders another batch after the first report of a release."""

    name: ClassVar[str] = ""
    reads: ClassVar[tuple[str, ...]] = ("compute_s", "loss", "grad_norm_sq", "test_loss")

    def on_report(self, report: Report, view: ClusterView) -> list[Action]:
        assert set(report.stats) == set(self.reads)
        return [] if view.workers[report.worker].batch_size == 5 else [Tell(report.worker, {"batch_size": 5})]


def test_a_report_is_answered_without_the_worker_waiting_for_it() -> None:
    talk = Reporting(local_steps=1)
    parts = {"consistency": "asp", "aggregation": "model_average", "communication": talk}
    done = played(Strategy(**parts, stragglers=AnswersReports()), 1, stop={"updates": 2})
    first, second = done.log.of_kind(Kind.PUSH)["samples"]
    assert 200 * 5 < first < 200 * 12  # some steps were of 12 samples before the order came
    assert second == 200 * 5
    told = [json.loads(text) for text in texts(done.log, Kind.PUSH)]
    assert all(push["grad_norm_sq"] > 0 and push["test_loss"] > 0 for push in told)


@pytest.mark.parametrize("servers", [1, 3])
def test_distances_are_measured_by_all_shards_together(servers: int) -> None:
    placement = {"name": "parameter_server", "servers": servers}
    done = played({"name": "bounded_step", "placement": placement}, 3)
    facts = [json.loads(text) for text in texts(done.log, Kind.MEASURED)]
    distances = [value for fact in facts for value in fact.values()]
    assert distances
    assert all(0 < distance < 100 for distance in distances)


def test_slices_of_a_distance_add_up_to_the_whole() -> None:
    composition, optimizer = Strategy(consistency="asp"), SGD(lr=0.5)
    vector, gradient = torch.arange(7.0), torch.linspace(-1, 1, 7)
    found = []
    for number in (1, 3):
        total = 0.0
        for shard, part in enumerate(even_ranges(7, number)):
            state = {"parameters": vector[part], "buffers": vector[:0]}
            one = ParameterSlice(state, optimizer, 4, composition, Streams(0), shard)
            one.hold(0)
            one.receive((0, 1), gradient[part])
            update = Update(lr_scale=1.0, epoch=0.0, momentum_scale=1.0, numbers={})
            one.apply(ApplyUpdate([(0, 1)], [1.0], [4], [1], [0], update))
            one.hold(0)  # it stays as it was, whatever the model is by now
            total += one.distance_sq(0)
            one.hold(1, [0])
            with pytest.raises(KeyError):  # nobody starts from version 0 any more
                one.distance_sq(0)
        found.append(total)
    assert found == pytest.approx([0.25 * float(gradient @ gradient)] * 2)


@pytest.mark.parametrize("servers", [1, 3])
def test_candidates_are_evaluated_before_they_count(servers: int) -> None:
    quick = {"chunk_samples": 32, "passes": 1, "alpha": -0.01, "patience": 1}
    spec = {"name": "hermes", "placement": {"name": "parameter_server", "servers": servers}} | quick
    done = played(spec, stop={"updates": 6})
    facts = [json.loads(text) for text in texts(done.log, Kind.MEASURED)]
    assert len(facts) >= 5  # the first is taken as it is
    assert any("candidate_loss" in name for fact in facts for name in fact)
    assert all(0 < value < 20 for fact in facts for value in fact.values())
