"""Runs tests against mutants: pytest collects once, and every mutant is tried in a fork of that process."""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
import pickle
import select
import signal
import sys
import threading
import time
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.mutants import Mutant

#: a test that takes longer with a fault does not end: as many times as without it, and seconds of CPU more
_PATIENCE, _LEAST_S = 10.0, 5.0


@dataclass(frozen=True)
class Trial:
    """What came of a mutant.

    Attributes
    ----------
    killed_by : str
        The test that failed; empty if none did, "time" or "the process ended" if one did not end.
    is_run : bool
        Whether any test executes the function.
    """

    mutant: Mutant
    killed_by: str
    is_run: bool


class Mutations:
    """A plugin of pytest that, in the place of running the tests, tries them on each mutant.

    Parameters
    ----------
    mutants : sequence of Mutant
    prepare : callable
        Done once before the first fork, such as making what many tests read.
    done : callable
        Told of each trial.
    seconds : float
        Once the tests have passed without a fault, after which no other mutant is begun.
    """

    def __init__(
        self,
        mutants: Sequence[Mutant],
        prepare: Callable[[], None],
        done: Callable[[Trial], None],
        seconds: float = math.inf,
    ) -> None:
        self._mutants, self._prepare, self._done = mutants, prepare, done
        self._seconds = seconds
        self._kills: Counter[tuple[Path, str]] = Counter()
        self.failed_before = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._prepare()
        files = {str(mutant.path.resolve()) for mutant in self._mutants}
        for mutant in self._mutants:
            importlib.import_module(module_of(mutant.path))
        found = in_fork(lambda: _watched(session, files), 3600.0)
        if not isinstance(found, dict) or found["failed"]:
            self.failed_before = str(found["failed"] if isinstance(found, dict) else found)
            return True
        until = time.monotonic() + self._seconds
        for mutant in self._mutants:
            if time.monotonic() > until:
                break
            self._try(session, mutant, found["seconds"], found["tests"])
        return True

    def _try(
        self,
        session: pytest.Session,
        mutant: Mutant,
        seconds: dict[str, float],
        tests: dict[tuple[str, str], set[str]],
    ) -> None:
        wanted = tests.get((str(mutant.path.resolve()), mutant.function), set())
        items = [item for item in session.items if item.nodeid in wanted]
        items.sort(key=lambda item: (-self._kills[mutant.path, item.nodeid], seconds[item.nodeid]))
        if not items:
            self._done(Trial(mutant, "", False))
            return
        limits = [_LEAST_S + _PATIENCE * seconds[item.nodeid] for item in items]
        killed_by = in_fork(lambda: _first_failure(items, limits, mutant), sum(limits))
        killed_by = "time" if killed_by is None else str(killed_by)
        self._kills[mutant.path, killed_by] += 1
        self._done(Trial(mutant, killed_by, True))


def in_fork(work: Callable[[], Any], limit_s: float) -> Any:
    """Return what some work returns in a fork of this process; None if it does not end."""
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
    found = _read(reader, limit_s)
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


def _read(reader: int, limit_s: float) -> bytes | None:
    """Return all that is written; None if that takes longer.

    Seconds are counted one by one: those in which this process and its forks are stopped do not count.
    """
    content = b""
    with os.fdopen(reader, "rb") as file:
        while limit_s > 0:
            began = time.monotonic()
            if select.select([file], [], [], 1.0)[0]:
                piece = os.read(file.fileno(), 1 << 16)
                if not piece:
                    return content
                content += piece
            limit_s -= min(time.monotonic() - began, 1.0)
    return None


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


def _watched(session: pytest.Session, files: set[str]) -> dict[str, Any]:
    """Run all tests without a fault: how long each takes, and which functions of the files it executes.

    What a fixture executes belongs to all tests that have it.
    """
    watch = _Watch(files)
    session.config.pluginmanager.register(watch)
    seconds: dict[str, float] = {}
    failed = []
    threading.settrace(watch.trace)
    sys.settrace(watch.trace)
    began, failures = time.perf_counter(), 0
    for item in _run(session.items):
        now = time.perf_counter()
        seconds[item.nodeid], began = now - began, now
        if session.testsfailed > failures:
            failed.append(item.nodeid)
            failures = session.testsfailed
    sys.settrace(None)
    tests: dict[tuple[str, str], set[str]] = defaultdict(set)
    for item in session.items:
        names = {item.nodeid, *getattr(item, "fixturenames", ())}
        for function in set().union(*(watch.seen[name] for name in names)):
            tests[function].add(item.nodeid)
    return {"seconds": seconds, "tests": dict(tests), "failed": failed}


class _Watch:
    """Notes which functions are executed in each test and each fixture."""

    def __init__(self, files: set[str]) -> None:
        self._files = files
        self.seen: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self._into = [""]

    def trace(self, frame: types.FrameType, event: str, _: Any) -> None:
        """Take note of a call; nothing within it is traced."""
        code = frame.f_code
        if code.co_filename in self._files:
            self.seen[self._into[-1]].add((code.co_filename, code.co_qualname.partition(".<locals>")[0]))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._into.append(item.nodeid)
        found = yield
        self._into.pop()
        return found

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        self._into.append(fixturedef.argname)
        found = yield
        self._into.pop()
        return found


def apply(mutant: Mutant) -> None:
    """Put a fault into a function that is imported already, wherever it is known."""
    module = importlib.import_module(module_of(mutant.path))
    whole = compile(mutant.source, str(mutant.path.resolve()), "exec")
    code = _code_in(whole, mutant.function)
    owner: Any = module
    *classes, name = mutant.function.split(".")
    for each in classes:
        owner = getattr(owner, each)
    _function_in(owner.__dict__[name]).__code__ = code


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
