"""Starting JupyterLab."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from psbench.errors import SpecError


def start_lab(folder: Path | None) -> int:
    """Run JupyterLab on a folder until it ends, and return its exit code.

    Raises
    ------
    SpecError
        If JupyterLab is not installed, or there is no such folder.
    """
    missing = [name for name in ("jupyterlab", "ipywidgets", "anywidget") if find_spec(name) is None]
    if missing:
        raise SpecError(f"{', '.join(missing)} not installed; install with: pip install 'psbench[lab]'")
    folder = folder or notebooks()
    if not folder.is_dir():
        raise SpecError(f"{folder}: no such folder")
    return subprocess.call([sys.executable, "-m", "jupyterlab", str(folder)])


def notebooks() -> Path:
    """Return the folder of the notebooks: here, or in the clone that psbench is installed from."""
    places = (Path("notebooks"), Path(__file__).resolve().parents[2] / "notebooks")
    return next((place for place in places if place.is_dir()), Path())
