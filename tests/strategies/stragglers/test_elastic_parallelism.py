"""Elastic parallelism: without a straggler it is BSP, and with one a helper and it end together."""

import pytest
import torch

import psbench as ps
from psbench.core.log import Kind
from psbench.errors import ParameterError
from psbench.strategies import epsp
from psbench.strategies.stragglers.elastic_parallelism import helped
from psbench.testing import toy_experiment

CONSTANT = {"step_time": "constant", "seconds_per_step": 0.0, "latency_s": 0.0}


def run(strategy, **cluster):
    return ps.run(toy_experiment(strategy, cluster=CONSTANT | cluster, batch_size=48, stop={"epochs": 6}))


def sizes(done):
    """Return the samples of each worker in each round."""
    pushed, count = done.log.of_kind(Kind.APPLY), done.meta["num_workers"]
    return [pushed["samples"][at : at + count].tolist() for at in range(0, len(pushed["samples"]), count)]


def test_without_a_straggler_nothing_changes():
    """Unequal machines are none, as long as no batch takes 1.5 times as long as the others'."""
    speed = [1.0, 0.9, 0.8]
    ours, theirs = run(epsp(), workers=3, speed=speed), run("bsp", workers=3, speed=speed)
    assert torch.equal(ours.parameters, theirs.parameters)
    assert sizes(ours) == sizes(theirs)
    assert [ours.log.of_kind(kind)["time_s"].tolist() for kind in Kind] == [
        theirs.log.of_kind(kind)["time_s"].tolist() for kind in Kind
    ]


def test_a_helper_takes_so_much_of_a_straggler_that_both_end_together():
    """Three machines of 4, 4 and 1 cores: 16 + x samples on 4 cores are 16 - x on 1 for x = 9.6."""
    ours, theirs = (run(each, workers=3, speed=[4.0, 4.0, 1.0]) for each in (epsp(), "bsp"))
    first, *rest = sizes(ours)
    assert first == [16, 16, 16]
    assert all(each == [26, 16, 6] for each in rest)
    assert ours.meta["time_s"] < 0.5 * theirs.meta["time_s"]
    assert ps.replay(ours) == len(ours.log)


def test_workers_that_share_all_cores_have_no_straggler():
    """One machine of a single core: each step is as slow as another, and there is nobody idle."""
    assert all(each == [16, 16, 16] for each in sizes(run(epsp(), workers=3, cores=1.0)))


def test_who_has_recovered_gets_its_batch_back():
    slow = {"worker": 1, "from_s": 0.0, "to_s": 0.2, "factor": 6.0}
    found = sizes(run(epsp(), workers=3, slowdowns=[slow]))
    assert found[1][1] < 16
    assert found[-1] == [16, 16, 16]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([1.0], [10]),  # nobody to help
        ([1.0, 1.5], [10, 10]),  # no more than the threshold
        ([1.0, 3.0], [15, 5]),
        ([1.0, 1.0, 1.0, 9.0, 4.0], [18, 16, 10, 2, 4]),  # the slowest is helped by the first
        ([1.0, 1e9], [19, 1]),  # a sample is left: nobody is without work
    ],
)
def test_worked_examples(seconds, expected):
    """Batches of 10 samples, and seconds of a sample."""
    found = helped(dict(enumerate(seconds)), dict.fromkeys(range(len(seconds)), 10), threshold=1.5)
    assert list(found.values()) == expected


def test_it_needs_a_barrier():
    with pytest.raises(ParameterError, match="changes batch sizes at barriers"):
        epsp(consistency="asp")
