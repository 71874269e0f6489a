"""The search for Dask workers while a run goes on: who does not answer keeps no role from the others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from psbench.backends.control import Control
from psbench.backends.dask.attempt import Attempt
from psbench.backends.dask.map_reduce.places import Places, RolesLost
from psbench.backends.dask.place_search import PlaceSearch
from psbench.backends.dask.placement import Room, look_for_room
from psbench.backends.dask.rpc import Departed, Unresponsive, ask
from psbench.clusters.connection import ConnectionSettings
from psbench.errors import BackendError, Cancelled, ServerLost

#: of a Dask worker that never answers; a test that waited for it would run into pytest's own limit
LIMITS = ConnectionSettings(answer_within_s=3600)


class Cluster:
    """A Dask client whose scheduler has these workers, of which some are frozen."""

    status = "running"

    def __init__(self, free: list[str], frozen: set[str]) -> None:
        self.free, self.frozen, self.submitted = free, frozen, dict[str, str]()
        #: those whose loss the scheduler has not noticed
        self.lost = set[str]()
        self.loop = SimpleNamespace(asyncio_loop=asyncio.new_event_loop())
        self._thread = threading.Thread(target=self.loop.asyncio_loop.run_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.loop.asyncio_loop.call_soon_threadsafe(self.loop.asyncio_loop.stop)
        self._thread.join()
        self.loop.asyncio_loop.close()

    def sync(self, call: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(call(), self.loop.asyncio_loop).result()

    async def nthreads(self) -> dict[str, int]:
        return dict.fromkeys(self.free, 1)

    async def processing(self) -> dict[str, tuple[str, ...]]:
        return dict.fromkeys(self.free, ())

    async def run(self, function: Any, *arguments: Any, workers: list[str]) -> dict[str, Any]:
        if self.frozen.intersection(workers):
            await asyncio.Event().wait()
        if self.lost.intersection(workers):
            raise OSError("connection refused")
        return dict.fromkeys(workers, 1)

    def submit(self, task: Any, *arguments: Any, key: str, workers: list[str], **options: Any) -> Any:
        self.submitted[key.rpartition("-")[2]] = workers[0]
        return SimpleNamespace(key=key)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    found = Cluster([f"tcp://{name}:1" for name in "abcdefghi"], {"tcp://a:1", "tcp://b:1"})
    yield found
    found.close()


class Silent:
    """Takes note of what is sent, and of nothing else."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **options: None


def attempt_on(cluster: Cluster, missing: list[str]) -> Attempt:
    """Return an attempt that looks for places for these roles, and whose others are in the run."""
    attempt = object.__new__(Attempt)
    parts: dict[str, Any] = {
        **{"client": cluster, "placed": {"coordinator": "tcp://z:1"}, "_limits": LIMITS, "_outcome": None},
        **{"_missing": dict.fromkeys(missing, time.monotonic()), "_taken": {}, "_hand_overs": {}},
        **{
            "_futures": {},
            "_met": set(),
            "_said_gone": set(),
            "_there": {},
            "_key": b"k",
            "_topic": "psbench-x",
        },
        **{"_leavers": SimpleNamespace(addresses=set(), watch=lambda *_: None), "_demand": Silent()},
        **{"_shipping": SimpleNamespace(begin=lambda role: nothing), "_search": PlaceSearch(cluster, LIMITS)},  # type: ignore[arg-type]
        "workload": SimpleNamespace(
            experiment=SimpleNamespace(recovery=SimpleNamespace(wait_for_workers=60))
        ),
        "_experiment": None,
        "_addresses": {"coordinator": "there"},
        "_largest": 1,
        "_room": Room({}, {}, {}),
    }
    vars(attempt).update(parts)
    return attempt


async def nothing() -> None:
    return None


def test_roles_go_to_who_answers_and_nothing_else_waits(cluster: Cluster) -> None:
    """Two of nine free ones are frozen, and come first."""
    roles = ["evaluator", *(f"worker {number}" for number in range(6))]
    attempt, coordinator = attempt_on(cluster, roles), Silent()
    looks = 0
    while attempt._missing:
        attempt._look_around(coordinator)  # type: ignore[arg-type]
        looks += 1  # which is where the client reads the log, and passes on requests and retirements
        time.sleep(0.001)
    placed = {role: attempt.placed[role] for role in roles}
    assert {*placed.values()} == {*cluster.free} - cluster.frozen
    assert cluster.submitted.keys() == {"evaluator", *map(str, range(6))}
    assert looks > 1
    assert coordinator.sent == []
    attempt._search.end()


def test_one_that_freezes_at_its_hand_over_keeps_no_other_role(
    cluster: Cluster,
) -> None:
    cluster.frozen.clear()
    attempt = attempt_on(cluster, ["worker 0", "worker 1"])
    while not attempt._search.answered:
        attempt._search.ask(cluster.free[:1])
    cluster.frozen.add(cluster.free[0])
    attempt._take_room(Silent(), cluster.sync(lambda: room(cluster)), 0.0)  # type: ignore[arg-type]
    while "worker 1" in attempt._missing:
        attempt._look_around(Silent())  # type: ignore[arg-type]
        time.sleep(0.001)
    assert attempt._hand_overs["worker 0"].address == cluster.free[0]
    cluster.free.pop(0)  # its manager has removed it
    while "worker 0" in attempt._missing:
        attempt._look_around(Silent())  # type: ignore[arg-type]
        time.sleep(0.001)
    assert attempt.placed["worker 0"] not in cluster.frozen
    attempt._search.end()


