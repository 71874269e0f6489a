"""Who gives a worker that joins a model, and for whom nobody waits: the coordinator's side of gossip."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from psbench.backends.dask.coordinator.model_requests import ModelRequests
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.instructions import Outbox, Send
from psbench.backends.dask.protocol.messages import ReleaseMessage
from psbench.backends.dask.protocol.roles import Address
from psbench.backends.dask.server.gossip import GossipStore
from psbench.backends.dask.server.introductions import Introductions
from psbench.core.actions import Mix, Release
from psbench.core.events import Push
from psbench.core.view import Status
from psbench.errors import WorkerLost


def known(worker: int, ticket: int) -> Any:
    return SimpleNamespace(id=worker, status=Status.COMPUTING, ticket=ticket, dropped=False)


class Store(GossipStore):
    """Three workers that compute, under ticket 5; worker 3 has a process and is not in the run."""

    def __init__(self, committed: int = 0) -> None:
        self.workers: dict[int, Any] = {worker: known(worker, 5) for worker in range(3)}
        view: Any = SimpleNamespace(workers=self.workers, committed=committed)
        self.outbox, none = Outbox(), Any
        book = Introductions(self.outbox, lambda worker: Address(f"of {worker}"))
        super().__init__(self.outbox, none, view, [0, 1, 2, 3], count(7), book)

    def _neighbours(self, worker: int, version: int) -> list[int]:
        return []

    def admits(self, worker: int, giver: int) -> list[Any]:
        """Have the engine say that a worker begins with the model of another; return who is to give it."""
        self.workers[worker] = known(worker, 6)
        self.mix(Mix({worker: {giver: 1.0}}))
        return self.givers()

    def givers(self) -> list[Any]:
        return [(s.to, s.message.to, s.message.at_once) for s in self.said(msg.GiveModel)]

    def said(self, kind: type[Any]) -> list[Any]:
        self.sent = [*getattr(self, "sent", []), *self.outbox.take()]
        found = [each for each in self.sent if isinstance(each, Send) and isinstance(each.message, kind)]
        self.sent = [each for each in self.sent if each not in found]
        return found

    def pushed(self, worker: int, ticket: int) -> None:
        self.arrived(Push(0, worker, ticket, 0, 1, 1, 0, 0.1, 0.0, 1.0))


@pytest.fixture
def store() -> Store:
    return Store()


def test_the_giver_that_the_engine_names_gives(store: Store) -> None:
    assert store.admits(3, giver=0) == [("worker 0", 3, False)]
    again = store.said(msg.SendAgain)
    assert {each.to: (each.message.to, each.message.ticket) for each in again} == dict.fromkeys(
        ("worker 0", "worker 1", "worker 2"), (3, 6)
    )


def test_another_gives_if_the_giver_is_lost(store: Store) -> None:
    store.admits(3, giver=0)
    store.leave(0, 5)
    assert store.givers() == [("worker 1", 3, True)]


def test_a_worker_hears_that_its_giver_is_lost_before_who_gives(store: Store) -> None:
    """It puts aside what comes while it waits for the first, and would look for no other order in there."""
    store.admits(3, giver=0)
    store.leave(0, 5)
    said = [type(each.message) for each in store.outbox.take() if each.to == "worker 3"]
    assert said == [msg.NeighbourLost, msg.MixModels]


def test_a_new_process_of_the_giver_has_nothing_to_give(store: Store) -> None:
    """The engine has yet to hear that the giver is lost."""
    store.leave(0, 5)
    store.join(0)
    assert store.admits(3, giver=0) == [("worker 1", 3, True)]
    store.leave(1, 5)  # worker 0 is here, and has no model
    assert store.givers() == [("worker 2", 3, True)]


def test_a_worker_that_is_to_begin_itself_gives_nothing(store: Store) -> None:
    store.admits(0, giver=2)
    store.admits(3, giver=1)
    store.leave(1, 5)
    assert store.givers() == [("worker 2", 3, True)]
    with pytest.raises(WorkerLost, match="every worker that has a model is lost"):
        store.leave(2, 5)


@pytest.mark.parametrize("how", ["has pushed", "is halted", "is lost"])
def test_who_has_begun_or_given_up_needs_no_giver(store: Store, how: str) -> None:
    store.admits(3, giver=0)
    if how == "has pushed":
        store.pushed(3, ticket=6)
    elif how == "is halted":
        store.forget(3)
    else:
        store.leave(3, 6)
    store.leave(0, 5)
    assert store.givers() == []


def test_a_push_of_before_it_was_halted_shows_no_model(store: Store) -> None:
    store.admits(3, giver=0)
    store.pushed(3, ticket=5)
    store.leave(0, 5)
    assert store.givers() == [("worker 1", 3, True)]


@pytest.mark.parametrize("how", ["is released", "begins with another model"])
def test_nobody_waits_for_a_lost_worker_until_it_is_in_the_run_again(store: Store, how: str) -> None:
    exchange = Mix({1: {0: 0.5, 1: 0.5}}, sent=True, push=3, versions={1: 4})
    store.mix(exchange)
    store.leave(0, 5)
    store.join(0)
    store.mix(exchange)
    if how == "is released":
        store.release(Release(0), 4)
    else:
        store.admits(0, giver=2)
    store.mix(exchange)
    orders = [each.message for each in store.said(msg.MixModels) if each.to == "worker 1"]
    assert [order.lost for order in orders] == [[], [0], []]
    (lost,) = {each.message.number for each in store.said(msg.NeighbourLost)}
    assert orders[0].number < lost < orders[1].number


@pytest.mark.parametrize("how", ["is lost", "is halted"])
def test_who_comes_back_to_nobody_that_has_a_model_ends_the_run(how: str) -> None:
    """It began with the first model of all, and the run went on as if it had just begun."""
    store = Store(committed=9)
    store.release(Release(0), 4)  # it has a model, as in a run that goes on from a checkpoint
    if how == "is lost":
        store.leave(0, 5)
        store.join(0)
    else:
        store.forget(0)
    store.said(ReleaseMessage)
    with pytest.raises(WorkerLost, match="worker 0 returns, but no other worker has a model"):
        store.release(Release(0), 4)
    assert not store.said(ReleaseMessage)
    store.admits(0, giver=1)
    store.release(Release(0), 4)
    store.forget(0)
    store.workers[0].dropped = True  # by the answer with this release, of which a resumed run has the rest
    store.release(Release(0), 4)
    assert [(each.to, each.message.halts) for each in store.said(ReleaseMessage)] == [
        ("worker 0", False),
        ("worker 0", True),
    ]


def test_before_the_first_update_all_begin_with_the_same_model(store: Store) -> None:
    store.workers[3] = known(3, 0)
    store.release(Release(3), 4)
    assert [each.to for each in store.said(ReleaseMessage)] == ["worker 3"]


def test_a_new_process_has_no_part_in_an_exchange_of_before(store: Store) -> None:
    """It has no model yet, and the run ended with its error."""
    store.leave(0, 5)
    store.join(0)
    row = {0: 0.5, 1: 0.5}
    store.mix(Mix({1: row, 0: row}, push=3, versions={0: 4, 1: 4}))
    assert [each.to for each in store.said(msg.MixModels)] == ["worker 1"]


def test_a_worker_without_a_model_is_in_no_mean() -> None:
    """Its model was lost with it; how far the others are from their mean could not be told."""
    averaging, found = ModelRequests(Outbox(), count()), list[Any]()
    averaging.ask_more(tag := averaging.ask(), [0, 1, 2])
    averaging.mean(tag, lambda mean, spread: found.extend([mean["parameters"].tolist(), spread]))
    for worker, model in enumerate(([1.0, 0.0], [], [3.0, 0.0])):
        averaging.answer(worker, tag, {"parameters": torch.tensor(model), "buffers": torch.zeros(0)})
    assert found == [[2.0, 0.0], {"consensus_distance": 2.0}]
