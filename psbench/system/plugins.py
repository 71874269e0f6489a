"""Objects that other installed packages register with psbench as entry points."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from importlib.metadata import entry_points
from typing import Any

from psbench.errors import ExtensionWarning


def installed(group: str, taken: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the name and object of each entry point of a group, in the order of their names.

    Those that cannot be loaded, and those whose name is `taken`, are left out with an `ExtensionWarning`.
    """
    for point in sorted(entry_points(group=group), key=lambda point: point.name):
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
