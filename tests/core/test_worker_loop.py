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


def loop_of(strategy, orders, allowance):
    loop = WorkerLoop(make_strategy(strategy), worker=0, batch_size=4)
    assert loop.release("step", 1, 0, orders, allowance) == "continue"
    return loop


@pytest.mark.parametrize(
    ("allowance", "steps"), [(-1, 5), (100, 5), (20, 5), (17, 5), (16, 4), (1, 1), (0, 1)]
)
def test_a_worker_pushes_when_it_has_used_up_its_allowance(allowance, steps):
    """At the end of the first step that reaches it, and not before the first."""
    loop = loop_of({"name": "local_sgd", "local_steps": 5}, {"local_steps": 5}, allowance)
    directives = [loop.stepped(4, 0.5, 1.0, {}) for _ in range(steps)]
    assert directives == [*["continue"] * (steps - 1), "push"]
    assert loop.push(0, bytes=10).steps == steps
    loop.release("step", 2, 1, {"local_steps": 5})
    assert [loop.stepped(4, 0.5, 1.0, {}) for _ in range(5)] == [*["continue"] * 4, "push"]


def test_a_worker_without_samples_left_goes_on_until_its_answer_is_due():
    """And pushes what it has as soon as that is here; of an allowance, what was pushed is used up."""
    orders = {"local_steps": 6, "fragment": 0}
    strategy = {"name": "streaming_diloco", "local_steps": 12, "overlap": 5}
    loop = loop_of(strategy, orders, allowance=32)
    assert [loop.stepped(4, 0.5, 1.0, {}) for _ in range(6)] == [*["continue"] * 5, "push_and_continue"]
    assert loop.push(0, bytes=10, overlapping=True).samples == 24
    # 8 samples are left, and its policy counts the steps after which the answer is taken
    assert [loop.stepped(4, 0.5, 1.0, {}) for _ in range(5)] == [*["continue"] * 4, "wait"]
    assert loop.release("step", 2, 1, orders, allowance=8) == "push"
    assert (loop.push(1, bytes=10).steps, loop.exchanging) == (5, False)
    assert loop.release("step", 3, 2, orders, allowance=100) == "continue"
    assert [loop.stepped(4, 0.5, 1.0, {}) for _ in range(6)] == [*["continue"] * 5, "push_and_continue"]


def test_a_vote_is_no_step_of_a_round():
    loop = loop_of("selsync", {}, allowance=0)
    assert loop.stepped(4, 0.5, 1.0, {"grad_norm_sq": 1.0}) == "vote"
