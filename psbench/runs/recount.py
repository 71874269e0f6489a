"""Recount: the samples of each gradient of a finished run, from its log, seed and data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from psbench.arrays import Integers
from psbench.core.log import EventLog, Kind
from psbench.core.rounding import largest_remainder
from psbench.core.strategy import Strategy
from psbench.errors import ParameterError, SpecError
from psbench.metrics.contributions import is_used
from psbench.metrics.rows import Absences, pick
from psbench.metrics.table import table
from psbench.metrics.trained_groups import Groups, distance
from psbench.results.run import Run
from psbench.seeds import Streams

if TYPE_CHECKING:
    import pandas as pd

#: rows that say what a worker has drawn from its shard
_DRAWS = (Kind.JOIN, Kind.LEAVE, Kind.PUSH, Kind.VOTE, Kind.RELEASE, Kind.CANCEL, Kind.TELL, Kind.HANDOVER)


class Drawn(NamedTuple):
    """The samples that a worker drew from its shard for one push or vote.

    `push` is the number of the push that carried it, -1 for a step that was kept after a vote. `first` and
    `samples` are where it begins in what the worker ever draws, and how much it is.
    """

    worker: int
    push: int
    first: int
    samples: int


def recount(run: Run, by: npt.ArrayLike | None = None) -> pd.DataFrame:
    """Count the samples that a run was trained on, group by group.

    `metrics.trained_groups` takes a mini-batch for its worker's shard on average. This loads the data,
    divides it and draws every mini-batch again, as the run did.

    Parameters
    ----------
    run : Run
    by : int array, (num_samples,), optional
        The number of each training sample's group, from 0; by default its class.

    Returns
    -------
    DataFrame
        `group`, `samples` (in gradients that were used), `share` (of these), `whole` (the group's share of
        the training data). `attrs["distance"]` is the total variation between the two shares.

    Raises
    ------
    SpecError
        If the run does not say which samples it drew: without data (timing only), by a selection, from
        chunks, with data injection, or if it lost work of which the log does not know how much was drawn.
    DataError
        If the data cannot be had.
    """
    batches = samples_of(run)
    data = run.experiment.data.load(Streams(run.experiment.seed))
    groups, names = data.strata if by is None else (np.asarray(by, dtype=np.int64), ())
    if len(groups) != len(data.train_y) or groups.min() < 0:
        raise ParameterError(
            f"recount: by has {len(groups)} group numbers for {len(data.train_y)} samples; give one number "
            "from 0 on per sample"
        )
    whole = np.bincount(groups, minlength=len(names))
    used = np.zeros(len(whole), dtype=np.int64)
    applied = pick(run.log.rows(), Kind.APPLY)
    counted = {-1, *applied["id"][is_used(applied)].tolist()}
    for push, indices in batches:
        if push in counted:
            used += np.bincount(groups[indices], minlength=len(whole))
    found = Groups.of_counts(list(names) or [str(each) for each in range(len(whole))], [used], whole)
    columns = {"group": found.names, "samples": used, "share": found.of_shards[0], "whole": found.whole}
    frame = table(columns)
    frame.attrs["distance"] = float(distance(found.of_shards[0], found.whole))
    return frame


def samples_of(run: Run) -> Iterator[tuple[int, Integers]]:
    """Yield the number of each push, or -1 of a step that was kept after a vote, and its samples' indices.

    Raises
    ------
    SpecError, DataError
        See `recount`.
    """
    experiment = run.experiment
    if experiment.timing_only:
        raise SpecError("recount: a timing-only run reads no data")
    drawn = [*_Draws(run).of_log(run.log)]
    return _indices(run, drawn)


def _indices(run: Run, drawn: list[Drawn]) -> Iterator[tuple[int, Integers]]:
    from psbench.sharding import measure_data
    from psbench.training.batches import Batches

    experiment, streams = run.experiment, Streams(run.experiment.seed)
    data = experiment.data.load(streams)
    division, _ = measure_data(
        experiment.sharding, data, experiment.num_workers, streams.generator("sharding")
    )
    of_each = [
        Batches(shard, streams, worker, experiment.sharding.ordered)
        for worker, shard in enumerate(division.shards)
    ]
    for piece in drawn:
        batches = of_each[piece.worker]
        if lost := piece.first - batches.taken:
            batches.take(lost)
        yield piece.push, batches.take(piece.samples)


class _Draws:
    """The samples that workers drew from their shards along a log."""

    def __init__(self, run: Run) -> None:
        experiment = run.experiment
        self._compositions = experiment.strategy.compositions
        if chosen := [each.selection.name for each in self._compositions if each.selection.chooses]:
            raise SpecError(f"recount: selection {chosen[0]!r} chose samples that the log does not record")
        self._now = self._compositions[0]
        self._is_live = experiment.backend != "simulated"
        workers = experiment.num_workers
        self._sizes = largest_remainder(experiment.batch_size, [1.0] * workers)
        self._taken = [0] * workers
        self._voted = [0] * workers  # samples of a vote that is not answered
        self._works = [False] * workers

    def of_log(self, log: EventLog) -> Iterator[Drawn]:
        """Yield the samples drawn for pushes and kept steps, in the order of the log."""
        again = [json.loads(log.text(n)).get("again") for n in log.of_kind(Kind.RESUME)["text"]]
        if any(again):
            raise SpecError("recount: the run was resumed in the middle of steps, which were drawn again")
        for row in pick(Absences().read(log.rows()), *_DRAWS):
            kind, worker = row["kind"], int(row["worker"])
            if kind == Kind.HANDOVER:
                self._now = self._compositions[int(row["id"])]
            elif kind in (Kind.RELEASE, Kind.TELL):
                yield from self._obey(row, json.loads(log.text(row["text"]) or "{}"))
            elif kind == Kind.PUSH:
                yield self._draw(worker, int(row["id"]), int(row["samples"]))
                goes_on = '"goes_on"' in log.text(row["text"])
                self._works[worker], self._voted[worker] = goes_on, 0
            elif kind == Kind.VOTE:
                self._works[worker], self._voted[worker] = False, int(row["samples"])
            else:  # it joins, leaves, or is cancelled: what it had is lost
                self._lose(worker)

    def _obey(self, row: Any, orders: dict[str, Any]) -> Iterator[Drawn]:
        worker = int(row["worker"])
        if "samples" in orders:
            raise SpecError("recount: workers drew from chunks of data that the log does not describe")
        if (orders.get("injection") or {}).get("workers"):
            raise SpecError("recount: workers shared samples (data injection) that the log does not record")
        self._sizes[worker] = int(orders.get("batch_size", self._sizes[worker]))
        if row["kind"] == Kind.RELEASE:
            if row["samples"] > 0:
                yield self._draw(worker, -1, int(row["samples"]))
                self._voted[worker] = 0
            self._works[worker] = self._works[worker] or row["id"] == 0

    def _draw(self, worker: int, push: int, samples: int) -> Drawn:
        first = self._taken[worker]
        self._taken[worker] += samples
        return Drawn(worker, push, first, samples)

    def _lose(self, worker: int) -> None:
        if self._works[worker]:
            if self._is_live or not draws_once(self._now):
                raise SpecError(
                    f"recount: worker {worker} lost work, and the log does not record how many samples it "
                    "had drawn"
                )
            self._taken[worker] += self._sizes[worker]
        self._taken[worker] += self._voted[worker]
        self._works[worker], self._voted[worker] = False, 0


def draws_once(now: Strategy) -> bool:
    """Return whether a worker takes exactly one step from one release to the next."""
    return not (now.own_steps or now.communication.accumulates)
