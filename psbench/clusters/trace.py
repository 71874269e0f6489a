"""Step times that were measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import field_validator, model_validator

from psbench.arrays import Doubles
from psbench.clusters.step_time import StepTime
from psbench.core import parameter
from psbench.core.typed_data import numbers_of
from psbench.errors import DataError, ParameterError, PsbenchError, in_short
from psbench.system.limits import check_memory

_COLUMNS = ("worker", "seconds")


class Trace(StepTime):
    """Measured step times: factors for all workers, or the seconds of each worker's steps.

    Parameters
    ----------
    factors : list of float, > 0, not empty
        Step times divided by the time that the profile gives for such a step. Taken as they are: their
        mean need not be 1.
    seconds : list of lists of float, > 0, seconds
        For each worker the times of its steps, which take that long whatever its speed and its batch;
        slowdowns multiply them.
    path : str
        A CSV file with a header, or a Parquet file, with the columns `worker` (0, 1, ...) and `seconds`, the
        rows of each worker in the order of its steps; in the place of `seconds`.
    samples : int or None, samples
        The batch that `seconds` were measured with: a step of another size takes time in proportion. None: a
        step takes as long whatever its size.
    order : "blocks", "resample", "in_order" or None
        blocks: draw blocks of steps that follow each other, each worker from its own stream, so that slow
        steps stay together and every seed has a course of its own. resample: draw single steps. in_order:
        replay from the first to the last, the same for every seed, and then from the first again, of which a
        warning is logged. None: factors are drawn singly, seconds in blocks.
    block : int or None, steps, >= 1
        Steps of a block, at most as many as a worker has; None: the square root of those, rounded up.

    Raises
    ------
    ParameterError, DataError
        If a time is no positive number, workers are not those of the cluster, or the file has not these
        columns; file and row are named. A file is read when a run begins.

    Notes
    -----
    Blocks are those of a circular block bootstrap: one may begin with any step, all alike, and goes on with
    the first after the last. With blocks of one step it is "resample", draw by draw. The length is ours: it
    grows with the trace, as does the number of blocks.

    In virtual time. A step of a live run takes as long as it takes, times what the machine's speed and its
    slowdowns are emulated by.

    Examples
    --------
    >>> Trace(factors=[1, 2, 4], order="in_order").draw(np.random.default_rng(0), 2, 3).tolist()
    [4.0, 1.0, 2.0]
    >>> Trace(seconds=[[0.1, 0.2], [0.4]], order="in_order").series(0, np.random.default_rng(0))(3).tolist()
    [0.1, 0.2, 0.1]
    >>> Trace(seconds=[[1, 2, 3, 4, 5]], block=3).series(0, np.random.default_rng(0))(6).tolist()
    [4.0, 5.0, 1.0, 2.0, 3.0, 4.0]
    """

    name = "trace"
    source = "measured"

    factors: tuple[float, ...] = parameter(
        (1.0,), "measured step times over their expected time", min_length=1, max_length=1_000_000
    )
    seconds: tuple[tuple[float, ...], ...] = parameter(
        (), "measured times of the steps of each worker", unit="s", max_length=65_535
    )
    path: str = parameter("", "CSV or Parquet file with columns worker and seconds")
    samples: int | None = parameter(
        None, "batch size of the measured seconds; none: independent of the batch size", ge=1
    )
    order: Literal["blocks", "resample", "in_order"] | None = parameter(
        None, "draw blocks or single steps, or replay in order; none: factors singly, seconds in blocks"
    )
    block: int | None = parameter(
        None, "steps of a block; none: the square root of a worker's steps", unit="steps", ge=1
    )

    @field_validator("factors", "seconds", mode="before")
    @classmethod
    def _from_arrays(cls, value: Any) -> Any:
        value = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(value, (list, tuple)):
            return value
        return [each.tolist() if hasattr(each, "tolist") else each for each in value]

    @model_validator(mode="after")
    def _positive(self) -> Self:
        given = [name for name in ("factors", "seconds", "path") if name in self.model_fields_set]
        given = [name for name in given if getattr(self, name) != type(self).model_fields[name].default]
        if len(given) > 1:
            raise ParameterError(f"step_time 'trace': {given[0]} and {given[1]} are given; remove one")
        if self.block is not None and not self.in_blocks:
            raise ParameterError(
                "step_time 'trace': block applies only if steps are drawn in blocks; set order"
            )
        if self.samples is not None and not self.in_seconds:
            raise ParameterError(
                "step_time 'trace': samples applies only to seconds; factors scale with the batch anyway"
            )
        for factor in self.factors:
            if not 0 < factor < float("inf"):
                raise ParameterError(f"step_time 'trace': factors must be positive numbers, got {factor!r}")
        for worker, own in enumerate(self.seconds):
            _check("step_time 'trace': seconds", worker, own)
        return self

    @property
    def in_seconds(self) -> bool:  # pyrefly: ignore[bad-override]
        """Return True if the trace holds seconds instead of factors."""
        return bool(self.seconds or self.path)

    @property
    def in_blocks(self) -> bool:
        """Return True if the trace is sampled in blocks of steps."""
        return self.order == "blocks" or (self.order is None and self.in_seconds)

    @property
    def measured_samples(self) -> int | None:  # pyrefly: ignore[bad-override]
        """The batch that seconds belong to; None if they do not depend on it."""
        return self.samples

    def check_workers(self, num_workers: int) -> None:
        """Raise ParameterError unless `seconds` has one entry per worker."""
        if self.seconds and len(self.seconds) != num_workers:
            raise ParameterError(
                f"step_time 'trace': seconds of {len(self.seconds)} workers, but the cluster has "
                f"{num_workers}"
            )

    def begin(self, num_workers: int) -> None:
        """Read the file, if there is one."""
        if self.path and len(self._steps()) != num_workers:
            raise DataError(
                f"{self.path}: has steps of {len(self._steps())} workers, but the cluster has {num_workers}"
            )

    def length(self, worker: int) -> int | None:
        """Return the number of steps after which a worker's times repeat; None if they are drawn."""
        return len(self._steps()[worker]) if self.in_seconds and self.order == "in_order" else None

    def series(self, worker: int, rng: np.random.Generator) -> Callable[[int], Doubles]:
        """Return a generator function of a worker's next factors or seconds."""
        own = np.asarray(self._steps()[worker] if self.in_seconds else self.factors)
        if self.in_blocks:
            return self._counted(_Blocks(own, self.block, rng).following)
        return self._counted(lambda start, size: _taken(own, self.order == "in_order", rng, start, size))

    def draw(self, rng: np.random.Generator, start: int, size: int) -> Doubles:
        """Return measured factors."""
        return _taken(np.asarray(self.factors), self.order == "in_order", rng, start, size)

    def _steps(self) -> tuple[tuple[float, ...], ...]:
        if not self.path:
            return self.seconds
        file = Path(self.path).expanduser()
        try:
            stat = file.stat()
        except OSError as error:
            raise DataError(f"step_time 'trace': {file}: {error.strerror}; check path") from None
        return _read(file, stat.st_mtime_ns, stat.st_size)


