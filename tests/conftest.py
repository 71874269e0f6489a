"""What all tests share."""

from __future__ import annotations

import atexit
import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies
from xdist.scheduler.loadscope import LoadScopeScheduling

# no test asks for more than one thread, and two workers of a test run must not fight for the cores
os.environ.setdefault("OMP_NUM_THREADS", "1")

# nothing of what a collection makes is garbage before it ends
gc.disable()

# a job that a shell starts in the background ignores Ctrl-C, and so would the processes that tests interrupt
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# no test depends on how fast the machine is, and each tries the same examples whenever it is run but at night
settings.register_profile(
    "same",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    database=None,
    max_examples=25,
)
settings.register_profile("other", settings.get_profile("same"), derandomize=False, max_examples=100)
settings.load_profile("same")


#: of the cluster: enough for three workers, two servers and the evaluator
PROCESSES = 6
#: what uses the fixture `scheduler`, the cluster of processes, or starts such processes itself: one test
#: process runs all of it, so that one fork server imports torch and Dask
ON_THE_CLUSTER = (
    *(
        f"tests/backends/dask/test_{name}.py"
        for name in (
            "bytes_sent",
            "dask_runs",
            "detached",
            "doctor",
            "fork_server",
            "live_resume",
            "map_reduce_jobs",
            "migration",
            "own_data",
            "own_objects",
            "real_cluster",
            "recovery",
            "retirement",
        )
    ),
    "tests/backends/simulated/test_pool.py",
    "tests/data/test_several.py",
    "tests/runs/sweeps/test_execution.py",
    "tests/strategies/placement/test_gradient_descent.py::test_a_live_run_ends_at_the_same_update",
    "tests/strategies/test_gossip_runs.py::test_several_processes_compute_the_same_bits",
    "tests/test_regression.py::test_live_it_is_the_same_model",
    "tests/widgets/test_lab.py::test_detached_runs",
    "tests/training/test_precision.py::test_answers_of_any_structure_are_float32_in_processes_too",
)


#: what shares one JupyterLab
IN_JUPYTERLAB = tuple(f"tests/widgets/test_browser_{name}.py" for name in ("chart", "lab", "notebooks"))

#: long files of which no test shares anything with the next
ONE_BY_ONE = (
    *("tests/test_compositions.py", "tests/test_contract.py", "tests/test_readme.py"),
    *("tests/testing/test_fuzz.py", "tests/testing/test_live_runs.py"),
)


@pytest.fixture(scope="session")
def scheduler() -> Iterator[str]:
    """The one cluster that all runs on Dask share: there already, as when an engineer gives its address."""
    from psbench.backends.dask.local_cluster import local_cluster

    with local_cluster(PROCESSES) as cluster:
        yield cluster.scheduler_address


@pytest.hookimpl(tryfirst=True)  # before -m chooses by the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _leave_to_the_night(items)
    users = (item.nodeid for item in items if "scheduler" in getattr(item, "fixturenames", ()))
    if unnamed := [nodeid for nodeid in users if not nodeid.startswith(ON_THE_CLUSTER)]:
        raise pytest.UsageError(f"these use the cluster: name them in ON_THE_CLUSTER: {', '.join(unnamed)}")
    if hasattr(config, "workerinput"):  # what takes minutes and cannot be shared out begins first
        items.sort(key=lambda item: _split_scope(item.nodeid) == _file(item.nodeid))


def _leave_to_the_night(items: list[pytest.Item]) -> None:
    """Mark cases beyond those that `by_day` asks for, which are spread evenly over all that its test has."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("by_day") and not item.get_closest_marker("nightly"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for found in cases.values():
        (number,) = found[0].get_closest_marker("by_day").args
        chosen = {len(found) * n // number for n in range(number)}
        for index, item in enumerate(found):
            if index not in chosen:
                item.add_marker("nightly")


def pytest_collection_finish() -> None:
    """Keep what is loaded by now out of every search for garbage: a seventh of the CPU of small tests."""
    given(strategies.none())(lambda _: None)()  # Hypothesis looks for what refers to numpy's random numbers
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    atexit.register(gc.unfreeze)  # at the very end extensions look for objects that are left


@pytest.hookimpl(optionalhook=True)  # not there with -p no:xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Share out tests file by file, so that what a file makes for all its tests is made once."""
    config.option.loadscopereorder = False  # in the order above
    return _Scheduling(config, log)


class _Scheduling(LoadScopeScheduling):
    """It goes by the tests' names: the marks of xdist's groups are lost between pytest 9.2 and xdist 3.8."""

    def _split_scope(self, nodeid: str) -> str:
        return _split_scope(nodeid)


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _split_scope(nodeid: str) -> str:
    """All tests with the cluster go to one process, so do those in JupyterLab, and each file's."""
    file = _file(nodeid)
    if nodeid.startswith(ON_THE_CLUSTER):
        return "cluster"
    if file in IN_JUPYTERLAB:
        return "jupyterlab"
    if file.startswith(("tests/widgets/test_browser", "tests/widgets/test_handout")):
        return "browser"
    if file.startswith("tests/oracles/"):
        return "oracles"
    return nodeid if file in ONE_BY_ONE else file
