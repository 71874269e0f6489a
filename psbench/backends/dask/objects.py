"""Objects of Python on their way to Dask's workers: in memory, by Dask's own serialisation."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterator
from typing import Any

from distributed import Client

from psbench.backends.dask.rpc import ask_scheduler
from psbench.core.part import Part
from psbench.errors import ParameterError
from psbench.experiment import Experiment
from psbench.models.construction import one_line
from psbench.system.by_value import dumps_by_value


def check_objects(experiment: Experiment) -> None:
    """Raise before any process starts if an object cannot be pickled.

    Raises
    ------
    ParameterError
    """
    for where, part in _objects(experiment):
        try:
            _packed(part)
        except Exception as error:
            what = getattr(part, "type", part.name)
            raise ParameterError(
                f"{where}: {what!r} cannot be sent to Dask's workers: {one_line(error)}; remove open "
                "files, locks and connections from it, or use the simulated backend"
            ) from error


def sent(client: Client, experiment: Experiment, addresses: Collection[str]) -> Any:
    """Return the experiment as an argument for tasks: itself, or a future if it may hold large objects.

    Those are sent once to each of these Dask workers, and not with every task through the scheduler.
    """
    if not any(_objects(experiment)):
        return experiment
    where, limits = [*{*addresses}], experiment.connection
    parcel = _Parcel(experiment)
    return ask_scheduler(client, "scatter", parcel, limits=limits, workers=where, broadcast=True, hash=False)


class _Parcel:
    """An experiment in transit; unpickling it yields the experiment.

    Classes and functions from the user's own files are sent with their code, as those of a notebook are:
    other machines need not have the files.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._content, self._buffers = _packed(experiment)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, (self._content, *self._buffers)


def _packed(value: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Return a value as bytes, and its arrays without copying."""
    buffers: list[pickle.PickleBuffer] = []
    return dumps_by_value(value, buffers.append), buffers


def _unpacked(content: bytes, *buffers: Any) -> Any:
    return pickle.loads(content, buffers=buffers)


def _objects(experiment: Experiment) -> Iterator[tuple[str, Part]]:
    """Return the parts that hold Python objects or user-defined classes, with their paths."""
    names = ("model", "data", "sharding", "loss")
    parts = {name: getattr(experiment, name) for name in names}
    parts["optimizer.schedule"] = experiment.optimizer.schedule
    parts["inner_optimizer.schedule"] = experiment.worker_optimizer.schedule
    parts |= {f"metrics.{name}": metric for name, metric in experiment.metrics.items()}
    yield from ((where, part) for where, part in parts.items() if part is not None and not part.registered)
    deciding: list[Part] = [part for each in experiment.strategy.compositions for part in each.parts]
    deciding += experiment.rules
    yield from ((p.domain, p) for p in deciding if type(p).__module__.partition(".")[0] != "psbench")
