"""Runs tests against mutants: pytest collects once, and every mutant is tried in a fork of that process."""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import importlib
import math
import os
import pickle
import resource
import select
import signal
import sys
import threading
import time
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.mutants import Mutant

#: what a function calls that is watched
_EXECUTED = "__executed__"
#: a test that takes longer with a fault does not end: as many times as without it, and seconds of CPU more
_PATIENCE, _LEAST_S = 10.0, 5.0
#: seconds more in which nothing of it computes
_IDLE_S = 30.0
#: what a second counts in which something of it computes, or waits for a core on a busy machine
_BUSY = 0.05


@dataclass(frozen=True)
class Trial:
    """What came of a mutant.

    Attributes
    ----------
    killed_by : str
        The test that failed; empty if none did, "time" or "the process ended" if one did not end.
    is_run : bool
        Whether any test executes the statement.
    """

    mutant: Mutant
    killed_by: str
    is_run: bool


class Mutations:
    """A plugin of pytest that, in the place of running the tests, tries them on each mutant.

    Parameters
    ----------
    mutants : sequence of Mutant
    done : callable
        Told of each trial.
    seconds : float
        Seconds of CPU, without a fault, of the tests that a mutant is tried against: of those that execute
        its statement the quickest, and at least one.
    """

    def __init__(
        self, mutants: Sequence[Mutant], done: Callable[[Trial], None], seconds: float = math.inf
    ) -> None:
        self._mutants, self._done, self._seconds = mutants, done, seconds
        self._kills: Counter[tuple[Path, str]] = Counter()
        self.failed_before = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for mutant in self._mutants:
            importlib.import_module(module_of(mutant.path))
        found = in_fork(lambda: _watched(session, self._mutants), 3600.0)
        if not isinstance(found, _Watch) or found.failed:
            self.failed_before = str(found.failed if isinstance(found, _Watch) else found)
            return True
        for mutant in self._mutants:
            self._try(session, mutant, found)
        return True

    def _try(self, session: pytest.Session, mutant: Mutant, found: _Watch) -> None:
        executing = [item for item in session.items if found.executes(item, mutant)]
        items = self._nearest(executing, mutant, found)
        if not items:
            self._done(Trial(mutant, "", False))
            return
        limits = [_LEAST_S + _PATIENCE * found.cost(item) for item in items]
        killed_by = in_fork(lambda: _first_failure(items, limits, mutant), sum(limits) + _IDLE_S)
        killed_by = "time" if killed_by is None else str(killed_by)
        self._kills[mutant.path, killed_by] += 1
        self._done(Trial(mutant, killed_by, True))

    def _nearest(self, items: list[pytest.Item], mutant: Mutant, found: _Watch) -> list[pytest.Item]:
        """Return the tests to run: those that killed others, then one of each function, quick ones first."""
        alike: Counter[str] = Counter()
        turns = {}
        for item in sorted(items, key=found.cost):
            function = item.nodeid.partition("[")[0]
            turns[item] = (-self._kills[mutant.path, item.nodeid], alike[function])
            alike[function] += 1
        chosen: dict[Path, list[pytest.Item]] = {}  # by file, as what its tests share is made once
        left, made = self._seconds, set[str]()
        for item in sorted(turns, key=lambda item: turns[item]):
            cost = found.cost(item, made)
            if not chosen or cost <= left:
                left -= cost
                made.update(_fixtures(item))
                chosen.setdefault(item.path, []).append(item)
        return [item for of_file in chosen.values() for item in of_file]


def in_fork(work: Callable[[], Any], limit_s: float) -> Any:
    """Return what some work returns in a fork of this process; None if it sleeps longer and does not end."""
    sys.stdout.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.setpgid(0, 0)
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        try:
            result = work()
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"[:300]
        try:
            with os.fdopen(writer, "wb") as file:
                pickle.dump(result, file)
        finally:
            os._exit(0)
    os.close(writer)
    found = _read(reader, limit_s, child)
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it is gone
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if found is None:
        return None
    return pickle.loads(found) if found else "the process ended"


