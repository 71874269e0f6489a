"""A small table, and a cache of one's own."""

from __future__ import annotations

import numpy as np
import pytest

from psbench.data import CSV
from psbench.seeds import Streams


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """1,000 rows of four columns, the last 0, 1 or 2; about 40 kB."""
    rng = np.random.default_rng(0)
    rows = np.hstack([rng.normal(3, 2, (1000, 3)), rng.integers(0, 3, (1000, 1))]).astype(np.float32)
    path = tmp_path_factory.mktemp("table") / "table.csv"
    np.savetxt(path, rows, fmt="%.9g", delimiter=",")
    return path, rows


@pytest.fixture
def load(tmp_path):
    """Load with a cache of its own."""

    def loaded(path, **options):
        return CSV(path=str(path), cache=str(tmp_path / "cache"), **options).load(Streams(0))

    return loaded
