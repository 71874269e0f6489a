"""What is expected of a run, said in a notebook and compared with what came."""

from __future__ import annotations

import pytest

from psbench.errors import ParameterError
from psbench.experiment import Experiment
from psbench.runs.execution import run
from psbench_widgets import Prediction
from psbench_widgets.predictions import gaps

WITH_BARRIER = Experiment(strategy="bsp", timing_only=True, stop={"epochs": 2})


def test_a_notebook_says_what_it_expects_and_prints_what_came():
    barrier = run(WITH_BARRIER)
    free = run(WITH_BARRIER.but(strategy="asp"))
    expected = Prediction(most_waiting=0, times_as_fast=9)
    waited, faster = expected.against(free, before=barrier).splitlines()
    assert waited == "You expected worker 0 to wait most; nobody waited."
    times = barrier.summary()["time_s"] / free.summary()["time_s"]
    assert faster == f"You expected 9 times as fast as the previous run; it was {times:.3g} times."


def test_who_expects_nothing_is_told_nothing():
    assert Prediction().against(run(WITH_BARRIER)) == ""


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"accuracy": 95}, "from 0 to 1"),
        ({"times_as_fast": 0}, "must be above 0"),
        ({"most_waiting": "nobdy"}, "a worker or 'nobody', got 'nobdy'"),
        ({"most_waiting": -1}, "a worker or 'nobody', got -1"),
    ],
)
def test_what_cannot_come_is_not_expected(expected, message):
    with pytest.raises(ParameterError, match=message):
        Prediction(**expected)


@pytest.mark.parametrize(
    ("expected", "before_s", "is_right"),
    [
        ({"times_as_fast": 9}, 20, True),  # it was ten times: a ninth more
        ({"times_as_fast": 8}, 20, False),
        ({"times_as_fast": 0.2}, 0.2, False),  # it was a tenth: half of it
        ({"accuracy": 0.955}, 20, True),
        ({"accuracy": 0.97}, 20, False),
        ({"most_waiting": 0}, 20, True),
        ({"most_waiting": 1}, 20, False),
        ({"most_waiting": "nobody"}, 20, False),
    ],
)
def test_what_is_close_counts_as_right(expected, before_s, is_right):
    came = {"idle_fraction": [0.4, 0.0], "final": {"val_accuracy": 0.95}, "time_s": 2.0}
    (gap,) = gaps(Prediction(**expected), came, {"time_s": before_s})
    assert gap["right"] is is_right
    (gap,) = gaps(Prediction(most_waiting=2), came)
    assert gap == {"text": "There is no worker 2; the workers are 0 to 1.", "right": False}
