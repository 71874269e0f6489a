"""Hooks of parts: methods that the engine calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from psbench.core.actions import Action
from psbench.core.part import Part

Hook: TypeAlias = Callable[..., list[Action]]
#: what handles an event, or performs an action, by its type
Performers: TypeAlias = dict[type, Callable[[Any], None]]


def defined(hook: str, *parts: Part) -> list[Hook]:
    """Return the bound hooks of the parts whose classes override the hook."""
    found = []
    for part in parts:
        base = next(c for c in type(part).__mro__ if c.__bases__ == (Part,))
        if getattr(type(part), hook) is not getattr(base, hook):
            found.append(getattr(part, hook))
    return found
