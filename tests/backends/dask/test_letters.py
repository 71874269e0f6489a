"""The letters of a step, and the agenda: what was written is what is read."""

from __future__ import annotations

import math

import pytest

from psbench.backends.dask.coordinator.timers import Timers
from psbench.backends.dask.protocol.messages import PushMessage, ReleaseMessage, decode_piece, encode_piece
from psbench.clusters import make_cluster
from psbench.core import events as ev


@pytest.mark.parametrize("stats", [None, {"test_loss": 0.1, "grad_norm_sq": math.inf}])
@pytest.mark.parametrize("overlapping", [False, True])
def test_a_push_is_read_as_it_was_written(overlapping: bool, stats: dict[str, float] | None) -> None:
    told = PushMessage(3, 2, 64, 4, 0.1, 12.3456789012, 1 / 3, not overlapping, overlapping, stats)
    assert PushMessage.decode(told.encode()) == told


@pytest.mark.parametrize("orders", [{}, {"push": True, "batch_size": 7}])
@pytest.mark.parametrize("then", ["step", "push"])
def test_a_release_is_read_as_it_was_written(then: str, orders: dict[str, object]) -> None:
    told = ReleaseMessage(3, 2, 64, then == "push", then == "step", then, 1.25, orders)
    assert ReleaseMessage.decode(told.encode()) == told


def test_a_piece_is_read_as_it_was_written() -> None:
    assert decode_piece(encode_piece(2**40, 7)) == (2**40, 7)


def test_the_agenda_holds_comings_and_goings_and_calls_in_order() -> None:
    failures = [{"worker": 0, "at_s": 1, "rejoin_s": 3}]
    cluster = make_cluster({"workers": 3, "joins": [{"worker": 2, "at_s": 2}], "failures": failures})
    agenda = Timers(cluster.profile())
    agenda.add(2, ev.Timer("key"))
    assert agenda.due(0.5) == []
    assert agenda.due(2.5) == [ev.Leave(0, "failed"), ev.Join(2), ev.Timer("key")]
    assert agenda.expects_more_than(gone=set())
    assert not agenda.expects_more_than(gone={0})
    assert agenda.due(9) == [ev.Join(0)]
    assert not len(agenda)
