"""Toy parts are registered while the tests of this folder run, and forgotten after."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from psbench.core.part import REGISTRY


@pytest.fixture(scope="package", autouse=True)
def toys() -> Iterator[None]:
    yield
    for known in REGISTRY.values():
        for name in [name for name in known if name.startswith("toy_")]:
            del known[name]
