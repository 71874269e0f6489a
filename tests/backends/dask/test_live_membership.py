"""Workers that come late, fail and come back in a live run, and switches between any two strategies."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest
import torch
from test_live_workers import (
    GA,
    PA,
    SERVERS,
    count,
    experiment,
)
from threaded_run import ThreadedRun
from toybox import at_night

from psbench.backends.dask.protocol.messages import PressWorker, RequestStop, RequestSwitch
from psbench.core.log import Kind

pytestmark = pytest.mark.usefixtures("one_torch_thread")


# -------------------------------------------------------------------- comings and goings

COMINGS = {
    "workers": 3,
    "step_time": "constant",
    "joins": [{"worker": 2, "at_s": 0.15}],
    "failures": [{"worker": 1, "at_s": 0.2, "rejoin_s": 0.3}, {"worker": 0, "at_s": 0.4, "rejoin_s": 0.5}],
}


def all_are_back(done: ThreadedRun, failures: int, kind: Kind) -> bool:
    """Return True if all workers are back, and the log has such a row of each since the last one came."""
    joins, found = done.log.of_kind(Kind.JOIN), done.log.of_kind(kind)
    if len(joins["row"]) < 3 + failures:
        return False
    return {0, 1, 2} == set(found["worker"][found["time_s"] > joins["time_s"][-1]])


def until_all_are_back(strategy: Any, cluster: Any = COMINGS, kind: Kind = Kind.PUSH) -> ThreadedRun:
    asked: list[bool] = []

    def on_rows(done: ThreadedRun, client: Any) -> None:
        if not asked and all_are_back(done, len(cluster["failures"]), kind):
            asked.append(True)
            client.send(RequestStop(checkpoint=False))

    spec = experiment(strategy, 3, cluster=cluster, stop={"updates": 10**9}, evaluate_every=50)
    done = ThreadedRun(spec).run(on_rows)
    assert done.error is None
    return done


@pytest.mark.by_day(4)
@pytest.mark.parametrize(
    "strategy",
    [
        *("asp", "k_batch_bsp", PA, "flex_rr", "all_reduce"),
        *({"name": "osp", "placement": SERVERS}, {"name": "bsp", "placement": SERVERS}),
        *({"name": "local_sgd", "placement": "all_reduce"}, GA | {"placement": "all_reduce"}),
        *at_night("bsp", "ssp", "osp", "local_sgd", GA),
    ],
    ids=json.dumps,
)
def test_workers_come_late_fail_and_come_back(strategy: Any) -> None:
    done = until_all_are_back(strategy)
    joins, leaves = done.log.of_kind(Kind.JOIN), done.log.of_kind(Kind.LEAVE)
    assert joins["worker"].tolist() == [0, 1, 2, 1, 0]
    assert leaves["worker"].tolist() == [1, 0]
    assert done.outcome.facts["lost_workers"] == []
    assert torch.isfinite(done.parameters).all()
    pushes = done.log.of_kind(Kind.PUSH)
    away = (pushes["worker"] == 1) & (pushes["time_s"] > leaves["time_s"][0])
    assert not (away & (pushes["time_s"] < joins["time_s"][3])).any()


def test_a_newcomer_of_a_ring_is_given_the_state_first() -> None:
    """The model, the optimizer's momentum, and what the exchange keeps."""
    # a push alone is not enough: the run may stop before the first round of all three is complete
    done = until_all_are_back({"name": "power_sgd", "start_iter": 2}, kind=Kind.APPLY)
    applied = done.log.of_kind(Kind.APPLY)
    versions = [applied["version"][applied["worker"] == worker][-1] for worker in range(3)]
    # the stop may come in the middle of a round: two of the three are then at one version
    there = max(([w for w in range(3) if versions[w] == version] for version in versions), key=len)
    assert len(there) >= 2
    replicas = [done.workers[worker].member.replica.tensors() for worker in there]
    kept = {"parameters", "optimizer/momentum_buffer", "aggregation/power_sgd/factors"}
    assert all(each.keys() >= kept for each in replicas)
    assert all(torch.equal(each[name], replicas[0][name]) for each in replicas for name in kept)


def test_everybody_may_be_gone_for_a_while() -> None:
    cluster = {"workers": 3, "failures": [{"worker": w, "at_s": 0.1, "rejoin_s": 0.3} for w in range(3)]}
    for strategy in ("asp", "all_reduce"):
        done = until_all_are_back(strategy, cluster)
        assert count(done.log, Kind.LEAVE) == 3


