"""What all tests share."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# no test asks for more than one thread, and two workers of a test run must not fight for the cores
os.environ.setdefault("OMP_NUM_THREADS", "1")

# no test depends on how fast the machine is
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give what is started once (a Dask cluster, a browser, a kernel) to one of the parallel processes."""
    for item in items:
        if item.get_closest_marker("dask"):
            item.add_marker(pytest.mark.xdist_group("dask"))
        elif item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.xdist_group("browser"))
        elif item.path.suffix == ".ipynb":
            item.add_marker(pytest.mark.xdist_group(item.path.name))
