"""Warns of validation samples that are trained on."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from psbench.arrays import Array, Integers
from psbench.data.scaling import blocks
from psbench.data.several import Several
from psbench.errors import DoubtfulComposition


def warn_of_shared_samples(shards: Sequence[tuple[Any, Any]], val_x: Any, val_y: Any) -> None:
    """Warn if validation samples equal training samples, inputs and targets.

    Samples of few different values, such as rows of categories, are often equal by chance: then as many
    samples of a shard equal another one of it, and there is no warning up to twice their share, and one more.

    Parameters
    ----------
    shards : sequence of (x, y)
        The training samples: of each worker, or all in one.
    """
    trained, val = [_hashes(*shard) for shard in shards], _hashes(val_x, val_y)
    whole = np.concatenate(trained)
    shared = np.isin(val, whole)
    by_chance = len(val) * sum(map(_repeated, trained)) / len(whole)
    if shared.sum() <= 1 + 2 * by_chance:
        return
    warnings.warn(
        f"data: {shared.sum()} of the {len(val)} validation samples are training samples too, first row "
        f"{np.argmax(shared)} of the validation set: their accuracy does not measure generalisation; "
        "remove them from one of the two",
        DoubtfulComposition,
        stacklevel=2,
    )


def _hashes(x: Any, y: Any) -> Integers:
    """Return a 64-bit hash of each sample."""
    parts = [np.asarray(part) for part in ((*x.parts, y) if isinstance(x, Several) else (x, y))]
    found = [
        np.fromiter(map(hash, zip(*(_rows(part[begin:end]) for part in parts), strict=True)), np.int64)
        for begin, end in blocks(len(y))
    ]
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _rows(part: Array) -> Iterator[bytes]:
    """Return the bytes of each row, without zeros at the end: padding makes no difference."""
    rows = np.ascontiguousarray(part).reshape(len(part), -1)
    return iter(rows.view(f"S{rows.shape[1] * rows.itemsize}")[:, 0].tolist())


def _repeated(hashes: Integers) -> int:
    """Return the number of samples that equal another one."""
    _, counts = np.unique(hashes, return_counts=True)
    return int(counts[counts > 1].sum())
