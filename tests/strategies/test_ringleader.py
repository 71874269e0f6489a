"""Ringleader ASGD: Alg. 1 in numpy along the log of a run, and what its rounds promise."""

from collections import Counter

import least_squares
import numpy as np
import pytest
import torch
from least_squares import gradient, start
from threaded_run import ThreadedRun

import psbench as ps
from psbench.core.log import Kind
from psbench.core.strategy import Strategy
from psbench.errors import ParameterError
from psbench.runs.execution import run as run_from
from psbench.runs.replaying import replay

TIMES = ("constant", {"name": "shifted_exponential", "spread": 1.0})


def unlike(strategy="ringleader", workers=3, step_time="constant", **changes):
    cluster = {"workers": workers, "speed": [1.0, 0.7, 0.2][:workers], "step_time": step_time}
    return least_squares.experiment(
        strategy, workers, **{"cluster": cluster, "stop": {"updates": 40}} | changes
    )


class Algorithm:
    """Alg. 1 of the paper: two tables, two phases, and what it says of each arrival."""

    def __init__(self, x, workers, lr=0.05):
        self.n, self.lr, self.x = workers, lr, [x]
        self.table, self.next_table = self.new_table(), self.new_table()
        self.phase, self.unserved = 1, set()
        self.served, self.delays = [], []  # a worker for each version; of each gradient in each step
        self.at = [0] * workers  # the version that each computes at

    def new_table(self):
        return [[] for _ in range(self.n)]

    def arrival(self, worker):
        g, k = gradient(worker, self.x[self.at[worker]]), self.at[worker]
        if self.phase == 1:
            self.table[worker].append((k, g))
            if all(self.table):
                self.phase, self.unserved = 2, set(range(self.n))
                self.serve(worker)
        elif worker in self.unserved:
            self.table[worker].append((k, g))
            self.serve(worker)
        else:
            self.next_table[worker].append((k, g))
        self.at[worker] = len(self.x) - 1

    def serve(self, worker):
        self.delays += [len(self.x) - 1 - k for row in self.table for k, _ in row]
        step = sum(np.mean([g for _, g in row], axis=0) for row in self.table) / self.n
        self.x.append(self.x[-1] - self.lr * step)
        self.served.append(worker)
        self.unserved.remove(worker)
        if not self.unserved:
            self.phase, self.table, self.next_table = 1, self.next_table, self.new_table()


def along(done, spec, workers=3):
    """Return the algorithm after all pushes of a run, each of which is of the version that it says."""
    rules, pushes = Algorithm(start(spec), workers), done.log.of_kind(Kind.PUSH)
    for worker, version in zip(pushes["worker"], pushes["version"], strict=True):
        assert rules.at[worker] == version
        rules.arrival(worker)
    return rules


@pytest.mark.parametrize("step_time", TIMES, ids=str)
def test_every_version_is_the_papers(step_time):
    spec = unlike(step_time=step_time)
    done = ps.run(spec)
    rules = along(done, spec)
    assert len(rules.x) == 41
    np.testing.assert_allclose(done.parameters, rules.x[-1], rtol=1e-4)
    released = done.log.of_kind(Kind.RELEASE)
    versions = released["version"].tolist()
    served = [int(released["worker"][versions.index(version)]) for version in range(1, 40)]
    assert served == rules.served[:39]
    assert all({*served[i : i + 3]} == {0, 1, 2} for i in range(0, 39, 3))  # each worker once a round


@pytest.mark.parametrize("step_time", TIMES, ids=str)
@pytest.mark.parametrize("workers", [2, 3])
def test_no_gradient_is_older_than_the_bound_and_none_is_lost(workers, step_time):
    spec = unlike(workers=workers, step_time=step_time)
    done = ps.run(spec)
    rules = along(done, spec, workers)
    assert 0 < max(rules.delays) <= 2 * workers - 2
    assert not len(done.log.of_kind(Kind.DISCARD)["row"])
    applied = Counter(done.log.of_kind(Kind.APPLY)["id"].tolist())
    kept = [push for row in (*rules.table, *rules.next_table) for push in row]
    assert set(applied.values()) == {1}
    pushed = len(done.log.of_kind(Kind.PUSH)["row"])
    waiting = len(kept) if rules.phase == 1 else sum(map(len, rules.next_table))
    assert len(applied) == pushed - waiting


def test_one_worker_is_plain_sgd():
    assert torch.equal(ps.run(unlike(workers=1)).parameters, ps.run(unlike("bsp", workers=1)).parameters)


def test_under_a_barrier_the_table_is_the_mean():
    table = Strategy(consistency="bsp", aggregation="gradient_table")
    torch.testing.assert_close(ps.run(unlike(table)).parameters, ps.run(unlike("bsp")).parameters)


def test_unlike_workers_end_at_the_optimum_of_all():
    """However much faster one is, and asp at that rate ends near the optimum of that one."""
    own, other = (
        ps.run(unlike(name, lr=0.2, stop={"updates": 120})).parameters.numpy()
        for name in ("ringleader", "asp")
    )
    np.testing.assert_allclose(own, least_squares.optimum(), atol=1e-4)
    assert np.abs(other - least_squares.optimum()).max() > 0.1


def test_a_live_run_computes_what_the_algorithm_does():
    spec = unlike(stop={"updates": 20})
    live = ThreadedRun(spec.but(backend="dask")).run()
    assert live.error is None
    rules = along(live, spec)
    torch.testing.assert_close(live.parameters, torch.tensor(rules.x[20], dtype=torch.float32))
    assert max(rules.delays) <= 4


def test_a_run_goes_on_with_its_table(tmp_path):
    """Steps under way are computed again, of the same models: the algorithm knows of no interruption."""
    spec = unlike(checkpoint_every=3.0)
    ps.run(spec, folder=tmp_path / "run")
    found = sorted((tmp_path / "run" / "checkpoints").glob("*.npz"))
    for path in (found[0], found[-1]):
        again = run_from(spec, start=path)
        np.testing.assert_allclose(again.parameters, along(again, spec).x[40], rtol=1e-4)
        assert replay(again) == len(again.log)


@pytest.mark.parametrize(("worker", "at_s"), [(2, 0.3), (1, 0.01)], ids=["collecting", "before its turn"])
def test_a_lost_worker_is_neither_waited_for_nor_remembered(worker, at_s):
    cluster = {"workers": 3, "step_time": "constant", "failures": [{"worker": worker, "at_s": at_s}]}
    done = ps.run(unlike(cluster=cluster, stop={"updates": 900, "seconds": 6}))
    x, y = (np.delete(each, worker, axis=0) for each in (least_squares.X, least_squares.Y))
    left = np.linalg.lstsq(x.reshape(-1, 2), y.reshape(-1), rcond=None)
    np.testing.assert_allclose(done.parameters, left[0], atol=1e-4)


def test_a_table_that_is_never_filled_is_refused():
    with pytest.raises(ParameterError, match="which asp may never make; use consistency 'bsp'"):
        ps.strategies.ringleader(consistency="asp")


def test_servers_share_the_table():
    spec = unlike({"name": "ringleader", "servers": 2})
    done = ps.run(spec)
    np.testing.assert_allclose(done.parameters, along(done, spec).x[40], rtol=1e-4)
