"""The tutorials of who has no clone: they travel in the wheel, and a copy is laid into the user's folder."""

import tomllib
from pathlib import Path

from psbench.cli import main
from psbench.cli.lab import TUTORIALS, lay_out, tutorials

ROOT = Path(__file__).parent.parent


def test_the_wheel_has_the_notebooks_where_they_are_looked_for():
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = told["tool"]["hatch"]["build"]["targets"]["wheel"]
    names = [path.name for path in (ROOT / "notebooks").glob("*.ipynb")]
    expected = {f"notebooks/{name}": f"psbench/tutorials/{name}" for name in [*names, "pictures"]}
    assert wheel["force-include"] == expected
    assert tutorials() == ROOT / "notebooks"  # in a clone


def test_a_copy_keeps_what_somebody_has_changed(tmp_path):
    place = lay_out(tutorials(), tmp_path / "mine")
    names = {path.relative_to(place) for path in place.rglob("*.ipynb")}
    assert names == {path.relative_to(ROOT / "notebooks") for path in (ROOT / "notebooks").rglob("*.ipynb")}
    first = place / "01_first_run.ipynb"
    first.write_text("my own")
    (place / "02_consistency.ipynb").unlink()
    lay_out(tutorials(), place)
    assert first.read_text() == "my own"
    assert (place / "02_consistency.ipynb").is_file()


def test_without_a_folder_it_opens_a_copy_and_in_a_clone_the_notebooks(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("psbench.cli.lab.subprocess.call", lambda command: opened.append(command[-1]) or 0)
    monkeypatch.chdir(tmp_path)
    assert main(["lab"]) == 0
    assert (tmp_path / TUTORIALS / "07_lab.ipynb").is_file()
    monkeypatch.chdir(ROOT)
    assert main(["lab"]) == 0
    assert opened == [TUTORIALS, "notebooks"]
