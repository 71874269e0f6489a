"""Chunks of data: which samples a worker's batches come from, and when they reach it."""

import numpy as np
import pytest

import psbench as ps
from psbench import strategies
from psbench.core.log import Kind
from psbench.seeds import Streams
from psbench.training.trainer import Trainer


def trainer(ordered=False, shards=((0, 20), (20, 30))):
    shards = [np.arange(*shard) for shard in shards]
    return Trainer(None, None, shards, Streams(0), ordered)


def drawn(trainer, worker, batch, times):
    return [trainer.start(worker, batch).indices.tolist() for _ in range(times)]


def test_batches_go_through_the_chunk_again_and_again():
    made = trainer()
    made.assign(0, 5)
    samples = np.array(drawn(made, 0, 4, 5)).reshape(4, 5)  # passes
    assert {tuple(sorted(part)) for part in samples.tolist()} == {tuple(sorted(samples[0]))}
    assert len({tuple(part) for part in samples.tolist()}) > 1  # reshuffled


def test_chunks_follow_each_other_through_the_shard():
    made, seen = trainer(), []
    for _ in range(4):
        made.assign(0, 5)
        seen += made.start(0, 5).indices.tolist()
    assert sorted(seen) == list(range(20))


def test_a_chunk_larger_than_the_shard_is_the_shard():
    made = trainer()
    made.assign(1, 1000)
    first, second = drawn(made, 1, 10, 2)
    assert sorted(first) == sorted(second) == list(range(20, 30))


def test_the_order_of_a_shard_is_kept_if_asked_for():
    made = trainer(ordered=True)
    made.assign(0, 3)
    assert drawn(made, 0, 2, 3) == [[0, 1], [2, 0], [1, 2]]
    made.assign(0, 3)
    assert drawn(made, 0, 3, 1) == [[3, 4, 5]]


def test_chunks_of_workers_are_independent_and_can_be_taken_back():
    plain, made = trainer(), trainer()
    made.assign(0, 5)
    assert drawn(made, 1, 4, 3) == drawn(plain, 1, 4, 3)
    made.unassign()
    assert drawn(made, 0, 5, 1) == drawn(plain, 0, 5, 2)[1:]  # it goes on where the chunk ended


SAMPLES, FEATURES = 240, 64
COMPUTE_S, TRANSFER_S = 3.0, 1.0
TEST_S = COMPUTE_S / SAMPLES / 3  # a forward pass over the one test sample


def reports(prefetch, transfer_s=TRANSFER_S):
    """Return when the first chunks of the only worker have ended, seconds."""
    mbit = SAMPLES * FEATURES * 4 * 8 / 1e6 / transfer_s
    cluster = {"workers": 1, "step_time": "constant", "latency_s": 0.0, "seconds_per_step": 0.0}
    cluster |= {"seconds_per_sample": COMPUTE_S / SAMPLES}
    cluster |= {"bandwidth_mbit_s": mbit, "server_bandwidth_mbit_s": mbit}
    strategy = strategies.hermes(
        chunk_samples=SAMPLES, passes=1, alpha=-3.0, prefetch=prefetch, test_samples=1
    )
    run = ps.run(
        ps.Experiment(
            **{"data": {"name": "digits"}, "model": "logistic", "strategy": strategy, "cluster": cluster},
            **{"batch_size": 10, "stop": {"seconds": 25}, "evaluate_every": 100.0},
        )
    )
    return run.log.of_kind(Kind.REPORT)["time_s"][:4]


def test_a_chunk_that_travels_during_the_one_before_is_not_waited_for():
    assert np.diff(reports(prefetch=True)) == pytest.approx([COMPUTE_S + TEST_S] * 3)
    assert np.diff(reports(prefetch=False)) == pytest.approx([COMPUTE_S + TEST_S + TRANSFER_S] * 3)


def test_only_what_the_computing_time_does_not_cover_is_waited_for():
    exposed = 1.5
    times = reports(prefetch=True, transfer_s=COMPUTE_S + exposed)
    assert np.diff(times) == pytest.approx([COMPUTE_S + exposed] * 3)


def test_the_first_chunk_is_always_waited_for():
    for prefetch in (True, False):
        assert reports(prefetch)[0] == pytest.approx(COMPUTE_S + TRANSFER_S, rel=0.05)  # and for the model
