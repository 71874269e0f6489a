"""What the coordinator notes of the pushes that arrive."""

from __future__ import annotations

from collections import deque
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from psbench import strategies
from psbench.backends.dask.coordinator import pushes
from psbench.backends.dask.coordinator.run_state import PushState
from psbench.backends.dask.protocol.messages import PushMessage, WorkerGone
from psbench.backends.dask.server.lost_payloads import LostPayloads
from psbench.backends.dask.server.parameter_slice import ParameterSlice
from psbench.core import events as ev
from psbench.core.ending import Ending
from psbench.core.engine import Engine
from psbench.core.view import ClusterView
from psbench.optimization.optimizer import SGD
from psbench.seeds import Streams

NOW_S = 1000.0


@pytest.fixture
def run() -> Any:
    """Give the state of a run whose store takes whatever it hears of."""
    engine = Engine(strategies.asp(), ClusterView(num_workers=2, dataset_size=64, global_batch=8))
    engine.begin([0, 1])
    state = PushState(bytes_up=lambda fragment, version, setting: 40)
    parts = {"view": engine.view, "events": deque(), "ending": Ending(), "pushes": state}
    return Mock(engine=engine, clock_s=NOW_S, **parts)


@pytest.fixture
def events(run: Any) -> deque[ev.Event]:
    return run.events  # type: ignore[no-any-return]


def message(samples: int, steps: int, sent_s: float = 0.0) -> PushMessage:
    return PushMessage(1, 0, samples, steps, 0.1, sent_s, 0.5)


def test_a_worker_continues_in_its_data_after_its_last_handled_push(
    run: Any, events: deque[ev.Event]
) -> None:
    run.pushes.done[1] = 100, 10
    pushes.take(run, 1, message(8, 2))
    pushes.take(run, 1, message(12, 3))
    pushes.take(run, 0, message(4, 1))
    assert [event.id for event in events if isinstance(event, ev.Push)] == [0, 1, 2]
    assert pushes.position_after(run, 1)[:2] == (120, 15)
    assert pushes.handled_position(run, 1)[:2] == (100, 10)
    events.popleft()
    assert pushes.handled_position(run, 1)[:2] == (108, 12)
    assert pushes.handled_position(run, 0)[:2] == (0, 0)


def test_a_message_is_under_way_since_it_was_sent_and_not_negatively(
    run: Any, events: deque[ev.Event]
) -> None:
    """The worker gives the time on the coordinator's clock, as far as it knows that."""
    pushes.take(run, 1, message(8, 2, NOW_S - 20.0))
    pushes.take(run, 1, message(8, 2, NOW_S + 3600.0))
    past, future = (event for event in events if isinstance(event, ev.Push))
    assert past.send_s == 20.0
    assert (future.send_s, past.bytes) == (0.0, 40)
    assert [past.id, future.id, run.pushes.next_number] == [0, 1, 2]


def test_a_payload_of_another_length_moves_the_model_nowhere() -> None:
    """It was sent before the server held other entries: it is void, and yet its update may be ordered."""
    vector = torch.arange(4.0)
    state = {"parameters": vector, "buffers": vector[:0]}
    part = ParameterSlice(state, SGD(lr=0.5), 8, strategies.asp(), Streams(0), 0)
    part.receive((0, 1), torch.ones(5))
    assert torch.equal(part.payloads[0, 1], torch.zeros(4))
    part.receive((0, 2), torch.ones(4, dtype=torch.float64))
    assert torch.equal(part.payloads[0, 2], torch.zeros(4))
    part.receive((0, 3), torch.ones(4))
    assert torch.equal(part.payloads[0, 3], torch.ones(4))


def test_a_push_that_waits_keeps_its_buffers_when_entries_move() -> None:
    """They follow the entries that it had, and not those that the server holds from now on."""
    state = {"parameters": torch.arange(4.0), "buffers": torch.zeros(2)}
    part = ParameterSlice(state, SGD(lr=0.5), 8, strategies.asp(), Streams(0), 0)
    part.receive((0, 1), torch.tensor([1.0, 2.0, 3.0, 4.0, 8.0, 9.0]))
    part.hold_vectors({name: vector[:3] for name, vector in part.vectors([(0, 1)]).items()})
    assert part.payloads[0, 1].tolist() == [1.0, 2.0, 3.0, 8.0, 9.0]


def test_versions_that_are_held_move_with_their_entries() -> None:
    state = {"parameters": torch.arange(4.0), "buffers": torch.zeros(0)}
    part = ParameterSlice(state, SGD(lr=0.5), 8, strategies.asp(), Streams(0), 0)
    part.hold(0)
    part.hold_vectors({name: vector[1:] for name, vector in part.vectors([]).items()})
    assert part.distance_sq(0) == 0.0


def test_a_dead_process_owes_its_payloads_though_it_is_replaced_at_once():
    """An update that waits for one would wait for ever: the process that took its place has later tickets."""
    lost = LostPayloads()
    lost.read(WorkerGone(1, is_back=False, ticket=2), now=10.0)
    assert lost.absent == {1}
    lost.read(WorkerGone(1, is_back=True), now=10.0)
    assert not lost.absent
    assert not lost.has((1, 2), now=10.2)  # it may still be on its way
    assert lost.has((1, 2), now=10.4)
    assert not lost.has((1, 3), now=99.0)  # of the one in its place
    assert not lost.has((0, 1), now=99.0)
    lost.read(WorkerGone(1, is_back=False, ticket=3), now=50.0)
    assert lost.has((1, 3), now=50.4)
