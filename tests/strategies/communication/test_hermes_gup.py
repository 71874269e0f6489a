"""HermesGUP: which test losses are pushed."""

from math import inf, nan, sqrt
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

import psbench as ps
from psbench import strategies
from psbench.core.log import Kind
from psbench.core.strategy import Strategy
from psbench.core.worker_loop import WorkerLoop
from psbench.errors import ParameterError
from psbench.strategies.communication import HermesGUP
from psbench.strategies.communication.hermes_gup import z_score

LOSSES = [1.0, 0.9, 0.85, 0.83, 0.82, 0.815, 0.60]


def verdicts_of(half, losses):
    """Return what a worker does after chunks of one step with these test losses."""
    return [half.after_step({"test_loss": loss}) for loss in losses]


def pushes(half, losses):
    """Return the numbers, from 1, of the losses that are pushed."""
    return [number for number, verdict in enumerate(verdicts_of(half, losses), 1) if verdict == "push"]


@pytest.mark.parametrize("count", [2, 3, 4, 10])
def test_no_z_score_is_below_minus_the_root_of_the_others(count):
    assert z_score([1.0] * (count - 1) + [0.0]) == pytest.approx(-sqrt(count - 1))


@pytest.mark.slow
@given(st.lists(st.just(0.0) | st.floats(1e-100, 100), min_size=1, max_size=12))  # of others squares vanish
def test_z_scores_stay_within_that_bound(losses):
    z = z_score(losses)
    assert z == inf or abs(z) <= sqrt(len(losses) - 1) * (1 + 1e-9)


@pytest.mark.parametrize(("alpha", "least"), [(-0.9, 2), (-1.3, 3), (-1.6, 4), (-2.999, 10)])
def test_how_many_losses_a_push_needs(alpha, least):
    halves = {n: HermesGUP(alpha=alpha, patience=100).worker_policy() for n in range(1, 11)}
    fires = [n for n, half in halves.items() if pushes(half, [1.0] * (n - 1) + [0.1]) == [n]]
    assert fires == list(range(least, 11))


def test_z_scores_of_the_worked_example():
    z = [z_score(LOSSES[:count]) for count in range(1, 8)]
    assert z[0] == inf
    assert z[1:] == pytest.approx([-1, -1.0690, -0.9884, -0.9087, -0.8338, -2.0645], abs=5e-5)


def test_the_worked_example_pushes_at_the_seventh_loss_only():
    half = HermesGUP(alpha=-1.3, beta=0.1, patience=5).worker_policy()
    thresholds, verdicts = [], []
    for loss in LOSSES:
        thresholds.append(half.alpha)
        verdicts += verdicts_of(half, [loss])
    assert verdicts == ["report"] * 6 + ["push"]
    assert thresholds == pytest.approx([-1.3] * 5 + [-1.17, -1.053])


def test_a_lenient_threshold_pushes_every_other_time():
    assert pushes(HermesGUP(alpha=-0.9, beta=0.1, patience=5).worker_policy(), LOSSES) == [2, 4, 6]


@pytest.mark.parametrize(
    ("alpha", "beta", "expected"),
    [(-1.3, 0.1, [-1.17, -1.053, -0.9477, -0.85293]), (-1.6, 0.15, [-1.36, -1.156, -0.9826])],
)
def test_alpha_decays_once_a_chunk_while_patience_is_exceeded(alpha, beta, expected):
    half = HermesGUP(alpha=alpha, beta=beta, patience=3).worker_policy()
    assert verdicts_of(half, [1.0, 1.1]) == ["report"] * 2  # two chunks do not exceed a patience of three
    assert half.alpha == alpha
    seen = []
    for number in range(len(expected)):
        verdicts_of(half, [1.2 + number])
        seen.append(half.alpha)
    assert seen == pytest.approx(expected, rel=1e-4)


def test_a_push_empties_window_and_count_and_does_not_restore_alpha():
    half = HermesGUP(alpha=-1.3, beta=0.1, patience=2).worker_policy()
    assert verdicts_of(half, [1.0, 1.0, 1.0, 0.5]) == ["report"] * 3 + ["push"]
    after = half.alpha
    assert after == pytest.approx(-1.3 * 0.9**2)
    assert verdicts_of(half, [0.1]) == ["report"]  # with the losses before, this one would be pushed
    assert half.alpha == after  # one quiet chunk again


def test_an_old_loss_leaves_the_window():
    half = HermesGUP(alpha=-1.2, window=3, patience=100).worker_policy()
    assert verdicts_of(half, [0.0, 1.0, 1.0, 0.9]) == ["report"] * 3 + ["push"]


def test_losses_that_do_not_differ_are_never_pushed():
    assert pushes(HermesGUP(alpha=-1e-6, beta=0.9).worker_policy(), [0.1] * 50) == []


def test_a_loss_that_is_no_number_is_pushed():
    assert verdicts_of(HermesGUP().worker_policy(), [nan]) == ["push"]
    assert verdicts_of(HermesGUP().worker_policy(), [inf]) == ["push"]


def test_a_threshold_that_nothing_reaches_is_refused():
    with pytest.raises(ParameterError, match=r"10 losses is below -3, so nothing would ever be pushed"):
        HermesGUP(alpha=-3.1, beta=0.0)
    assert HermesGUP(alpha=-3.1, beta=0.1).alpha == -3.1


