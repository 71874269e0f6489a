"""Objects by the name of where they are, for specifications in files."""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from typing import Any

from psbench.errors import ParameterError

_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def check_target(what: str, target: str) -> None:
    """Refuse what does not name a module and something in it.

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
    check_target(what, target)
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
        raise ParameterError(f"{what}: {target} is {type(value).__name__}, and nothing that can be called")
    return value
