"""Processes forked from one that has imported what they all import: notebooks' kernels, and those of tests.

Importing torch, altair, Dask and psbench takes 6 s of CPU, for each of eighteen kernels and of the four
processes that run tests, and those take as long again for all tests. `use` starts the one that does it.
Jupyter and pytest-xdist start a process of their own in the place of Python, which asks for a fork, hands its
standard streams and signals on to it, and ends with it.
"""

import gc
import importlib
import json
import os
import pkgutil
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType

#: where the process listens, for what asks
_PATH = "PSBENCH_FORKS"
_COMMAND = [sys.executable, "-IS", __file__]
#: what is called as Python is, and asks
PYTHON = shlex.join(_COMMAND)
_IMPORTED = (
    *("torch", "altair", "pandas", "sklearn.linear_model", "scipy.stats", "distributed"),
    *("torch._dynamo", "torchvision"),  # what pytest would rewrite, such as anyio, must not be among them
    *("ipykernel.kernelapp", "psbench_widgets.lab"),
)


def use(folder: Path, tests: Sequence[str]) -> subprocess.Popen[bytes]:
    """Have the notebooks of this process and its children take forked kernels; they end with the result.

    Parameters
    ----------
    folder : Path
        An empty one, for the kernel's description and the socket.
    tests : Sequence[str]
        Files and folders whose tests will be run: forked processes have imported them.
    """
    kernel = folder / "kernels" / "python3"
    kernel.mkdir(parents=True)
    plain = {"argv": [*_COMMAND, "{connection_file}"], "display_name": "Python 3", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(plain))
    os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("JUPYTER_PATH"))))
    os.environ[_PATH] = str(folder / "socket")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(os.environ[_PATH])
    listening.listen()
    serving = [sys.executable, __file__, "--serve", str(listening.fileno()), *tests]
    with listening:
        return subprocess.Popen(
            serving, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[listening.fileno()]
        )


def _serve(listening: socket.socket, tests: Sequence[str]) -> None:
    """Fork for each connection, until the process that started this one is gone."""
    os.environ["JPY_PARENT_PID"] = str(os.getpid())  # ipykernel reads it when it is imported
    _import_all()
    _import_tests(tests)
    gc.collect()
    gc.freeze()  # what is shared stays so
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    threading.Thread(target=_end_with, args=(sys.stdin.fileno(),), daemon=True).start()
    while True:
        connection, _ = listening.accept()
        _, streams, _, _ = socket.recv_fds(connection, 1, 3)
        asked = json.loads(connection.makefile().readline())
        if os.fork() == 0:
            listening.close()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            _begin(connection, asked["cwd"], asked["env"])
            return _run(asked["argv"])
        for file in streams:
            os.close(file)
        connection.close()


def _import_all() -> None:
    import vl_convert

    import psbench
    from psbench.system.private_apis import defer_grammar

    defer_grammar()  # before altair imports jsonschema
    ours = (found.name for found in pkgutil.walk_packages(psbench.__path__, "psbench."))
    for name in (*_IMPORTED, *(each for each in ours if not each.endswith("__main__"))):
        importlib.import_module(name)
    # Vega as one script, for reports, takes seconds to put together; and a thread, which no fork would have
    command = [sys.executable, "-c", "import vl_convert; print(vl_convert.javascript_bundle(), end='')"]
    bundle = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    vl_convert.javascript_bundle = lambda: bundle


def _import_tests(tests: Sequence[str]) -> None:
    """Import all files of tests as pytest does, once for all processes: as much work as all of the above."""
    import pytest

    pytest.main(["--collect-only", "-qq", "-n", "0", "--nbval-lax", *tests])
    sys.modules.pop("smoke_sizes", None)  # a plug-in, which pytest imports itself


def _end_with(file: int) -> None:
    """End this process when the other end of a file is closed."""
    with suppress(OSError):
        os.read(file, 1)
    os._exit(0)


def _begin(connection: socket.socket, cwd: str, env: dict[str, str]) -> None:
    """Be a process of its own, which ends with that which asked for it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgrp()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[0] = cwd
    connection.sendall(f"{os.getpid()}\n".encode())
    threading.Thread(target=_end_with, args=(connection.detach(),), daemon=True).start()


def _run(argv: list[str]) -> None:
    if "-c" in argv:  # pytest-xdist gives the code of a process
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(argv[-1], vars(main))
    else:
        _become_kernel(argv[0])


def _become_kernel(connection_file: str) -> None:
    import ipywidgets
    import pandas
    from ipykernel.kernelapp import IPKernelApp

    os.environ["JPY_PARENT_PID"] = str(os.getppid())  # not the process that asked
    # what they do themselves where they are imported by a kernel
    pandas.set_option("display.max_columns", 20)
    ipywidgets.register_comm_target()  # a page that is loaded anew asks it for the states of widgets
    sys.argv = ["ipykernel_launcher", "-f", connection_file, "--log-level=ERROR"]
    IPKernelApp.launch_instance(sys.argv[1:])
    os._exit(0)


def _ask(argv: list[str]) -> int:
    """Have a process forked, and stay until it is gone."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ[_PATH])
    socket.send_fds(connection, [b"\n"], [0, 1, 2])
    asked = {"argv": argv, "cwd": os.getcwd(), "env": dict(os.environ)}
    connection.sendall(json.dumps(asked).encode() + b"\n")
    lines = connection.makefile()
    forked = int(lines.readline())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(forked, number))
    for number in (0, 1):  # the other ends are to see when the fork closes them
        os.close(number)
    lines.read()
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        _serve(socket.socket(fileno=int(sys.argv[2])), sys.argv[3:])
    else:
        sys.exit(_ask(sys.argv[1:]))
