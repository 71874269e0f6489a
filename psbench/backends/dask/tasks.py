"""The functions of the Dask tasks: one per role, each with its own sockets."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from typing import ParamSpec

import torch
from distributed import get_worker
from distributed.comm import get_address_host

from psbench.backends.dask.coordinator.beginning import Start
from psbench.backends.dask.coordinator.coordinator import Coordinator
from psbench.backends.dask.keys import take_key
from psbench.backends.dask.lifetime import outliving_scheduler
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.roles import (
    COORDINATOR,
    EVALUATOR,
    REPLICA,
    Address,
    RunKey,
    server_name,
    worker_name,
)
from psbench.backends.dask.protocol.transport import Abandoned, ClientSocket, ServerSocket, Stopped
from psbench.backends.dask.protocol.wire import Listening, patience_of
from psbench.backends.dask.server.replica import Replica
from psbench.backends.dask.server.server_process import ServerProcess
from psbench.backends.dask.worker.worker import Worker
from psbench.core.collective import Collective
from psbench.core.peer_to_peer import PeerToPeer
from psbench.data.shipment import Shipment
from psbench.experiment import Experiment
from psbench.system.allocator import keep_freed_memory
from psbench.system.start_progress import STAGES, Stage
from psbench.training.build import Workload
from psbench.training.evaluator import Evaluator

_P = ParamSpec("_P")

#: seconds between looks of the evaluator whether the coordinator is still there
_LOOK_S = 0.25
#: bytes that what the client asks of the replica may have
_REQUEST_BYTES = 1 << 16


def _outliving(role: Callable[_P, None]) -> Callable[_P, None]:
    """Let a role finish although its Dask worker has lost the scheduler."""

    @functools.wraps(role)
    def in_dask_worker(*arguments: _P.args, **options: _P.kwargs) -> None:
        with outliving_scheduler(get_worker()):
            role(*arguments, **options)

    return in_dask_worker


@_outliving
def coordinate(
    experiment: Experiment,
    sent: Shipment | None,
    largest: int,
    topic: str,
    expected: list[str],
    start: Start | None = None,
) -> None:
    """Coordinate the run, including the first parameter server."""
    reach = _reporter(topic, COORDINATOR)
    reach("torch loaded")
    with listening_socket(experiment, take_key(), largest) as socket:
        _announce(topic, COORDINATOR, socket)
        workload = _build(experiment, sent)
        reach("data read")
        coordinator = Coordinator(workload, socket, expected, start)
        reach("met")
        coordinator.run()


@_outliving
def serve(
    experiment: Experiment, sent: Shipment | None, largest: int, topic: str, number: int, address: Address
) -> None:
    """Run a parameter server other than the first; `address` is the coordinator's."""
    name, key = server_name(number), take_key()
    with (
        listening_socket(experiment, key, largest) as socket,
        ClientSocket(address, key, name, patience_of(experiment.connection)) as coordinator,
    ):
        _count_strangers(socket, coordinator)
        _announce(topic, name, socket)
        reach = _reporter(topic, name)

        def work() -> None:
            workload = _build(experiment, sent)
            reach("data read")
            server = ServerProcess(workload, socket, coordinator, number)
            reach("met")
            server.run()

        _report(coordinator, work)


@_outliving
def train(
    experiment: Experiment,
    sent: Shipment | None,
    largest: int,
    topic: str,
    worker: int,
    servers: list[Address],
) -> None:
    """Run a training worker; `servers` begins with the coordinator."""
    name, key = worker_name(worker), take_key()
    with ExitStack() as stack:
        patience = patience_of(experiment.connection)
        clients = [stack.enter_context(ClientSocket(each, key, name, patience)) for each in servers]
        placements = [composition.placement for composition in experiment.strategy.compositions]
        rings = any(isinstance(each, (Collective, PeerToPeer)) for each in placements)
        socket = stack.enter_context(listening_socket(experiment, key, largest)) if rings else None
        first, others = clients[0], clients[1:]
        if socket is not None:
            _count_strangers(socket, first)
        reach = _reporter(topic, name)

        def work() -> None:
            workload = _build(experiment, sent)
            reach("data read")
            Worker(workload, worker, first, others, socket, key).run(met=lambda: reach("met"))

        _report(first, work)


