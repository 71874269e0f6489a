"""Labels of groups of runs: their name and, if several share it, their differences."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

#: differences that a label has room for
_MOST = 3
#: characters of a value in a label
_LONGEST = 24


def labels_of(names: Sequence[str], specs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a label for each group of runs; no two are equal.

    Parameters
    ----------
    names : sequence of str
    specs : sequence of mapping
        What each group was specified as.

    Examples
    --------
    >>> labels_of(["mine", "mine", "ssp"], [{"strategy": {"name": "bsp"}}, {"strategy": {"name": "asp"}}, {}])
    ['mine (strategy=bsp)', 'mine (strategy=asp)', 'ssp']
    """
    flat = [dict(leaves(spec)) for spec in specs]
    found = [_label(name, own, _rivals(name, names, flat)) for name, own in zip(names, flat, strict=True)]
    return [
        label if found.count(label) == 1 else f"{label} #{found[: place + 1].count(label)}"
        for place, label in enumerate(found)
    ]


def _rivals(name: str, names: Sequence[str], flat: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [spec for other, spec in zip(names, flat, strict=True) if other == name]


def _label(name: str, own: Mapping[str, Any], rivals: Sequence[Mapping[str, Any]]) -> str:
    parts: list[str] = []
    for key in _telling(rivals):
        alike = [each for each in rivals if _value(each.get(key)) == _value(own.get(key))]
        if len(alike) < len(rivals) and key in own:
            parts.append(f"{_short(key)}={_value(own[key])}")
            rivals = alike
    return f"{name} ({', '.join(parts)})" if parts else name


def _telling(specs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a few leaves that distinguish the specifications, chosen greedily.

    The name of a part says more than its parameters, and a value that is short more than one that is long.
    """
    keys = sorted(differing(specs), key=lambda key: (not key.endswith(".name"), key.count("."), key))
    chosen: list[str] = []
    while len(chosen) < _MOST:
        parts = {key: _classes(specs, [*chosen, key]) for key in keys}
        best = max(keys, key=lambda key: parts[key], default=None)
        if best is None or parts[best] == (_classes(specs, chosen) if chosen else 1):
            break
        chosen.append(best)
    return chosen


def _classes(specs: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> int:
    """Return the number of specifications with different values of these keys."""
    return len({tuple(_value(spec.get(key)) for key in keys) for spec in specs})


def _short(key: str) -> str:
    return key.removesuffix(".name").rpartition(".")[2]


def _value(value: Any) -> str:
    shown = "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 3]}..."


def differing(specs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the leaves that are not the same in all, in the order of their names."""
    keys = sorted({key for spec in specs for key in spec})
    return [key for key in keys if any(spec.get(key) != specs[0].get(key) for spec in specs)]


def leaves(value: Any, path: str = "") -> Iterable[tuple[str, Any]]:
    """Yield the leaves of a nested mapping, by dotted path; a list becomes a text."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from leaves(below, f"{path}.{key}" if path else str(key))
    else:
        yield path, json.dumps(value) if isinstance(value, list) else value
