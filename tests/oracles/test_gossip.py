"""Who has heard of whose gradients, as sets of gradients that are followed from model to model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from statistics import fmean

import numpy as np
import pytest
from oracles.small_runs import CHANGING, FOUR
from oracles.story import Row, rows_of

import psbench as ps
from psbench import metrics
from psbench.metrics.axes import Axes
from psbench.results.run import Run
from psbench.testing import toy_experiment

#: a gradient: its worker, and which of that worker's it is
Gradient = tuple[int, int]


@dataclass
class World:
    """The models of the workers that are there: the gradients that each has in it."""

    model: dict[int, set[Gradient]] = field(default_factory=dict)
    version: dict[int, int] = field(default_factory=dict)
    made: dict[int, int] = field(default_factory=dict)
    #: every model that there was, by worker, version, and whether the worker had made its step with it
    sent: dict[tuple[int, int, bool], set[Gradient]] = field(default_factory=dict)

    def own(self, worker: int) -> set[Gradient]:
        return {(worker, number) for number in range(self.made[worker])}

    def missing(self) -> list[int]:
        """Return of each two different workers how many gradients of the second the first's model lacks."""
        return [
            len(self.own(of) - self.model[worker])
            for worker in self.model
            for of in self.model
            if worker != of
        ]

    def take(self, row: Row) -> None:
        if row.kind == "JOIN":
            self.version[row.worker] = max((self.version[each] for each in self.model), default=0)
            self.model[row.worker] = set()
            self.made.setdefault(row.worker, 0)
            self.sent[row.worker, self.version[row.worker], False] = set()
        elif row.kind == "LEAVE":
            self.model.pop(row.worker, None)
        elif row.kind == "PUSH":
            self.made[row.worker] += 1
            self.sent[row.worker, row.version, True] = self.model[row.worker] | self.own(row.worker)
        elif row.kind == "MIX":
            self.mix(row)

    def mix(self, row: Row) -> None:
        """Give each worker what the models have that are mixed into its own, and its step if it made one."""
        is_step = row.id >= 0  # a newcomer's first model is none
        before = {worker: set(model) for worker, model in self.model.items()}
        if is_step and row.facts["steps_first"]:
            before[row.worker] |= self.own(row.worker)
        for name, weights in row.facts["rows"].items():
            worker = int(name)
            new: set[Gradient] = set()
            for other in map(int, weights):
                key = (other, self.version[worker], row.facts["steps_first"])
                new |= self.sent[key] if row.facts["sent"] else before[other]
            if is_step and worker == row.worker:
                new |= self.own(worker)
            self.model[worker] = new
            self.version[worker] += is_step
            self.sent[worker, self.version[worker], False] = new


def exchanges(run: Run) -> Iterator[tuple[float, World]]:
    """Yield the time of every exchange, and the models after it."""
    world = World()
    for row in rows_of(run.log):
        world.take(row)
        if row.kind == "MIX":
            yield row.time_s, world


@cache
def made(name: str) -> Run:
    """Return a run of a handful of exchanges for each worker; in one of them workers fail and join."""
    changes = {"strategy": "ad_psgd", "cluster": CHANGING} if name == "losses" else {"strategy": name}
    return ps.run(toy_experiment(**({"cluster": FOUR} | changes)))


@pytest.fixture(params=["d_psgd", "d_psgd_step_first", "ad_psgd", "sgp", "losses"])
def run(request: pytest.FixtureRequest) -> Run:
    return made(request.param)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_who_has_heard_of_whom(run: Run, share: float) -> None:
    moments = [time_s for time_s, _ in exchanges(run)]
    until_s = moments[int(share * (len(moments) - 1))]
    expected = []
    for time_s, world in exchanges(run):
        if time_s <= until_s:
            expected = [
                (worker, of, world.made[of], len(model & world.own(of)), len(world.own(of) - model))
                for worker, model in sorted(world.model.items())
                for of in sorted(world.made)
            ]
    found = metrics.gradient_spread(run.log, until_s)[["worker", "of", "made", "received", "missing"]]
    assert list(found.itertuples(index=False, name=None)) == expected


def test_how_many_gradients_others_lack_along_a_run(run: Run) -> None:
    expected = []
    for time_s, world in exchanges(run):
        missing = world.missing()
        expected.append((time_s, fmean(missing) if missing else 0.0, max(missing, default=0)))
    found = metrics.lags(run.log, points=10**6)
    assert found["time_s"].tolist() == [time_s for time_s, _, _ in expected]
    assert found["mean"].tolist() == pytest.approx([mean for _, mean, _ in expected], rel=1e-12)
    assert found["most"].tolist() == [most for _, _, most in expected]
    few = metrics.lags(run.log, points=7)
    step = max(1, len(expected) // 7)
    assert few["time_s"].tolist() == found["time_s"].tolist()[::step]
    assert max(most for _, _, most in expected) > 0


def test_updates_of_all_workers_are_counted_however_a_log_is_divided(run: Run) -> None:
    rows = run.log.rows()
    whole, growing = Axes().read(rows).version.tolist(), Axes()
    assert whole[-1] == run.summary()["updates"]
    assert [version for part in np.array_split(rows, 9) for version in growing.read(part).version] == whole
