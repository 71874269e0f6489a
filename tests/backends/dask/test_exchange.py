"""Live, an exchange of several sums: what is logged is sent, and a member that is lost is done without."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from test_live_workers import experiment, played, simulated
from threaded_run import Killed, ThreadedRun

from psbench import strategies
from psbench.backends.control import Control
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.messages import Summand
from psbench.backends.dask.server.adder import Adder
from psbench.backends.dask.worker import ring_member
from psbench.backends.dask.worker.worker import Worker
from psbench.backends.simulated.simulation import run_simulated
from psbench.core.log import EventLog, Kind
from psbench.core.view import ClusterView
from psbench.strategies.communication import LocalSGD
from psbench.testing import toy_experiment
from psbench.training.build import Workload

pytestmark = pytest.mark.usefixtures("one_torch_thread")

POWER = {"name": "power_sgd", "rank": 2, "start_iter": 2, "min_compression_rate": 1.0}
ADAM = {"name": "one_bit_adam", "freeze_step": 3}
SERVERS = {"name": "summing_servers", "servers": 2}


SENT: list[int] = []


class Counting(ring_member.ClientSocket):
    """Notes the bytes of the pieces that it sends."""

    def send(self, message: Message) -> None:
        if isinstance(message, ring_member.RingPiece):
            SENT.append(message.payload.numel() * message.payload.element_size())
        super().send(message)


@pytest.mark.parametrize("strategy", [POWER, ADAM], ids=lambda each: each["name"])
def test_two_workers_send_what_is_logged_and_train_the_simulated_model(
    strategy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_member, "ClientSocket", Counting)
    SENT.clear()
    small = {"optimizer": {"name": "sgd", "lr": 1e-3}} if strategy is ADAM else {}  # Adam's steps are long
    done = played(strategy, **small)
    parameters, log = simulated(done.experiment)
    assert torch.equal(done.parameters, parameters)
    told, expected = done.log.of_kind(Kind.PUSH), log.of_kind(Kind.PUSH)
    assert sorted(told["bytes"]) == sorted(expected["bytes"])
    assert len(set(told["bytes"])) == 2
    assert sum(SENT) == pytest.approx(2 * told["bytes"].sum(), abs=len(told))  # as much in the all-gather
    one, other = (worker.member.replica.tensors() for worker in done.workers.values())  # type: ignore[union-attr]
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("strategy", "servers"), [(POWER, 2), (ADAM, 1), ({"name": "bsp"}, 2)], ids=str)
def test_servers_add_up_what_is_logged_in_the_order_of_the_simulator(
    strategy: Any, servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three workers, whose sums depend on their order: a ring's are others in the last bits."""
    given, taken = [0, 0], Adder.take

    def take(adder: Adder, sender: str, summand: Summand) -> None:
        given[0] += summand.payload.nbytes
        given[1] += summand.server
        taken(adder, sender, summand)

    monkeypatch.setattr(Adder, "take", take)
    small = {"optimizer": {"name": "sgd", "lr": 1e-3}} if strategy is ADAM else {}
    done = played(strategy | {"placement": SERVERS | {"servers": servers}}, 3, **small)
    parameters, log = simulated(done.experiment)
    assert torch.equal(done.parameters, parameters)
    told, expected = done.log.of_kind(Kind.PUSH), log.of_kind(Kind.PUSH)
    assert sorted(told["bytes"]) == sorted(expected["bytes"])
    assert given[0] == told["bytes"].sum()
    assert bool(given[1]) == (servers > 1)


@pytest.mark.parametrize("strategy", [{"name": "all_reduce", "codec": "fp16"}, POWER, ADAM], ids=str)
def test_groups_add_up_what_one_ring_does(strategy: Any) -> None:
    """Five workers in groups of two, two and one; the order of a sum, and nothing else, is another."""
    small = {"optimizer": {"name": "sgd", "lr": 1e-3}}
    one = played(strategy, 5, **small)
    done = played(strategy | {"algorithm": "hierarchical", "group_size": 2}, 5, **small)
    torch.testing.assert_close(done.parameters, one.parameters, rtol=1e-3, atol=1e-4)
    replicas = [worker.member.replica.parameters for worker in done.workers.values()]  # type: ignore[union-attr]
    assert all(torch.equal(each, replicas[0]) for each in replicas)
    said = [text for text in done.incidents if "All-Reduce" in text]
    assert len(said) == 1
    assert "in 3 groups of 1 to 2 workers, then between them: about " in said[0]


