"""One data set per worker, for data that is divided already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import SerializeAsAny

from psbench.core.specification import parameter
from psbench.data.base import Dataset, DataSource
from psbench.data.own.overlap import warn_of_shared_samples
from psbench.data.several import Several, in_words, joined
from psbench.errors import DataError, ParameterError
from psbench.seeds import Streams

if TYPE_CHECKING:
    from torch import Tensor


class PerWorker(DataSource):
    """A list of data sets, one per worker: the meaning of a list as `data`.

    Nothing is divided: the sharding is "given". The validation sets are put together, in this order; classes
    are those that occur anywhere, by name.

    Parameters
    ----------
    data : list of DataSource, names or mappings
        As many as the cluster has workers. Each draws its own validation split.

    Raises
    ------
    DataError
        On loading, if they are of different tasks or shapes, have other names of inputs, or standardise their
        targets each by itself.
    """

    name: ClassVar[str] = "per_worker"
    source: ClassVar[str] = "data that is already on the workers"
    registered: ClassVar[bool] = False

    data: tuple[SerializeAsAny[DataSource], ...] = parameter((), "a data set for each worker", min_length=1)

    @property
    def num_shards(self) -> int:
        """Number of workers for which the data is divided."""
        return len(self.data)

    @property
    def travels(self) -> bool:
        """True: each worker is sent its own data set."""
        return True

    def bare(self) -> DataSource:
        """Return the list without objects of Python."""
        return PerWorker(data=tuple(each.bare() for each in self.data))

    def load(self, streams: Streams) -> Dataset:
        """Return all data sets as one, with their division."""
        import torch

        found = [
            source.load(Streams(streams.integer("worker data", worker)))
            for worker, source in enumerate(self.data)
        ]
        first = found[0]
        for worker, other in enumerate(found[1:], 1):
            _check_alike(worker, first, other)
        classes = _classes(found)
        sizes = np.cumsum([0, *(len(each.train_y) for each in found)])
        whole = replace(
            first,
            name=self.name,
            train_x=joined([each.train_x for each in found]),
            train_y=torch.cat([_numbered(each, each.train_y, classes) for each in found]),
            val_x=joined([each.val_x for each in found]),
            val_y=torch.cat([_numbered(each, each.val_y, classes) for each in found]),
            classes=classes,
            columns=_joined_columns([each.columns for each in found]),
            val_columns=_joined_columns([each.val_columns for each in found]),
            shards=tuple(np.arange(a, b) for a, b in pairwise(sizes)),
        )
        parts = [slice(a, b) for a, b in pairwise(sizes)]
        warn_of_shared_samples(
            [(whole.train_x[part], whole.train_y[part]) for part in parts], whole.val_x, whole.val_y
        )
        return whole


def _check_alike(worker: int, first: Dataset, other: Dataset) -> None:
    for what, one, two in (
        ("the task", first.task, other.task),
        ("samples of shape", in_words(first.input_layout), in_words(other.input_layout)),
        ("inputs of type", _types(first), _types(other)),
        # columns go by their place: where both have names, these have to be at the same places
        ("inputs called", _called(first, other), _called(other, first)),
        ("targets of shape", _target_shape(first), _target_shape(other)),
    ):
        if one != two:
            raise DataError(f"data: worker 0 has {what} {one}, but worker {worker} {two}; they must be equal")
    if first.target_scale != other.target_scale:
        raise DataError(
            f"data: workers 0 and {worker} have standardised their targets separately, so their losses "
            "cannot be compared; set standardise: false"
        )
    if first.shards is not None or other.shards is not None:
        raise ParameterError("data: a list of data sets must not hold another list")


def _target_shape(data: Dataset) -> tuple[int, ...]:
    return tuple(data.as_given(data.train_y[:1]).shape[1:])


def _types(data: Dataset) -> str:
    return ", ".join(str(dtype) for dtype, *_ in data.input_layout)


def _called(data: Dataset, beside: Dataset) -> str:
    """Return the names of a data set's inputs; empty if it or `beside` has none."""
    own, others = (
        each.train_x.names if isinstance(each.train_x, Several) else each.features for each in (data, beside)
    )
    return ", ".join(own) if others else ""


def _classes(found: Sequence[Dataset]) -> tuple[str, ...]:
    """Return the union of the classes: unchanged if equal, else sorted by value or alphabetically."""
    if all(each.classes == found[0].classes for each in found):
        return found[0].classes
    names = {name for each in found for name in each.classes}
    if all(name.lstrip("-").isdecimal() for name in names):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))


def _numbered(data: Dataset, targets: Tensor, classes: tuple[str, ...]) -> Tensor:
    """Return classes as indices into the union of the classes."""
    import torch

    if data.classes == classes:
        return targets
    places = {name: place for place, name in enumerate(classes)}
    return torch.tensor([places[name] for name in data.classes])[targets]


def _joined_columns(found: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    shared = [name for name in found[0] if all(name in each for each in found)]
    return {name: np.concatenate([each[name] for each in found]) for name in shared}
