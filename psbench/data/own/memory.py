"""Memory use of samples that are Python objects: texts, lists, tuples."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from psbench.system.limits import check_memory

#: samples that are looked at, from all over the data
_LOOKED_AT = 16


def check_samples(read: Callable[[int], Any], count: int, what: str) -> None:
    """Raise if all samples together would not fit into memory; estimated from a few.

    Parameters
    ----------
    read : callable (number) -> sample
        Called twice for each that is looked at: what is the same object both times is held already.
    count : int
    what : str

    Raises
    ------
    ParameterError
    """
    places = {each * count // _LOOKED_AT for each in range(min(_LOOKED_AT, count))}
    needed = sum(made(read(place), read(place)) for place in places) * count // len(places)
    check_memory(needed, f"{what}: {count} samples, all at once,", "use fewer, or shorter ones")


def check_texts(values: Iterable[Any], count: int, what: str) -> None:
    """Raise if texts would not fit as an array, whose entries are as long as the longest text.

    Raises
    ------
    ParameterError
    """
    longest = max((len(value) for value in values if isinstance(value, str)), default=0)
    check_memory(
        4 * longest * count,
        f"data: {what}, {count} texts of up to {longest} characters,",
        "shorten the longest",
    )


def made(sample: Any, again: Any) -> int:
    """Return the bytes of a sample's objects that a second reading of it creates again.

    >>> held = "x" * 1000
    >>> made([held], [held]) < 200 < 1000 < made(["x" * 1000], ["y" * 1000])
    True
    """
    other = dict(_parts(again))
    return sum(size for place, size in dict(_parts(sample)).items() if place not in other)


def _parts(value: Any) -> Iterable[tuple[Any, int]]:
    """Yield the id and the bytes of an object, its elements, and the buffer of an array."""
    yield id(value), sys.getsizeof(value, 64)
    if hasattr(value, "data_ptr"):  # a tensor, whose object does not count its numbers
        yield ("numbers", value.data_ptr()), value.nbytes
    elif hasattr(value, "__array_interface__") and value.base is not None:
        yield ("numbers", value.__array_interface__["data"][0]), value.nbytes
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _parts(key)
            yield from _parts(each)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for each in value:
            yield from _parts(each)
