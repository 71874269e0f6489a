"""What a run needs of this machine's memory, estimated before it starts."""

from __future__ import annotations

from psbench.data import Dataset
from psbench.errors import ParameterError
from psbench.experiment import Experiment
from psbench.system.limits import check_memory, size
from psbench.training.server import kept_vectors

#: the log counts the bytes of a message in 32 bits
_LARGEST_MESSAGE = 2**32 - 1


def check_model(experiment: Experiment, model_bytes: int) -> None:
    """Refuse a model that is too large for the run's memory, or for a message.

    An estimate from below: the model that computes, its start, the server's with what the optimizer and the
    aggregation keep of it, a gradient; and a model for every worker that has one of its own, two without a
    server.

    Parameters
    ----------
    experiment : Experiment
    model_bytes : int
        Of the parameters and buffers, as 32-bit floats.

    Raises
    ------
    ParameterError
    """
    what = f"model {experiment.model.name!r}: {model_bytes // 4} numbers"
    if model_bytes > _LARGEST_MESSAGE:
        raise ParameterError(
            f"{what} are {size(model_bytes)}, and a message has at most {size(_LARGEST_MESSAGE)}; "
            "make it smaller"
        )
    compositions = experiment.strategy.compositions
    copies = 4 + experiment.optimizer.tensors + max(kept_vectors(c.aggregation) for c in compositions)
    if any(composition.own_steps for composition in compositions):
        copies += experiment.num_workers * (1 + experiment.worker_optimizer.tensors)
    if any(composition.placement.peer_to_peer for composition in compositions):
        copies += experiment.num_workers  # what was sent, before all have mixed
    what = f"{what}, held {copies} times,"
    if processes := _local_processes(experiment):
        copies = max(copies, 2 * processes)
        what = f"{what[:-1]} at least twice in each of {processes} processes,"
    check_memory(copies * model_bytes, what, "make it smaller, or use fewer workers")


def check_data(experiment: Experiment, data: Dataset) -> None:
    """Refuse data that the processes of a local cluster cannot all load; data in mapped files are shared.

    Raises
    ------
    ParameterError
    """
    processes = _local_processes(experiment)
    if not processes or experiment.data.mapped:
        return
    needed = data.train_x.nbytes + data.val_x.nbytes
    if experiment.data.travels:
        what = f"data {experiment.data.name!r}: {size(needed)}, whole where it is evaluated and in shards"
        check_memory(2 * needed, what, "use less data")
    else:
        what = f"data {experiment.data.name!r}: {size(needed)} in each of {processes} processes"
        check_memory(needed * processes, what, "use less data, or fewer workers")


def _local_processes(experiment: Experiment) -> int:
    """Return how many processes a local Dask cluster has, beside this one; 0 without such a cluster."""
    if experiment.backend != "dask" or experiment.scheduler is not None:
        return 0
    servers: int = max(each.placement.num_servers for each in experiment.strategy.compositions)
    return experiment.num_workers + servers + 1  # one evaluates
