"""Small sizes for the test run of the notebooks, which a student does not see: a plug-in of pytest.

`PSBENCH_SMOKE=1 pytest -p smoke_sizes --nbval-lax notebooks`, with this folder on the path. The cell that
sets the sizes carries the small ones in its metadata, as `{"smoke": {"EPOCHS": "2"}}`. With
PSBENCH_PICTURES=0 charts are made and none is drawn: a picture is one to two seconds of CPU, a notebook has
five; that they are drawn is tested on charts of every kind, and by `make notebooks`.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import forked
import pytest

from psbench.system.private_apis import defer_grammar

defer_grammar()  # before nbval imports jsonschema, in each of the processes that run tests

#: of one pixel, in the place of any
BLANK = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
UNDRAWN = f"""import base64, vl_convert
vl_convert.vegalite_to_png = lambda *_, **__: base64.b64decode("{BLANK}")
"""


def small(source: str, sizes: Mapping[str, str]) -> str:
    """Return a cell's source with other values of some names that it sets.

    Raises
    ------
    ValueError
        If it does not set one of them, once, at the beginning of a line.
    """
    for name, value in sizes.items():
        source, found = re.subn(rf"^{name} = .*$", f"{name} = {value}", source, flags=re.MULTILINE)
        if found != 1:
            raise ValueError(f"the cell sets {name} {found} times, not once")
    return source


def pytest_configure(config: Any) -> None:
    """Have processes forked; once, in the process that starts those that run tests."""
    if sys.platform != "linux" or hasattr(config, "workerinput"):
        return
    folder = tempfile.TemporaryDirectory()
    forks = forked.use(Path(folder.name), config.args)
    config.add_cleanup(folder.cleanup)
    config.add_cleanup(forks.communicate)  # which closes its standard input, and so ends it


@pytest.hookimpl(optionalhook=True)  # not there with -p no:xdist
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """Have those that run tests forked, too."""
    for spec in specs if sys.platform == "linux" else ():
        spec.python = forked.PYTHON


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Run notebooks with the small sizes, if PSBENCH_SMOKE is set."""
    if not os.environ.get("PSBENCH_SMOKE"):
        return
    undrawn = os.environ.get("PSBENCH_PICTURES") == "0"
    for item in items:
        cell = getattr(item, "cell", None)
        if cell is not None and item.cell_num == 0 and undrawn:
            cell.source = UNDRAWN + cell.source
        if cell is not None and "smoke" in cell.metadata:
            cell.source = small(cell.source, cell.metadata["smoke"])
