"""Objects that other installed packages register with psbench as entry points."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any

from psbench.errors import ExtensionWarning

#: read once: each reading opens a file of every installed package
_all_points = cache(entry_points)


def points_of(group: str) -> EntryPoints:
    """Return the entry points of a group."""
    return _all_points().select(group=group)


def installed(group: str, taken: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the name and object of each entry point of a group, in the order of their names.

    Those that cannot be loaded, and those whose name is `taken`, are left out with an `ExtensionWarning`.
    """
    for point in sorted(points_of(group), key=lambda point: point.name):
        what = f"{point.name!r} of {group} ({point.value})"
        if point.name in taken:
            warnings.warn(f"{what} is ignored: psbench itself uses that name", ExtensionWarning, stacklevel=2)
            continue
        try:
            found = point.load()
        except Exception as error:  # of a stranger's module, anything
            warnings.warn(f"{what} cannot be loaded: {error}", ExtensionWarning, stacklevel=2)
            continue
        yield point.name, found
