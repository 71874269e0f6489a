"""A report on a Dask cluster: its software, links and steps, and the problems of a run on it."""

from __future__ import annotations

import math
import os
import queue
import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from distributed import Client, Future, get_worker
from distributed.comm import get_address_host

from psbench.backends.dask.connecting import connected
from psbench.backends.dask.keys import give_key, take_key
from psbench.backends.dask.placement import place_with_resources, room_on
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.roles import COORDINATOR, Address, RunKey, roles_of, worker_name
from psbench.backends.dask.protocol.transport import ClientSocket
from psbench.backends.dask.reach import check_reach
from psbench.backends.dask.rpc import ask
from psbench.backends.dask.tasks import listening_socket
from psbench.backends.dask.tournament import rounds
from psbench.backends.dask.versions import check_versions
from psbench.errors import BackendError
from psbench.experiment import Experiment
from psbench.training.build import Workload

#: float32 entries of the vector whose transfer is timed, and how often what is timed
_ENTRIES, _PINGS, _TRANSFERS, _STEPS = 1 << 20, 21, 5, 15
#: sizes that are timed, smallest first; once one takes so many seconds beyond an empty one, and so many times
#: the round trip, no larger is: it would take too long, and is known to be as fast as the link
_SIZES, _LONG_S, _ROUND_TRIPS = (1 << 11, 1 << 14, 1 << 17, _ENTRIES), 0.06, 1
#: bytes of the largest message
_LARGEST = 1 << 30
#: seconds that an answer may take before the link counts as none, and that one who answers waits for probes
_ANSWER_S, _IDLE_S = 3.0, 15.0
#: seconds in which steps are timed, of one worker of each machine at a time: as many as fit, at least one
_STEPS_S = 25.0
#: seconds in which links are timed: at least one round of pairs, more if they and all links to the server's
#: worker at once fit; and of them those in which links to the server's worker are timed alone, before
_LINKS_S, _TO_SERVER_S = 90.0, 45.0
#: seconds between two lines of progress
_LINE_EVERY_S = 5.0
#: a link or worker is reported if it is so many times slower than the median
_SLOW = 3.0
#: what Dask's nanny sets, with which torch takes 1.6 times as long
_TRIM = ("MALLOC_TRIM_THRESHOLD_", "65536")


class Link(NamedTuple):
    """A connection between two Dask workers: one-way, and round trip.

    `by_size`: bytes, and the seconds of a message of so many to the second, and back from it.
    """

    latency_s: float
    up_mbit_s: float
    down_mbit_s: float
    by_size: tuple[tuple[int, float, float], ...] = ()


class MeasuredSteps(NamedTuple):
    """A worker's steps: median seconds of a whole batch's share, its fixed part, and the spread's sigma."""

    seconds_per_sample: float
    seconds_per_step: float
    sigma: float


