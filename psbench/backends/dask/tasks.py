"""What runs inside the Dask tasks: one function a role, each with sockets of its own."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import ExitStack

import torch
from distributed import get_worker
from distributed.comm import get_address_host

from psbench.backends.dask.coordinator.checkpointing import Start
from psbench.backends.dask.coordinator.coordinator import Coordinator, servers_of
from psbench.backends.dask.protocol.roles import CONDUCTOR, EVALUATOR, server_name, worker_name
from psbench.backends.dask.protocol.transport import JSON, Address, ClientSocket, ServerSocket, unpack
from psbench.backends.dask.server.server_process import ServerProcess
from psbench.backends.dask.worker.mailbox import Abandoned, Stopped
from psbench.backends.dask.worker.worker import Worker
from psbench.experiment import Experiment
from psbench.training.workload import Workload


def conduct(
    experiment: Experiment, key: bytes, topic: str, crew: list[str], start: Start | None = None
) -> None:
    """Conduct the run; the first server shard is part of it."""
    with ServerSocket(_host(), key) as hub:
        _announce(topic, CONDUCTOR, hub)
        torch.set_num_threads(experiment.threads)
        Coordinator(Workload.build(experiment), hub, crew, start).run()


def serve(experiment: Experiment, key: bytes, topic: str, shard: int, conductor: Address) -> None:
    """Hold a server shard that is not the first."""
    with ServerSocket(_host(), key) as hub, ClientSocket(conductor, key, server_name(shard)) as link:
        _announce(topic, server_name(shard), hub)
        _report(link, lambda: ServerProcess(_build(experiment), hub, link, shard).run())


def train(experiment: Experiment, key: bytes, worker: int, servers: list[Address]) -> None:
    """Be a training worker; `servers` begins with the conductor."""
    name = worker_name(worker)
    with ExitStack() as stack:
        links = [stack.enter_context(ClientSocket(address, key, name)) for address in servers]
        rings = any(not servers_of(composition) for composition in experiment.strategy.compositions)
        hub = stack.enter_context(ServerSocket(_host(), key)) if rings else None
        _report(links[0], lambda: Worker(_build(experiment), worker, links[0], links[1:], hub, key).run())


def evaluate(experiment: Experiment, key: bytes, conductor: Address) -> None:
    """Evaluate the models that come, one after another."""
    with ClientSocket(conductor, key, EVALUATOR) as link:
        _report(link, lambda: _evaluate(experiment, link))


def _evaluate(experiment: Experiment, link: ClientSocket) -> None:
    evaluator = _build(experiment).evaluator()
    link.tell({"do": "ready"})
    while True:
        letter = link.receive(0.25)
        if letter is None and link.lost:
            raise Abandoned("the conductor is gone")
        if letter is None or letter.kind != JSON:
            continue
        plain = letter.plain
        if plain["do"] == "stop":
            raise Stopped
        state = unpack(plain["shapes"], letter.payload)
        model = state["parameters"], state["buffers"]
        if plain["do"] == "evaluate":
            link.tell({"do": "evaluated", "id": plain["id"], "values": evaluator.evaluate(*model)})
        elif plain["do"] == "loss":
            number = evaluator.loss(plain["which"], *model, plain["samples"])
            link.tell({"do": "measured", "name": plain["name"], "number": number})


def _build(experiment: Experiment) -> Workload:
    torch.set_num_threads(experiment.threads)
    return Workload.build(experiment)


def _report(link: ClientSocket, work: Callable[[], None]) -> None:
    """Work until stopped; if it fails, tell the conductor so that nobody waits for us."""
    try:
        work()
    except Stopped:
        return
    except BaseException:
        link.tell({"do": "failed", "traceback": traceback.format_exc()})
        raise


def _host() -> str:
    host: str = get_address_host(get_worker().address)
    return host


def _announce(topic: str, name: str, hub: ServerSocket) -> None:
    get_worker().log_event(topic, {"name": name, "address": list(hub.address)})


def warm_up() -> None:
    """Do nothing, but import what a role needs."""
