"""The placement of a run on free Dask workers, with waiting if necessary."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from typing import NamedTuple

from distributed import Client, Scheduler
from distributed.comm import get_address_host

from psbench.backends.dask.protocol.roles import COORDINATOR, REPLICA, worker_number
from psbench.backends.dask.rpc import ask_scheduler
from psbench.clusters.connection import ConnectionSettings
from psbench.errors import BackendError

logger = logging.getLogger(__name__)

#: how tasks of runs are called: the run's title, and a random number
_KEY = re.compile(r"psbench-(.+)-[0-9a-f]{16}-.+")
#: how the task of a detached run's director ends, which waits in a thread of its own and needs no place
DIRECTOR = "-director"
#: seconds between two looks at the cluster
_LOOK_S = 0.25
#: seconds before the first line that says who is waited for
_FIRST_LINE_S = 1.0
#: one run at a time is being placed: the next one sees its tasks; where the scheduler has a note of it
_NOTE = "_psbench_placement"
#: seconds without a sign of life of a client after which its note counts no more; it gives one every 5 s
_CLIENT_SILENCE_S = 60.0


class Room(NamedTuple):
    """The room of a Dask cluster.

    Attributes
    ----------
    threads : dict of address to number of threads
        Of all Dask workers.
    free : dict of address to number of threads
        Without a task; of the workers that have some.
    holders : dict of run to number of tasks
        Who has the others.
    able : dict of address to number of training workers, or None
        Of which the free threads and resources are enough; None if no resources are asked for.
    resources : str
        In words, for an error: those that are asked for, and those of all Dask workers, in use or not.
    """

    threads: dict[str, int]
    free: dict[str, int]
    holders: dict[str, int]
    able: dict[str, int] | None = None
    resources: str = ""

    def has(self, roles: Sequence[str]) -> bool:
        """Return whether there is room for these roles."""
        enough = sum(self.free.values()) >= len(roles)
        return enough and (self.able is None or sum(self.able.values()) >= _training(roles))

    def take(self, role: str, barred: Collection[str] = ()) -> str | None:
        """Reserve the Dask worker with the most free threads, except `barred` ones; None if there is none."""
        is_limited = self.able is not None and worker_number(role) is not None
        possible = [each for each in (self.able if is_limited else self.free) or () if each not in barred]
        address = max(possible, key=self.free.__getitem__, default=None)
        if address is not None:
            self.use(address)
        return address

    def use(self, address: str) -> None:
        """Count a thread of a Dask worker as taken, and the resources of one training worker."""
        for left in (self.free, self.able or {}):
            if address in left:
                left[address] -= 1
                if not left[address]:
                    del left[address]


def _training(roles: Sequence[str]) -> int:
    return sum(worker_number(role) is not None for role in roles)


def _resources() -> Callable[[Scheduler], dict[str, dict[str, tuple[float, float]]]]:
    """Return a function for a scheduler that returns the resources of each Dask worker: all, and in use."""

    # in here it is sent whole: a scheduler need not have psbench
    def resources(dask_scheduler: Scheduler) -> dict[str, dict[str, tuple[float, float]]]:
        return {
            address: {
                name: (have, worker.used_resources.get(name, 0)) for name, have in worker.resources.items()
            }
            for address, worker in dask_scheduler.workers.items()
        }

    return resources


def room_on(
    client: Client,
    limits: ConnectionSettings,
    without: Collection[str] = (),
    go_on: Callable[[], None] = lambda: None,
) -> Room:
    """Return the room of a cluster now, without some of its workers; see `look_for_room`.

    Raises
    ------
    BackendError
        If the scheduler does not answer in time.
    """
    room: Room = ask_scheduler(client, look_for_room, client, limits, without, limits=limits, go_on=go_on)
    return room


async def look_for_room(client: Client, limits: ConnectionSettings, without: Collection[str]) -> Room:
    """Return the room of a cluster now, without some of its workers, in Dask's event loop.

    `limits` also says what each training worker uses of a Dask worker's resources.
    """
    found = await client.nthreads()
    threads = {address: count for address, count in found.items() if address not in without}
    under_way = await client.processing()
    tasks = {
        address: [key for key in keys if not _directs(str(key))]
        for address, keys in under_way.items()
        if address in threads
    }
    free = {address: count - len(tasks.get(address, ())) for address, count in threads.items()}
    keys = [str(key) for each in tasks.values() for key in each]
    holders = Counter(_holder(key) for key in keys)
    # who directs a run comes last: a role that dies with its process would take the director with it
    order = sorted(free, key=lambda address: any(_directs(str(key)) for key in under_way.get(address, ())))
    free = {address: free[address] for address in order if free[address] > 0}
    if not limits.resources:
        return Room(threads, free, dict(holders))
    there = await client.run_on_scheduler(_resources())
    able = dict[str, int]()
    for address, count in free.items():
        left = {name: have - used for name, (have, used) in there.get(address, {}).items()}
        times = min(int(left.get(name, 0) / needed) for name, needed in limits.resources.items())
        if most := min(times, count):
            able[address] = most
    have = [{name: all_ for name, (all_, _) in there.get(address, {}).items()} for address in threads]
    words = f"{_listed(limits.resources)} is asked for, and the Dask workers have {_inventory(have)}"
    return Room(threads, free, dict(holders), able, words)


def _directs(key: str) -> bool:
    return key.endswith(DIRECTOR) and _KEY.fullmatch(key) is not None


def _holder(key: str) -> str:
    """Return the owner of a task.

    >>> _holder("psbench-ssp-0123456789abcdef-worker-0"), _holder("sum-4f1e")
    ("psbench run 'ssp'", 'other work')
    """
    found = _KEY.fullmatch(key)
    return f"psbench run {found[1]!r}" if found else "other work"


@contextmanager
def placing(
    client: Client, wait_s: float, go_on: Callable[[], None], limits: ConnectionSettings
) -> Iterator[None]:
    """Lock placement against other runs; wait while another run is being placed.

    The scheduler has a note of who is placed, as long as that client is there. (Dask's own lock renews a
    lease in the background, which fails with tracebacks in the terminal where the scheduler is lost.)

    Raises
    ------
    BackendError
        If that takes too long.
    """
    began, token = time.monotonic(), secrets.token_hex(8)
    next_line_s, most_s = limits.say_after_s, max(wait_s, limits.restart_within_s)
    hold, let_go = _note_of_placement()
    while not ask_scheduler(client, "run_on_scheduler", hold, client.id, token, limits=limits, go_on=go_on):
        go_on()
        waited = time.monotonic() - began
        if waited > most_s:
            raise BackendError("the placement of another run on this Dask cluster takes too long")
        if waited > next_line_s:
            next_line_s += limits.say_after_s
            logger.warning("waiting for the placement of another run, for %.0f of %g s", waited, most_s)
        time.sleep(_LOOK_S)
    try:
        yield
    finally:
        with suppress(BackendError):  # it is gone, and its note with it
            ask_scheduler(client, "run_on_scheduler", let_go, token, limits=limits, is_needed=False)


def _note_of_placement() -> tuple[Callable[..., bool], Callable[..., None]]:
    """Return functions for a scheduler that set, unless another run has set it, and clear the placed run."""
    name, silence_s = _NOTE, _CLIENT_SILENCE_S

    # in here they are sent whole: a scheduler need not have psbench
    def hold(client: str, token: str, dask_scheduler: Scheduler) -> bool:
        holder: tuple[str, str] = getattr(dask_scheduler, name, None) or ("", "")
        there = dask_scheduler.clients.get(holder[0])
        if there is not None and time.time() - there.last_seen < silence_s:
            return holder[1] == token
        setattr(dask_scheduler, name, (client, token))
        return True

    def let_go(token: str, dask_scheduler: Scheduler) -> None:
        holder = getattr(dask_scheduler, name, None)
        if holder is not None and holder[1] == token:
            setattr(dask_scheduler, name, None)

    return hold, let_go


def find_room(
    client: Client,
    roles: Sequence[str],
    least: int,
    wait_s: float,
    go_on: Callable[[], None],
    without: Collection[str] = (),
    *,
    limits: ConnectionSettings,
    ask: Callable[[int], None],
) -> Room:
    """Return a cluster's room once it suffices for the roles.

    Parameters
    ----------
    roles : sequence of str
        In the order in which they are placed.
    least : int
        How many of them there must be room for.
    wait_s : float
        How long to wait.
    go_on : callable
        Called often; raises to give up.
    without : collection of addresses
        Of Dask workers that are not to be used: they will be gone soon.
    limits : ConnectionSettings
        See `room_on`.
    ask : callable
        Asks the cluster for room for so many roles; called often while there is none. See `Demand`.

    Raises
    ------
    BackendError
        If the time is over; says who has the threads.
    """
    where = f"the Dask cluster at {client.scheduler.address}"
    began, next_line_s = time.monotonic(), _FIRST_LINE_S
    while True:
        room = room_on(client, limits, without, go_on)
        if room.has(roles[:least]):
            return room
        waited = time.monotonic() - began
        if waited >= wait_s:
            raise BackendError(_too_little(room, roles, least, where, wait_s))
        if waited >= next_line_s:
            next_line_s += limits.say_after_s
            said = f"{where} has {_free(room)}, and the run needs {_needs(roles[:least], room)}{_held(room)}"
            logger.warning("%s; waiting, %.0f of %g s", said, waited, wait_s)
        go_on()
        ask(len(roles))
        time.sleep(min(_LOOK_S, wait_s - waited))


def _free(room: Room) -> str:
    return f"{sum(room.free.values())} free of {sum(room.threads.values())} threads"


def _needs(roles: Sequence[str], room: Room) -> str:
    if room.able is None:
        return str(len(roles))
    able, training = sum(room.able.values()), _training(roles)
    return (
        f"{len(roles)}, {training} of them with connection.resources, of which {able} have room: "
        f"{room.resources}"
    )


def _inventory(resources: Sequence[Mapping[str, float]]) -> str:
    """Return the resources of Dask workers in words.

    >>> _inventory([{"GPU": 2.0}, {}, {"GPU": 2.0}])
    'GPU: 2 (2 of 3), none (1 of 3)'
    """
    counts = Counter(_listed(each) or "none" for each in resources)
    return ", ".join(f"{words} ({count} of {len(resources)})" for words, count in counts.most_common())


def _listed(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{name}: {amount:g}" for name, amount in sorted(resources.items()))


def _held(room: Room) -> str:
    held = [f"{holder} has {count}" for holder, count in sorted(room.holders.items())]
    return f" ({', '.join(held)})" if held else ""


def _too_little(room: Room, roles: Sequence[str], least: int, where: str, wait_s: float) -> str:
    threads = sum(room.threads.values())
    waited = f" after {wait_s:g} s (recovery.wait_for_workers)" if wait_s else ""
    if threads < least:
        return (
            f"{where} has {len(room.threads)} workers with {threads} threads{waited}, and the run needs "
            f"{least} ({', '.join(roles[:least])}): add Dask workers, or use a smaller cluster"
        )
    return (
        f"{where} has {_free(room)}{waited}, and the run needs {_needs(roles[:least], room)}{_held(room)}: "
        "wait for it (recovery.wait_for_workers), or use another cluster"
    )


def place_with_resources(roles: Sequence[str], room: Room, hosts: str = "any") -> dict[str, str]:
    """Assign Dask workers to roles like `place`, with the required resources for training workers.

    >>> room = Room({"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}, {}, able={"b": 1})
    >>> sorted(place_with_resources(["coordinator", "worker 0", "evaluator"], room).items())
    [('coordinator', 'a'), ('evaluator', 'c'), ('worker 0', 'b')]
    """
    if room.able is None:
        return place(roles, room.free, hosts)
    training = [role for role in roles if worker_number(role) is not None]
    placed = place(training, room.able, hosts)
    taken = Counter(placed.values())
    left = {address: count - taken[address] for address, count in room.free.items() if count > taken[address]}
    alone = {address: count for address, count in left.items() if not taken[address]}
    others = [role for role in roles if role not in training]
    return place(others, alone if sum(alone.values()) >= len(others) else left, hosts) | placed


def check_replica(placed: Mapping[str, str]) -> None:
    """Raise if the replica would be lost together with a server.

    Raises
    ------
    BackendError
    """
    servers = [role for role in placed if role == COORDINATOR or role.startswith("server ")]
    if any(placed[role] == placed.get(REPLICA) for role in servers):
        raise BackendError(
            "recovery.replicas: the replica needs a Dask worker that holds no server, and there are only "
            f"{len(set(placed.values()))} Dask workers for {len(servers)} servers: add one"
        )


def place(roles: Sequence[str], threads: Mapping[str, int], hosts: str = "any") -> dict[str, str]:
    """Assign a Dask worker to each role, as far as threads suffice.

    Every role gets a worker to itself; if there are too few, a worker gets up to as many as it has threads.

    Parameters
    ----------
    roles : sequence of str
        The first ones get a Dask worker to themselves, and are placed if there are too few threads.
    threads : mapping of address to number of threads
    hosts : "any", "spread" or "pack"
        See `ConnectionSettings`.

    Examples
    --------
    >>> place(["coordinator", "worker 0", "worker 1"], {"a": 1, "b": 2})
    {'coordinator': 'a', 'worker 0': 'b', 'worker 1': 'b'}
    """
    roles = roles[: sum(threads.values())]
    if len(roles) > len(threads):
        logger.warning(
            "%d roles are placed on %d Dask worker%s: some share a process and slow each other down",
            len(roles),
            len(threads),
            "s" if len(threads) > 1 else "",
        )
    order = _by_hosts(sorted(threads, key=lambda address: threads[address]), hosts)  # most threads last
    load = dict.fromkeys(order, 0)
    placed: dict[str, str] = {}
    for role in roles:
        free = [address for address in reversed(order) if load[address] < threads[address]]
        address = order[len(placed)] if len(placed) < len(order) else min(free, key=lambda a: load[a])
        load[address] += 1
        placed[role] = address
    return placed


def _by_hosts(addresses: Sequence[str], hosts: str) -> list[str]:
    """Return addresses with neighbours on different machines, or on the same one.

    >>> there = ["tcp://a:1", "tcp://a:2", "tcp://b:1"]
    >>> _by_hosts(there, "spread"), _by_hosts(there, "pack")
    (['tcp://a:1', 'tcp://b:1', 'tcp://a:2'], ['tcp://a:1', 'tcp://a:2', 'tcp://b:1'])
    """
    if hosts == "any":
        return list(addresses)
    found: dict[str, list[str]] = {}
    for address in addresses:
        found.setdefault(get_address_host(address), []).append(address)
    largest = sorted(found.values(), key=len, reverse=True)
    if hosts == "pack":
        return [address for each in largest for address in each]
    return [address for row in zip_longest(*largest) for address in row if address is not None]
