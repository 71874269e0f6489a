"""Budgets of runs, their progress, and whether a ratio of their times is meaningful."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psbench.core.target import Target
from psbench.metrics import end_of
from psbench.metrics.rows import trained
from psbench.results.run import Run

#: what makes a test bed: seconds of one are not seconds of another
_TEST_BED = ("backend", "cluster", "data", "model")
#: runs whose samples differ by more than this share did not have equal budgets
_EQUAL = 0.05


def budget_of(run: Run) -> dict[str, Any]:
    """Return a run's budget: its stop rules, its batch size and its data."""
    spec = run.experiment.spec()
    return {"stop": spec["stop"], "batch_size": spec["batch_size"], "data": spec["data"]["name"]}


def in_words(budget: Mapping[str, Any]) -> str:
    """Return a budget in words.

    >>> in_words({"stop": {"epochs": 3.0}, "batch_size": 128, "data": "digits"})
    'epochs 3 on digits, global batch 128'
    >>> in_words({"stop": {"target": {"metric": "f1", "at_least": 0.9}}, "batch_size": 8, "data": "digits"})
    'target f1 at least 0.9 on digits, global batch 8'
    """
    rules = {name: value for name, value in budget["stop"].items() if name != "target"}
    stop = ", ".join(f"{name} {value:g}" for name, value in rules.items())
    if (target := budget["stop"].get("target")) is not None:
        stop = f"{stop}{', ' if stop else ''}target {Target(**target)}"
    return f"{stop} on {budget['data']}, global batch {budget['batch_size']}"


def budgets(groups: Mapping[str, Sequence[Run]]) -> str:
    """Return a description of every run's budget; it says so if the budgets differ."""
    given = [budget_of(run) for runs in groups.values() for run in runs]
    each = {label: in_words(budget_of(runs[0])) for label, runs in groups.items()}
    if any(budget != given[0] for budget in given):
        return f"unequal budgets: {by_value(each)}"
    words = next(iter(each.values()))
    used = {label: _epochs_of_budget(runs) for label, runs in groups.items()}
    most, least = max(used, key=lambda label: used[label]), min(used, key=lambda label: used[label])
    if used[most] > (1 + _EQUAL) * used[least]:
        return f"unequal: {used[most]:.3g} ({most}) and {used[least]:.3g} ({least}) epochs, given {words}"
    return f"equal budget: {words}" if len(groups) > 1 else words


def unequal_epochs(runs: Sequence[Run], base: Sequence[Run], equal: str = "") -> str:
    """Return a note if equal epoch budgets led to amounts of training that differ by over 5 %.

    Empty if they did not differ, were given different budgets, or were cut at an `equal` amount.
    """
    if equal or budget_of(runs[0]) != budget_of(base[0]):
        return ""
    used, others = _epochs_of_budget(runs), _epochs_of_budget(base)
    differ = max(used, others) > (1 + _EQUAL) * min(used, others)
    return f"unequal: {used:.3g} and {others:.3g} epochs" if differ else ""


def _epochs_of_budget(runs: Sequence[Run]) -> float:
    """Return the mean of the epochs trained on; runs that ended early count as if they had used their budget.

    1 if epochs do not limit these runs.
    """
    given = runs[0].experiment.stop.epochs
    if given is None:
        return 1.0
    used = (int(trained(r.log.rows())["samples"].sum(dtype=int)) / r.meta["dataset_size"] for r in runs)
    return sum(max(given, epochs) for epochs in used) / len(runs)


def by_value(values: Mapping[str, str]) -> str:
    """Return the labels by value.

    >>> by_value({"bsp": "c1", "ssp": "c1", "asp": "c2"})
    'c1 (bsp, ssp); c2 (asp)'
    """
    labels = {value: [label for label in values if values[label] == value] for value in values.values()}
    return "; ".join(f"{value} ({', '.join(its)})" for value, its in labels.items())


def no_speed_up(runs: Sequence[Run], base: Sequence[Run], equal: str = "") -> str:
    """Return the reason for not computing a speed-up between two groups; empty if there is none.

    Seconds are those of one test bed, and of equal work: of runs that were given the same, and ended neither
    before it was done nor because a time was over. Runs that were cut at an `equal` amount did equal work,
    unless it is that of time.
    """
    if _test_bed(runs[0]) != _test_bed(base[0]):
        return "on another test bed"
    if equal.startswith("equal time"):
        return "they are cut at equal times"
    if equal:
        took_none = any(not any(end_of(run.log.rows()) for run in group) for group in (runs, base))
        return "runs that are cut at their start took no time" if took_none else ""
    if budget_of(runs[0]) != budget_of(base[0]):
        return "of another budget"
    if unequal := unequal_epochs(runs, base):
        return unequal
    if not all(is_complete(run) for run in (*runs, *base)):
        return "not all of these runs are complete"
    if any(_ended_by_the_clock(run) for run in (*runs, *base)):
        return "runs ended at their time limit, after different amounts of work"
    return ""


def is_complete(run: Run) -> bool:
    """Return True if a stopping rule ended the run, neither a user nor divergence."""
    return bool(run.meta.get("status", "finished") == "finished")


def _ended_by_the_clock(run: Run) -> bool:
    seconds = run.experiment.stop.seconds
    return seconds is not None and max(end_of(run.log.rows()), run.meta.get("time_s", 0.0)) >= seconds


def _test_bed(run: Run) -> dict[str, Any]:
    spec = run.experiment.spec()
    return {name: spec[name] for name in _TEST_BED}
