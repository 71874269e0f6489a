"""Kernels for the notebooks of a test run, forked from one process that has imported what they all import.

Importing torch, altair and psbench takes 3 s of CPU, for each of seventeen kernels. `use` starts it,
and has Jupyter take this module for the kernel `python3`: what Jupyter starts then stays a process of its
own, which asks for a fork, hands signals on to it, and ends with it.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

#: where the process listens, for what Jupyter starts
_PATH = "PSBENCH_KERNELS"
_IMPORTED = (
    *("torch", "altair", "pandas", "ipykernel.kernelapp"),
    *("psbench.runs.execution", "psbench_widgets.lab"),
)


def use(folder: Path) -> subprocess.Popen[bytes]:
    """Have the notebooks of this process and its children take forked kernels; they end with the result.

    Parameters
    ----------
    folder : Path
        An empty one, for the kernel's description and the socket.
    """
    kernel = folder / "kernels" / "python3"
    kernel.mkdir(parents=True)
    command = [sys.executable, "-IS", __file__, "{connection_file}"]
    plain = {"argv": command, "display_name": "Python 3", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(plain))
    os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("JUPYTER_PATH"))))
    os.environ[_PATH] = str(folder / "socket")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(os.environ[_PATH])
    listening.listen()
    serving = [sys.executable, __file__, "--serve", str(listening.fileno())]
    with listening:
        return subprocess.Popen(
            serving, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[listening.fileno()]
        )


def _serve(listening: socket.socket) -> None:
    """Fork a kernel for each connection, until the process that started this one is gone."""
    os.environ["JPY_PARENT_PID"] = str(os.getpid())  # ipykernel reads it when it is imported
    for name in _IMPORTED:
        __import__(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    threading.Thread(target=_end_with, args=(sys.stdin.fileno(),), daemon=True).start()
    while True:
        connection, _ = listening.accept()
        asked = json.loads(connection.makefile().readline())
        if os.fork() == 0:
            listening.close()
            _become_kernel(connection, **asked)
        connection.close()


def _end_with(file: int) -> None:
    """End this process when the other end of a file is closed."""
    with suppress(OSError):
        os.read(file, 1)
    os._exit(0)


def _become_kernel(connection: socket.socket, argv: list[str], cwd: str, env: dict[str, str]) -> None:
    import pandas
    from ipykernel.kernelapp import IPKernelApp

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    os.environ["JPY_PARENT_PID"] = str(os.getppid())  # not the process that asked
    pandas.set_option("display.max_columns", 20)  # what it sets itself where it is imported by a kernel
    connection.sendall(f"{os.getpid()}\n".encode())
    threading.Thread(target=_end_with, args=(connection.fileno(),), daemon=True).start()
    sys.path[0] = cwd
    sys.argv = ["ipykernel_launcher", *argv]
    IPKernelApp.launch_instance(argv)
    os._exit(0)


def _ask(argv: list[str]) -> int:
    """Have a kernel forked, and stay until it is gone."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ[_PATH])
    asked = {"argv": argv, "cwd": os.getcwd(), "env": dict(os.environ)}
    connection.sendall(json.dumps(asked).encode() + b"\n")
    lines = connection.makefile()
    kernel = int(lines.readline())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(kernel, number))
    lines.read()
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        _serve(socket.socket(fileno=int(sys.argv[2])))
    sys.exit(_ask(["-f", sys.argv[1], "--log-level=ERROR"]))