class _Blocks:
    """A sequence of blocks of measured steps, with random block starts."""

    def __init__(self, values: Doubles, block: int | None, rng: np.random.Generator) -> None:
        self._values, self._rng = values, rng
        self._block = min(block or math.isqrt(len(values) - 1) + 1, len(values))
        self._begins = np.zeros(0, dtype=np.int64)

    def following(self, start: int, size: int) -> Doubles:
        """Return the next `size` steps of the sequence."""
        steps, count = np.arange(start, start + size), len(self._values)
        missing = (start + size - 1) // self._block + 1 - len(self._begins)
        drawn = (self._rng.random(max(0, missing)) * count).astype(np.int64)
        self._begins = np.concatenate([self._begins, drawn])
        places = (self._begins[steps // self._block] + steps % self._block) % count
        course: Doubles = self._values[places]
        return course


def _taken(values: Doubles, in_order: bool, rng: np.random.Generator, start: int, size: int) -> Doubles:
    if in_order:
        return values[np.arange(start, start + size) % len(values)]
    return values[(rng.random(size) * len(values)).astype(np.int64)]


def _check(what: str, worker: int, seconds: tuple[float, ...]) -> None:
    if not seconds:
        raise ParameterError(f"{what}: worker {worker} has no steps")
    for step, value in enumerate(seconds):
        if not 0 < value < float("inf"):
            raise ParameterError(
                f"{what}: step {step} of worker {worker} takes {value!r}; give positive numbers"
            )


@lru_cache(maxsize=8)
def _read(file: Path, changed: int, size: int) -> tuple[tuple[float, ...], ...]:
    """Return the seconds of each worker's steps; a file that has changed is read again."""
    import pandas as pd
    import pyarrow.parquet as pq

    packed = file.suffix.lower() in (".parquet", ".pq")
    try:
        if packed:
            about = pq.read_metadata(file)
            # numbers, and as objects of Python; a small file may have many rows
            needed = 100 * about.num_rows * about.num_columns
            check_memory(needed, f"{file}: {about.num_rows} rows", "use fewer")
        frame = pd.read_parquet(file) if packed else pd.read_csv(file)
    except PsbenchError:
        raise
    # pandas and pyarrow raise many kinds of a damaged file
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise DataError(f"{file}: is not a CSV or Parquet file, or is damaged ({reason})") from None
    if twice := [name for name in _COLUMNS if list(frame.columns).count(name) > 1]:
        raise DataError(f"{file}: has two columns {twice[0]!r}; rename one")
    if missing := [name for name in _COLUMNS if name not in frame.columns]:
        there = ", ".join(map(str, frame.columns))
        raise DataError(f"{file}: has no column {missing[0]!r}; expected worker and seconds, found {there}")
    for name in _COLUMNS:
        column = numbers_of(frame[name])
        whole = name == "worker"
        wrong = ~(np.isfinite(column) & ((column >= 0) & (column % 1 == 0) if whole else column > 0))
        if wrong.any():
            row = int(np.argmax(wrong))
            expected = "a worker's number, from 0" if whole else "positive seconds"
            raise DataError(
                f"{file}: row {row}: {name} is {in_short(frame[name].tolist()[row])}; expected {expected}"
            )
        frame[name] = column
    if frame.empty:
        raise DataError(f"{file}: has no steps, only the names of its columns")
    workers = np.unique(frame["worker"])
    gaps = np.flatnonzero(workers != np.arange(len(workers)))
    if len(gaps):
        raise DataError(f"{file}: has no steps of worker {gaps[0]}")
    return tuple(tuple(steps.tolist()) for _, steps in frame.groupby("worker")["seconds"])
