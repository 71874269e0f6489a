"""Parts that refer to a Python object: the specification describes the object, and does not contain it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, TypeGuard

from pydantic import PrivateAttr

from psbench.core.part import Part
from psbench.core.specification import parameter
from psbench.errors import SpecError

if TYPE_CHECKING:
    from torch import nn


class Own(Part):
    """Base of the parts that hold an object which the user passed.

    Parameters
    ----------
    type : str
        What the object is, as `my.package.Net`.
    fingerprint : str
        SHA-256 of everything that determines its results; objects with equal ones are interchangeable.

    Notes
    -----
    A specification that is read from a file has no object. It says everything about the run that it was, but
    nothing can be computed from it until the object is passed again.
    """

    name = "own"
    registered = False

    type: str = parameter("", "type of the object")
    fingerprint: str = parameter("", "SHA-256 of everything that determines its results")
    _object: Any = PrivateAttr(default=None)

    @classmethod
    def around(cls, value: Any, kind: str, fingerprint: str, **fields: Any) -> Self:
        """Return the part that holds an object."""
        part = cls(type=kind, fingerprint=fingerprint, **fields)
        part._object = value
        return part

    @classmethod
    def described(cls, fields: Mapping[str, Any]) -> Self:
        """Return the part that a specification describes, without the object."""
        return cls(**{name: value for name, value in fields.items() if name != "name"})

    def bare(self) -> Self:
        """Return the part without the object, as it is read from a specification."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields})

    def __eq__(self, other: object) -> bool:
        """Return True if the descriptions are equal, and the objects thus interchangeable."""
        return isinstance(other, type(self)) and self.model_dump() == other.model_dump()

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def fresh(self) -> Self:
        """Return the object itself: it has no state."""
        return self

    @property
    def is_there(self) -> bool:
        """Return True if the object is present, and not only its description."""
        return self._object is not None

    @property
    def object(self) -> Any:
        """The object.

        Raises
        ------
        SpecError
            If this is the specification of a saved run, which does not hold it.
        """
        if self._object is None:
            raise SpecError(
                f"{self.domain} {self.type!r} is a Python object, which saved runs do not contain; pass "
                f"it: psbench.resume(folder, {self.argument}=...), or Experiment.but({self.argument}=...)"
            )
        return self._object

    @property
    def argument(self) -> str:
        """The field of an experiment that takes such an object."""
        return self.domain


def is_module(value: Any) -> TypeGuard[nn.Module]:
    """Return whether a value is a torch module; False if torch is not loaded."""
    layers = getattr(sys.modules.get("torch"), "nn", None)  # none while another thread imports torch
    module = getattr(layers, "Module", None)
    return module is not None and isinstance(value, module)


def reunited(saved: Part, given: Part) -> Part:
    """Return the user's part for a saved one, if both are the same.

    Raises
    ------
    SpecError
        If it is not the same; the first difference is named.
    """
    before, now = saved.model_dump(mode="json"), given.model_dump(mode="json")
    for name in {**before, **now}:
        if before.get(name) != now.get(name):
            raise SpecError(
                f"{saved.domain}: differs from that of the run: {name} was {_short(before.get(name))} and "
                f"is now {_short(now.get(name))}; pass the same object with the same options"
            )
    return given


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:16]}..."
