"""Faults that are put into files: in their bytes, and in what valid JSON and YAML hold."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

#: numbers that files say, of 1 to 8 bytes
HUGE = [b"\xff", b"\x7f", b"\x80\x00", *(b"\xff" * n for n in (2, 4, 8)), b"\x7f" + b"\xff" * 7, b"\0" * 4]
#: numbers in texts
TEXTS = [b"9" * 400, b"-1", b"1e400", b"nan", b"0", b"1e18", b"0x10", b"1_0", "\u0661".encode(), b""]

#: what takes the place of a value: other types, numbers out of all bounds, texts that steer a terminal
WRONG: list[Any] = [
    *(
        None,
        True,
        -1,
        0,
        3,
        2**31,
        300_000_000,
        2**63,
        10**40,
        -(10**400),
        0.5,
        1e300,
        float("nan"),
        float("inf"),
    ),
    *("", "x", "7", "\x1b[31m", "\ud800", "=1+1", "../x", "a\nb"),
    *([], [[]], {}, {"name": "x"}, [0, "x", None], {"": 0}, [1e9] * 50),
]


def changed(content: bytes, rng: np.random.Generator) -> bytes:
    """Return a file's bytes with one to three faults."""
    raw = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        place = int(rng.integers(max(len(raw), 1)))
        fault = rng.integers(6)
        if fault == 0 and raw:
            raw[place] ^= 1 << int(rng.integers(8))
        elif fault == 1:
            del raw[place:]
        elif fault == 2:
            huge = HUGE[rng.integers(len(HUGE))]
            raw[place : place + len(huge)] = huge
        elif fault == 3:
            del raw[place : place + int(rng.integers(1, 9))]
        elif fault == 4:
            raw[place:place] = raw[place : place + int(rng.integers(1, 200))]
        else:
            numbers = list(re.finditer(rb"\d+", raw))
            if numbers:
                begin, end = numbers[rng.integers(len(numbers))].span()
                raw[begin:end] = TEXTS[rng.integers(len(TEXTS))]
    return bytes(raw)


def nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in plain data; of a long list the first and the last ones."""
    yield path
    if isinstance(value, dict):
        for name, below in value.items():
            yield from nodes(below, (*path, name))
    elif isinstance(value, list):
        for place in range(len(value)) if len(value) < 5 else (0, 1, len(value) - 1):
            yield from nodes(value[place], (*path, place))


def replaced(value: Any, path: tuple[Any, ...], wrong: Any) -> Any:
    """Return plain data with another value at a path."""
    if not path:
        return wrong
    found = copy.copy(value)
    found[path[0]] = replaced(value[path[0]], path[1:], wrong)
    return found


def faulty(value: Any, rng: np.random.Generator) -> Any:
    """Return plain data with a fault at one of its nodes: a wrong value, one left out, one more, or depth."""
    places = [*nodes(value)]
    path = places[rng.integers(len(places))]
    fault = rng.integers(8)
    if fault == 0 and path:  # left out
        *parents, last = path
        above = value
        for step in parents:
            above = above[step]
        above = copy.copy(above)
        del above[last]
        return replaced(value, tuple(parents), above)
    if fault == 1:
        deep: Any = 0
        for _ in range(int(rng.choice([60, 900]))):
            deep = [deep]
        return replaced(value, path, deep)
    if fault == 2 and path:  # that of another node
        other = value
        for step in places[rng.integers(len(places))]:
            other = other[step]
        return replaced(value, path, other)
    return replaced(value, path, WRONG[rng.integers(len(WRONG))])
