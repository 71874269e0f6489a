"""What the fork server imports: what a process of a live run needs, and nothing that takes long beside."""

from __future__ import annotations

import subprocess
import sys

_IMPORTS = """
import gc, importlib, sys
from psbench.system.fork_server import PRELOADED
for name in PRELOADED:
    importlib.import_module(name)
assert gc.isenabled() and gc.get_freeze_count() > 100_000
print(*sorted({"altair", "pandas", "sklearn", "torch", "torch._dynamo", "torchvision"} & sys.modules.keys()))
"""


def test_the_fork_server_imports_no_more_than_runs_need() -> None:
    """Python passes over a module that is not there; here it is an error."""
    done = subprocess.run([sys.executable, "-c", _IMPORTS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["torch"]
