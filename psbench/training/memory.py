"""Memory that the processes of a run need, estimated before it starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from psbench.core import Aggregation, Strategy
from psbench.core.collective import Collective, servers_that_add
from psbench.core.peer_to_peer import PeerToPeer
from psbench.data import Dataset
from psbench.errors import ParameterError
from psbench.experiment import Experiment
from psbench.system.limits import check_memory, size
from psbench.training.local_model import kept_by_worker
from psbench.training.server import kept_vectors

#: the log counts the bytes of a message in 32 bits
_LARGEST_MESSAGE = 2**32 - 1
_FEWER = ", or use fewer workers"
#: parameters of a model whose bytes are counted in vectors
_ENTRIES = 10**6


def check_model(experiment: Experiment, model_bytes: int, *, whole_run: bool) -> None:
    """Raise if a model is too large for this machine's memory, or for a message.

    An estimate from below. In virtual time: the model that computes, its start, the server's with what the
    optimizer and the aggregation keep of it, a gradient; and of every worker what it keeps and what it has
    sent to a commit, as `vectors_of_a_worker` counts it. Of a live run on this machine: all processes. Of one
    elsewhere: this process alone; the machines of the others are asked when they are known.

    Parameters
    ----------
    experiment : Experiment
    model_bytes : int
        Of the parameters and buffers, as 32-bit floats.
    whole_run : bool
        Whether all of the run is on this machine.

    Raises
    ------
    ParameterError
    """
    what = f"model {experiment.model.name!r}: {model_bytes // 4} numbers"
    if model_bytes > _LARGEST_MESSAGE:
        raise ParameterError(
            f"{what} are {size(model_bytes)}, but a message has at most {size(_LARGEST_MESSAGE)}; use a "
            "smaller model"
        )
    if experiment.backend == "dask":
        counts = _processes(experiment) if whole_run else Counter(["other"])
        copies = vectors_of(experiment, counts)
        where, remedy = (f" in {counts.total()} processes", _FEWER) if whole_run else ("", "")
        what = f"{what}, held {copies:.0f} times{where},"
        check_memory(int(copies * model_bytes), what, f"make it smaller{remedy}")
        return
    compositions = experiment.strategy.compositions
    copies = 4 + experiment.optimizer.tensors + max(kept_vectors(c.aggregation) for c in compositions)
    of_a_worker = [vectors_of_a_worker(each, experiment.worker_optimizer.tensors) for each in compositions]
    copies += 0 if experiment.timing_only else experiment.num_workers * max(of_a_worker)
    check_memory(copies * model_bytes, f"{what}, held {copies} times,", "make it smaller" + _FEWER)


def vectors_of_a_worker(composition: Strategy, optimizer_tensors: int) -> int:
    """Return the minimum number of model-sized vectors per worker in a run.

    What it keeps itself (`_kept_by_a_worker`); and what it has sent, where a barrier or an exchange without a
    server has the messages of all at once.
    """
    return _kept_by_a_worker(composition, optimizer_tensors) + _sent_by_a_worker(composition)


def _kept_by_a_worker(composition: Strategy, optimizer_tensors: int) -> int:
    """Return the number of vectors that a worker keeps between steps.

    Its own model and optimizer if it steps by itself, what its half of the strategy keeps, what its codec
    or an exchange has left out so far.
    """
    kept = (1 + optimizer_tensors) * composition.own_steps
    kept += 0 if composition.pushes_raw_gradients else kept_by_worker(composition)
    leaves_out = type(composition.aggregation).left_out is not Aggregation.left_out
    return kept + (composition.communication.codec.has_memory or leaves_out)


def _sent_by_a_worker(composition: Strategy) -> int:
    sends = composition.consistency.barrier and not composition.sends_fragments
    return composition.vectors_of_a_push * (sends or isinstance(composition.placement, PeerToPeer))


class Held(NamedTuple):
    """Minimum number of model-sized vectors in a process of a live run, by role.

    `other`: the client, the evaluator, a coordinator without parameters.
    """

    server: float
    worker: float
    replica: float
    other: float = 2.0


def held_by_processes(experiment: Experiment) -> Held:
    """Return the number of vectors in each process of a live run: the maximum over compositions."""
    found = [_held(each, experiment) for each in experiment.strategy.compositions]
    return Held(*map(max, zip(*found, strict=True)))


def _held(composition: Strategy, experiment: Experiment) -> Held:
    placement, workers = composition.placement, experiment.num_workers
    state = experiment.optimizer.tensors + kept_vectors(composition.aggregation)
    kept = _kept_by_a_worker(composition, experiment.worker_optimizer.tensors)
    if isinstance(placement, (Collective, PeerToPeer)):  # workers hold parameters and state
        own = placement.worker_bytes(_ENTRIES, state, workers) / (4 * _ENTRIES)
        return Held(2.0, max(2.0, own) + kept, 1.0 + state)
    pushed = 0 if experiment.timing_only else workers * _sent_by_a_worker(composition)
    return Held(max(2.0, 1.0 + (1 + state + pushed) / placement.num_servers), 2.0 + kept, 1.0 + state)


def vectors_of(experiment: Experiment, counts: Mapping[str, int]) -> float:
    """Return the number of vectors in all processes, given the number of processes by field of `Held`."""
    held = held_by_processes(experiment)._asdict()
    return sum(count * held[name] for name, count in counts.items())


def _processes(experiment: Experiment) -> Counter[str]:
    """Return the number of processes of a live run on this machine, by role."""
    placements = [each.placement for each in experiment.strategy.compositions]
    servers: int = max(servers_that_add(each) or each.num_servers for each in placements)
    replicas = int(bool(experiment.recovery.replicas))
    return Counter(server=servers, worker=experiment.num_workers, other=2, replica=replicas)


def check_data(experiment: Experiment, data: Dataset) -> None:
    """Raise if the processes of a local cluster cannot all load the data; mapped files are shared.

    Raises
    ------
    ParameterError
    """
    if experiment.backend != "dask" or experiment.data.mapped:
        return
    processes = _processes(experiment).total() - 1  # the client has the data already
    needed = data.train_x.nbytes + data.val_x.nbytes
    if experiment.data.travels:
        what = f"data {experiment.data.name!r}: {size(needed)}, whole where it is evaluated and in shards"
        check_memory(2 * needed, what, "use less data")
    else:
        what = f"data {experiment.data.name!r}: {size(needed)} in each of {processes} processes"
        check_memory(needed * processes, what, "use less data, or fewer workers")
