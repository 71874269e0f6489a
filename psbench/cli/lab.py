"""`psbench lab`: a copy of the tutorials is laid into a folder, and JupyterLab is started on it."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from psbench.errors import SpecError
from psbench.system.files import atomic_write

#: the folder, below the one that one stands in, that `psbench lab` opens
TUTORIALS = "psbench-tutorials"


def start_lab(folder: Path | None) -> int:
    """Run JupyterLab on a folder until it ends, and return its exit code.

    Without a folder, on a copy of the tutorials in `psbench-tutorials`, which is made if it is not there;
    in a clone, on its notebooks.

    Raises
    ------
    SpecError
        If JupyterLab is not installed, or there is no such folder.
    """
    missing = [name for name in ("jupyterlab", "ipywidgets", "anywidget") if find_spec(name) is None]
    if missing:
        raise SpecError(f"{', '.join(missing)} not installed; install with: pip install 'psbench[lab]'")
    if folder is not None and not folder.is_dir():
        raise SpecError(f"{folder}: no such folder")
    in_a_clone = (Path("notebooks") / "01_first_run.ipynb").is_file()
    folder = folder or (Path("notebooks") if in_a_clone else lay_out(tutorials(), Path(TUTORIALS)))
    return subprocess.call([sys.executable, "-m", "jupyterlab", str(folder)])


def tutorials() -> Path:
    """Return the folder of the tutorials: in the installed package, or in the clone that it runs from.

    Raises
    ------
    SpecError
        If neither has them.
    """
    package = Path(__file__).resolve().parents[1]
    places = (package / "tutorials", package.parent / "notebooks")
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        raise SpecError(f"the tutorials are not in this installation (looked in {places[0]}); name a folder")
    return found


def lay_out(source: Path, target: Path) -> Path:
    """Copy missing tutorials into a folder of the user's, and return it.

    Files that the user has changed stay as they are.
    """
    for path in sorted([*source.glob("*.ipynb"), *source.glob("pictures/*")]):
        place = target / path.relative_to(source)
        if not place.exists():
            with atomic_write(place) as file:
                file.write(path.read_bytes())
    return target
