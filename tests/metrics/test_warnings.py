"""A switch rule that never fired says why, in its own terms."""

from __future__ import annotations

import json

import pytest

import psbench as ps
from psbench.core.log import EventLog, Kind
from psbench.metrics import never_switched
from psbench.metrics.warnings import whole_rates
from psbench.results.run import Run
from psbench.strategies.switching.empirical import Empirical
from psbench.testing import toy_experiment

MOVING = [0.500, 0.450, 0.420, 0.415, 0.413, 0.412]  # thesis, example 4.1: 3.7162 %


def log_of(losses, every=1.0, samples=100):
    """A log of so many evaluated epochs of 100 samples."""
    log = EventLog()
    for number, loss in enumerate(losses, 1):
        log.add(Kind.APPLY, float(number), version=number, samples=samples)
        values = {"epoch": number * every, "val_loss": loss}
        log.add(Kind.EVALUATED, float(number), id=number, version=number, text=json.dumps(values))
    return log


def warning(log, rule, planned=None):
    found = never_switched(
        log, {"dataset_size": 100, "rules": [rule] if rule else [], "planned_epochs": planned}
    )
    return found[0] if found else ""


def test_the_smallest_change_beside_the_threshold():
    rule = {"name": "empirical", "window": 5, "threshold": 0.01}
    losses = [1.0, *MOVING]
    assert warning(log_of(losses), rule) == (
        "never switched: the change was 3.72 % at its smallest, threshold 1 %"
    )


def test_too_few_epochs():
    rule = {"name": "empirical", "window": 5, "threshold": 0.01}
    assert warning(log_of(MOVING[:5]), rule) == (
        "never switched: the rule needs the validation losses of 6 epochs, and the run ended after 5 epochs"
    )


def test_rules_are_not_shown_evaluations_before_all_steps_or_after_them(monkeypatch):
    """Neither is a rule told of in a run, whatever it would make of them."""
    log = log_of([0.5, 0.25])
    for number in (0, -1):
        log.add(Kind.EVALUATED, 3.0, id=number, text=json.dumps({"epoch": 2.0, "val_loss": 9.0}))
    monkeypatch.setattr(
        Empirical, "why_not", lambda rule, shown, *_: str([event.values["val_loss"] for event in shown])
    )
    assert warning(log, {"name": "empirical"}) == "never switched: [0.5, 0.25]"


@pytest.mark.parametrize(("workers", "count"), [([0, 0], 0), ([0, 1], 1)], ids=str)
def test_two_workers_are_several_whose_pushes_have_the_whole_rate(workers, count):
    log = EventLog()
    for number, worker in enumerate(workers):
        log.add(Kind.APPLY, float(number), worker, number, number + 1, 4, 1)
    found = whole_rates(log, {"whole_rate": [True], "compositions": ["asp"]})
    assert len(found) == count
    assert all(each.startswith("every update of asp has one push") for each in found)


def test_the_epochs_count_and_not_the_evaluations():
    rule = {"name": "empirical", "window": 5, "threshold": 0.5}
    assert "losses of 6 epochs" in warning(log_of([1.0] * 8, every=0.25, samples=25), rule)


def test_a_loss_that_is_no_number():
    rule = {"name": "empirical", "window": 1, "threshold": 0.01}
    log = EventLog()
    for number in (1, 2):
        log.add(Kind.EVALUATED, 1.0, id=number, text=json.dumps({"epoch": number, "val_loss": float("nan")}))
    assert warning(log, rule) == "never switched: the validation loss was not a number"


def test_a_run_that_ended_before_the_hand_over():
    rule = {"name": "empirical", "window": 1, "threshold": 0.01}
    assert "ended before the hand-over" in warning(log_of([1.0, 1.0]), rule)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"name": "after", "fraction": 0.5}, "the run ended after 3 epochs, before the switch at epoch 5"),
        ({"name": "after", "fraction": 1.0}, ""),
        ({"name": "stragglers", "fraction": 0.5}, "no worker was a straggler, and the run ended after 3"),
        ({"name": "stragglers", "fraction": 0.5, "policy": "elastic"}, "switched: the run ended after 3"),
        ("manual", ""),
        ({"name": "noise_adaptive", "window": 3}, "losses of 4 epochs"),
    ],
)
def test_every_rule_has_words_of_its_own(rule, expected):
    found = warning(log_of([0.5, 0.4, 0.3]), rule, planned=10)
    assert (expected in found) if expected else not found


def test_noise_and_net_change_at_their_nearest():
    found = warning(log_of([16.0, 8.0, 4.0, 2.0]), {"name": "noise_adaptive", "window": 3})
    assert found.endswith("the net change came closest at 50 % per epoch, where noise explains 0 %")


def test_a_run_that_never_switched_is_warned_of_when_reopened_too(tmp_path):
    """It ran as All-Reduce under another name, without a word."""
    rule = {"name": "empirical", "window": 2, "threshold": 1e-9}
    done = ps.run(toy_experiment({"name": "strategy_switch", "rule": rule}, stop={"epochs": 4}))
    (found,) = (w for w in done.summary()["warnings"] if w.startswith("never switched"))
    assert found.endswith("at its smallest, threshold 1e-07 %")
    done.save(tmp_path)
    again = Run.load(tmp_path)
    assert found in again.summary()["warnings"]


def test_a_run_that_switched_is_not_warned_of():
    done = ps.run(toy_experiment({"name": "strategy_switch", "rule": {"name": "after"}}, stop={"epochs": 4}))
    assert done.summary()["switches"]
    assert not [w for w in done.summary()["warnings"] if "never switched" in w]