@pytest.mark.parametrize("strategy", ["ssp", "all_reduce"])
def test_a_worker_is_lost_back_and_slower_by_hand(strategy: str) -> None:
    presses = [(0, "speed", 0.5), (1, "lost", 1.0), (1, "lost", 1.0), (2, "lost", 1.0), (0, "lost", 1.0)]
    asked: list[str] = []

    def on_rows(done: ThreadedRun, client: Any) -> None:
        if "press" not in asked and len(done.log) > 30:
            asked.append("press")
            for press in presses:
                client.send(PressWorker(*press))
        if "back" not in asked and count(done.log, Kind.LEAVE) == 2:
            asked.append("back")
            client.send(PressWorker(1, "back", 1.0))
            client.send(PressWorker(0, "speed", 0.5))
        pushes = done.log.of_kind(Kind.PUSH)
        if "back" in asked and count(done.log, Kind.JOIN) == 4 and (pushes["worker"][-6:] == 1).any():
            client.send(RequestStop(checkpoint=False))

    done = ThreadedRun(experiment(strategy, 3, stop={"updates": 10**9})).run(on_rows)
    assert done.error is None
    assert done.log.of_kind(Kind.LEAVE)["worker"].tolist() == [1, 2]
    assert done.log.of_kind(Kind.JOIN)["worker"].tolist() == [0, 1, 2, 1]
    assert done.outcome.facts["lost_workers"] == [2]
    assert done.workers[0]._machine.by_hand == 0.25
    said = [text.partition(" at ")[0] for text in done.incidents]
    assert said == [
        *(
            "worker 0 was made 0.5 times as fast by hand",
            "worker 1 was removed by hand",
            "worker 1 is already lost",
        ),
        *("worker 2 was removed by hand", "worker 0 is the last worker and cannot be lost"),
        *("worker 1 was brought back by hand", "worker 0 was made 0.5 times as fast by hand"),
    ]


@pytest.mark.parametrize("strategy", ["bsp", "all_reduce", *at_night("asp", "local_sgd")])
def test_a_straggler_is_dropped_and_taken_back(strategy: str) -> None:
    part = {"name": "drop_stragglers", "readmit_after_s": 0.05, "most": 0.4, "window": 2, "patience": 1}
    cluster = {"workers": 3, "speed": [1, 1, 0.1], "step_time": "constant"}
    asked: list[bool] = []

    def on_rows(done: ThreadedRun, client: Any) -> None:
        if not asked and count(done.log, Kind.DROP) >= 3:
            asked.append(True)
            client.send(RequestStop(checkpoint=False))

    spec = experiment({"name": strategy, "stragglers": part}, 3, cluster=cluster, stop={"updates": 10**9})
    done = ThreadedRun(spec).run(on_rows)
    assert done.error is None
    assert count(done.log, Kind.READMIT) >= 2
    assert torch.isfinite(done.parameters).all()


# -------------------------------------------------------------------- switches

KINDS = ["asp", "local_sgd", "all_reduce", "osp", PA, {"name": "osp", "placement": SERVERS}]
NEIGHBOURS = [(a, b) for i, a in enumerate(KINDS) for b in (KINDS[i - 1], KINDS[(i + 1) % len(KINDS)])]
PAIRS = [
    pytest.param(pair, marks=() if pair in NEIGHBOURS else pytest.mark.nightly, id=json.dumps(pair))
    for pair in permutations(KINDS, 2)
]


def switch_by_hand(after: int) -> Any:
    """Return what asks for a switch when the log has so many rows, and to stop when a version came after."""
    asked: list[str] = []

    def on_rows(done: ThreadedRun, client: Any) -> None:
        kinds = done.log.rows()["kind"].tolist()
        if not asked and len(kinds) > after:
            asked.append("switch")
            client.send(RequestSwitch(None))
        handed = kinds.index(Kind.HANDOVER) if Kind.HANDOVER in kinds else len(kinds)
        if len(asked) == 1 and Kind.APPLY in kinds[handed:]:
            asked.append("stop")
            client.send(RequestStop(checkpoint=False))

    return on_rows


@pytest.mark.by_day(4)
@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS)
def test_any_pair_is_switched_between_live(pair: tuple[Any, Any]) -> None:
    strategy = {"name": "strategy_switch", "first": pair[0], "second": pair[1], "rule": "manual"}
    spec = experiment(strategy, 3, stop={"updates": 10**9}, evaluate_every=50)
    done = ThreadedRun(spec).run(switch_by_hand(after=100))
    assert done.error is None
    rows = done.log.rows()
    at = int((rows["kind"] == Kind.HANDOVER).argmax())
    before, after = rows[:at], rows[at:]
    pushed = before["id"][before["kind"] == Kind.PUSH]
    settled = before["id"][(before["kind"] == Kind.APPLY) | (before["kind"] == Kind.DISCARD)]
    assert count(done.log, Kind.HANDOVER) == 1
    assert sorted(pushed) == sorted(settled)  # nothing is lost on the way, nothing counts twice
    assert (after["kind"] == Kind.APPLY).sum() > 0
    assert torch.isfinite(done.parameters).all()


def test_gradients_of_overlapping_workers_arrive_before_a_switch() -> None:
    """Steps that were computed while the last push was under way are pushed too."""
    strategy = {"name": "strategy_switch", "first": "osp", "second": "asp", "rule": "manual"}
    spec = experiment(strategy, 3, stop={"updates": 10**9}, evaluate_every=50)
    done = ThreadedRun(spec).run(switch_by_hand(after=50))
    rows = done.log.rows()
    at = int((rows["kind"] == Kind.HANDOVER).argmax())
    last = {int(row["worker"]): row for row in rows[:at] if row["kind"] == Kind.PUSH}
    goes_on = [json.loads(done.log.text(row["text"]) or "{}").get("goes_on") for row in last.values()]
    assert goes_on == [None, None, None]
