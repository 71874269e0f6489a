"""Finds the samples that a DataLoader draws, for any sampler."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from psbench.arrays import Integers
from psbench.errors import DataError

#: passes over an unknown sampler, which must draw the same samples in all of them
_PASSES = 5
#: an unknown sampler that draws more than this many times the dataset in a pass is taken for endless
_MOST_REPEATS = 10

_REMEDY = "give torch.utils.data.Subset(dataset, indices) as the data"


class Loaded(NamedTuple):
    """The content of a DataLoader.

    Parameters
    ----------
    dataset : torch Dataset
    numbers : int64, (N,), or None
        The samples that the sampler draws, ascending; None: all.
    collate : callable or None
        The loader's own collate_fn, of a batch.
    """

    dataset: Any
    numbers: Integers | None
    collate: Any


class _Order(NamedTuple):
    """The samples of a pass over a sampler, and whether every pass has the same order."""

    numbers: Integers
    fixed: bool


def is_loader(value: Any) -> bool:
    """Return whether a value is a torch DataLoader."""
    return hasattr(value, "dataset") and hasattr(value, "collate_fn")


def is_stream(value: Any) -> bool:
    """Return whether samples can only be iterated: an IterableDataset of torch or Hugging Face."""
    if hasattr(value, "column_names") and not hasattr(value, "__len__"):
        return True
    data = sys.modules.get("torch.utils.data")  # without which there is none of torch
    return data is not None and isinstance(value, data.IterableDataset)


def check_by_number(dataset: Any) -> None:
    """Raise unless a dataset is map-style.

    Raises
    ------
    DataError
    """
    if is_stream(dataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise DataError(
            f"data: {type(dataset).__name__} is not map-style: it has no length, or no indexed "
            "samples; give a map-style Dataset with these samples"
        )


def loaded(loader: Any) -> Loaded:
    """Return the dataset of a DataLoader, its sampled indices, and its own collate_fn.

    Raises
    ------
    DataError
        If each pass draws other samples, or one sample several times.
    """
    from torch.utils.data import default_collate, default_convert

    dataset = loader.dataset
    check_by_number(dataset)
    count = len(dataset)
    batched = loader.batch_sampler is not None
    own = loader.collate_fn not in (default_collate, default_convert)
    if own and not batched:
        raise DataError(
            "data: the DataLoader has batch_size=None and a collate_fn, which is called with one sample at a "
            "time; give a Dataset that returns its results"
        )
    sampler = loader.batch_sampler if batched else loader.sampler
    numbers = np.sort(_order(sampler, batched, _MOST_REPEATS * count).numbers)
    _check_numbers(numbers, count)
    chosen = "" if len(numbers) == count else f" (here {len(numbers)} of {count})"
    warnings.warn(
        f"data: only the samples that the DataLoader's sampler draws are used{chosen}; batch size and "
        "order come from the experiment (batch_size=...)",
        UserWarning,
        stacklevel=2,
    )
    return Loaded(dataset, numbers if chosen else None, loader.collate_fn if own else None)


def _check_numbers(numbers: Integers, count: int) -> None:
    """Check the samples that a sampler draws, which are in ascending order."""
    if not len(numbers):
        raise DataError(f"data: the sampler of the DataLoader draws no sample; {_REMEDY}")
    if numbers[0] < 0 or numbers[-1] >= count:
        odd = numbers[0] if numbers[0] < 0 else numbers[-1]
        raise DataError(f"data: the sampler of the DataLoader draws sample {odd}, but there are {count}")
    again = numbers[1:][numbers[1:] == numbers[:-1]]
    if len(again):
        raise DataError(
            f"data: the sampler of the DataLoader draws sample {again[0]} more than once in a pass; "
            f"{_REMEDY}, where a sample may occur twice"
        )


def _order(sampler: Any, batched: bool, most: int) -> _Order:
    """Return the samples that a sampler draws in a pass; `batched` if it draws whole batches."""
    from torch.utils.data import (
        BatchSampler,
        RandomSampler,
        SequentialSampler,
        SubsetRandomSampler,
        WeightedRandomSampler,
    )

    if type(sampler) is BatchSampler and batched:
        inner = _order(sampler.sampler, False, most)
        kept = len(inner.numbers)
        if sampler.drop_last and inner.fixed:
            kept -= kept % sampler.batch_size
        return _Order(inner.numbers[:kept], inner.fixed)
    if type(sampler) is SequentialSampler:
        return _Order(np.arange(len(sampler.data_source)), True)
    if type(sampler) is SubsetRandomSampler:
        return _Order(_integers(sampler.indices, "data: the SubsetRandomSampler of the DataLoader"), False)
    if isinstance(sampler, WeightedRandomSampler):
        raise DataError(
            "data: the WeightedRandomSampler of the DataLoader draws each sample a random number of times; "
            "remove it, and weight the classes in your own loss"
        )
    if type(sampler) is RandomSampler:
        count = len(sampler.data_source)
        if sampler.replacement or sampler.num_samples != count:
            how = " with replacement" if sampler.replacement else ""
            raise DataError(
                f"data: the RandomSampler of the DataLoader draws {sampler.num_samples} of {count} samples "
                f"at random{how}, different ones in every pass; remove it, or {_REMEDY}"
            )
        return _Order(np.arange(count), False)
    return _tried(sampler, batched, most)


def _tried(sampler: Iterable[Any], batched: bool, most: int) -> _Order:
    """Return the samples that an unknown sampler draws, if every pass draws the same samples."""
    what = f"data: the {type(sampler).__name__} of the DataLoader"
    with _random_state_kept():
        first, *others = (_one_pass(sampler, batched, most, what) for _ in range(_PASSES))
    if not all(np.array_equal(np.sort(first), np.sort(each)) for each in others):
        raise DataError(f"{what} draws different samples in every pass; remove it, or {_REMEDY}")
    return _Order(first, all(np.array_equal(first, each) for each in others))


def _one_pass(sampler: Iterable[Any], batched: bool, most: int, what: str) -> Integers:
    found: list[Any] = []
    for item in sampler:
        if not batched and np.ndim(item):
            raise DataError(f"{what} gives several samples at a time; give it as batch_sampler=...")
        found.extend(np.ravel(item).tolist())
        if len(found) > most:
            raise DataError(f"{what} draws more than {most} samples in a pass; {_REMEDY}")
    return _integers(found, what)


def _integers(numbers: Any, what: str) -> Integers:
    found = np.asarray(numbers)
    if found.dtype.kind not in "iu" and found.size:
        raise DataError(f"{what} gives {found.ravel().tolist()[0]!r}, which is not the index of a sample")
    return found.astype(np.int64).reshape(-1)


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Keep the global random states of torch, NumPy and Python, which samplers draw from."""
    import torch

    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
