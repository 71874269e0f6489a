"""The first signal is handled; a second one does as usual, unless it is the first one sent twice."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from psbench.backends.control import Control, stop_on_signals
from psbench.system import signals


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    """As in a process of its own: a worker of pytest-xdist has handlers."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in signals.ENDING}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_sigterm_to_a_process_and_its_group_stops_a_run_once(clock: list[float]) -> None:
    """As `timeout` does, at once."""
    control, ended = Control(), list[int]()
    with stop_on_signals(control):
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
        assert (control.stopping, control.signal) == (True, signal.SIGTERM)
    first = signals.FirstSignal(lambda number: None, lambda number, frame: ended.append(number))
    before = signal.signal(signal.SIGTERM, first)
    for later_s in (0.0, 0.5, 60.0):
        clock[0] = 100.0 + later_s
        signal.raise_signal(signal.SIGTERM)
    assert ended == [signal.SIGTERM]
    signal.signal(signal.SIGTERM, before)


def test_a_second_ctrl_c_ends_a_run_at_once(clock: list[float]) -> None:
    control = Control()
    with stop_on_signals(control):
        signal.raise_signal(signal.SIGINT)
        assert control.stopping
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
