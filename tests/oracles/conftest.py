from __future__ import annotations

import pytest
from oracles import small_runs

from psbench.results.run import Run


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Run]]:
    """Runs by name; those of a name differ in their seed only."""
    return small_runs.make(tmp_path_factory.mktemp("runs"))
