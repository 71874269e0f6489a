"""Worker independence: iterations per request for the model."""

import pytest

import psbench as ps
from psbench import strategies
from psbench.core.log import EventLog, Kind
from psbench.metrics import independence, mean_independence


@pytest.mark.parametrize("strategy", ["bsp", "asp", "ssp", "k_asp", "elastic_bsp"])
def test_it_is_one_where_every_step_is_pushed(scripted, strategy):
    log = scripted(strategy, [1.0, 1.5, 4.0], steps=60).log
    assert set(independence(log)["independence"]) == {1.0}
    assert mean_independence(log) is None


def test_several_steps_a_push_are_so_many_iterations():
    log = EventLog()
    for worker in range(3):
        log.add(Kind.JOIN, 0.0, worker=worker)
    for worker, steps in ((0, 4), (0, 6), (1, 1)):
        log.add(Kind.PUSH, 1.0, worker=worker, steps=steps)
    found = independence(log)
    assert found["iterations"].tolist() == [10, 1, 0]
    assert found["requests"].tolist() == [2, 1, 0]
    assert found["independence"].tolist()[:2] == [5.0, 1.0]
    assert found["independence"].isna().tolist() == [False, False, True]  # it never asked
    assert mean_independence(log) == 3.0


def test_chunks_of_data_are_the_iterations_of_hermes():
    log = EventLog()
    log.add(Kind.JOIN, 0.0, worker=0)
    for _ in range(7):
        log.add(Kind.REPORT, 1.0, worker=0, text='{"chunk_steps":40,"compute_s":1.0,"test_loss":0.5}')
    log.add(Kind.PUSH, 2.0, worker=0, steps=8 * 40)
    assert mean_independence(log) == 8.0


def test_other_reports_are_no_iterations():
    log = EventLog()
    log.add(Kind.JOIN, 0.0, worker=0)
    log.add(Kind.REPORT, 1.0, worker=0, text='{"compute_s":1.0}')
    log.add(Kind.PUSH, 2.0, worker=0, steps=1)
    assert mean_independence(log) is None


def hermes(**values):
    return strategies.hermes(chunk_samples=50, passes=2, **values)


def run(strategy):
    return ps.run(
        ps.Experiment(
            strategy=strategy,
            data={"name": "digits"},
            model="logistic",
            batch_size=64,
            stop={"seconds": 5},
            evaluate_every=100.0,
            cluster={"workers": 4, "step_time": "constant"},
        )
    )


@pytest.mark.slow
def test_summaries_tell_it_where_it_is_not_one():
    own, asp = run(hermes()).summary(), run("asp").summary()
    assert own["independence"] > 1.5
    assert "independence" not in asp


@pytest.mark.slow
def test_the_stricter_the_threshold_the_more_independent_the_workers():
    lenient, strict = (run(hermes(alpha=a, beta=0.0)).summary() for a in (-0.9, -1.6))
    assert 1 < lenient["independence"] < strict["independence"]