@dataclass
class Diagnosis:
    """The findings; `problems` in words. Links are by (from, to), steps by Dask worker.

    `steps` were timed on at least one worker of each machine, and not on all where that would take too long.
    `links` were timed in pairs of workers, each worker in one pair at a time, those to the server's worker
    first, and not all where that would take too long; each worker is in at least one. `at_once` are those to
    the server's worker, all at the same time. `placed` says where the roles of a run would be now, as far as
    there is room.
    """

    workers: list[str]
    links: dict[tuple[str, str], Link | None] = field(default_factory=dict)
    at_once: dict[tuple[str, str], Link | None] = field(default_factory=dict)
    steps: dict[str, MeasuredSteps] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    placed: dict[str, str] = field(default_factory=dict)

    def places(self, num_workers: int) -> list[str] | None:
        """Return where the first server and each worker of a run would be, if there is room for all."""
        roles = [COORDINATOR, *map(worker_name, range(num_workers))]
        return [self.placed[role] for role in roles] if self.placed.keys() >= set(roles) else None

    @property
    def server(self) -> str:
        """The worker on which the first server of a run would be."""
        return self.placed.get(COORDINATOR, self.workers[0])

    @property
    def num_machines(self) -> int:
        """The number of machines that the workers are on."""
        return len({get_address_host(worker) for worker in self.workers})

    @property
    def sampled(self) -> str:
        """The number of timed links, in words."""
        count, most = len(self.links), len(self.workers) * (len(self.workers) - 1)
        if count == most:
            return f"all {most:,} links were timed"
        return (
            f"{count:,} of {most:,} links were timed, those to the server's worker first, as many as fit "
            f"into {_LINKS_S:g} s; the others may be slower, or missing"
        )

    @property
    def sampled_steps(self) -> str:
        """The number of workers whose steps were timed, in words."""
        count, most = len(self.steps), len(self.workers)
        if count == most:
            return f"steps of all {most:,} workers were timed"
        return (
            f"steps of {count:,} of {most:,} workers were timed, as many as fit into {_STEPS_S:g} s; "
            "the others count as the median of their machine"
        )

    def steps_of(self, worker: str) -> MeasuredSteps:
        """Return a worker's steps, or the median of those of its machine if they were not timed."""
        if worker in self.steps:
            return self.steps[worker]
        host = get_address_host(worker)
        there = [each for timed, each in self.steps.items() if get_address_host(timed) == host]
        return MeasuredSteps(*map(statistics.median, zip(*there, strict=True)))

    def cluster(self) -> dict[str, Any]:
        """Return the cluster as a specification for the simulator."""
        steps = [self.steps_of(worker) for worker in self.workers]
        best = min(each.seconds_per_sample for each in steps)
        links = {worker: self._links_of(worker) for worker in self.workers}
        sigma = min(3.0, max(1e-3, statistics.median(each.sigma for each in steps)))
        found: dict[str, Any] = {
            "workers": len(self.workers),
            "speed": [_rounded(best / each.seconds_per_sample) for each in steps],
            "seconds_per_sample": _rounded(best),
            "seconds_per_step": _rounded(statistics.median(each.seconds_per_step for each in steps)),
            "step_time": {"name": "lognormal", "sigma": _rounded(sigma)},
        }
        if all(links.values()):
            rates, down = (
                [statistics.median(getattr(link, way) for link in links[each]) for each in self.workers]
                for way in ("up_mbit_s", "down_mbit_s")
            )
            delays = [statistics.median(link.latency_s for link in links[each]) for each in self.workers]
            found["bandwidth_mbit_s"] = [_rounded(rate) for rate in rates]
            found["bandwidth_down_mbit_s"] = [_rounded(rate) for rate in down]
            found["latency_s"] = [_rounded(delay) for delay in delays]
            found["server_bandwidth_mbit_s"] = _rounded(max(rates + down))
            found["link_sharing"] = "equal"  # as TCP connections do
        return found

    def _links_of(self, worker: str) -> list[Link]:
        return [link for (start, _), link in self.links.items() if start == worker and link is not None]


def slow_workers(steps: Mapping[str, MeasuredSteps]) -> list[str]:
    """Return a line for each worker that is much slower than the median.

    >>> slow_workers({name: MeasuredSteps(each, 0.0, 0.1) for name, each in zip("abc", [1.0, 1.0, 3.5])})
    ["slow worker: c takes 3.5 times the median's time"]
    """
    median = statistics.median(each.seconds_per_sample for each in steps.values())
    times = {worker: each.seconds_per_sample / median for worker, each in steps.items()}
    return [
        f"slow worker: {worker} takes {factor:.1f} times the median's time"
        for worker, factor in times.items()
        if factor > _SLOW
    ]


def bad_links(links: Mapping[tuple[str, str], Link | None]) -> list[str]:
    """Return a line for each link that is missing, or much slower than the median.

    >>> fast, slow = Link(1e-4, 900.0, 900.0), Link(1e-4, 200.0, 900.0)
    >>> bad_links({("a", "b"): fast, ("b", "a"): fast, ("a", "c"): slow, ("c", "a"): None})
    ['slow link: a to c has 200 Mbit/s', 'unreachable: c cannot connect to a; is a firewall in between?']
    """
    found, rates = [], [link.up_mbit_s for link in links.values() if link is not None]
    for (start, end), link in links.items():
        if link is None:
            found.append(f"unreachable: {start} cannot connect to {end}; is a firewall in between?")
        elif link.up_mbit_s * _SLOW < statistics.median(rates):
            found.append(f"slow link: {start} to {end} has {link.up_mbit_s:.0f} Mbit/s")
    return found


