"""Run tests in several processes that are forked when all tests have been collected: a plug-in of pytest.

`pytest -p side_by_side --processes 5`, with this folder on the path. What is imported and collected, 15 s of
CPU, is so once and is shared; each process of pytest-xdist does it for itself. Linux alone: elsewhere forks
of a process that has loaded torch are not safe, and all tests run in this one.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections import deque
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

#: what uses the fixture `scheduler`, the cluster of processes; one test process runs all of it
ON_THE_CLUSTER = (
    *(
        f"tests/backends/dask/test_{name}.py"
        for name in (
            "bytes_sent",
            "dask_runs",
            "doctor",
            "live_resume",
            "migration",
            "own_data",
            "own_objects",
            "real_cluster",
            "recovery",
        )
    ),
    "tests/strategies/placement/test_gradient_descent.py::test_a_live_run_ends_at_the_same_update",
    "tests/runs/sweeps/test_execution.py::test_tasks_of_a_cluster",
    "tests/test_regression.py::test_live_it_is_the_same_model",
)
#: what shares one JupyterLab
IN_JUPYTERLAB = tuple(f"tests/widgets/test_browser_{name}.py" for name in ("chart", "lab", "notebooks"))
#: long files of which no test shares anything with the next
ONE_BY_ONE = (
    *("tests/test_compositions.py", "tests/test_contract.py", "tests/test_readme.py"),
    *("tests/testing/test_fuzz.py", "tests/testing/test_live_runs.py"),
)


def group_of(nodeid: str) -> str:
    """Return what runs in one process: tests with the cluster, those in JupyterLab, or those of a file."""
    file = nodeid.partition("::")[0]
    if nodeid.startswith(ON_THE_CLUSTER):
        return "cluster"
    if file in IN_JUPYTERLAB:
        return "jupyterlab"
    if file.startswith("tests/widgets/test_browser"):
        return "browser"
    if file.startswith("tests/oracles/"):
        return "oracles"
    return nodeid if file in ONE_BY_ONE else file


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=1, help="processes that run tests")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Share out the tests, group by group; what takes minutes and cannot be shared out begins first."""
    option = session.config.option
    if option.processes < 2 or option.collectonly or session.testsfailed or sys.platform != "linux":
        return None
    # before there are several processes that would all make it
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    _Loop(session).run(option.processes)
    return True


class _Loop:
    """The process that hands out tests and takes their reports.

    Groups are lists of the numbers of tests in `session.items`.
    """

    def __init__(self, session: pytest.Session) -> None:
        self.session = session
        groups: dict[str, list[int]] = {}
        for number, item in enumerate(session.items):
            groups.setdefault(group_of(item.nodeid), []).append(number)
        of_files = {item.nodeid.partition("::")[0] for item in session.items}
        self.groups = deque(groups[name] for name in sorted(groups, key=of_files.__contains__))
        self.processes: dict[Connection, _Process] = {}

    def run(self, processes: int) -> None:
        try:
            for _ in range(min(processes, len(self.groups))):
                self._fork()
            while self.processes:
                for connection in wait(list(self.processes)):
                    self._take(self.processes[connection])  # type: ignore[index]
                if self.session.shouldfail:
                    raise self.session.Failed(self.session.shouldfail)
        finally:
            for process in self.processes.values():  # those that are left if this ends early
                os.kill(process.pid, signal.SIGINT)
            for process in self.processes.values():
                os.waitpid(process.pid, 0)

    def _fork(self) -> None:
        process = _Process(self.session)
        self.processes[process.connection] = process

    def _take(self, process: _Process) -> None:
        """Take one message of a process."""
        hook = self.session.config.hook
        kind, content = _message(process.connection)
        if kind == "over":
            self._ended(process)
        elif kind == "more":
            more = self.groups.popleft() if self.groups else []
            process.left += more
            process.connection.send(more)
        elif kind == "starts":
            process.left.remove(content)
            process.item = self.session.items[content]
            hook.pytest_runtest_logstart(nodeid=process.item.nodeid, location=process.item.location)
        elif kind == "report":
            report = hook.pytest_report_from_serializable(config=self.session.config, data=content)
            hook.pytest_runtest_logreport(report=report)
        else:
            assert process.item is not None
            hook.pytest_runtest_logfinish(nodeid=process.item.nodeid, location=process.item.location)
            process.item = None

    def _ended(self, process: _Process) -> None:
        """Say so if a process ended in a test, and have another one run what it has left."""
        del self.processes[process.connection]
        _, status = os.waitpid(process.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if not (code or process.item or process.left):
            return
        place, words = process.item or self.session, f"the process that ran it ended with {code}"
        location = (place.nodeid, None, place.nodeid)
        report = pytest.TestReport(place.nodeid, location, {}, "failed", words, "call")
        self.session.config.hook.pytest_runtest_logreport(report=report)
        if process.left:
            self.groups.appendleft(process.left)
            self._fork()


def _message(connection: Connection) -> tuple[str, Any]:
    try:
        message: tuple[str, Any] = connection.recv()
    except EOFError:
        return "over", None
    return message


class _Process:
    """A process that runs tests: its connection, and which tests it was given and has not begun."""

    def __init__(self, session: pytest.Session) -> None:
        self.left: list[int] = []
        self.item: pytest.Item | None = None
        self.connection, theirs = Pipe()
        self.pid = os.fork()
        if not self.pid:
            _work(session, theirs)
        theirs.close()


def _work(session: pytest.Session, connection: Connection) -> None:
    """Run in a forked process what is asked for, group after group, and end it."""
    code = 1
    try:
        capture: Any = session.config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()
        capture.start_global_capturing()  # into files of its own
        session.config.pluginmanager.register(_Reporter(connection))
        numbers: list[int] = _more(connection)
        while numbers:
            number, *numbers = numbers
            numbers = numbers or _more(connection)
            following = session.items[numbers[0]] if numbers else None
            connection.send(("starts", number))
            session.config.hook.pytest_runtest_protocol(item=session.items[number], nextitem=following)
            connection.send(("ends", number))
        code = 0
    except KeyboardInterrupt:
        session._setupstate.teardown_exact(None)
    except BaseException:
        capture.stop_global_capturing()
        traceback.print_exc()
    finally:
        os._exit(code)


def _more(connection: Connection) -> list[int]:
    connection.send(("more", None))
    numbers: list[int] = connection.recv()
    return numbers


class _Reporter:
    """Has reports sent and not printed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            data = item.config.hook.pytest_report_to_serializable(config=item.config, report=report)
            self._connection.send(("report", data))
        return True
