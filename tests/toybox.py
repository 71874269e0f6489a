"""What test modules share: parts that exist for one of them, and cases that are tried at night alone."""

from __future__ import annotations

from typing import Any

import pytest

from psbench.core.part import REGISTRY, Part


def at_night(*cases: Any) -> list[Any]:
    """Return cases of a test as those that `make nightly` tries; a tuple has several arguments."""
    given = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*each, marks=pytest.mark.nightly) for each in given]


def take_out(prefix: str) -> list[type[Part]]:
    """Take the parts whose name begins so out of the registry, and return them.

    Every module is imported before the first test runs, and other tests list what is registered.
    """
    found = [part for known in REGISTRY.values() for name, part in known.items() if name.startswith(prefix)]
    for part in found:
        del REGISTRY[part.domain][part.name]
    return found


def put_in(parts: list[type[Part]]) -> None:
    """Put parts back into the registry."""
    for part in parts:
        REGISTRY[part.domain][part.name] = part