def _end_with(parent: int) -> None:
    """End this process when its parent is gone, which would have ended it."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _read(reader: int, limit_s: float, group: int) -> bytes | None:
    """Return all that is written; None if a group of processes writes nothing and waits for longer.

    Seconds in which one of them computes, waits for a core or is stopped hardly count.
    """
    content = b""
    with os.fdopen(reader, "rb") as file:
        while limit_s > 0:
            if select.select([file], [], [], 1.0)[0]:
                piece = os.read(file.fileno(), 1 << 16)
                if not piece:
                    return content
                content += piece
            else:
                limit_s -= 1.0 if _sleeps(group) else _BUSY
    return None


def _sleeps(group: int) -> bool:
    """Say whether all threads of a group of processes sleep; where there is no /proc they do."""
    for path in Path("/proc").glob("[0-9]*/task/[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it is gone
            state, _, own = path.read_text().rpartition(")")[2].split()[:3]
            if int(own) == group and state in "RDT":
                return False
    return True


# -------------------------------------------------------------------- in a fork


def _run(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Run tests, and yield each when it is over."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        yield item


def _first_failure(items: Sequence[pytest.Item], limits: Sequence[float], mutant: Mutant) -> str:
    """Return the first test that fails with a fault; empty if none does.

    A test that takes more CPU than its limit ends the process.
    """
    apply(mutant)
    rest = iter(limits)
    signal.setitimer(signal.ITIMER_VIRTUAL, next(rest))
    for item in _run(items):
        if item.session.testsfailed:
            return item.nodeid
        signal.setitimer(signal.ITIMER_VIRTUAL, next(rest, 0.0))
    return ""


def _watched(session: pytest.Session, mutants: Sequence[Mutant]) -> _Watch:
    """Run all tests without a fault."""
    watch = _Watch()
    session.config.pluginmanager.register(watch)
    vars(builtins)[_EXECUTED] = watch.note
    for path in {mutant.path for mutant in mutants}:
        here = [mutant for mutant in mutants if mutant.path == path]
        code = _noting(path, {mutant.statement for mutant in here})
        for function in {mutant.function for mutant in here}:
            _replace(path, function, code)
    for item in _run(session.items):
        if session.testsfailed > len(watch.failed):
            watch.failed.append(item.nodeid)
    return watch


def _noting(path: Path, lines: Set[int]) -> types.CodeType:
    """Return the code of a file that notes each statement which begins in one of some lines."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            for statement in [*block] if isinstance(block, list) else ():
                if statement.lineno in lines:
                    note = ast.parse(f"{_EXECUTED}({str(path)!r}, {statement.lineno})").body
                    place = block.index(statement)
                    block[place:place] = note
    return compile(ast.fix_missing_locations(tree), str(path.resolve()), "exec")


class _Watch:
    """Notes which statements are executed in each test and each fixture, and how long each takes.

    What a fixture executes, and takes, belongs to all tests that have it.
    """

    def __init__(self) -> None:
        self.failed: list[str] = []
        self._seen: dict[str, set[tuple[Path, int]]] = defaultdict(set)
        self._seconds: dict[str, float] = defaultdict(float)
        self._into, self._spent = [""], [0.0]
        self._since = 0.0

    def note(self, path: str, line: int) -> None:
        self._seen[self._into[-1]].add((Path(path), line))

    def executes(self, item: pytest.Item, mutant: Mutant) -> bool:
        names = (item.nodeid, *_fixtures(item))
        return any((mutant.path, mutant.statement) in self._seen.get(name, ()) for name in names)

    def cost(self, item: pytest.Item, made: Set[str] = frozenset()) -> float:
        """Return the seconds of a test and of its fixtures but those that are made already."""
        return sum(self._seconds.get(name, 0.0) for name in {item.nodeid, *_fixtures(item)} - made)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        with self._within(item.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        with self._within(fixturedef.argname):
            return (yield)

    @contextlib.contextmanager
    def _within(self, name: str) -> Iterator[None]:
        self._count()
        self._into.append(name)
        self._spent.append(0.0)
        try:
            yield
        finally:
            self._count()
            self._into.pop()
            self._seconds[name] = max(self._seconds[name], self._spent.pop())

    def _count(self) -> None:
        """Add the CPU since the last call, with that of processes that ended, to what is being done."""
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        now = sum(each.ru_utime + each.ru_stime for each in used)
        self._spent[-1] += now - self._since
        self._since = now


def _fixtures(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


def apply(mutant: Mutant) -> None:
    """Put a fault into a function that is imported already, wherever it is known."""
    _replace(mutant.path, mutant.function, compile(mutant.source, str(mutant.path.resolve()), "exec"))


def _replace(path: Path, function: str, whole: types.CodeType) -> None:
    """Have a function do what it does in other code of its file."""
    owner: Any = importlib.import_module(module_of(path))
    *classes, name = function.split(".")
    for each in classes:
        owner = getattr(owner, each)
    _function_in(owner.__dict__[name]).__code__ = _code_in(whole, function)


def _code_in(code: types.CodeType, name: str) -> types.CodeType:
    for part in name.split("."):
        # of several with one name, as a property and its setter, the first is the getter
        code = next(c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == part)
    return code


def _function_in(found: Any) -> types.FunctionType:
    """Return the function in what decorators have made of it."""
    while not isinstance(found, types.FunctionType) or hasattr(found, "__wrapped__"):
        if isinstance(found, property):
            found = found.fget
        elif isinstance(found, functools.cached_property):
            found = found.func
        else:
            found = getattr(found, "__wrapped__", None) or found.__func__
    return found


def module_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")
