"""Python modules as processes in network namespaces, forked from one that has imported what they need.

python -m tests.twin.processes '[["NAMESPACE", "dask", "scheduler"], ...]'

Where cores are few, each process that imports torch and Dask by itself takes ten seconds of them.
"""

import ctypes
import json
import os
import runpy
import signal
import sys
from importlib import import_module
from pathlib import Path

_NEW_NET = 0x40000000
_SIGNAL_OF_PARENT = 1  # PR_SET_PDEATHSIG
_PRIORITY = -15
_NEEDED = (
    *("torch", "sklearn.datasets", "distributed.cli.dask_worker", "distributed.cli.dask_scheduler"),
    *("psbench.backends.dask", "psbench.backends.dask.tasks", "psbench.backends.dask.attempt"),
    *("psbench.backends.dask.worker.worker", "psbench.backends.dask.coordinator.coordinator"),
    *("psbench.training.build", "psbench.strategies", "psbench.data", "psbench.models"),
)


def enter(namespace: str) -> None:
    """Move this thread into a network namespace."""
    with Path(f"/run/netns/{namespace}").open() as there:
        if ctypes.CDLL(None, use_errno=True).setns(there.fileno(), _NEW_NET):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {namespace}")


def _end_with_parent(by: signal.Signals) -> None:
    """Have the kernel end this process with the one that has started it, however that ends."""
    ctypes.CDLL(None).prctl(_SIGNAL_OF_PARENT, by)


def start(namespace: str, module: str, *arguments: str) -> int:
    """Fork a process that runs a module there, before other work of this machine; return its number.

    Emulated machines wait most of the time, but where others are in front of them that takes longer.
    """
    if number := os.fork():
        return number
    code = 1
    try:
        _end_with_parent(signal.SIGKILL)
        enter(namespace)
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stderr.flush()
        os._exit(code)


def main(commands: str) -> None:
    """Start all, and end them with this process."""
    os.setsid()
    _end_with_parent(signal.SIGTERM)
    # sessions have equal shares of the cores, whatever the priorities of the processes in them
    if (group := Path("/proc/self/autogroup")).exists():
        group.write_text(str(_PRIORITY))
    for name in _NEEDED:
        import_module(name)
    children = [start(*each) for each in json.loads(commands)]
    # a Dask worker whose scheduler ends with it may wait for it for ever, and has nothing left to say
    signal.signal(signal.SIGTERM, lambda *_: [os.kill(each, signal.SIGKILL) for each in children])
    for each in children:
        os.waitpid(each, 0)


if __name__ == "__main__":
    main(sys.argv[1])
