"""Live, an exchange of several sums: what is logged is sent, and a member that is lost is done without."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from test_live_workers import experiment, played, simulated
from threaded_run import Killed, ThreadedRun

from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.worker import ring_member
from psbench.backends.dask.worker.worker import Worker
from psbench.core.log import Kind

pytestmark = pytest.mark.usefixtures("one_torch_thread")

POWER = {"name": "power_sgd", "rank": 2, "start_iter": 2, "min_compression_rate": 1.0}
ADAM = {"name": "one_bit_adam", "freeze_step": 3}


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


class LeavesASum(ring_member.RingMember):
    """Worker 2 dies in the second sum that makes version 4, before it has the piece of that step."""

    step: ClassVar[int]
    settled: ClassVar[set[str]] = set()

    def _await_piece(self, number: int, step: int) -> torch.Tensor:
        if self.worker == 2 and step == self.step and self.replica.state.get("factors") is not None:
            raise Killed
        return super()._await_piece(number, step)

    def _await_settlement(self) -> Any:
        found = super()._await_settlement()
        self.settled.add(type(found).__name__)
        return found


@pytest.mark.parametrize(("step", "settled"), [(4, "StartRing"), (6, "TakeSum")])
def test_a_member_that_dies_between_two_sums_is_done_without(step: int, settled: str) -> None:
    """All begin anew; or one has the sum already, with the factors, and gives both to the other."""

    class Dying(Worker):
        member_class = type("Leaves", (LeavesASum,), {"step": step})

    LeavesASum.settled.clear()
    done = ThreadedRun(experiment(POWER, 3, stop={"updates": 4}), Dying).run()
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
