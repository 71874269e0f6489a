"""Chunks of data, read from the log."""

import pytest

import psbench as ps
from psbench import strategies
from psbench.core.log import EventLog, Kind
from psbench.metrics import chunks, independence


def reported(compute_s, loss, steps):
    return f'{{"chunk_steps":{steps},"compute_s":{compute_s},"test_loss":{loss}}}'


def test_each_chunk_is_told_alone_though_statistics_add_up_until_a_push():
    log = EventLog()
    log.add(Kind.REPORT, 1.0, worker=0, text=reported(1.0, 0.9, 40))
    log.add(Kind.PUSH, 1.25, worker=2, steps=1)  # of a step, which is no chunk
    log.add(Kind.REPORT, 1.5, worker=1, text=reported(1.5, 0.8, 40))
    log.add(Kind.REPORT, 3.0, worker=0, text=reported(3.0, 0.7, 80))
    log.add(Kind.PUSH, 3.5, worker=0, steps=130, text='{"compute_s":3.25,"test_loss":0.5}')
    log.add(Kind.REPORT, 5.0, worker=0, text=reported(1.25, 0.6, 10))
    found = chunks(log)
    assert found["worker"].tolist() == [0, 1, 0, 0, 0]
    assert found["steps"].tolist() == [40, 40, 80, 10, 10]
    assert found["compute_s"].tolist() == [1.0, 1.5, 2.0, 0.25, 1.25]
    assert found["test_loss"].tolist() == [0.9, 0.8, 0.7, 0.5, 0.6]
    assert found["pushed"].tolist() == [False, False, False, True, False]


@pytest.mark.parametrize("lost", [Kind.LEAVE, Kind.DROP, Kind.CANCEL])
def test_a_worker_that_lost_its_steps_counts_from_zero_again(lost):
    log = EventLog()
    log.add(Kind.REPORT, 1.0, worker=0, text=reported(1.0, 0.9, 40))
    log.add(lost, 1.5, worker=0, text="failed")
    log.add(Kind.REPORT, 3.0, worker=0, text=reported(0.5, 0.8, 40))
    log.add(Kind.PUSH, 3.5, worker=0, steps=50, text='{"compute_s":0.75,"test_loss":0.5}')
    found = chunks(log)
    assert found["compute_s"].tolist() == [1.0, 0.5, 0.25]
    assert found["steps"].tolist() == [40, 40, 10]


def test_there_are_none_where_workers_push_every_step(scripted):
    assert chunks(scripted("asp", [1.0, 2.0], steps=10).log).empty


@pytest.mark.slow
def test_what_hermes_reports_adds_up():
    run = ps.run(
        ps.Experiment(
            strategy=strategies.hermes(chunk_samples=50, passes=2),
            data={"name": "digits"},
            model="logistic",
            stop={"seconds": 8},
            cluster={"workers": 3},
        )
    )
    found = chunks(run.log)
    assert len(found) == independence(run.log)["iterations"].sum()
    pushed = found[found["pushed"]]
    assert len(pushed) == len(run.log.of_kind(Kind.PUSH)["id"]) > 0
    assert found["compute_s"].min() > 0
    last = found.groupby("worker")["pushed"].apply(lambda flags: flags[::-1].cumsum()[::-1] > 0)
    in_pushes = found[last.droplevel(0).sort_index()]
    assert in_pushes["steps"].sum() == run.log.of_kind(Kind.PUSH)["steps"].sum()
    assert in_pushes["compute_s"].sum() == pytest.approx(
        float(run.log.of_kind(Kind.PUSH)["compute_s"].sum()), rel=1e-5
    )
