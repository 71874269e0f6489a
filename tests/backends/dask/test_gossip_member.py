"""A worker's dealings with its neighbours, message by message: sockets are lists, and none waits."""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import psbench as ps
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.roles import Address
from psbench.backends.dask.protocol.transport import Received
from psbench.backends.dask.worker.gossip_member import GossipMember
from psbench.backends.dask.worker.mailbox import Mailbox
from psbench.training.build import Workload
from psbench.training.local_model import LocalModel

EXPERIMENT = {"strategy": "d_psgd_step_first", "data": "digits", "backend": "dask", "batch_size": 12}


class Wire:
    """What has come from one side; nothing else ever comes."""

    lost, has_message = False, True

    def __init__(self) -> None:
        self.came = deque[Any]()
        self.looks = 0

    def receive(self, timeout_s: float) -> Any:
        self.looks = 0 if self.came else self.looks + 1
        assert self.looks < 5, "it waits for good"
        return self.came.popleft() if self.came else None

    def close(self) -> None:
        """Nothing is open."""


@cache
def workload() -> Workload:
    return Workload.build(ps.Experiment(**EXPERIMENT, cluster={"workers": 3}))


class Member(GossipMember):
    """Worker 0 of three; what it sends to others is in `sent`."""

    def __init__(self) -> None:
        self.orders, self.peers, self.sent = Wire(), Wire(), list[tuple[int, msg.PeerModel]]()
        coordinator: Any = self.orders
        super().__init__(0, Mailbox(coordinator), self.peers, b"key", None)
        self.begin_anew()
        self.set_addresses({1: Address("one"), 2: Address("two")})

    def begin_anew(self) -> None:
        """Begin with an empty model, as a worker that was halted does."""
        composition = workload().experiment.strategy.compositions[0]
        model = LocalModel(composition, workload().optimizers[1], [])
        self.compose(composition, workload(), model)

    def _neighbour(self, worker: int) -> Any:
        class Link:
            def send(_, message: msg.PeerModel) -> None:
                self.sent.append((worker, message))

        return Link()

    def came(self, worker: int, key: int, value: float, ticket: int = -1) -> None:
        """Have another's model come, all of whose entries have a value."""
        tensors = {"parameters": torch.full((4,), value), "buffers": torch.zeros(0)}
        self.peers.came.append(Received(f"worker {worker}", msg.PeerModel(worker, key, tensors, ticket)))

    def own(self, value: float) -> None:
        self._model.parameters, self._model.buffers = torch.full((4,), value), torch.zeros(0)

    def mixed_by(self, order: msg.MixModels) -> Tensor | None:
        self.handle(order)
        self.settle()
        found, self.mixed = self.mixed, None
        return None if found is None else found[0]


@pytest.fixture
def member() -> Member:
    return Member()


def test_a_halted_worker_keeps_the_model_that_it_is_to_begin_with(member: Member) -> None:
    """It had come before the order to halt was read, and the worker waited for it for good."""
    member.own(1.0)
    member.came(1, -7, 5.0)
    member.came(2, 0, 3.0)
    found = member.mixed_by(msg.MixModels(0, 0, {0: 0.5, 2: 0.5}, 7))
    assert torch.equal(found, torch.full((4,), 2.0))
    member.begin_anew()
    assert torch.equal(member.mixed_by(msg.MixModels(0, -7, {1: 1.0}, 7)), torch.full((4,), 5.0))


def test_a_worker_that_joins_takes_the_model_of_another_giver(member: Member) -> None:
    """It raised an error, with which the run ended."""
    member.orders.came += [
        msg.SendModel(9, False),
        msg.NeighbourLost(1, 8),
        msg.MixModels(0, -8, {2: 1.0}, 8),
    ]
    member.came(2, -8, 6.0)
    assert torch.equal(member.mixed_by(msg.MixModels(0, -7, {1: 1.0}, 7)), torch.full((4,), 6.0))
    assert isinstance(member.mailbox.next(0), msg.SendModel)  # which came meanwhile


def of_a_group(number: int, *lost: int) -> msg.MixModels:
    return msg.MixModels(0, -number - 1, {0: 0.25, 1: 0.25, 2: 0.5}, number, [*lost], meet=True)


def piece(number: int, step: int, *values: float) -> Received:
    return Received("worker 2", msg.RingPiece(number, step, torch.tensor(values)))