class Large(torch.nn.Module):
    """A network whose running variances are larger than any number of 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(x * 1000.0))


def with_statistics_of_the_simulator(strategy: Any) -> int:
    """Play three versions, whose statistics are to be those of the simulator; return the bytes told."""
    torch.manual_seed(0)
    cluster = {"workers": 2, "step_time": "constant"}
    run = toy_experiment(strategy, model=Large(), batch_size=12, cluster=cluster, stop={"updates": 3})
    done = ThreadedRun(run.but(backend="dask")).run()
    assert done.error is None
    expected = run_simulated(Workload.build(run), EventLog(), Control()).buffers
    assert expected is not None
    assert expected.max() > torch.finfo(torch.float16).max
    torch.testing.assert_close(done.outcome.tensors["buffers"], expected, rtol=1e-6, atol=0)
    return int(done.log.of_kind(Kind.PUSH)["bytes"].sum())


@pytest.mark.parametrize(("codec", "messages"), [("none", 12), ("fp16", 24)])
def test_a_ring_adds_running_statistics_up_as_floats(
    codec: str, messages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_member, "ClientSocket", Counting)
    SENT.clear()
    told = with_statistics_of_the_simulator({"name": "all_reduce", "codec": codec})
    assert sum(SENT) == 2 * told  # as much in the all-gather
    assert len(SENT) == messages  # without a codec they travel with the gradient


@pytest.mark.parametrize(("codec", "messages"), [("none", 12), ("fp16", 18)])
def test_servers_add_running_statistics_up_as_floats(
    codec: str, messages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, taken = [], Adder.take

    def take(adder: Adder, sender: str, summand: Summand) -> None:
        given.append(summand.payload.nbytes)
        taken(adder, sender, summand)

    monkeypatch.setattr(Adder, "take", take)
    told = with_statistics_of_the_simulator({"name": "bsp", "placement": SERVERS, "codec": codec})
    assert sum(given) == told
    assert len(given) == messages  # the first server is sent them alone


class StepsByNumber(LocalSGD):
    """Worker n takes 1 + 2 n steps."""

    name: ClassVar[str] = "steps_by_number"

    def on_release(self, worker: int, view: ClusterView) -> dict[str, Any]:
        return {"local_steps": 1 + 2 * worker}


@pytest.mark.parametrize("placement", ["all_reduce", SERVERS], ids=["ring", "servers"])
def test_statistics_of_differences_count_by_the_samples_of_a_step(placement: Any) -> None:
    """They counted by all samples of a push, where these are added up on their way."""
    strategy = strategies.diloco(placement=placement).model_copy(update={"communication": StepsByNumber()})
    with_statistics_of_the_simulator(strategy)


def test_what_is_left_of_a_broken_sum_is_dropped() -> None:
    sent: list[tuple[str, Any]] = []
    adder = Adder(lambda name, message: sent.append((name, message)))

    def give(order: int, place: int, size: int, *numbers: float) -> None:
        part = torch.tensor(numbers)
        adder.take(f"worker {place}", Summand(order, 0, place, size, 0.5, 0.25, 1, part))

    give(1, 0, 3, 1.0, 2.0, 8.0)  # of three, of which one is lost
    give(1, 2, 3, 1.0, 2.0, 8.0)
    give(2, 1, 2, 3.0, 4.0, 4.0)
    give(1, 1, 3, 9.0, 9.0, 9.0)  # late
    assert not sent
    give(2, 0, 2, 5.0, 6.0, 4.0)
    assert [name for name, _ in sent] == ["worker 0", "worker 1"]
    assert all(answer.ring == 2 and answer.payload.tolist() == [4.0, 5.0, 2.0] for _, answer in sent)


class LeavesASum(ring_member.RingMember):
    """Worker 2 dies in the second sum that makes version 4, before it has the piece of that step."""

    step: ClassVar[int]
    settled: ClassVar[set[str]] = set()

    def _await_piece(self, number: int, step: int, server: Any = None) -> torch.Tensor:
        if self.worker == 2 and step == self.step and self.replica.state.get("factors") is not None:
            raise Killed
        return super()._await_piece(number, step, server)

    def _add_up(self, order: Any) -> Any:
        assert order.weight * order.place.size == pytest.approx(1.0)  # also of those that are left
        return super()._add_up(order)

    def _await_settlement(self) -> Any:
        found = super()._await_settlement()
        self.settled.add(type(found).__name__)
        return found


@pytest.mark.parametrize(
    ("placement", "step", "settled"),
    [("all_reduce", 12, "StartRing"), ("all_reduce", 14, "TakeSum"), (SERVERS, 1, "StartRing")],
    ids=["ring, begun anew", "ring, taken", "servers, begun anew"],
)
def test_a_member_that_dies_between_two_sums_is_done_without(placement: Any, step: int, settled: str) -> None:
    """All begin anew; or one has the sum already, with the factors, and gives both to the other."""

    class Dying(Worker):
        member_class = type("Leaves", (LeavesASum,), {"step": step})

    LeavesASum.settled.clear()
    strategy = POWER | {"placement": placement}
    done = ThreadedRun(experiment(strategy, 3, stop={"updates": 4}), Dying).run()
    assert done.error is None
    assert done.outcome.facts["lost_workers"] == [2]
    assert LeavesASum.settled == {settled}
    one, other = (done.workers[worker].member.replica for worker in range(2))  # type: ignore[union-attr]
    assert torch.equal(one.parameters, other.parameters)
    assert torch.equal(one.state["factors"], other.state["factors"])
    sent = []
    for worker in (done.workers[0], done.workers[1]):
        assert worker.member.contribution is not None  # type: ignore[union-attr]
        assert worker.exchange.residual is not None
        sent.append(worker.member.contribution[0] - worker.exchange.residual)  # type: ignore[union-attr]
    matrix = slice(0, 64 * 64)  # both have left out what they gave beyond the one aggregate
    torch.testing.assert_close(sent[0][matrix], sent[1][matrix], rtol=1e-5, atol=1e-6)
