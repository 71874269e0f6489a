"""Pickling by value of code in the user's own files, which other machines may lack."""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from importlib.metadata import Distribution, distributions
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

#: every process of a run has psbench; what a script defines is sent with its code anyway
_NOT_OWN = ("psbench", "psbench_widgets", "__main__", "__mp_main__")
#: how folders of installed packages are called, wherever they lie
_PACKAGES = {"site-packages", "dist-packages"}


def dumps_by_value(value: Any, buffer_callback: Callable[[Any], Any] | None = None) -> bytes:
    """Return a value as bytes; its classes and functions from the user's own modules with their code.

    Raises
    ------
    Exception
        Of any kind: an object may refuse in its own way.
    """
    with ExitStack() as registered:
        for module in own_modules():
            cloudpickle.register_pickle_by_value(module)
            registered.callback(cloudpickle.unregister_pickle_by_value, module)
        content: bytes = cloudpickle.dumps(value, protocol=5, buffer_callback=buffer_callback)
    return content


def own_modules() -> list[ModuleType]:
    """Return the loaded modules that are the user's own files: not installed, not Python's, not psbench's."""
    return [
        module
        for name, module in list(sys.modules.items())
        if getattr(module, "__name__", None) == name
        and name.partition(".")[0] not in _NOT_OWN
        and (path := Path(getattr(module, "__file__", None) or "")).is_absolute()
        and not _is_installed(name.partition(".")[0], path)
    ]


def _is_installed(name: str, path: Path) -> bool:
    """Return whether a module below the package `name` belongs to Python or to a distribution.

    That is by where it lies. A file of one's own may be called as a package that is installed elsewhere.
    """
    if _PACKAGES.intersection(path.parts) or any(path.is_relative_to(folder) for folder in _python()):
        return True
    return any(
        name in _distributed(entry) for entry in sys.path if entry and path.is_relative_to(entry)
    ) or name in _editable(tuple(sys.path))


@cache
def _python() -> set[Path]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    found = {sysconfig.get_path(name) for name in names}
    return {Path(folder) for folder in found} | {Path(folder).resolve() for folder in found}


@cache
def _distributed(folder: str) -> set[str]:
    """Return the packages of the distributions in a folder, as `pip install --target` makes one."""
    return {name for each in distributions(path=[folder]) for name in _packages(each)}


@cache
def _editable(folders: tuple[str, ...]) -> set[str]:
    """Return the packages that are installed from another location (`pip install -e`)."""
    found = ((each, each.read_text("direct_url.json")) for each in distributions(path=list(folders)))
    editable = (each for each, url in found if url and json.loads(url).get("dir_info", {}).get("editable"))
    return {name for each in editable for name in _packages(each)}


def _packages(distribution: Distribution) -> set[str]:
    """Return the top-level packages of a distribution."""
    named = (distribution.read_text("top_level.txt") or "").split()
    files = (file.parts[0].partition(".")[0] for file in distribution.files or ())
    return {*named, *files, distribution.name.replace("-", "_").lower()}
