"""Specification files: YAML read strictly, and dotted paths set in what was read."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from psbench.errors import SpecError


def _error(problem: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


class _Loader(yaml.SafeLoader):
    """Plain data only; a key given twice is an error, and 1e-3 is a number as in YAML 1.2."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _error(f"{key!r} is not a name", key_node)
            if key in seen:
                raise _error(f"{key!r} is given twice", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1, which PyYAML follows, takes 1e-3 for a text: it wants a point
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def parse_yaml(text: str, where: str) -> Any:
    """Read YAML.

    Raises
    ------
    SpecError
        If it is not YAML, or a key is given twice.
    """
    try:
        return yaml.load(text, _Loader)  # a safe loader: plain data only
    except (yaml.YAMLError, ValueError, TypeError) as error:
        place = getattr(error, "problem_mark", None)
        line = f", line {place.line + 1}" if place else ""
        raise SpecError(f"{where}{line}: is not YAML: {getattr(error, 'problem', None) or error}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping from a file.

    Raises
    ------
    SpecError
    """
    try:
        values = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path}: is not a text file") from None
    if not isinstance(values, dict):
        found = "nothing" if values is None else f"a {type(values).__name__}"
        raise SpecError(f"{path}: expected a mapping such as `strategy: ssp`, found {found}")
    return values


def parse_setting(text: str) -> tuple[str, Any]:
    """Return the path and the value of `path=value`; the value is YAML.

    >>> parse_setting("strategy.staleness_bound=5")
    ('strategy.staleness_bound', 5)

    Raises
    ------
    SpecError
    """
    path, equals, value = text.partition("=")
    if not equals or not all(path.split(".")):
        raise SpecError(f"--set {text}: expected path=value, such as strategy.staleness_bound=5")
    return path, parse_yaml(value, f"--set {text}")


def set_path(values: dict[str, Any], path: str, value: Any) -> None:
    """Set a dotted path in nested mappings; a name on the way becomes a mapping with that name.

    Raises
    ------
    SpecError
        If the path leads through a value that has no fields.
    """
    *parents, last = path.split(".")
    at = values
    for key in parents:
        at[key] = at = _mapping(at.get(key), path, key)
    at[last] = value


def _mapping(value: Any, path: str, key: str) -> dict[str, Any]:
    """Return a mapping that may be changed."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, Mapping):
        return dict(value)
    raise SpecError(f"{path}: {key!r} is {value!r}, which has no fields to set")
