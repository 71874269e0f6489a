"""What the fork server imports: what a process of a live run needs, and nothing that takes long beside."""

from __future__ import annotations

import multiprocessing
from importlib.util import find_spec
from pathlib import Path

from psbench.system.fork_server import PRELOADED, ensure_running

_TELLS = """
import gc, sys
slow = {"altair", "pandas", "sklearn", "torch", "torch._dynamo", "torchvision"}
with open(PATH, "w") as file:
    print(gc.isenabled(), gc.get_freeze_count() > 100_000, *sorted(slow & sys.modules.keys()), file=file)
    print(*sys.modules, file=file)
"""


def test_the_fork_server_imports_no_more_than_runs_need(tmp_path: Path) -> None:
    """Python passes over a module that is not there, or cannot be imported; here it is an error."""
    ensure_running()
    path = tmp_path / "told"
    code = _TELLS.replace("PATH", repr(str(path)))
    fork = multiprocessing.get_context("forkserver").Process(target=exec, args=(code, {}))
    fork.start()
    fork.join()
    first, imported = path.read_text().splitlines()
    assert first.split() == ["True", "True", "torch"]
    assert all(find_spec(name) for name in PRELOADED)
    assert {*imported.split()} >= {*PRELOADED}