def test_one_that_freezes_before_it_could_report_loses_its_role(cluster: Cluster) -> None:
    cluster.frozen.clear()
    attempt = attempt_on(cluster, ["worker 0"])
    attempt._limits = ConnectionSettings(start_within_s=0.2)
    while attempt._missing:
        attempt._look_around(Silent())  # type: ignore[arg-type]
    first = attempt.placed["worker 0"]
    cluster.frozen.add(first)  # and its manager does not find out
    while attempt.placed["worker 0"] == first or attempt._missing:
        attempt._look_around(Silent())  # type: ignore[arg-type]
        time.sleep(0.001)
    attempt._starting = Silent()  # type: ignore[assignment]
    attempt._handle_report({"name": "worker 0", "stage": "met"})
    time.sleep(0.3)
    attempt._take_room(Silent(), cluster.sync(lambda: room(cluster)), time.monotonic())  # type: ignore[arg-type]
    assert (attempt._missing, attempt._taken) == ({}, {})
    attempt._search.end()


async def room(cluster: Cluster) -> Room:
    return await look_for_room(cluster, LIMITS, ())  # type: ignore[arg-type]


def test_those_that_do_not_answer_are_named_and_no_others(cluster: Cluster) -> None:
    limits = ConnectionSettings(answer_within_s=0.2)
    with pytest.raises(Unresponsive) as found:
        ask(cluster, len, of=cluster.free, limits=limits)  # type: ignore[arg-type]
    assert found.value.addresses == cluster.frozen
    assert all(address in str(found.value) for address in cluster.frozen)
    cluster.frozen = {*cluster.free[1:]}
    with pytest.raises(BackendError, match=r"8 of 9 Dask workers, tcp://b:1 first"):
        ask(cluster, len, of=cluster.free, limits=limits)  # type: ignore[arg-type]


def test_those_that_leave_before_they_answer_are_named_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psbench.backends.dask.rpc._THERE_S", 0.01)
    everyone, left = [*cluster.free], cluster.free[0]
    cluster.frozen = {left}
    cluster.free.remove(left)
    with pytest.raises(Departed, match=f"^{left} left the Dask cluster$") as found:
        ask(cluster, len, of=everyone, limits=LIMITS)  # type: ignore[arg-type]
    assert found.value.addresses == {left}


def test_who_stops_a_run_does_not_wait_for_one_that_is_frozen(cluster: Cluster) -> None:
    began = time.monotonic()

    def go_on() -> None:
        if time.monotonic() > began + 0.2:
            raise Cancelled("stopped")

    with pytest.raises(Cancelled):
        ask(cluster, len, of=cluster.free, limits=LIMITS, go_on=go_on)  # type: ignore[arg-type]


def test_a_client_that_is_cut_off_is_told_so(cluster: Cluster) -> None:
    """The client is here: it was too slow, or cut off; the run goes on from its last checkpoint."""
    attempt = attempt_on(cluster, [])
    attempt.control = Control()
    vars(attempt).update(_error_of=lambda role: Cancelled("the client is gone"), _what=lambda role: role)
    with pytest.raises(ServerLost, match=r"connection\.silence_s") as lost:
        attempt._raise_failure("coordinator")
    assert lost.value.role == ""  # its Dask worker may be used again
    attempt.control.stop()
    with pytest.raises(Cancelled):
        attempt._raise_failure("coordinator")


def test_a_loss_that_the_scheduler_has_not_noticed_is_found(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection breaks before the scheduler notices, and its error is all that there is."""
    placed = {"worker-0": "tcp://c:1", "worker-1": "tcp://d:1"}
    places, broken = Places(cluster, placed, LIMITS, lambda: None), Future[None]()  # type: ignore[arg-type]
    broken.set_exception(OSError("stream is closed"))
    with pytest.raises(OSError, match="stream is closed"):  # of something else: all are there
        places.result(broken, "the model")
    places._search.ask(placed.values())  # an answer of before says nothing of now
    while places._search.answered != {*placed.values()}:
        time.sleep(0.001)
    cluster.lost = {"tcp://d:1"}
    with pytest.raises(RolesLost) as found:
        places.result(broken, "the model")
    assert found.value.roles == ["worker-1"]
    # one that does not answer is waited for, unless the run is stopped, and is frozen in the end
    cluster.lost, cluster.frozen = set(), {"tcp://d:1"}
    began, looks = time.monotonic(), list[None]()

    def go_on() -> None:
        looks.append(None)
        if time.monotonic() > began + 0.05:
            raise Cancelled("stopped")

    with pytest.raises(Cancelled):
        Places(cluster, placed, LIMITS, go_on).result(broken, "the model")  # type: ignore[arg-type]
    assert len(looks) < 50  # it sleeps meanwhile
    places = Places(cluster, {"worker-1": "tcp://d:1"}, LIMITS, lambda: None)  # type: ignore[arg-type]
    places._search = PlaceSearch(cluster, ConnectionSettings(answer_within_s=0.01))  # type: ignore[arg-type]
    with pytest.raises(RolesLost) as found:
        places.result(broken, "the model")
    assert (found.value.roles, places.bad) == (["worker-1"], {"tcp://d:1"})
    # who has left the scheduler is lost, though it answers
    cluster.frozen = set()
    cluster.free.remove("tcp://d:1")
    monkeypatch.setattr(PlaceSearch, "answered", property(lambda _: {*placed.values()}))
    with pytest.raises(RolesLost) as found:
        places.result(broken, "the model")
    assert found.value.roles == ["worker-1"]
