"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_TESTS = Path(__file__).parent

# no test asks for more than one thread, and two workers of a test run must not fight for the cores
os.environ.setdefault("OMP_NUM_THREADS", "1")

# no test depends on how fast the machine is
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests that have processes of their own a lane: one for Dask, one for browsers."""
    for item in items:
        folder = item.path.relative_to(_TESTS).parts[0] if item.path.is_relative_to(_TESTS) else ""
        if folder == "backends" or item.get_closest_marker("dask"):
            item.add_marker(pytest.mark.xdist_group("dask"))
        elif folder == "widgets" or item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.xdist_group("browser"))
