"""Which Dask worker gets which role, by what is free and able; with a real cluster: `test_real_cluster`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

import pytest

from psbench.backends.dask.placement import Room, find_room, place, place_with_resources, room_on
from psbench.clusters.connection import ConnectionSettings
from psbench.errors import BackendError

LIMITS = ConnectionSettings()
ROLES = ["coordinator", "worker 0", "worker 1", "evaluator"]


class Cluster:
    """Answers what a Dask client is asked for a placement."""

    class Scheduler:
        address = "tcp://127.0.0.1:1"

    scheduler = Scheduler()
    status = "running"

    def __init__(
        self,
        threads: Mapping[str, int],
        tasks: Mapping[str, Collection[str]] | None = None,
        resources: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        self.threads, self.tasks, self.resources = threads, dict(tasks or {}), resources or {}

    def sync(self, question: Any) -> Any:
        return asyncio.run(question())

    async def nthreads(self) -> dict[str, int]:
        return dict(self.threads)

    async def processing(self) -> dict[str, Collection[str]]:
        return self.tasks

    async def run_on_scheduler(self, _function: Any) -> dict[str, dict[str, tuple[float, float]]]:
        return {
            address: {name: (value, 0.0) for name, value in have.items()}
            for address, have in self.resources.items()
        }


def room_of(*arguments: Any, without: Collection[str] = (), needs: Mapping[str, float] | None = None) -> Room:
    client: Any = Cluster(*arguments)
    return room_on(client, ConnectionSettings(resources=needs or {}), without)


def test_what_has_a_task_is_not_free_and_its_run_is_named() -> None:
    tasks = {"a": ["psbench-ssp-0123456789abcdef-worker-0"], "b": ["sum-1", "sum-2"]}
    room = room_of({"a": 1, "b": 3, "c": 2}, tasks)
    assert (room.threads, room.free) == ({"a": 1, "b": 3, "c": 2}, {"b": 1, "c": 2})
    assert room.holders == {"psbench run 'ssp'": 1, "other work": 2}
    assert room.has(ROLES[:3])
    assert not room.has(ROLES)


def test_a_director_takes_no_thread_and_its_worker_comes_last() -> None:
    tasks = {"a": ["psbench-ssp-0123456789abcdef-director"]}
    room = room_of({"a": 1, "b": 1, "c": 1}, tasks)
    assert (room.free, room.holders) == ({"a": 1, "b": 1, "c": 1}, {})
    assert "a" not in place(["coordinator", "worker 0"], room.free).values()
    assert room.take("worker 0") == "b"
    assert room_of({"a": 1}, {"a": ["their-director"]}).free == {}


def test_workers_that_leave_are_not_counted() -> None:
    room = room_of({"a": 1, "b": 1}, {"a": ["sum-1"]}, without=["a"])
    assert (room.threads, room.free, room.holders) == ({"b": 1}, {"b": 1}, {})


def test_resources_are_for_training_workers_at_most_one_a_thread() -> None:
    have = {"a": {"GPU": 2.0}, "b": {"GPU": 3.0}, "c": {"memory": 9.0}, "d": {"GPU": 1.0}}
    room = room_of({"a": 4, "b": 1, "c": 4, "d": 1}, {"d": ["sum-1"]}, have, needs={"GPU": 1.0})
    assert room.able == {"a": 2, "b": 1}
    assert room.has(["coordinator", "worker 0", "worker 1", "worker 2"])
    assert not room.has(["worker 0", "worker 1", "worker 2", "worker 3"])
    placed = place_with_resources(ROLES, room)
    assert {placed["worker 0"], placed["worker 1"]} == {"a", "b"}
    assert placed["coordinator"] == "c"
    client: Any = Cluster(dict.fromkeys(have, 4), None, have)
    limits = ConnectionSettings(resources={"TPU": 1.0})
    has = r"of which 0 have room: TPU: 1 is asked .* have GPU: 2 \(1 of 4\), .*memory: 9 \(1 of 4\)"
    with pytest.raises(BackendError, match=has):
        find_room(client, ROLES, 4, 0.0, lambda: None, limits=limits, ask=lambda count: None)


def test_the_roomiest_is_taken_and_what_is_used_up_is_gone() -> None:
    room = Room({"a": 1, "b": 2}, {"a": 1, "b": 2}, {})
    assert [room.take("worker 0"), room.take("worker 1", barred=["a"])] == ["b", "b"]
    assert room.free == {"a": 1}
    assert [room.take("evaluator"), room.take("evaluator")] == ["a", None]
    limited = Room({"a": 1, "b": 2}, {"a": 1, "b": 2}, {}, able={"a": 1})
    assert [limited.take("worker 0"), limited.take("worker 1"), limited.take("evaluator")] == ["a", None, "b"]


@pytest.mark.parametrize(
    ("threads", "tasks", "says"),
    [
        (
            {"a": 1},
            {},
            r"has 1 workers with 1 threads, and the run needs 2 \(coordinator, worker 0\): add Dask",
        ),
        (
            {"a": 2},
            {"a": ["psbench-asp-0123456789abcdef-evaluator"]},
            r"1 free of 2 .*psbench run 'asp' has 1",
        ),
    ],
)
def test_too_little_room_is_told_with_who_has_it(threads: Any, tasks: Any, says: str) -> None:
    client: Any = Cluster(threads, tasks)
    asked: list[int] = []
    with pytest.raises(BackendError, match=says):
        find_room(client, ROLES[:3], 2, 0.0, lambda: None, limits=LIMITS, ask=asked.append)
    assert not asked  # there was no time to wait


def test_a_run_waits_as_long_as_it_is_told_and_asks_for_room() -> None:
    cluster = Cluster({"a": 1})
    asked: list[int] = []

    def come(count: int) -> None:
        asked.append(count)
        cluster.threads = {"a": 1, "b": 2}

    client: Any = cluster
    room = find_room(client, ROLES, 3, 30.0, lambda: None, limits=LIMITS, ask=come)
    assert (room.free, asked) == ({"a": 1, "b": 2}, [4])


def test_spread_takes_machines_in_turn_and_pack_one_after_another() -> None:
    threads = dict.fromkeys(["tcp://10.0.0.1:1", "tcp://10.0.0.1:2", "tcp://10.0.0.2:1"], 1)
    spread, packed = (list(place(ROLES[:2], threads, how).values()) for how in ("spread", "pack"))
    assert [address[:14] for address in spread] == ["tcp://10.0.0.1", "tcp://10.0.0.2"]
    assert [address[:14] for address in packed] == ["tcp://10.0.0.1"] * 2