def test_a_group_adds_up_in_a_ring(member: Member) -> None:
    """Of four entries in three pieces; pieces of a later ring, and a model, may come before its own."""
    member.own(4.0)
    member.came(1, 5, 9.0)
    member.peers.came += [piece(8, 0, 7.0), piece(7, 0, 1.0), piece(7, 1, 2.0)]
    member.peers.came += [piece(7, 2, 6.0, 6.0), piece(7, 3, 5.0)]
    found = member.mixed_by(of_a_group(7))
    # of its quarter of 4, 1 each, it adds the second piece up; it is sent the first and the third
    assert found.tolist() == [6.0, 6.0, 3.0, 5.0]
    assert [worker for worker, _ in member.sent] == [1] * 4
    assert [message.ring for _, message in member.sent] == [7] * 4
    assert [*member._pieces] == [(8, 0)]
    assert (1, 5, -1) in member._arrived


def test_a_member_that_is_lost_leaves_the_others_with_their_own_models(member: Member) -> None:
    member.own(4.0)
    member.peers.came.append(piece(7, 0, 1.0))
    member.orders.came.append(msg.NeighbourLost(2, 8))
    assert member.mixed_by(of_a_group(7)) is None
    assert torch.equal(member._model.parameters, torch.full((4,), 4.0))
    # one that was lost before is in no ring
    member.peers.came += [piece(9, 0, 1.0, 1.0), piece(9, 1, 2.0, 2.0)]
    found = member.mixed_by(of_a_group(9, 2))
    assert len(found) == 4


def test_a_giver_that_is_lost_after_it_has_given_changes_nothing(member: Member) -> None:
    member.came(1, -7, 5.0)
    member.mixed_by(msg.MixModels(0, -7, {1: 1.0}, 7))
    member.own(5.0)
    assert member.mixed_by(msg.MixModels(0, -8, {2: 1.0}, 8)) is None


def test_a_worker_that_is_halted_while_it_waits_for_a_giver_begins_anew(member: Member) -> None:
    member.orders.came += [msg.NeighbourLost(1, 8), msg.Halt(), msg.MixModels(0, -9, {2: 1.0}, 9)]
    assert member.mixed_by(msg.MixModels(0, -7, {1: 1.0}, 7)) is None
    assert isinstance(member.mailbox.next(0), msg.Halt)
    assert member.mailbox.next(0).key == -9


def test_models_of_exchanges_before_are_not_kept(member: Member) -> None:
    """One comes for an exchange that the worker makes without it, or twice."""
    member.own(1.0)
    for key in (0, 1):
        member.came(1, key, 3.0)
        member.came(2, key, 5.0)
        member.mixed_by(msg.MixModels(0, key, {0: 0.5, 2: 0.5}, 7))
    assert [name[:2] for name in member._arrived] == [(1, 1)]


def test_what_is_sent_stays_as_it_was_sent(member: Member) -> None:
    """The model goes on changing while its vector is on its way, and it may be sent again."""
    member.own(1.0)
    member.spread(0)
    member.spread(1, member._model.parameters)
    member._model.parameters.fill_(9.0)
    assert len(member.sent) == 4
    assert all(torch.equal(sent.tensors["parameters"], torch.ones(4)) for _, sent in member.sent)


def test_what_is_sent_again_is_for_a_later_release(member: Member) -> None:
    """A worker that still made an exchange of before took it, and had nothing for the same one of after."""
    member.own(1.0)
    member.ticket = 2
    member.came(1, 0, 7.0, ticket=3)
    member.came(1, 0, 3.0)
    order = msg.MixModels(0, 0, {0: 0.5, 1: 0.5}, 7)
    assert torch.equal(member.mixed_by(order), torch.full((4,), 2.0))
    member.ticket = 3
    assert torch.equal(member.mixed_by(order), torch.full((4,), 4.0))


def test_what_is_for_a_later_release_outlives_exchanges_of_before(member: Member) -> None:
    """Who begins again with another's model may be at an earlier version than it was."""
    member.own(1.0)
    member.ticket = 2
    member.came(1, 0, 7.0, ticket=3)
    member.came(1, 2, 3.0)
    member.mixed_by(msg.MixModels(0, 2, {0: 0.5, 1: 0.5}, 7))
    member.ticket = 3
    found = member.mixed_by(msg.MixModels(0, 0, {0: 0.5, 1: 0.5}, 9))
    assert torch.equal(found, torch.full((4,), 4.0))


def test_a_worker_sends_again_the_last_two_models_to_one_that_joins(member: Member) -> None:
    for version in range(3):
        member.own(float(version))
        member.spread(version)
    member.sent.clear()
    member.handle(msg.SendAgain(1, ticket=4))
    assert [(worker, sent.key, sent.ticket) for worker, sent in member.sent] == [(1, 1, 4), (1, 2, 4)]
    assert [float(sent.tensors["parameters"][0]) for _, sent in member.sent] == [1.0, 2.0]


