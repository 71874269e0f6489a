"""Everything of the Dask backend but Dask: threads on loopback, deaths at exactly the wrong moment."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from models.networks import Branching
from threaded_run import Killed, ThreadedRun
from toybox import at_night

from psbench.backends.control import Control
from psbench.backends.dask.coordinator.live_run import PeerFailed
from psbench.backends.dask.coordinator.peers import Peers
from psbench.backends.dask.protocol.messages import RequestStop, RequestSwitch, UsageReport
from psbench.backends.dask.protocol.wire import Frame
from psbench.backends.dask.worker.ring_member import RingMember
from psbench.backends.dask.worker.worker import Worker
from psbench.backends.simulated.simulation import run_simulated
from psbench.backends.stamps import rows_of
from psbench.core.log import EventLog, Kind
from psbench.errors import WorkerLost
from psbench.experiment import Experiment
from psbench.metrics import total_bytes, utilisation
from psbench.testing import toy_experiment
from psbench.training.build import Workload

SERVERS = {"name": "parameter_server", "servers": 2}

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def experiment(strategy: Any, workers: int = 3, **changes: Any) -> Experiment:
    settings: dict[str, Any] = {
        "strategy": strategy,
        "cluster": {"workers": workers, "step_time": "constant"},
        "batch_size": 24,
        "stop": {"updates": 12},
        "backend": "dask",
    }
    return Experiment(**settings | changes)


def simulated(experiment: Experiment) -> Any:
    return run_simulated(Workload.build(experiment), EventLog(), Control())


def kinds(done: ThreadedRun) -> list[int]:
    return [int(kind) for kind in done.log.rows()["kind"]]


@pytest.mark.parametrize("strategy", ["all_reduce", {"consistency": "bsp", "placement": SERVERS}], ids=str)
def test_what_has_no_gradient_is_left_alone_live_too(strategy: Any) -> None:
    """Some layers are used by none, by one or by both workers: `tests/training/test_absent_gradients.py`."""
    optimizer = {"name": "adam", "lr": 0.01, "weight_decay": 0.05}
    spec = toy_experiment(
        strategy,
        model=Branching,
        optimizer=optimizer,
        cluster={"workers": 2, "step_time": "constant"},
        batch_size=4,
        stop={"updates": 8},
        backend="dask",
    )
    done = ThreadedRun(spec).run()
    before = Workload.build(spec).parameters
    assert torch.equal(done.parameters, simulated(spec).parameters)
    assert torch.equal(done.parameters[:15], before[:15])


def test_one_worker_gives_the_simulated_parameters_bit_for_bit() -> None:
    spec = experiment("asp", workers=1)
    assert torch.equal(ThreadedRun(spec).run().parameters, simulated(spec).parameters)


@pytest.mark.parametrize("strategy", ["bsp", "all_reduce"])
def test_every_worker_reports_its_usage_without_emulated_slowness(
    strategy: str,
) -> None:
    cluster, connection = {"workers": 2, "speed": [1, 0.05]}, {"stamps": True}
    done = ThreadedRun(experiment(strategy, workers=2, cluster=cluster, connection=connection)).run()
    pushes = done.log.of_kind(Kind.PUSH)
    used = done.outcome.facts["usage"]
    assert [each["worker"] for each in used] == [0, 1]
    for worker, each in enumerate(used):
        steps = pushes["compute_s"][pushes["worker"] == worker]
        assert len(steps) <= each["steps"] <= len(steps) + 1  # the last may be void
        assert min(each["read_s"], each["compute_s"], each["cpu_s"]) > 0
        assert each["read_s"] + each["compute_s"] < each["wall_s"]
    assert used[1]["read_s"] + used[1]["compute_s"] < 0.5 * steps.sum()
    check_curves(done)
    check_stamps(done, with_server=strategy == "bsp")


def check_curves(done: ThreadedRun) -> None:
    """Check that the curves of CPU use sum to the totals, and lie within the run."""
    facts = done.outcome.facts
    frame = utilisation(done.log, facts)
    integral = (frame["value"] * frame["width_s"]).groupby(frame["series"]).sum()
    for name, usage in (("cpu_workers", facts["usage"]), ("cpu_servers", facts["server_usage"])):
        assert integral[name] == pytest.approx(sum(each["cpu_s"] for each in usage), rel=1e-9)
        for each in usage:
            assert each["cpu_s"] > 0
            assert each["samples"][-1][1] == each["cpu_s"]
            assert 0 <= each["samples"][0][0] < 0.5 * facts["time_s"]
    assert integral["up"] == total_bytes(done.log)["up"]


def stamps_of(done: ThreadedRun) -> tuple[dict[str, Any], dict[str, dict[str, int]]]:
    """Return the stamps with rows as lists, and the place of each column in them."""
    plain = done.outcome.facts["stamps"]
    names = plain["columns"]
    tables = {"pushes": "push", "said": "said", "answers": "answer"}
    stamps = {name: rows_of(plain[name], names[of]).tolist() for name, of in tables.items()}
    own = {"rows": "worker", "said": "worker said"}
    stamps["workers"] = {
        worker: each | {name: rows_of(each[name], names[of]).tolist() for name, of in own.items()}
        for worker, each in plain["workers"].items()
    }
    return stamps, {name: {column: i for i, column in enumerate(own)} for name, own in names.items()}


def check_stamps(done: ThreadedRun, *, with_server: bool) -> None:
    """Of each push there is, in this order: received, begun, created, sent; received, dequeued, decided."""
    stamps, at = stamps_of(done)
    created = {}
    answered = {(worker, ticket): when for worker, ticket, when in stamps["answers"]}
    for number in range(2):
        own = stamps["workers"][f"worker {number}"]
        assert len(own["clocks"]) == 2  # before and after
        for row in own["rows"]:
            times = [row[at["worker"][f"{name}_s"]] for name in ("received", "begun", "created", "sent")]
            assert times == sorted(times)
            assert row[at["worker"]["cpu_s"]] > 0
            whole = row[at["worker"]["wall_s"]] + row[at["worker"]["paced_s"]]
            assert whole <= times[2] - times[1] + 1e-6
            created[number, row[0]] = times[2]
    assert len(stamps["pushes"]) == len(done.log.of_kind(Kind.PUSH)["time_s"])
    for row in stamps["pushes"]:
        times = [row[at["push"][f"{name}_s"]] for name in ("received", "dequeued", "decided")]
        assert times == sorted(times)
        assert times[0] > created[row[0], row[1]]  # one clock; it may be there before the sender goes on
        assert answered.get((row[0], row[1] + 1), math.inf) > times[-1]
    applied = [row[at["push"]["applied_s"]] for row in stamps["pushes"]]
    assert any(applied) == with_server  # else replicas apply
    assert answered.keys() >= created.keys()


@pytest.mark.parametrize("codec", ["one_bit", "none"])
def test_every_server_says_what_it_served_and_what_codecs_took(codec: str) -> None:
    """A stay for each push that is taken, each update and each answer; codecs are timed at both ends."""
    strategy = {"name": "bsp", "servers": 2, "codec": codec}
    done = ThreadedRun(experiment(strategy, workers=2, connection={"stamps": True})).run()
    stamps, pushes = done.outcome.facts["stamps"], done.log.of_kind(Kind.PUSH)
    updates = int(done.log.of_kind(Kind.APPLY)["version"].max())
    assert sorted(stamps["servers"]) == ["server 0", "server 1"]
    for own in stamps["servers"].values():
        seconds = {name: rows_of(text, ["s"])[:, 0] for name, text in own.items()}
        assert len(seconds["waiting"]) >= len(pushes["time_s"])
        assert len(seconds["updating"]) == updates
        assert len(seconds["serving"]) > len(seconds["waiting"]) + updates  # and the answers
        assert sum(seconds["updating"]) + sum(seconds["decoding"]) < sum(seconds["serving"])
        assert (len(seconds["decoding"]), len(seconds["encoding"]) > 0) == (
            (len(seconds["waiting"]), True) if codec == "one_bit" else (0, False)
        )
        assert all(min(each, default=1.0) > 0 for name, each in seconds.items() if name != "waiting")
    for own in stamps["workers"].values():
        encoding, decoding = (rows_of(own[name], ["s"]) for name in ("encoding", "decoding"))
        assert (len(encoding) > 0, len(decoding) > 0) == ((codec == "one_bit",) * 2)
        assert len(encoding) == 0 or encoding.min() > 0


_HERMES = {"name": "hermes", "chunk_samples": 48, "passes": 1, "alpha": -0.1, "patience": 1}


@pytest.mark.parametrize(("strategy", "is_vote"), [("selsync", 1), (_HERMES, 0)])
def test_votes_and_reports_have_stamps(strategy: Any, is_vote: int) -> None:
    """Each was created before it was sent, and then received, dequeued and decided about, in order."""
    done = ThreadedRun(experiment(strategy, workers=2, connection={"stamps": True})).run()
    stamps, at = stamps_of(done)
    sent = {
        (number, row[at["worker said"]["ticket"]], each): row
        for number in range(2)
        for each, row in enumerate(stamps["workers"][f"worker {number}"]["said"])
    }
    counts = [0, 0]
    assert stamps["said"]
    for row in stamps["said"]:
        worker, ticket = int(row[0]), row[1]
        mine = sent.pop((worker, ticket, counts[worker]))
        counts[worker] += 1
        assert row[at["said"]["is_vote"]] == mine[at["worker said"]["is_vote"]] == is_vote
        created, received, dequeued, decided = mine[1], *row[2:5]
        assert created < received <= dequeued <= decided
        assert created < mine[at["worker said"]["sent_s"]]
    assert len(sent) <= 2  # the last may be on their way


def test_one_worker_of_all_reduce_gives_the_simulated_parameters() -> None:
    spec = experiment("all_reduce", workers=1)
    assert torch.equal(ThreadedRun(spec).run().parameters, simulated(spec).parameters)


@pytest.mark.parametrize("servers", [1, 3])
def test_bsp_equals_the_simulated_run_whatever_the_number_of_servers(servers: int) -> None:
    spec = experiment({"name": "bsp", "placement": {"name": "parameter_server", "servers": servers}})
    done = ThreadedRun(spec).run()
    assert torch.equal(done.parameters, simulated(spec).parameters)


def test_all_reduce_keeps_replicas_identical_and_equals_bsp() -> None:
    done = ThreadedRun(experiment("all_reduce")).run()
    replicas = [worker.member.replica.parameters for worker in done.workers.values()]
    assert all(torch.equal(replica, done.parameters) for replica in replicas)
    torch.testing.assert_close(done.parameters, simulated(experiment("bsp")).parameters, rtol=1e-5, atol=1e-6)


@pytest.mark.nightly
def test_running_statistics_are_averaged_alike_under_bsp_and_all_reduce() -> None:
    small = {"data": {"name": "digits"}, "model": "resnet20", "batch_size": 8, "stop": {"updates": 2}}
    ring, sharded, server = (
        ThreadedRun(experiment(s, workers=2, **small)).run() for s in ("all_reduce", "fsdp", "bsp")
    )
    torch.testing.assert_close(ring.parameters, server.parameters, rtol=1e-4, atol=1e-4)
    statistics = [worker.member.replica.buffers for worker in ring.workers.values()]
    assert len(statistics[0])
    assert torch.equal(*statistics)
    assert torch.equal(ring.parameters, sharded.parameters)
    assert torch.equal(statistics[0], sharded.workers[1].member.replica.buffers)
    torch.testing.assert_close(
        statistics[0], server.coordinator.first_server.slice.server.buffers, rtol=1e-4, atol=1e-5
    )


class DiesInItsFifthStep(Worker):
    """Worker 1 is lost while it computes."""

    def _step(self) -> Any:
        if self.worker == 1 and self.loop.ticket >= 5:
            raise Killed
        return super()._step()


def stop_when(true: Callable[[ThreadedRun], bool]) -> Callable[[ThreadedRun, Any], None]:
    """Return what asks to stop, once, when the log shows what a test waits for."""
    asked: list[bool] = []

    def on_rows(done: ThreadedRun, client: Any) -> None:
        if not asked and true(done):
            asked.append(True)
            client.send(RequestStop(checkpoint=False))

    return on_rows


def survivors_went_on(done: ThreadedRun) -> bool:
    """Whether there are ten versions since a worker left."""
    seen = kinds(done)
    return Kind.LEAVE in seen and seen[seen.index(Kind.LEAVE) :].count(Kind.APPLY) >= 20


THREE_SERVERS = {"name": "asp", "placement": {"name": "parameter_server", "servers": 3}}


LOCAL_RING = {"name": "local_sgd", "placement": "all_reduce"}
VOTING = [{"name": "selsync", "delta": 0.0}, {"name": "selsync", "delta": 0.0, "aggregate": "gradient"}]


@pytest.mark.by_day(5)
@pytest.mark.parametrize(
    "strategy",
    [
        *("k_bsp", "all_reduce", THREE_SERVERS, LOCAL_RING, *VOTING, "osp", "flex_rr", "bounded_step"),
        *at_night("bsp", "asp", "ssp", "k_asp", "local_sgd", "adacomm"),
    ],
    ids=str,
)
def test_a_lost_worker_is_done_without(strategy: Any) -> None:
    spec = experiment(strategy, stop={"updates": 10**9})
    done = ThreadedRun(spec, DiesInItsFifthStep).run(stop_when(survivors_went_on))
    assert done.error is None
    assert done.outcome.status == "stopped"
    assert done.outcome.facts["lost_workers"] == [1]
    assert kinds(done).count(Kind.LEAVE) == 1


class DiesWhenACheckpointIsWritten(Worker):
    """Worker 1 is lost when it is asked for its part of one."""

    def _send_state(self, order: Any) -> None:
        if self.worker == 1:
            raise Killed
        super()._send_state(order)


def test_a_checkpoint_waits_no_longer_for_a_worker_that_is_lost() -> None:
    spec = experiment("asp", stop={"updates": 10**9}, checkpoint_every=0.5)
    three = stop_when(lambda done: len(done.checkpoints) >= 3)
    done = ThreadedRun(spec, DiesWhenACheckpointIsWritten).run(three)
    assert done.error is None
    epochs = [float(label.removeprefix("epoch-")) for label in done.checkpoints[:3]]
    assert [int(2 * epoch) / 2 for epoch in epochs] == [0.5, 1.0, 1.5]
    assert done.outcome.facts["lost_workers"] == [1]
    assert [sorted(part.state["workers"]) for part in list(done.stored.values())[:2]] == [["0", "2"]] * 2


class SendsWhatIsNoMessage(Worker):
    """Worker 1 sends the last server what nobody can decode, and stays."""

    def _step(self) -> Any:
        if self.worker == 1 and self.loop.ticket == 5:
            self.servers[-1].send_frame(Frame(200, b"", None))
        return super()._step()


@pytest.mark.parametrize("strategy", ["asp", THREE_SERVERS], ids=str)
def test_a_message_that_cannot_be_decoded_costs_the_run_its_sender_only(strategy: Any) -> None:
    spec = experiment(strategy, stop={"updates": 10**9})
    done = ThreadedRun(spec, SendsWhatIsNoMessage).run(stop_when(survivors_went_on))
    assert done.error is None
    assert done.outcome.status == "stopped"
    assert done.outcome.facts["lost_workers"] == [1]


def test_a_worker_that_was_dismissed_is_not_taken_for_dead() -> None:
    peers = Peers(["worker 0", "evaluator"])
    for name in ("worker 0", "evaluator"):
        peers.connect(name)
    assert peers.to_look_at == ("evaluator", "worker 0")
    peers.dismiss("worker 0")
    assert peers.to_look_at == ("evaluator",)


@pytest.mark.parametrize("reports_first", [True, False])
def test_the_end_waits_for_no_report_that_is_here_or_never_comes(reports_first: bool) -> None:
    peers = Peers(["worker 0", "worker 1"])
    for name in ("worker 0", "worker 1"):
        peers.connect(name)
    if reports_first:
        peers.report("worker 0", UsageReport(0, 1, 0.0, 1.0, 1.0, 1.0, []))
    for name in ("worker 0", "worker 1"):
        peers.dismiss(name)
    assert peers.without_usage == (["worker 1"] if reports_first else ["worker 0", "worker 1"])
    for name in ("worker 0", "worker 1"):
        peers.lose(name)
    assert peers.have_reported


class DiesInTheRing(RingMember):
    """Worker 1 is lost in its fourth ring, before it has received piece number `step`."""

    step = 0

    def _await_piece(self, number: int, step: int, server: Any = None) -> torch.Tensor:
        self.rings = getattr(self, "rings", set()) | {number}
        if self.worker == 1 and len(self.rings) == 4 and step == type(self).step:
            raise Killed
        return super()._await_piece(number, step, server)


@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_a_ring_that_loses_a_member_is_settled_among_the_survivors(step: int) -> None:
    dying = type("Dying", (DiesInTheRing,), {"step": step})
    done = ThreadedRun(experiment("all_reduce"), type("Its", (Worker,), {"member_class": dying})).run()
    assert done.error is None
    assert done.outcome.facts["lost_workers"] == [1]
    survivors = [done.workers[w].member.replica.parameters for w in (0, 2)]
    assert torch.equal(*survivors)
    assert torch.equal(survivors[0], done.parameters)
    made = done.log.of_kind(Kind.APPLY)["version"]
    assert sorted(set(made.tolist())) == list(range(1, 13))


class AllDie(Worker):
    """Everybody is lost in the third step."""

    def _step(self) -> Any:
        if self.loop.ticket >= 3:
            raise Killed
        return super()._step()


@pytest.mark.parametrize("strategy", ["asp", "bsp", "all_reduce"])
def test_nobody_left_ends_the_run(strategy: str) -> None:
    done = ThreadedRun(experiment(strategy, workers=2), AllDie).run()
    assert isinstance(done.error, WorkerLost)


class Fails(Worker):
    """Worker 1 has a bug."""

    def _step(self) -> Any:
        if self.worker == 1 and self.loop.ticket >= 2:
            raise ZeroDivisionError("a bug of worker 1")
        return super()._step()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failing_worker_ends_the_run_with_its_traceback() -> None:
    # where workers do not wait, the others may have made all updates before worker 1 comes to its bug
    done = ThreadedRun(experiment("bsp"), Fails).run()
    assert isinstance(done.error, PeerFailed)
    assert "a bug of worker 1" in str(done.error)
    assert "in _step" in str(done.error)


def test_a_switch_moves_model_and_momentum_both_ways() -> None:
    for first, second in (("all_reduce", "bsp"), ("bsp", "all_reduce")):
        pair = {"name": "strategy_switch", "first": first, "second": second, "momentum": "keep"}
        spec = experiment(pair | {"rule": {"name": "after", "fraction": 0.5}}, stop={"epochs": 0.2})
        done = ThreadedRun(spec).run()
        assert kinds(done).count(Kind.HANDOVER) == 1
        assert len(done.checkpoints) == 1
        plain = simulated(experiment("bsp", stop={"epochs": 0.2}))
        torch.testing.assert_close(done.parameters, plain.parameters, rtol=1e-4, atol=1e-5)


def test_without_its_momentum_a_switch_gives_another_model() -> None:
    pair = {"name": "strategy_switch", "first": "all_reduce", "second": "bsp"}
    spec = experiment(pair | {"rule": {"name": "after", "fraction": 0.5}}, stop={"epochs": 0.2})
    torch.testing.assert_close(
        ThreadedRun(spec).run().parameters, simulated(spec).parameters, rtol=1e-4, atol=1e-5
    )


def test_a_switch_by_hand_and_then_a_stop() -> None:
    asked: list[str] = []

    def on_rows(done: ThreadedRun, client: Any) -> None:
        if "switch" not in asked and len(done.log) > 20:
            asked.append("switch")
            client.send(RequestSwitch(None))
        if "stop" not in asked and Kind.HANDOVER in kinds(done):
            asked.append("stop")
            client.send(RequestStop(checkpoint=False))

    pair = {"name": "strategy_switch", "first": "all_reduce", "second": "asp", "rule": "manual"}
    done = ThreadedRun(experiment(pair, stop={"updates": 10**9})).run(on_rows)
    assert done.outcome.status == "stopped"
    assert kinds(done).count(Kind.SWITCH_REQUESTED) == 1


def test_three_strategies_in_a_row_by_time_by_rule_and_back_by_hand() -> None:
    asked: list[str] = []

    def on_rows(done: ThreadedRun, client: Any) -> None:
        handed_over = kinds(done).count(Kind.HANDOVER)
        if "switch" not in asked and handed_over == 2:
            asked.append("switch")
            client.send(RequestSwitch(0))
        if handed_over == 3:
            client.send(RequestStop(checkpoint=False))

    # the time is that of the first: a busy machine may not have switched before by the other rule
    pair = {"name": "strategy_switch", "first": "all_reduce", "second": "asp"}
    pair |= {"rule": {"name": "at_time", "at_s": 0.3}}
    after = {"name": "after", "fraction": 1e-7, "whole_epochs": False}
    then = [{"to": "bsp", "rule": after, "momentum": "keep"}]
    spec = experiment(pair | {"then": then}, stop={"epochs": 10**6})
    done = ThreadedRun(spec).run(on_rows)
    assert done.outcome.status == "stopped"
    assert done.log.of_kind(Kind.HANDOVER)["id"].tolist() == [1, 2, 0]
    asked_at = done.log.of_kind(Kind.SWITCH_REQUESTED)
    assert asked_at["id"].tolist() == [1, 0]
    assert asked_at["time_s"][0] >= 0.3


def test_a_slow_worker_of_the_profile_is_emulated() -> None:
    spec = experiment("asp", workers=2, cluster={"workers": 2, "speed": [1, 0.1]}, stop={"updates": 10**9})

    def slow_pushed(done: ThreadedRun) -> bool:
        return int((done.log.of_kind(Kind.PUSH)["worker"] == 1).sum()) >= 5

    pushes = ThreadedRun(spec).run(stop_when(slow_pushed)).log.of_kind(Kind.PUSH)
    fast, slow = (pushes["compute_s"][pushes["worker"] == w] for w in (0, 1))
    assert len(fast) > 0
    assert min(slow) > 3 * min(fast)  # ten times, less what a step's own time varies


def test_a_diverging_run_names_the_push() -> None:
    spec = experiment("asp", workers=2, optimizer={"name": "sgd", "lr": 1e30}, stop={"updates": 1000})
    done = ThreadedRun(spec).run()
    assert done.outcome.status == "diverged"
    assert "of worker" in done.outcome.reason


@pytest.mark.filterwarnings("ignore::psbench.errors.DoubtfulComposition")
@pytest.mark.parametrize(
    "strategy",
    [
        {"name": "local_sgd", "local_steps": 7},
        *at_night({"name": "diloco", "local_steps": 7}, {"name": "selsync", "aggregate": "gradient"}),
        {"name": "streaming_diloco", "local_steps": 6},
    ],
    ids=str,
)
def test_the_rates_of_own_steps_are_those_of_a_simulated_run(strategy: Any) -> None:
    """Which are torch's: `tests/strategies/communication/test_own_rates.py`."""
    schedule = {"name": "linear", "epochs": 3, "warmup": 1}
    spec = experiment(strategy, optimizer={"name": "sgd", "lr": 0.3, "schedule": schedule}, batch_size=24)
    torch.testing.assert_close(ThreadedRun(spec).run().parameters, simulated(spec).parameters)


def test_the_rates_of_peers_are_those_of_a_simulated_run() -> None:
    """A worker may be one exchange ahead at the end: by then the rate is 0 and every model is their mean."""
    spec = experiment(
        "d_psgd",
        optimizer={"name": "sgd", "lr": 0.3, "schedule": {"name": "linear", "epochs": 1, "warmup": 0.2}},
        batch_size=192,
        stop={"updates": 30},
    )
    torch.testing.assert_close(ThreadedRun(spec).run().parameters, simulated(spec).parameters)
