"""Common base of catalogue entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic.fields import FieldInfo

from psbench.core import AnyStrategy


@dataclass(frozen=True)
class Entry:
    """A published strategy; call it to get one.

    Parameters
    ----------
    name, summary, source : str
        What it is called, what it does in one line, and where it comes from.
    also : dict of str to dict
        Other published names of the same rule, each with the parameters that its paper sets differently.
    """

    name: str
    summary: str
    source: str
    also: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, kw_only=True)

    @property
    def parameters(self) -> dict[str, FieldInfo]:
        """The hyper-parameters by name."""
        raise NotImplementedError

    def __call__(self, **values: Any) -> AnyStrategy:
        raise NotImplementedError