def test_a_worker_gives_its_model_while_it_waits_for_the_one_that_joins(member: Member) -> None:
    """Each waited for the other; its process may be a new one."""
    member.own(1.0)
    member.handle(msg.NeighbourLost(2, 5))
    member.orders.came += [
        msg.PeerAddresses({2: Address("another")}),
        *(msg.GiveModel(2, -8, at_once=True), msg.GiveModel(1, -9), msg.NeighbourLost(2, 8)),
    ]
    member.mixed_by(msg.MixModels(0, 0, {0: 0.5, 2: 0.5}, 7))
    assert [(worker, sent.key) for worker, sent in member.sent] == [(2, -8)]
    assert type(member.mailbox.next(0)) is msg.GiveModel


def test_a_worker_that_is_back_is_awaited_by_later_orders_alone(member: Member) -> None:
    """An order of before, of which its new process knows nothing, was waited for, for good."""
    member.own(1.0)
    member.handle(msg.NeighbourLost(2, 8))
    before = member.mixed_by(msg.MixModels(0, 0, {0: 0.5, 2: 0.5}, 7))
    assert torch.equal(before, torch.full((4,), 1.0))
    member.came(2, 1, 3.0)
    after = member.mixed_by(msg.MixModels(0, 1, {0: 0.5, 2: 0.5}, 9))
    assert torch.equal(after, torch.full((4,), 2.0))
    unheard_of = member.mixed_by(msg.MixModels(0, 2, {0: 0.5, 2: 0.5}, 10, [2]))
    assert torch.equal(unheard_of, torch.full((4,), 1.0))


def test_a_lost_worker_is_sent_nothing_until_it_listens_again(member: Member) -> None:
    member.own(1.0)
    member.handle(msg.NeighbourLost(2, 8))
    member.spread(0)
    assert [worker for worker, _ in member.sent] == [1]
    member.set_addresses({2: Address("another")})
    member.spread(1)
    assert [worker for worker, _ in member.sent] == [1, 2, 1]


def test_the_models_of_a_checkpoint_are_sent_once(member: Member) -> None:
    member.own(1.0)
    member.spread(0)
    kept = member.state()
    member.begin_anew()
    member.restore(kept)
    member.sent.clear()
    member.begin_training()
    assert {worker for worker, _ in member.sent} == {1, 2}
    member.begin_training()  # as another worker joins
    assert len(member.sent) == 2


def test_what_has_come_for_a_later_exchange_is_in_a_checkpoint(member: Member) -> None:
    """A neighbour that is more than two versions ahead has it no more to send it again."""
    member.own(1.0)
    member.came(1, 1, 3.0)
    member.came(2, 0, 5.0)
    member.mixed_by(msg.MixModels(0, 0, {0: 0.5, 2: 0.5}, 7))
    resumed = Member()
    resumed.restore(member.state())
    resumed.own(1.0)
    found = resumed.mixed_by(msg.MixModels(0, 1, {0: 0.5, 1: 0.5}, 3))
    assert torch.equal(found, torch.full((4,), 2.0))


def test_a_worker_halted_before_its_giver_is_lost_awaits_no_other(member: Member) -> None:
    """The order to halt had been put aside, and no other giver was named: it waited for good."""
    member.orders.came += [msg.Halt(), msg.NeighbourLost(1, 8)]
    assert member.mixed_by(msg.MixModels(0, -7, {1: 1.0}, 7)) is None
    assert isinstance(member.mailbox.next(0), msg.Halt)


def test_what_it_is_to_begin_with_after_it_was_halted_is_for_then(member: Member) -> None:
    """It took that for what it had begun with before, and began anew with the first model of all."""
    member.orders.came += [msg.Halt(), msg.NeighbourLost(1, 8), msg.MixModels(0, -9, {2: 1.0}, 9)]
    member.came(2, -9, 6.0)
    assert member.mixed_by(msg.MixModels(0, -7, {1: 1.0}, 7)) is None
    assert isinstance(member.mailbox.next(0), msg.Halt)
    assert member.mailbox.next(0).key == -9


def test_a_model_of_an_exchange_after_a_checkpoint_is_not_in_it(member: Member) -> None:
    """The exchanges of a resumed run have the same numbers: it was mixed in that of its number."""
    member.own(1.0)
    member.came(1, -21, 5.0)  # which is told of the exchange already
    member.came(2, 0, 3.0)
    member.mixed_by(msg.MixModels(0, 0, {0: 0.5, 2: 0.5}, 7))
    resumed = Member()
    resumed.restore(member.state())
    resumed.own(1.0)
    resumed.came(1, -21, 9.0)
    found = resumed.mixed_by(msg.MixModels(0, -21, {0: 0.5, 1: 0.5}, 20))
    assert torch.equal(found, torch.full((4,), 5.0))
