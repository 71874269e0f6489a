"""n-softsync: every floor(workers / n) pushes make a version."""

import pytest
import torch
from script import Script, decisions, run, staleness

from psbench import strategies
from psbench.core.log import Kind
from psbench.errors import ParameterError

FIXED = {"name": "staleness_weighted", "rate": "fixed"}


def test_two_of_four_pushes_make_a_version_both_perhaps_of_one_worker():
    script = Script(strategies.n_softsync(n=2), 4)
    assert script.push(0, 1.0) == [("release", 0)]
    assert script.push(0, 2.0) == [("apply", [0, 0]), ("release", 0)]
    assert script.push(1, 2.5) == [("release", 1)]
    assert script.push(2, 3.0) == [("apply", [1, 2]), ("release", 2)]
    script.leave(3, 3.5)  # the number of pushes is that of the cluster as specified
    assert script.push(0, 4.0) == [("release", 0)]
    assert script.push(1, 4.5) == [("apply", [0, 1]), ("release", 1)]


@pytest.mark.parametrize(("n", "pushes"), [(1, 30), (2, 15), (15, 2), (30, 1)])
def test_thirty_workers(n, pushes):
    done = run(
        strategies.n_softsync(n=n), [1.0] * 30, step_time="shifted_exponential", updates=300, timing_only=True
    )
    versions = done.log.of_kind(Kind.APPLY)["version"].tolist()
    assert {versions.count(version) for version in set(versions)} == {pushes}
    seen = staleness(done)[len(versions) // 4 :]  # nothing is stale at first
    assert sum(seen) / len(seen) == pytest.approx(n, abs=0.5 + n * 0.05)
    assert max(seen) <= 2 * n + 2


@pytest.mark.slow
def test_without_weights_it_is_k_batch_asp():
    soft, batch = (
        run(strategies.n_softsync(n=2, aggregation=FIXED)),
        run(strategies.k_batch_asp(k=2)),
    )
    assert decisions(soft) == decisions(batch)
    assert torch.equal(soft.parameters, batch.parameters)


@pytest.mark.slow
def test_as_many_versions_as_workers_is_asp():
    soft = run(strategies.n_softsync(n=4, aggregation=FIXED, lr_scaling="by_share"))
    asp = run("asp")
    assert soft.log.digest() == asp.log.digest()
    assert torch.equal(soft.parameters, asp.parameters)


def test_one_version_is_not_bsp():
    script = Script(strategies.n_softsync(n=1), 2)
    assert script.push(0, 1.0) == [("release", 0)]
    assert script.push(0, 2.0) == [("apply", [0, 0]), ("release", 0)]


def test_more_versions_than_workers():
    with pytest.raises(
        ParameterError, match="n = 5 versions need as many workers, but there are 4; give n between 1 and 4"
    ):
        run(strategies.n_softsync(n=5))
