"""A check that the machines of a Dask cluster have enough memory for their roles."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from distributed import Client
from distributed.comm import get_address_host

from psbench.backends.dask.protocol.roles import COORDINATOR, REPLICA, servers_of, worker_number
from psbench.backends.dask.rpc import ask
from psbench.core.shared_memory import SharedMemory
from psbench.errors import BackendError, ParameterError
from psbench.system.limits import SHARE, machine_memory, size
from psbench.training.build import Workload
from psbench.training.memory import vectors_of


def check_machines(client: Client, workload: Workload, placed: Mapping[str, str]) -> None:
    """Raise if a machine would need more memory for its roles than it has.

    An estimate from below: the vectors as long as the model that each process holds (`held_by_processes`).

    Raises
    ------
    BackendError
        Naming the machine and its roles.
    """
    experiment = workload.experiment
    found = ask(client, machine_memory, of={*placed.values()}, limits=experiment.connection)
    machines: dict[str, list[str]] = defaultdict(list)
    for role, address in placed.items():
        machines[found[address][0]].append(role)
    for roles in machines.values():
        available = max(found[placed[role]][1] for role in roles)
        counts = Counter(_kind(role, workload) for role in roles)
        needed = int(vectors_of(experiment, counts) * workload.model_bytes)
        if needed > SHARE * available:
            host = get_address_host(placed[roles[0]])
            what = f"{len(roles)} processes of the run ({roles[0]}" + (", ...)" if len(roles) > 1 else ")")
            raise BackendError(
                f"{host}: {what} would need about {size(needed)} of memory there, and {size(available)} are "
                "available; spread them over more machines (connection.hosts: spread), or use more servers, "
                "fewer workers or a smaller model"
            )


def check_one_host(client: Client, workload: Workload, placed: Mapping[str, str], *, is_local: bool) -> None:
    """Raise if workers that share the memory of a host are on several, or the model has running statistics.

    Raises
    ------
    ParameterError, BackendError
    """
    experiment = workload.experiment
    compositions = experiment.strategy.compositions
    sharing = [each.name for each in compositions if isinstance(each.placement, SharedMemory)]
    if not sharing:
        return
    if workload.model.num_buffers:
        raise ParameterError(
            f"strategy {sharing[0]!r}: on dask running statistics such as BatchNorm's are not shared; use a "
            "model without them, or the simulated backend"
        )
    roles = [role for role in placed if role == COORDINATOR or worker_number(role) is not None]
    addresses = {placed[role] for role in roles}
    found = {} if is_local else ask(client, machine_memory, of=addresses, limits=experiment.connection)
    if len({machine for machine, _ in found.values()}) > 1:
        hosts = ", ".join(sorted({get_address_host(address) for address in addresses}))
        raise BackendError(
            f"strategy {sharing[0]!r}: its workers share the memory of one host, and they would be on "
            f"{hosts}; start enough Dask workers on one of them, or use 'asp'"
        )


def _kind(role: str, workload: Workload) -> str:
    """Return the field of `Held` for a role."""
    if worker_number(role) is not None:
        return "worker"
    if role == REPLICA:
        return "replica"
    has_servers = any(map(servers_of, workload.experiment.strategy.compositions))
    return "server" if role.startswith("server ") or (role == COORDINATOR and has_servers) else "other"
