"""Sharding by a function of the user's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from psbench.arrays import Integers
from psbench.core import make_part
from psbench.core.code_identity import code_digest, qualified_name
from psbench.core.imports import Imported, imported
from psbench.core.user_object import Own
from psbench.errors import DoubtfulComposition, ParameterError, PsbenchError
from psbench.sharding.base import Division, Rng, ShardedData, Sharding
from psbench.sharding.given import Given

#: (data set, number of workers, generator) -> the training samples of each worker
Divider: TypeAlias = Callable[[Any, int, np.random.Generator], Sequence[Any]]


class _ByFunction(Sharding):
    """Base of shardings by a function; checks the function's result."""

    travels = True  # the function is called once, here: a second call need not return the same

    def divider(self) -> Divider:
        raise NotImplementedError(f"{type(self).__name__} must define divider")

    def of_data(self, data: ShardedData, num_workers: int, rng: Rng) -> Division:
        """Return the function's division of the data set, checked.

        Raises
        ------
        ParameterError
            If it fails, or does not return an array of training samples for each worker, none of them empty.

        Warns
        -----
        DoubtfulComposition
            If samples belong to several workers, or to none, which works.
        """
        divider, size = self.divider(), len(data.train_x)
        what = f"sharding {self.name!r}: {qualified_name(divider)}"
        try:
            found = list(divider(data, num_workers, rng))
        except PsbenchError:
            raise
        except Exception as error:
            raise ParameterError(f"{what} failed: {type(error).__name__}: {error}") from error
        if len(found) != num_workers:
            raise ParameterError(f"{what} returned {len(found)} shards for {num_workers} workers")
        shards = [_checked(f"{what} gives worker {worker}", own, size) for worker, own in enumerate(found)]
        self.check_none_empty(shards, size)
        _say_what_is_doubtful(what, shards, size)
        return Division(shards)


class OwnSharding(Own, _ByFunction):
    """A function of yours: (data set, number of workers, generator) -> an array of samples for each worker.

    Made by `as_sharding` of a function that cannot be imported by its name, such as one of a notebook.
    """

    source = "your own code"
    partition = False

    def divider(self) -> Divider:
        """Return the function.

        Raises
        ------
        SpecError
            If this is the specification of a saved run, which does not hold it.
        """
        return cast(Divider, self.object)


class ImportedSharding(Imported, _ByFunction):
    """A function of a module: (data set, number of workers, generator) -> samples of each worker.

    Raises
    ------
    ParameterError
        If there is none, or what it returns is not a division.
    """

    name = "import"
    partition = False

    def divider(self) -> Divider:
        return cast(Divider, self.imported())


def as_sharding(value: Any) -> Sharding:
    """Return the sharding that a part, a name, a mapping or a function means.

    Raises
    ------
    SpecError
    """
    if isinstance(value, (str, dict, Sharding)):
        if value == Given.name:
            return Given()
        name = value.get("name") if isinstance(value, dict) else None
        if name == OwnSharding.name and isinstance(value, dict):
            return OwnSharding.described(value)
        if name == Given.name and isinstance(value, dict):
            return Given(**{key: each for key, each in value.items() if key != "name"})
        return cast(Sharding, make_part("sharding", value))
    if callable(value) and not isinstance(value, type):
        return _of_function(value)
    return cast(Sharding, make_part("sharding", value))


def _of_function(divider: Divider) -> Sharding:
    """Return the part that names an importable function, or else the part that holds the function."""
    module, name = getattr(divider, "__module__", None), getattr(divider, "__qualname__", "<>")
    if module and module != "__main__" and "<" not in name:
        target = f"{module}:{name}"
        try:
            if imported("sharding", target) is divider:
                return ImportedSharding(target=target)
        except ParameterError:
            pass
    return OwnSharding.around(divider, qualified_name(divider), code_digest(divider))


def _checked(what: str, shard: Any, size: int) -> Integers:
    found = np.asarray(shard)
    if found.ndim != 1 or (found.dtype.kind not in "iu" and len(found)):
        raise ParameterError(
            f"{what} an array of shape {found.shape} and dtype {found.dtype}; expected whole numbers, "
            "(samples,)"
        )
    if len(found) and not 0 <= int(found.min()) <= int(found.max()) < size:
        outside = int(found.min()) if int(found.min()) < 0 else int(found.max())
        raise ParameterError(f"{what} sample {outside}, but there are {size}, numbered from 0")
    if len(np.unique(found)) < len(found):
        raise ParameterError(f"{what} a sample twice")
    return found.astype(np.int64, copy=False)


def _say_what_is_doubtful(what: str, shards: Sequence[Integers], size: int) -> None:
    count = np.zeros(size, dtype=np.int64)
    for shard in shards:
        count[shard] += 1
    none, several = int((count == 0).sum()), int((count > 1).sum())
    if none or several:
        warnings.warn(
            f"{what} gives {none} of {size} samples to no worker, and {several} to more than one",
            DoubtfulComposition,
            stacklevel=2,
        )
