"""A worker's loop: what a push and a vote say of the steps that they stand for."""

from __future__ import annotations

import pytest

from psbench.core.worker_loop import WorkerLoop
from psbench.strategies import make_strategy


def test_the_loss_of_a_push_is_the_mean_over_the_samples_of_its_steps():
    loop = WorkerLoop(make_strategy({"name": "local_sgd", "local_steps": 2}), worker=3, batch_size=4)
    loop.release("step", 1, 0, {"local_steps": 2})
    assert loop.stepped(4, 0.5, 2.0, {}) == "continue"
    assert loop.stepped(12, 0.25, 1.0, {}) == "push"
    push = loop.push(7, bytes=10)
    assert (push.worker, push.samples, push.steps) == (3, 16, 2)
    assert (push.loss, push.compute_s) == (pytest.approx(1.25), 0.75)
    loop.release("step", 2, 1, {"local_steps": 2})
    loop.stepped(4, 0.5, 3.0, {})
    loop.stepped(4, 0.5, 5.0, {})
    assert loop.push(8, bytes=10).loss == pytest.approx(4.0)  # nothing is left of the steps before


def test_what_a_vote_has_told_is_not_told_again_by_the_push():
    loop = WorkerLoop(make_strategy("selsync"), worker=0, batch_size=4)
    loop.release("step", 1, 0, {})
    loop.stepped(4, 0.5, 2.0, {"grad_norm_sq": 1.0})
    assert loop.vote().compute_s == 0.5
    assert loop.push(1, bytes=10).compute_s == 0.0
