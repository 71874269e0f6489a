"""What all tests share."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings, strategies
from side_by_side import ON_THE_CLUSTER

# no test asks for more than one thread, and two workers of a test run must not fight for the cores
os.environ.setdefault("OMP_NUM_THREADS", "1")

# a job that a shell starts in the background ignores Ctrl-C, and so would the processes that tests interrupt
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# no test depends on how fast the machine is, and each tries the same examples whenever it is run
settings.register_profile(
    "same", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, database=None
)
settings.register_profile("other", settings.get_profile("same"), derandomize=False)
settings.load_profile("same")


#: of the cluster: enough for three workers, two servers and the evaluator
PROCESSES = 6


@pytest.fixture(scope="session")
def scheduler() -> Iterator[str]:
    """The one cluster that all runs on Dask share: there already, as when an engineer gives its address."""
    from psbench.backends.dask.local_cluster import local_cluster

    with local_cluster(PROCESSES) as cluster:
        yield cluster.scheduler_address


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    users = (item.nodeid for item in items if "scheduler" in getattr(item, "fixturenames", ()))
    if unnamed := [nodeid for nodeid in users if not nodeid.startswith(ON_THE_CLUSTER)]:
        raise pytest.UsageError(f"these use the cluster: name them in ON_THE_CLUSTER: {', '.join(unnamed)}")


def pytest_collection_finish() -> None:
    """Keep what is loaded by now out of every search for garbage: a seventh of the CPU of small tests."""
    given(strategies.none())(lambda _: None)()  # Hypothesis looks for what refers to numpy's random numbers
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def pytest_unconfigure() -> None:
    """Let go of them before the end, at which extensions look for objects that are left."""
    gc.unfreeze()
