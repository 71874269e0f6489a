"""An outer step on 25.6 million parameters, beside the memory traffic that it cannot do without."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from psbench.core.arithmetic import Pushed, State, Step
from psbench.strategies.aggregation import Outer
from psbench.training.fused import fused_momentum_step
from tests.benchmarks.measure import Row, Rows, in_turns

ENTRIES = 25_600_000


def run() -> Rows:
    """Measure Nesterov's outer step in CPU seconds of one thread."""
    x, difference, other = (torch.randn(ENTRIES) for _ in range(3))
    state, part = State(x), Outer()
    step = Step(1.0, 0.0, {}, 8, lambda direction, rate: None, _momentum_step=fused_momentum_step)

    def traffic() -> None:
        """Read D, v and x, and write v and x, once each."""
        x.add_(difference)
        other.mul_(0.9)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ours, least = in_turns(
        [lambda: _timed(lambda: part.update(x, [Pushed(difference)], state, step)), lambda: _timed(traffic)],
        7,
    )
    torch.set_num_threads(threads)
    what = f"outer step (Nesterov) on {ENTRIES:,} parameters / reading and writing each vector once"
    shown = f"{1e3 * ours:.1f} ms", f"{1e3 * least:.1f} ms"
    return [Row(what, *shown, ours / least, 1.2, lower_is_better=True)]


def _timed(do: Callable[[], None]) -> float:
    began = time.thread_time()
    do()
    return time.thread_time() - began
