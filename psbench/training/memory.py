"""What a run needs of this machine's memory, estimated before it starts."""

from __future__ import annotations

from psbench.core import Aggregation, Strategy
from psbench.data import Dataset
from psbench.errors import ParameterError
from psbench.experiment import Experiment
from psbench.system.limits import check_memory, size
from psbench.training.local_model import kept_by_worker
from psbench.training.server import kept_vectors

#: the log counts the bytes of a message in 32 bits
_LARGEST_MESSAGE = 2**32 - 1


def check_model(experiment: Experiment, model_bytes: int) -> None:
    """Refuse a model that is too large for the run's memory, or for a message.

    An estimate from below: the model that computes, its start, the server's with what the optimizer and the
    aggregation keep of it, a gradient; and of every worker what it keeps and what it has sent to a commit, as
    `vectors_of_a_worker` counts it.

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
    of_a_worker = [vectors_of_a_worker(each, experiment.worker_optimizer.tensors) for each in compositions]
    copies += 0 if experiment.timing_only else experiment.num_workers * max(of_a_worker)
    what = f"{what}, held {copies} times,"
    if processes := _local_processes(experiment):
        copies = max(copies, 2 * processes)
        what = f"{what[:-1]} at least twice in each of {processes} processes,"
    check_memory(copies * model_bytes, what, "make it smaller, or use fewer workers")


def vectors_of_a_worker(composition: Strategy, optimizer_tensors: int) -> int:
    """Return how many vectors as long as the model a run has of each worker, at the least.

    Its own model and optimizer if it steps by itself, what its half of the strategy keeps, what its codec
    or an exchange has left out so far; and what it has sent, where a barrier or an exchange without a server
    has the messages of all at once.
    """
    own, sends = composition.communication, composition.consistency.barrier
    sends = (sends and not composition.sends_fragments) or composition.placement.peer_to_peer
    kept = (1 + optimizer_tensors) * composition.own_steps
    kept += 0 if composition.pushes_raw_gradients else kept_by_worker(composition)
    kept += own.codec.has_memory or type(composition.aggregation).left_out is not Aggregation.left_out
    return kept + composition.vectors_of_a_push * sends


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
    placements = [each.placement for each in experiment.strategy.compositions]
    servers: int = max(each.adding_servers or each.num_servers for each in placements)
    return experiment.num_workers + servers + 1  # one evaluates
