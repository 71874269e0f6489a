"""Put off a grammar that charts do not need, and that takes longer to build than they to import."""

from __future__ import annotations

import importlib
import sys
import types
from importlib.util import find_spec
from typing import Any

#: jsonschema's, for addresses in any script; Jupyter's dependencies install it
NAME = "rfc3987_syntax"


def defer_grammar() -> None:
    """Have that package load when it is first used, not when jsonschema is imported.

    Altair imports jsonschema, which imports the package where it is installed, and that builds its grammar at
    once: 1.7 of the 2 s of CPU of ``import altair`` in JupyterLab's environment, in every process that draws.
    A check of such an address still gets its answer, and waits for the grammar then.
    """
    if NAME in sys.modules or (spec := find_spec(NAME)) is None:
        return
    stand_in = types.ModuleType(NAME)

    def whole() -> types.ModuleType:
        if sys.modules.get(NAME) is stand_in:
            del sys.modules[NAME]
        return importlib.import_module(NAME)

    def is_valid_syntax(term: str, value: str) -> bool:
        return bool(whole().is_valid_syntax(term, value))

    def other(name: str) -> Any:
        if name.startswith("__"):  # what Python's import asks of every module
            raise AttributeError(name)
        return getattr(whole(), name)

    vars(stand_in).update(is_valid_syntax=is_valid_syntax, __getattr__=other)
    stand_in.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[NAME] = stand_in
