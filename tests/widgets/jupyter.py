"""JupyterLab on loopback and a browser that looks at it, for the browser tests."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from jupyter_client import BlockingKernelClient

FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
ROOT = Path(__file__).parents[2]
#: whether screenshots are taken, which no test looks at
PICTURES = os.environ.get("PSBENCH_PICTURES") != "0"
#: what a browser or a kernel has for anything that a test waits for, on however busy a machine
LONG_S = 240


def seldom_asking(page: Any) -> Any:
    """Have a page's waits ask ten times a second: asked at every frame, it would draw all of them."""
    page.wait_for_function = partial(page.wait_for_function, polling=100)
    return page


def browser_path() -> str | None:
    """The system's Chromium or Chrome, or what PSBENCH_BROWSER names."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return os.environ.get("PSBENCH_BROWSER") or next(filter(None, map(shutil.which, names)), None)


class Jupyter:
    """A JupyterLab of its own: configuration, notebooks and one kernel, which all notebooks share.

    A kernel that has imported the panel is slow to start; tests are isolated by their own pages.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token = secrets.token_hex(16)
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        settings = folder / "app-settings"
        settings.mkdir()
        quiet = {
            "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
            "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
        }
        (settings / "overrides.json").write_text(json.dumps(quiet))
        self.log = (folder / "jupyter.log").open("w")
        command = [
            *(sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root"),
            *("--ServerApp.ip=127.0.0.1", f"--ServerApp.port={self.port}", "--ServerApp.port_retries=0"),
            *(f"--IdentityProvider.token={self.token}", f"--ServerApp.root_dir={folder}"),
            f"--LabApp.app_settings_dir={settings}",
        ]
        paths = os.pathsep.join([str(ROOT), str(ROOT / "widgets"), os.environ.get("PYTHONPATH", "")])
        own = {f"JUPYTER_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "RUNTIME", "DATA")}
        environment = {**os.environ, **own, "PYTHONPATH": paths, "IPYTHONDIR": str(folder / "ipython")}
        environment.setdefault("OMP_NUM_THREADS", "1")
        self.process = subprocess.Popen(command, env=environment, stdout=self.log, stderr=self.log)
        self._wait()
        self.kernel: str = self.post("/api/kernels", {"name": "python3"})["id"]

    def _wait(self) -> None:
        for _ in range(10 * LONG_S):
            if self.process.poll() is not None:
                raise RuntimeError((self.folder / "jupyter.log").read_text()[-2000:])
            try:
                self.get("/api/status")
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"JupyterLab did not answer within {LONG_S} s")

    def get(self, path: str) -> Any:
        return self._ask(path, None, timeout_s=LONG_S)

    def post(self, path: str, content: dict[str, Any]) -> Any:
        return self._ask(path, json.dumps(content).encode(), timeout_s=LONG_S)

    def _ask(self, path: str, body: bytes | None, timeout_s: float) -> Any:
        request = urllib.request.Request(self.url + path, body, {"Authorization": f"token {self.token}"})
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return json.load(answer)

    def address(self, name: str) -> str:
        """Connect a notebook of the folder to the kernel, and return its address."""
        file = f"{name}.ipynb"
        session = {"path": file, "name": file, "type": "notebook", "kernel": {"id": self.kernel}}
        self.post("/api/sessions", session)
        return f"{self.url}/lab/tree/{file}?token={self.token}&reset"

    def notebook(self, name: str, cells: list[str]) -> str:
        """Write a notebook and return its address."""
        content = {
            "cells": [
                {
                    "cell_type": "code",
                    "id": f"cell{i}",
                    "metadata": {},
                    "source": text,
                    "outputs": [],
                    "execution_count": None,
                }
                for i, text in enumerate(cells)
            ],
            "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        (self.folder / f"{name}.ipynb").write_text(json.dumps(content))
        return self.address(name)

    def execute(self, code: str) -> None:
        """Run code in the kernel, beside all notebooks."""
        file = self.folder / "runtime" / f"kernel-{self.kernel}.json"
        client = BlockingKernelClient(connection_file=str(file))
        client.load_connection_file()
        client.start_channels()
        try:
            answer = client.execute_interactive(code, timeout=LONG_S, store_history=False)
        finally:
            client.stop_channels()
        if answer["content"]["status"] != "ok":
            raise RuntimeError("\n".join(answer["content"]["traceback"]))

    def is_idle(self, name: str) -> bool:
        """Whether the notebook's kernel is connected and waits; the page alone says so too early."""
        kernels = [s["kernel"] for s in self.get("/api/sessions") if s["path"] == f"{name}.ipynb"]
        return bool(kernels) and all(k["execution_state"] == "idle" and k["connections"] > 0 for k in kernels)

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


class Page:
    """A notebook in the browser, with everything the page complained about or asked the network for."""

    def __init__(self, jupyter: Jupyter, context: Any) -> None:
        self.jupyter = jupyter
        self.page = seldom_asking(context.new_page())
        self.page.set_default_timeout(1000 * LONG_S)
        self.errors: list[str] = []
        self.strangers: list[str] = []
        self.page.on("pageerror", self._on_error)
        self.page.on("console", self._on_console)
        self.page.on("request", self._on_request)

    def _on_error(self, error: Any) -> None:
        # our code has a blob's address; anywidget complains of itself where a busy machine is slow to load
        if "blob:" in (error.stack or ""):
            self.errors.append(str(error))

    def _on_console(self, message: Any) -> None:
        if message.type == "error" and "psb" in message.text.lower():
            self.errors.append(message.text)

    def _on_request(self, request: Any) -> None:
        local = (self.jupyter.url, f"ws://127.0.0.1:{self.jupyter.port}", "data:", "blob:")
        if not request.url.startswith(local):
            self.strangers.append(request.url)

    def open(self, name: str, cells: list[str]) -> None:
        self.name = name
        self.address = self.jupyter.notebook(name, cells)
        self.page.goto(self.address)
        self.ready()

    def ready(self) -> None:
        """Wait until the kernel is idle by every sign."""
        self.page.wait_for_selector(".jp-Notebook .jp-CodeCell")
        self.page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]')
        until = time.monotonic() + LONG_S
        while not self.jupyter.is_idle(self.name):
            if time.monotonic() > until:
                raise TimeoutError("the kernel is not idle")
            time.sleep(0.1)
        self.page.wait_for_function(
            "() => [...document.querySelectorAll('.jp-StatusBar-TextItem')]"
            ".some((e) => e.textContent.includes('| Idle'))"
        )

    def run_all(self) -> None:
        self.page.click('.lm-MenuBar-itemLabel:text-is("Run")')
        self.page.click('.lm-Menu-item[data-command="runmenu:run-all"]')

    def run_cell(self, number: int) -> str:
        """Run one cell and return its text output."""
        cell = self.page.locator(".jp-CodeCell").nth(number)
        prompt = cell.locator(".jp-InputPrompt")
        before = prompt.first.text_content()
        cell.locator(".cm-content").first.click()
        self.page.keyboard.press("Control+Enter")
        until = time.monotonic() + LONG_S
        while (now := prompt.first.text_content() or "") == before or "*" in now:
            if time.monotonic() > until:
                raise TimeoutError(f"cell {number} has not run: {now}")
            time.sleep(0.05)
        return cell.locator(".jp-OutputArea").first.text_content() or ""

    def save(self) -> list[dict[str, Any]]:
        """Save the notebook and return its cells."""
        file = f"/api/contents/{self.name}.ipynb"

        def is_written(answer: Any) -> bool:
            return answer.request.method == "PUT" and file in answer.url

        # the page may say that nothing is left to save while the file is being written
        with self.page.expect_response(is_written):
            self.page.keyboard.press("Control+s")  # wherever the focus is: in the panel too
        notebook = json.loads((self.jupyter.folder / f"{self.name}.ipynb").read_text())
        return list(notebook["cells"])

    def reload(self, shows: str = "") -> None:
        """Save the notebook (its outputs would be lost) and load the page anew.

        And again, as a user would, until there is what it `shows`: JupyterLab's widgets ask a kernel for
        their states for 4 s, and a kernel that computes on a busy machine may answer later.
        """
        self.save()
        until = time.monotonic() + 3 * LONG_S
        while True:
            self.page.reload()
            self.ready()
            deadline = time.monotonic() + 20
            while shows and not self.page.is_visible(shows) and time.monotonic() < deadline:
                self.page.wait_for_timeout(200)
            if not shows or self.page.is_visible(shows):
                return
            if time.monotonic() > until:
                raise TimeoutError(f"{shows} is not there after the page was loaded anew")

    def shot(self, path: Path, after_ms: int = 0) -> None:
        """Write a screenshot, of what there is after some time."""
        if PICTURES:
            self.page.wait_for_timeout(after_ms)
            self.page.screenshot(path=path)

    def restart_kernel(self) -> None:
        """Restart the kernel as a user does, by the menu."""
        self.page.click('.lm-MenuBar-itemLabel:text-is("Kernel")')
        self.page.click('.lm-Menu-item[data-command="kernelmenu:restart"]')
        self.page.click(".jp-Dialog .jp-mod-accept")

    def theme(self, name: str) -> None:
        """Switch JupyterLab's theme: "JupyterLab Light" or "JupyterLab Dark"."""
        self.page.click('.lm-MenuBar-itemLabel:text-is("Settings")')
        self.page.hover('.lm-Menu-itemLabel:text-is("Theme")')
        self.page.click(f'.lm-Menu-itemLabel:text-is("{name}")')
        self.page.wait_for_selector(f'body[data-jp-theme-name="{name}"]', state="attached")


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