@_outliving
def replicate(experiment: Experiment, sent: Shipment | None, topic: str, address: Address) -> None:
    """Run the replica, which needs no data; `address` is the coordinator's."""
    key, limits = take_key(), experiment.connection
    with (
        listening_socket(experiment, key, _REQUEST_BYTES) as socket,
        ClientSocket(address, key, REPLICA, patience_of(limits)) as coordinator,
    ):
        _count_strangers(socket, coordinator)
        _announce(topic, REPLICA, socket)
        for stage in STAGES[1:]:
            _reporter(topic, REPLICA)(stage)
        _report(coordinator, Replica(socket, coordinator, limits.silence_s + limits.replica_within_s).run)


@_outliving
def evaluate(experiment: Experiment, sent: Shipment | None, topic: str, address: Address) -> None:
    """Evaluate incoming models one after another."""
    with ClientSocket(address, take_key(), EVALUATOR, patience_of(experiment.connection)) as coordinator:
        _report(coordinator, lambda: _evaluate(experiment, coordinator, sent, _reporter(topic, EVALUATOR)))


def _evaluate(
    experiment: Experiment,
    coordinator: ClientSocket,
    sent: Shipment | None = None,
    reach: Callable[[Stage], None] = lambda stage: None,
) -> None:
    evaluator = _build(experiment, sent).evaluator()
    reach("data read")
    coordinator.send(msg.Ready())
    reach("met")
    while True:
        message = coordinator.receive(_LOOK_S)
        if message is None and coordinator.lost:
            raise Abandoned("the coordinator is gone")
        if isinstance(message, msg.StopRun):
            raise Stopped
        answer = _answer(evaluator, message)
        if answer is not None:
            coordinator.send(answer)


def _answer(evaluator: Evaluator, request: Message | None) -> Message | None:
    if isinstance(request, msg.EvaluateModel):
        model = request.tensors["parameters"], request.tensors["buffers"]
        return msg.EvaluationDone(request.key, evaluator.evaluate(*model))
    if isinstance(request, msg.MeasureLoss):
        model = request.tensors["parameters"], request.tensors["buffers"]
        return msg.LossMeasured(request.name, evaluator.loss(request.which, *model, request.samples))
    return None


def _build(experiment: Experiment, sent: Shipment | None) -> Workload:
    """Set up this process for the arithmetic of a run, and build its workload."""
    torch.set_num_threads(experiment.threads)
    keep_freed_memory()
    return Workload.build(experiment, sent, whole_run=False)


def _report(coordinator: ClientSocket, work: Callable[[], None]) -> None:
    """Work until stopped; report a failure to the coordinator, so that no process waits for this task."""
    try:
        work()
    except Stopped:
        return
    except BaseException:
        text = traceback.format_exc().encode(errors="replace").decode()  # JSON has no lone surrogates
        coordinator.send(msg.Failed(text))
        raise


def listening_socket(experiment: Experiment, key: RunKey, largest: int) -> ServerSocket:
    """Return a server socket on the Dask worker's host, which is reached under the same host name."""
    worker = get_worker()
    host, contact = get_address_host(worker.address), get_address_host(worker.contact_address)
    limits = experiment.connection
    listening = Listening(contact, limits.port_range, largest, patience_of(limits))
    return ServerSocket(host, key, listening=listening)


def _count_strangers(socket: ServerSocket, coordinator: ClientSocket) -> None:
    """Report the number of closed connections without the run's key to the coordinator."""
    socket.on_stranger = lambda count: coordinator.send(msg.ClosedStrangers(count))


def _announce(topic: str, name: str, socket: ServerSocket) -> None:
    get_worker().log_event(topic, {"name": name, "address": list(socket.address)})


def _reporter(topic: str, name: str) -> Callable[[Stage], None]:
    """Return a function that reports a role's progress to the client."""
    dask_worker = get_worker()
    return lambda stage: dask_worker.log_event(topic, {"name": name, "stage": stage})


def warm_up(topic: str, names: list[str]) -> None:
    for name in names:
        _reporter(topic, name)("torch loaded")
