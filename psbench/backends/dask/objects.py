"""Objects of Python on their way to Dask's workers: in memory, by Dask's own serialisation."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import cloudpickle
from distributed import Client

from psbench.core.part import Part
from psbench.errors import ParameterError
from psbench.experiment import Experiment
from psbench.models.construction import one_line


def check_objects(experiment: Experiment) -> None:
    """Refuse objects that cannot be sent to another process, before any is started.

    Raises
    ------
    ParameterError
    """
    for where, part in _objects(experiment):
        try:
            # arrays stay where they are: this is about whether, and not about their contents
            cloudpickle.dumps(part, protocol=5, buffer_callback=lambda buffer: None)
        except Exception as error:
            what = getattr(part, "type", part.name)
            raise ParameterError(
                f"{where}: {what!r} cannot be sent to Dask's workers: {one_line(error)}; let it hold no open "
                "files, locks or connections, or use the simulated backend"
            ) from error


def sent(client: Client, experiment: Experiment, addresses: Collection[str]) -> Any:
    """Return what tasks take for the experiment: itself, or a future, if it has objects that may be large.

    Those are sent once to each of these Dask workers, and not with every task through the scheduler.
    """
    if not any(_objects(experiment)):
        return experiment
    return client.scatter(experiment, workers=[*{*addresses}], broadcast=True, hash=False)


def _objects(experiment: Experiment) -> Iterator[tuple[str, Part]]:
    """Return the parts that stand for objects of Python, and where they are in the experiment."""
    names = ("model", "data", "sharding", "loss")
    parts = {name: getattr(experiment, name) for name in names}
    parts |= {f"metrics.{name}": metric for name, metric in experiment.metrics.items()}
    return ((where, part) for where, part in parts.items() if part is not None and not part.registered)