def _rounded(number: float) -> float:
    return float(f"{number:.3g}")


def diagnose(
    experiment: Experiment,
    client: Client | None = None,
    on_step: Callable[[str], None] = lambda text: None,
    *,
    also: int = 0,
    with_steps: bool = True,
) -> Diagnosis:
    """Examine the cluster of an experiment with its model; takes up to two minutes.

    First workers' links to the server's worker are timed, one by one, as many as fit into half of the time,
    then links in rounds: in each, every worker is paired with another, and all pairs are timed at the same
    time. Of many workers only the pairs of the rounds that fit into the time are timed.

    Parameters
    ----------
    on_step : callable
        Called with what begins, in words.
    also : int, bytes
        The size of one more message that is timed on each link, for example that of the model.
    with_steps : bool
        Whether steps of the model are timed.

    Raises
    ------
    ParameterError, BackendError
        If there is no cluster, or it has no free worker.
    """
    with connected(experiment, min(4, len(roles_of(experiment))), client) as connection:
        return _Doctor(connection, experiment, on_step, also).diagnose(with_steps=with_steps)


class _Doctor:
    def __init__(
        self, client: Client, experiment: Experiment, on_step: Callable[[str], None], also: int = 0
    ) -> None:
        self._client, self._experiment, self._on_step = client, experiment, on_step
        self._sizes = sorted({*_SIZES, *({also // 4} if 0 < also // 4 <= _ENTRIES else ())})
        self._next_line_s = 0.0
        self._key, self._limits = RunKey(secrets.token_bytes(32)), experiment.connection
        room = room_on(client, self._limits)
        if not room.free:
            raise BackendError(f"the Dask cluster at {client.scheduler.address} has no free worker")
        placed = place_with_resources(roles_of(experiment), room, self._limits.hosts)
        self._room, self._found = room, Diagnosis(sorted(room.free), placed=placed)

    def diagnose(self, *, with_steps: bool) -> Diagnosis:
        """Run all checks in the order of their dependencies."""
        self._connect()
        self._compare_versions()
        self._count()
        self._look_at_allocators()
        if not any(problem.startswith("versions") for problem in self._found.problems):
            if with_steps:
                self._time_steps()
            self._time_links()
        return self._found

    def _progress(self, text: str, *, begins: bool) -> None:
        """Report progress where something begins, and now and then after that."""
        now = time.monotonic()
        if begins or now >= self._next_line_s:
            self._next_line_s = now + _LINE_EVERY_S
            self._on_step(text)

    def _compare_versions(self) -> None:
        try:
            check_versions(self._client, self._found.workers, self._limits)
        except BackendError as error:
            self._found.problems.append(f"versions: {error}")

    def _connect(self) -> None:
        found = check_reach(self._client, self._found.workers, self._limits)
        self._found.problems += [
            f"unreachable: this machine cannot connect to Dask worker {worker}: {reason}"
            for worker, reason in found.items()
        ]

    def _count(self) -> None:
        needed, room = len(roles_of(self._experiment)), self._room
        free = sum(room.free.values())
        if free < needed:
            self._found.problems.append(
                f"threads: a run of this experiment needs {needed}, and {free} are free"
            )
        self._found.problems += [
            f"busy: {holder} has {count} tasks here" for holder, count in room.holders.items()
        ]

    def _look_at_allocators(self) -> None:
        name, value = _TRIM
        found = ask(self._client, os.getenv, name, of=self._found.workers, limits=self._limits)
        set_there = [worker for worker, there in found.items() if there == value]
        if set_there:
            self._found.problems.append(
                f"allocator: {len(set_there)} workers run with {name}={value}, set by Dask's nanny, which "
                "makes torch take up to 1.6 times as long; remove it from "
                "distributed.nanny.pre-spawn-environ, or use --no-nanny"
            )

    def _time_steps(self) -> None:
        """Time steps on one worker of each machine at a time: those of one machine share its cores."""
        workers, machines, began = self._found.workers, dict[str, list[str]](), time.monotonic()
        for worker in workers:
            machines.setdefault(get_address_host(worker), []).append(worker)
        steps = dict[str, MeasuredSteps]()
        for number, row in enumerate(zip_longest(*machines.values())):
            took = (time.monotonic() - began) / max(1, number)
            if number and time.monotonic() + took > began + _STEPS_S:
                break
            text = f"steps: {len(steps):,} of {len(workers):,} workers timed; at most {_STEPS_S:g} s"
            self._progress(text, begins=not number)
            timings = {
                worker: self._client.submit(_time_steps, self._experiment, workers=[worker], pure=False)
                for worker in filter(None, row)
            }
            steps |= {worker: self._result(timing, worker) for worker, timing in timings.items()}
        self._found.steps = {worker: steps[worker] for worker in workers if worker in steps}
        self._found.problems += slow_workers(self._found.steps)

    def _time_links(self) -> None:
        found, server, began = self._found, self._found.server, time.monotonic()
        others = [worker for worker in found.workers if worker != server]
        if not others:
            return
        most = len(found.workers) * len(others)
        limit = f"at most {_LINKS_S:g} s, or until one round is over"
        # the first of all sits out in the first round if they are odd; it is the server's, or timed with it
        with self._echoes([server]) as addresses:
            for number, other in enumerate(others):
                took = (time.monotonic() - began) / max(1, number)
                if number and time.monotonic() + took > began + _TO_SERVER_S:
                    break
                self._progress(
                    f"links: {number:,} of {most:,} timed, first those to the server's worker; {limit}",
                    begins=not number,
                )
                found.links |= self._timed({(other, server): addresses[server]})
        rounds_began, all_rounds = time.monotonic(), rounds(found.workers)
        # all at once take at most about as long as one by one
        at_once_s = (rounds_began - began) / len(found.links) * len(others)
        for number, pairs in enumerate(all_rounds):
            took = (time.monotonic() - rounds_began) / max(1, number)
            if number and time.monotonic() + took + at_once_s > began + _LINKS_S:
                break
            count = len(found.links)
            self._progress(
                f"links: {count:,} of {most:,} timed, in round {number + 1} of {len(all_rounds)}; {limit}",
                begins=False,
            )
            for ways in (pairs, [(end, start) for start, end in pairs]):
                self._time_pairs([pair for pair in ways if pair not in found.links])
        if len(others) > 1:
            self._on_step(f"links: {len(others)} at once to the server's worker")
            with self._echoes([server]) as addresses:
                found.at_once = self._timed({(other, server): addresses[server] for other in others})
        found.problems += bad_links(found.links)

    def _time_pairs(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Time the links of pairs that have no worker in common at the same time."""
        with self._echoes([end for _, end in pairs]) as addresses:
            self._found.links |= self._timed({pair: addresses[pair[1]] for pair in pairs})

    def _timed(self, ways: Mapping[tuple[str, str], Address]) -> dict[tuple[str, str], Link | None]:
        """Time these links at the same time."""
        timings = {
            pair: self._start(pair[0], _time_link, address, self._sizes) for pair, address in ways.items()
        }
        return {pair: self._result(timing, pair[0]) for pair, timing in timings.items()}

    def _result(self, future: Future, worker: str) -> Any:
        try:
            return future.result(timeout=self._limits.start_within_s)
        except TimeoutError:
            raise BackendError(
                f"Dask worker {worker} did not finish a task within {self._limits.start_within_s:g} s "
                "(connection.start_within_s): is it frozen?"
            ) from None

    def _start(self, worker: str, task: Callable[..., Any], *arguments: Any) -> Future:
        """Start a task that communicates over the run's own connections."""
        name = f"psbench-doctor-{secrets.token_hex(8)}"
        give_key(self._client, self._key, name, worker, self._limits)
        return self._client.submit(task, *arguments, workers=[worker], pure=False, key=name)

    @contextmanager
    def _echoes(self, workers: Sequence[str]) -> Iterator[dict[str, Address]]:
        """Start an echo server on each of these workers, and yield their addresses."""
        topic = f"psbench-doctor-{secrets.token_hex(8)}"
        announced: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._client.subscribe_topic(topic, lambda event: announced.put(event[1]))
        futures = {worker: self._start(worker, _echo, self._experiment, topic, worker) for worker in workers}
        addresses = dict[str, Address]()
        while len(addresses) < len(workers):
            try:
                worker, *address = announced.get(timeout=self._limits.listen_within_s)
            except queue.Empty:
                silent = next(worker for worker in workers if worker not in addresses)
                self._result(futures[silent], silent)  # which says why
                raise BackendError(f"Dask worker {silent} does not listen") from None
            addresses[worker] = Address(*address)
        try:
            yield addresses
        finally:
            for worker, address in addresses.items():
                with ClientSocket(address, self._key, "doctor") as socket:
                    socket.send(msg.StopRun())
                self._result(futures[worker], worker)
            self._client.unsubscribe_topic(topic)


# -------------------------------------------------------------------- on the Dask workers


def _echo(experiment: Experiment, topic: str, worker: str) -> None:
    """Answer the probes of latency and bandwidth until stopped or idle."""
    vector = torch.zeros(_ENTRIES)
    with listening_socket(experiment, take_key(), _LARGEST) as socket:
        get_worker().log_event(topic, [worker, *socket.address])
        last = time.monotonic()
        while time.monotonic() < last + _IDLE_S:
            received = socket.receive(0.25)
            if received is None:
                continue
            last = time.monotonic()
            sender, message = received
            if isinstance(message, msg.StopRun):
                return
            if isinstance(message, msg.AskClock):
                socket.send(sender, msg.Clock(0.0))
            elif isinstance(message, msg.StateReply):
                socket.send(sender, msg.NumberReply(message.tag, 0.0))
            elif isinstance(message, msg.SendState):
                socket.send(sender, msg.StateReply(message.tag, {"vector": vector[: message.tag]}))


def _time_link(address: Address, sizes: Sequence[int]) -> Link | None:
    """Return the measurements of a connection to that address; None without a connection.

    `sizes` of the messages are in entries of four bytes.
    """
    with ClientSocket(address, take_key(), f"doctor {secrets.token_hex(4)}") as socket:

        def seconds(message: Message, times: int) -> float:
            found = []
            for _ in range(times):
                began = time.perf_counter()
                socket.send(message)
                if socket.receive(_ANSWER_S) is None:
                    return math.nan
                found.append(time.perf_counter() - began)
            return statistics.median(found)

        round_trip = seconds(msg.AskClock(), _PINGS)
        if math.isnan(round_trip):
            return None
        by_size = list[tuple[int, float, float]]()
        for entries in sizes:
            vector = {"vector": torch.zeros(entries)}
            up = seconds(msg.StateReply(0, vector), _TRANSFERS)
            down = seconds(msg.SendState(entries, False), _TRANSFERS)
            if math.isnan(up + down):
                return None
            by_size.append((4 * entries, up - round_trip / 2, down - round_trip / 2))
            if entries > _SIZES[0] and max(up, down) - round_trip > max(_LONG_S, _ROUND_TRIPS * round_trip):
                break
    megabits, pure = 32 * entries / 1e6, [max(whole / 10, whole - round_trip) for whole in (up, down)]
    return Link(round_trip / 2, megabits / pure[0], megabits / pure[1], tuple(by_size))


def _time_steps(experiment: Experiment) -> MeasuredSteps:
    """Return this worker's step times, for a full share and for a quarter of it."""
    torch.set_num_threads(experiment.threads)
    workload = Workload.build(experiment, whole_run=False)
    share = max(4, experiment.batch_size // experiment.num_workers)
    large, small = (_seconds_of_steps(workload, samples) for samples in (share, share // 4))
    whole, part = statistics.median(large), statistics.median(small)
    per_sample = (whole - part) / (share - share // 4)
    if per_sample <= 0:  # the samples cost nothing beside the step
        per_sample = whole / share
    fixed = max(0.0, whole - per_sample * share)
    spread = statistics.stdev(math.log(each) for each in large)
    return MeasuredSteps(per_sample, fixed, spread)


def _seconds_of_steps(workload: Workload, samples: int) -> Sequence[float]:
    trainer, found = workload.trainer(), []
    parameters, buffers = workload.parameters, workload.buffers
    for _ in range(_STEPS + 2):
        began = time.perf_counter()
        trainer.result(trainer.start(0, samples), parameters, buffers)
        found.append(time.perf_counter() - began)
    return found[2:]  # the first ones warm up