def test_the_share_of_normal_losses_in_the_documentation():
    shares = [NormalDist().cdf(alpha) for alpha in (-1.3, -1.6, -0.9)]
    assert shares == pytest.approx([0.0968, 0.0548, 0.18406], abs=5e-6)
    assert "9.7 % for -1.3" in " ".join(HermesGUP.__doc__.split())


class Loop:
    """A worker that takes steps of a second; its test loss falls and falls."""

    def __init__(self):
        self.loop = WorkerLoop(strategies.hermes(alpha=-0.9), worker=0, batch_size=7)
        self.losses = iter(2.0**-number for number in range(100))

    def steps(self):
        """Step until the worker speaks; return what it says, with the batch of each step."""
        loop, batches, verdict = self.loop, [], "continue"
        while verdict == "continue":
            batches.append(loop.batch_size)
            verdict = loop.stepped(loop.batch_size, 1.0, 0.5, LossOf(self))
        return verdict, batches


class LossOf(dict):
    """Statistics that compute the test loss when it is asked for."""

    def __init__(self, owner):
        self.owner = owner

    def __missing__(self, name):
        assert name == "test_loss"
        self["test_loss"] = next(self.owner.losses)
        return self["test_loss"]


def test_a_chunk_is_so_many_steps_as_its_passes_have_batches():
    worker = Loop()
    loop = worker.loop
    assert loop.release("step", 1, 0, {"samples": 10, "batch_size": 4, "passes": 3}) == "continue"
    assert loop.chunk == 10
    assert worker.steps() == ("report", [4] * 8)  # 30 samples in batches of 4
    assert loop.chunk == 0
    assert loop.report().stats == {"compute_s": 8.0, "test_loss": 1.0, "chunk_steps": 8, "next_samples": 10}
    assert loop.chunk == 10  # the next step begins another


def test_the_test_loss_is_computed_at_the_end_of_a_chunk_only():
    worker = Loop()
    worker.loop.release("step", 1, 0, {"samples": 10, "batch_size": 4, "passes": 3})
    worker.steps()
    assert next(worker.losses) == 0.5


def test_orders_in_the_middle_of_a_chunk_are_for_the_next_one():
    worker = Loop()
    loop = worker.loop
    loop.release("step", 1, 0, {"samples": 8, "batch_size": 4, "passes": 2})
    loop.stepped(4, 1.0, 0.5, LossOf(worker))
    loop.on_orders({"samples": 6, "batch_size": 2, "passes": 1})
    assert worker.steps() == ("report", [4] * 3)
    loop.report()
    assert (loop.chunk, loop.batch_size) == (6, 2)
    assert worker.steps() == ("push", [2] * 3)
    push = loop.push(0, bytes=1)
    assert (push.samples, push.steps) == (16 + 6, 4 + 3)


def test_told_to_push_it_does_so_after_its_step_and_begins_a_chunk_anew():
    worker = Loop()
    loop = worker.loop
    loop.release("step", 1, 0, {"samples": 8, "batch_size": 4, "passes": 2})
    loop.on_orders({"push": True})
    assert worker.steps() == ("push", [4])
    loop.push(0, bytes=1)
    loop.release("step", 2, 1, {})
    assert worker.steps() == ("report", [4] * 4)


def test_without_orders_a_chunk_is_one_step():
    strategy = Strategy(consistency="asp", aggregation="loss_weighted", communication="hermes_gup")
    loop = WorkerLoop(strategy, worker=0, batch_size=7)
    loop.release("step", 1, 0, {})
    assert loop.chunk == 0
    assert loop.stepped(7, 1.0, 0.5, {"test_loss": 1.0}) == "report"


def test_it_fits_only_where_nobody_waits_for_a_push():
    with pytest.raises(ParameterError, match="may never push, which would block"):
        strategies.hermes(consistency="ssp")


def test_a_test_loss_takes_the_time_of_a_forward_pass_on_its_machine():
    def first_reports(samples):
        strategy = strategies.hermes(test_samples=samples, chunk_samples=10, prefetch=False, alpha=-2.9)
        log = ps.run(_constant(strategy)).log
        rows = log.rows()
        first_times = {}
        for row in rows[rows["kind"] == Kind.REPORT]:
            first_times.setdefault(int(row["worker"]), float(row["time_s"]))
        return first_times

    few, many = first_reports(1), first_reports(101)
    seconds = 100 * 1e-3 / 3  # at speed 1, with the cluster's 1e-3 s a sample
    assert many[0] - few[0] == pytest.approx(seconds)
    assert many[1] - few[1] == pytest.approx(seconds / 0.5)


def test_a_measured_loss_costs_in_proportion_to_its_samples():
    def starts(samples):
        strategy = strategies.adacomm(loss="measured", loss_samples=samples)
        log = ps.run(_constant(strategy)).log
        return float(log.rows()[log.rows()["kind"] == Kind.RELEASE]["time_s"][0])

    assert [starts(samples) for samples in (30, 300)] == pytest.approx([0.01, 0.1])


def _constant(strategy):
    cluster = {"workers": 2, "speed": [1, 0.5], "step_time": "constant"}
    data = {"name": "mixture", "num_samples": 1000}
    return ps.Experiment(
        strategy=strategy, cluster=cluster, data=data, model="logistic", batch_size=8, stop={"seconds": 2}
    )
