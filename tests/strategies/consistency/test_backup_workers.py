"""Backup workers: the first n - spares make a version, late gradients are dropped when they arrive."""

import pytest
import torch
from script import Script, decisions, run, staleness

from psbench import strategies
from psbench.core.log import Kind
from psbench.errors import ParameterError


def test_three_workers_and_one_spare():
    script = Script(strategies.backup_workers(spares=1), 3)
    assert script.push(0, 1.0) == [("hold", 0, "k pushes")]
    assert script.push(2, 2.0) == [("apply", [0, 2]), ("release", 0), ("release", 2)]
    # worker 1 was not interrupted; its late gradient is dropped and it takes the current version
    assert script.push(1, 3.0) == [("discard", 1, "late"), ("release", 1)]
    assert script.flights[1][1] == 1


def test_immediate_cancelling_restarts_everybody_at_once():
    script = Script(strategies.backup_workers(spares=1, cancel="immediate"), 3)
    script.push(0, 1.0)
    answer = script.push(2, 2.0)
    assert answer == [("apply", [0, 2]), ("cancel", 1), *[("release", worker) for worker in range(3)]]


def test_no_spares_is_bsp():
    spared, bsp = run(strategies.backup_workers(spares=0)), run("bsp")
    assert decisions(spared) == decisions(bsp)
    assert torch.equal(spared.parameters, bsp.parameters)


@pytest.mark.parametrize("cancel", ["immediate", "on_arrival"])
def test_spares_are_k_bsp_said_the_other_way_round(cancel):
    spared = run(strategies.backup_workers(spares=1, cancel=cancel))
    k_bsp = run(strategies.k_bsp(k=3, cancel=cancel))
    assert spared.log.digest() == k_bsp.log.digest()
    assert torch.equal(spared.parameters, k_bsp.parameters)


def test_used_gradients_are_fresh_and_versions_have_n_minus_spares():
    done = run(
        strategies.backup_workers(spares=2), speeds=(1, 0.9, 0.8, 0.7, 0.5), step_time="shifted_exponential"
    )
    applied = done.log.of_kind(Kind.APPLY)
    assert set(staleness(done)) == {0}
    assert {list(applied["version"]).count(v) for v in set(applied["version"].tolist())} == {3}
    assert len(done.log.of_kind(Kind.DISCARD)["row"])


def test_a_worker_that_fails_uses_up_a_spare():
    script = Script(strategies.backup_workers(spares=1), 3)
    script.push(0, 1.0)
    script.leave(1, 1.5)
    assert script.push(2, 2.0) == [("apply", [0, 2]), ("release", 0), ("release", 2)]
    script.push(0, 3.0)
    assert script.leave(2, 3.5) == [("apply", [0]), ("release", 0)]  # all that are left are enough


def test_somebody_must_not_be_a_spare():
    with pytest.raises(ParameterError, match=r"4 of 4 workers are spares.*between 0 and 3"):
        run(strategies.backup_workers(spares=4))
