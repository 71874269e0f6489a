"""Which modules are a person's own: their code is sent, and of installed packages the name alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = Path("lib") / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
#: a module of one's own that uses an installed package, which holds what cannot be sent
OWN = "import installed\n\n\nclass Net(installed.Base):\n    pass\n"
INSTALLED = {
    "installed/__init__.py": "from installed.inner import Base\n",
    "installed/inner.py": "import threading\n\nLOCK = threading.Lock()\n\n\n"
    "class Base:\n    def forward(self):\n        return LOCK.locked()\n",
}
RECORD = {"installed-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: installed\nVersion: 1.0\n"}
LISTED = {"installed-1.0.dist-info/RECORD": "installed/__init__.py,,\ninstalled/inner.py,,\n"}
EDITABLE = {
    "installed-1.0.dist-info/direct_url.json": '{"url":"file:///src","dir_info":{"editable":true}}',
    "installed-1.0.dist-info/RECORD": "_installed.pth,,\n",
}
PROGRAM = """
import sys
sys.path.insert(0, {own!r})
import mine
from psbench.system.by_value import dumps_by_value, own_modules

print(*sorted(module.__name__ for module in own_modules()))
content = dumps_by_value(mine.Net)
del sys.modules["mine"]
sys.path.remove({own!r})
import pickle
print(pickle.loads(content)().forward())
"""


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def answer(tmp_path: Path, **environment: str) -> list[str]:
    """Return what is own, and what the class answers where its file is not."""
    write(tmp_path / "own", {"mine.py": OWN})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(own=str(tmp_path / "own"))],
        env={"PATH": os.environ["PATH"], **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_packages_of_a_person_are_installed(tmp_path):
    """As `pip install --user` lays them; in an environment Python looks there only if it is told so."""
    write(tmp_path / "home" / PACKAGES, INSTALLED)
    path = f"{ROOT}:{tmp_path / 'home' / PACKAGES}"
    assert answer(tmp_path, PYTHONUSERBASE=str(tmp_path / "home"), PYTHONPATH=path) == ["mine", "False"]


def test_packages_of_a_module_system_are_installed(tmp_path):
    """As `pip install --target` lays them, in a folder of any name in PYTHONPATH."""
    write(tmp_path / "modules", INSTALLED | RECORD | LISTED)
    assert answer(tmp_path, PYTHONPATH=f"{ROOT}:{tmp_path / 'modules'}") == ["mine", "False"]


def test_packages_of_an_environment_under_this_one_are_installed(tmp_path):
    write(tmp_path / "below" / "lib" / "python3" / "dist-packages", INSTALLED)
    path = tmp_path / "below" / "lib" / "python3" / "dist-packages"
    assert answer(tmp_path, PYTHONPATH=f"{ROOT}:{path}") == ["mine", "False"]


def test_an_editable_distribution_is_installed(tmp_path):
    """Its files are found by a `.pth` of the folder that has its record."""
    write(tmp_path / "source", INSTALLED)
    write(tmp_path / PACKAGES, RECORD | EDITABLE)
    path = f"{ROOT}:{tmp_path / PACKAGES}:{tmp_path / 'source'}"
    assert answer(tmp_path, PYTHONPATH=path) == ["mine", "False"]


def test_a_file_of_ones_own_that_is_called_as_a_package_elsewhere_is_own(tmp_path):
    write(tmp_path / "modules", RECORD | {"installed-1.0.dist-info/RECORD": "mine/__init__.py,,\n"})
    write(tmp_path / PACKAGES, INSTALLED)
    path = f"{ROOT}:{tmp_path / 'modules'}:{tmp_path / PACKAGES}"
    assert answer(tmp_path, PYTHONPATH=path) == ["mine", "False"]


@pytest.mark.nightly
@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="needs the packages of a virtual environment")
def test_a_network_is_sent_where_torch_lies_in_its_own_folder(tmp_path):
    """The interpreter has no package of its own: all of them are in a folder as of a module system."""
    packages = Path(next(path for path in sys.path if path.endswith("site-packages")))
    (tmp_path / "all").mkdir()
    for each in packages.iterdir():
        (tmp_path / "all" / each.name).symlink_to(each)
    (tmp_path / "net.py").write_text("from torch import nn\n\n\nclass Net(nn.Linear):\n    pass\n")
    program = (
        "import net\nfrom psbench.testing import toy_experiment\n"
        "from psbench.backends.dask.objects import check_objects\n"
        "check_objects(toy_experiment(model=lambda: net.Net(4, 3)))\n"
        "from psbench.system.by_value import own_modules\n"
        "print(*(module.__name__ for module in own_modules()))\n"
    )
    done = subprocess.run(
        [Path(sys.base_prefix) / "bin" / "python3", "-c", program],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{tmp_path / 'all'}:{tmp_path}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["net"]
