"""The mutation run's own tools: which faults there are, and that one is really put where it is called."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.mutation.mutants import mutants_of
from tests.mutation.runner import Mutations, Trial, apply, in_fork

SOURCE = '''
from functools import cached_property

LIMIT = 3


def last(values, default=0):
    """Return the last of the larger ones."""
    found = default
    for value in values:
        if value > LIMIT and not value == 7:
            found = max(found, value - 1)
    return found


def same(value):
    def inner(given: int | None) -> int | None:
        return given

    return inner(value)


class Box:
    @cached_property
    def half(self):
        raise ValueError(f"{1 + 1}")
        return 10 / 2

    @property
    def sides(self) -> tuple[int, int]:
        return ("left", True)
'''


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mutated_sample.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Path("mutated_sample.py")
    sys.modules.pop("mutated_sample", None)


def test_faults_are_in_what_is_computed(sample: Path) -> None:
    found = {(mutant.function, mutant.before, mutant.after) for mutant in mutants_of(sample)}
    assert found == {
        ("last", "value > LIMIT and not value == 7", "(not (value > LIMIT and (not value == 7)))"),
        ("last", "value > LIMIT and not value == 7", "(value > LIMIT or not value == 7)"),
        ("last", "value > LIMIT", "(value) >= (LIMIT)"),
        ("last", "not value == 7", "(value == 7)"),
        ("last", "value == 7", "(value) != (7)"),
        ("last", "7", "8"),
        ("last", "max", "min"),
        ("last", "value - 1", "(value) + (1)"),
        ("last", "1", "2"),
        ("Box.half", "10 / 2", "(10) * (2)"),
        ("Box.half", "10", "11"),
        ("Box.half", "2", "3"),
        ("Box.sides", '"left"', "'right'"),
        ("Box.sides", "True", "False"),
    }


def test_a_fault_is_put_into_what_others_have_imported(sample: Path) -> None:
    from mutated_sample import Box, last  # type: ignore[import-not-found]

    faults = {(mutant.function, mutant.before): mutant for mutant in mutants_of(sample)}
    assert last([4, 9, 7]) == 8
    apply(faults["last", "max"])
    assert last([4, 9, 7]) == 0
    assert Box().sides == ("left", True)
    apply(faults["Box.sides", '"left"'])
    assert Box().sides == ("right", True)


@pytest.mark.slow
def test_a_fault_meets_the_tests_that_execute_its_statement(sample: Path) -> None:
    """The only test's value is not among the larger ones."""
    Path("test_sample.py").write_text(
        "import mutated_sample\n\ndef test(): assert mutated_sample.last([1], -1) == -1\n"
    )
    trials: list[Trial] = []
    both = "value > LIMIT and not value == 7"
    chosen = [mutant for mutant in mutants_of(sample) if mutant.before in ("max", "value > LIMIT", both)]
    plugin = Mutations(chosen, trials.append)
    without = ("terminal", "cacheprovider", "nbval", "xdist", "hypothesispytest", "anyio")
    pytest.main([*(f"-pno:{name}" for name in without), "test_sample.py"], plugins=[plugin])
    sys.modules.pop("test_sample", None)
    assert not plugin.failed_before
    found = {(each.mutant.before, each.is_run, bool(each.killed_by)) for each in trials}
    assert found == {("max", False, False), ("value > LIMIT", True, False), (both, True, True)}


@pytest.mark.slow
def test_a_fork_tells_what_it_found_and_one_that_does_not_end_is_ended() -> None:
    assert in_fork(lambda: {"found": 3}, 30.0) == {"found": 3}
    assert in_fork(lambda: 1 / 0, 30.0) == "ZeroDivisionError: division by zero"
    assert in_fork(lambda: time.sleep(60), 0.2) is None
