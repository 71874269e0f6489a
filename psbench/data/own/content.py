"""The user's data after reading: arrays, independent of the original object."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from psbench.arrays import Array
from psbench.data.base import Task
from psbench.data.several import Several


@dataclass(frozen=True, eq=False)
class Content:
    """Samples and targets as they are trained on; see `Dataset`.

    Parameters
    ----------
    x, y : array, (N, ...)
        x may be `Several`, as val_x may.
    val_x, val_y : array or None
        None where the validation set is to be drawn from x and y.
    classes : tuple of str
    task : Task
    features : tuple of str
        Names of the columns of x; empty where they have none.
    columns : mapping of str to array, (N,)
        Columns that are no inputs, for shardings and neighbourhoods by column.
    val_columns : mapping of str to array
        The same columns of val_x, as far as it has them.
    is_column : bool
        Whether y was given as (N, 1).
    """

    x: Array | Several
    y: Array
    val_x: Array | Several | None
    val_y: Array | None
    classes: tuple[str, ...]
    task: Task
    features: tuple[str, ...] = ()
    columns: Mapping[str, Array] = field(default_factory=dict)
    is_column: bool = False
    val_columns: Mapping[str, Array] = field(default_factory=dict)

    def fingerprint(self) -> str:
        """Return the SHA-256 of the content: all samples, targets and names."""
        found = hashlib.sha256()
        for name, array in self._arrays():
            found.update(f"{name} {array.dtype.str} {array.shape}".encode())
            found.update(np.ascontiguousarray(array).data if array.dtype.kind != "U" else _texts(array))
        found.update(repr((self.classes, self.task, self.features)).encode())
        if self.is_column:
            found.update(b"column")
        return found.hexdigest()

    def _arrays(self) -> Iterator[tuple[str, Array]]:
        yield from (*_parts("x", self.x), ("y", self.y))
        if self.val_x is not None and self.val_y is not None:
            yield from (*_parts("val_x", self.val_x), ("val_y", self.val_y))
        yield from sorted(self.columns.items())
        yield from ((f"val {name}", values) for name, values in sorted(self.val_columns.items()))


def _parts(what: str, inputs: Array | Several) -> Iterator[tuple[str, Array]]:
    if not isinstance(inputs, Several):
        yield what, inputs
        return
    names = inputs.names or map(str, range(len(inputs.parts)))
    yield from ((f"{what} {name}", part) for name, part in zip(names, inputs.parts, strict=True))
    yield from ((f"{what} lengths", each) for each in inputs.lengths if each is not None)


def _texts(array: Array) -> bytes:
    texts: list[str] = array.tolist()
    return "\0".join(texts).encode(errors="surrogatepass")
