"""Import of objects by path for specifications in files, and the base of parts that import one."""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Self

from pydantic import Field, model_validator

from psbench.core.part import Part
from psbench.core.specification import parameter
from psbench.errors import ParameterError

_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def check_import_target(what: str, target: str) -> None:
    """Raise unless the target is a module and a name in it.

    Raises
    ------
    ParameterError
    """
    if not _TARGET.fullmatch(target):
        raise ParameterError(
            f"{what}: target: expected a module and a name in it, as my.package:Net, got {target!r}"
        )


def imported(what: str, target: str) -> Any:
    """Return the callable that a target such as `my.package:Net` names.

    A module is found as Python's `import` finds it, or in the directory that the process was started in.

    Raises
    ------
    ParameterError
        If there is none of that name, or importing it fails.
    """
    check_import_target(what, target)
    home, _, path = target.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that it hides nothing
    try:
        value: Any = import_module(home)
    except Exception as error:
        raise ParameterError(
            f"{what}: module {home!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    for name in path.split("."):
        if not hasattr(value, name):
            raise ParameterError(f"{what}: module {home!r} has no {path!r}")
        value = getattr(value, name)
    if not callable(value):
        raise ParameterError(f"{what}: {target} is {type(value).__name__}, which is not callable")
    return value


class Imported(Part):
    """Base of parts that import an object by path, for files and the command line.

    A specification with one is a program, to be trusted like one.

    Parameters
    ----------
    target : str
        Module and name, as `my.package:Net`; found as Python's `import` finds it, or in the directory that
        psbench was started in.
    """

    source = "your own code"

    target: str = parameter("", "module and name of a class or function, as my.package:Net")

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if self.target:
            check_import_target(f"{self.domain} {self.name!r}", self.target)
        return self

    def imported(self) -> Any:
        """Return the object that the target names; see the function of that name."""
        return imported(f"{self.domain} {self.name!r}", self.target)


class ImportedCall(Imported):
    """Base of parts that call an imported function."""

    arguments: dict[str, Any] = Field(
        default_factory=dict,
        description="keyword arguments of the call",
        json_schema_extra={"unit": "", "source": ""},
    )


def is_there(name: str) -> bool:
    """Return whether a package is installed, without importing it (but those above it).

    >>> is_there("json"), is_there("no_such_package"), is_there("no_such_package.part")
    (True, False, False)
    """
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # a package above it is missing
        return False
