"""What all rows share: taking turns, medians, and the verdict."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from psbench.data import Dataset
from psbench.data.base import DataSource
from psbench.seeds import Streams


@dataclass(frozen=True)
class Row:
    """One measured figure beside the one to reach.

    `value` is a ratio, or what `unit` says; `at_least` None means that there is nothing to reach.
    """

    what: str
    ours: str
    other: str
    value: float
    at_least: float | None = None
    towards: float | None = None
    unit: str = "x"
    lower_is_better: bool = False

    @property
    def verdict(self) -> str:
        """Say whether the figure, as it is printed, is reached."""
        if self.at_least is None:
            return ""
        shown = float(f"{self.value:.3g}")
        good = shown <= self.at_least if self.lower_is_better else shown >= self.at_least
        return "reached" if good else "not reached"


@dataclass(frozen=True)
class Skipped:
    """A figure that cannot be measured here, and why."""

    what: str
    reason: str
    verdict: str = "skipped"


Rows = list[Row | Skipped]


def in_turns(sides: Sequence[Callable[[], float]], repeats: int) -> list[float]:
    """Call all sides in turns and return the median of what each returned; a first round is not counted."""
    measured = [[side() for side in sides] for _ in range(repeats + 1)][1:]
    return [statistics.median(side) for side in zip(*measured, strict=True)]


class Pictures(DataSource):
    """Noise of the shape and size of handwritten digits: speed does not depend on what is learned."""

    name = "pictures"
    source = "benchmarks"

    def load(self, streams: Streams) -> Dataset:
        """Return 6,000 training and 1,000 validation images of 28 x 28."""
        import torch

        generator = torch.Generator().manual_seed(streams.integer("data"))
        x = torch.randn(7000, 1, 28, 28, generator=generator)
        y = torch.arange(7000) % 10
        return Dataset(self.name, x[:6000], y[:6000], x[6000:], y[6000:], tuple("0123456789"))
