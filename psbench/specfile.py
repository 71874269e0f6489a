"""Specification files: YAML read strictly, and settings by dotted path."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from psbench.errors import SpecError, in_short
from psbench.system.files import why_missing

#: bytes of a specification file; the longest of the package have a few thousand
_LARGEST = 10_000_000
#: lists and mappings inside one another; a specification has six
_DEEPEST = 50
#: characters of a setting that a message repeats
_SHOWN = 200
#: digits of a whole number; a float has no more than 308 before the point
_MOST_DIGITS = 300
#: values of a document, each counted as often as aliases repeat it
_MOST_VALUES = 1_000_000


def _error(problem: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


class _Loader(yaml.SafeLoader):
    """Loads plain data only; a duplicate key is an error, and numbers follow YAML 1.2.

    YAML 1.1, which PyYAML follows, reads 010 as eight, 1:30 as ninety, 1_0 as ten, 1e-3 as a text and
    2026-01-02 as a date. Here 010 is ten, and 1e-3 a number; the others are texts, which no number accepts.

    How deep and how large a document may be is limited, so that neither reading it nor what is made of it
    runs out of stack or memory.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        #: values below each node that is composed, itself included
        self._values: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self._depth == _DEEPEST:
            problem = f"lists or mappings are nested more than {_DEEPEST} deep"
            raise yaml.composer.ComposerError(None, None, problem, self.get_mark())
        is_alias = self.check_event(yaml.AliasEvent)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None and not is_alias:
            self._values[node] = self._count(node)
        elif node is not None and node not in self._values:
            raise _error("an alias refers to a value that contains it", node)
        return node

    def _count(self, node: yaml.Node) -> int:
        inner: list[yaml.Node] = []
        if isinstance(node, yaml.ScalarNode):
            if "\0" in node.value:
                raise _error("a text has a zero byte", node)
            if node.tag.endswith(":int") and len(node.value) > _MOST_DIGITS:
                raise _error(f"a number has more than {_MOST_DIGITS} digits", node)
        if isinstance(node, yaml.SequenceNode):
            inner = node.value
        elif isinstance(node, yaml.MappingNode):
            inner = [each for pair in node.value for each in pair]
        count = 1 + sum(self._values[each] for each in inner)
        if count > _MOST_VALUES:
            raise _error(f"aliases expand to more than {_MOST_VALUES} values", node)
        return count

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

    def whole_number(self, node: yaml.ScalarNode) -> int:
        if not _WHOLE.fullmatch(node.value):
            raise _error(f"{node.value!r} is not a whole number", node)
        return int(node.value, 16 if "x" in node.value else 10)

    def number(self, node: yaml.ScalarNode) -> float:
        if not _NUMBER.fullmatch(node.value):
            raise _error(f"{node.value!r} is not a number", node)
        return float(node.value.lower().replace(".inf", "inf").replace(".nan", "nan"))


#: of the core schema of YAML 1.2; it has 0o17 as well, which is a text here
_WHOLE = re.compile(r"[-+]?[0-9]+|0x[0-9a-fA-F]+")
_NUMBER = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_REPLACED = {f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp")}

_Loader.yaml_implicit_resolvers = {
    first: [each for each in found if each[0] not in _REPLACED]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Dumper(yaml.SafeDumper):
    """Quotes texts that either version of YAML reads as numbers."""


for _kind, _pattern in (("int", _WHOLE), ("float", _NUMBER)):
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(
            f"tag:yaml.org,2002:{_kind}", re.compile(f"(?:{_pattern.pattern})$"), list("-+.0123456789")
        )
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.whole_number)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.number)


def dump_yaml(values: Any, **layout: Any) -> str:
    r"""Return plain data as YAML, in the order that it has; `layout` are options of PyYAML's `dump`.

    >>> dump_yaml({"seed": 8, "path": "008"})
    "seed: 8\npath: '008'\n"
    """
    text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False, **layout)
    return text


def parse_yaml(text: str, where: str) -> Any:
    """Read YAML.

    Raises
    ------
    SpecError
        If it is not YAML, or a key is given twice.
    """
    try:
        return yaml.load(text, _Loader)  # a safe loader: plain data only
    except (yaml.YAMLError, ValueError, TypeError) as error:  # ValueError: a number of 5,000 digits
        place = getattr(error, "problem_mark", None)
        line = f", line {place.line + 1}" if place else ""
        reason = getattr(error, "problem", None) or next(iter(str(error).splitlines()), "")
        raise SpecError(f"{where}{line}: is not YAML: {reason}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping from a file.

    Raises
    ------
    SpecError
    """
    if problem := why_missing(path):
        raise SpecError(problem)
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise SpecError(f"{path}: is larger than {_LARGEST / 1e6:g} MB; is it a specification?")
        values = parse_yaml(content.decode(), str(path))
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
    keys = path.split(".")
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    if not equals or not all(keys):
        raise SpecError(f"--set {shown}: expected path=value, such as strategy.staleness_bound=5")
    if len(keys) > _DEEPEST:
        raise SpecError(f"--set {shown}: the path has {len(keys)} names; the limit is {_DEEPEST}")
    return path, parse_yaml(value, f"--set {shown}")


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
    raise SpecError(f"{path}: {key!r} is {in_short(value)}, which has no fields to set")
