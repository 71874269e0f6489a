"""What a live run is given and what it says, line by line, in scenes that are played without a process.

`python tests/testing/transcripts.py` writes the files anew; a change of a line is a change of what a live run
does, and is looked at as such.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict
from torch import Tensor

from psbench.backends.dask.coordinator.live_run import LiveRun
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.instructions import Input, Instruction, Tick
from psbench.backends.dask.protocol.transport import Received
from psbench.training.build import Workload
from tests.live_runs import World, scenes

FOLDER = Path(__file__).parent / "transcripts"
SERVERS = {"name": "parameter_server", "servers": 2}
LOSS_WEIGHTED = {"consistency": "asp", "aggregation": "loss_weighted", "communication": "local_sgd"}
MOVING = SERVERS | {
    "assignment": "layer",
    "reassignment": {"name": "by_load", "every": 2, "threshold": 1.05},
}


class Written(LiveRun):
    """A live run whose inputs and instructions are written down."""

    def __init__(self, *given: Any) -> None:
        self.lines: list[str] = []
        super().__init__(*given)

    def handle(self, given: Input, now: float) -> list[Instruction]:
        """Write down what comes, and what is said."""
        said = super().handle(given, now)
        if said or not isinstance(given, Tick):
            self.lines.append(f"{now:.2f} {words(given)}")
            self.lines += [f"    {words(each)}" for each in said]
        return said


def words(value: Any) -> str:
    """Return plain data, messages and tensors in words."""
    if isinstance(value, Tensor):
        return f"<{len(value)} of {float(value.double().mean()) if len(value) else 0:.4g}>"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{words(key)}: {words(each)}" for key, each in value.items()) + "}"
    if isinstance(value, bytes):
        return f"<{len(value)} bytes {zlib.crc32(value):08x}>"
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    if isinstance(value, Struct):
        return _fields(value, asdict(value))
    if is_dataclass(value):
        return _fields(value, {field.name: getattr(value, field.name) for field in fields(value)})
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _fields(value, value._asdict())
    if isinstance(value, list | tuple | set | frozenset):
        return "[" + ", ".join(map(words, value)) + "]"
    return str(value)


def _fields(value: Any, shown: Mapping[str, Any]) -> str:
    state = shown.get("state")
    if isinstance(state, Mapping) and isinstance(state.get("engine"), Mapping):
        engine = f"at version {state['engine']['view']['version']}"
        shown = {**shown, "state": {**state, "engine": engine}}
    return f"{type(value).__name__}({', '.join(f'{name} {words(each)}' for name, each in shown.items())})"


def workload(strategy: Any, workers: int = 2, **changes: Any) -> Workload:
    """Return that of a small experiment, which is evaluated at its ends."""
    return scenes.workload(strategy, workers, **{"stop": {"updates": 4}, "evaluate_every": 100} | changes)


def world(of: Workload, before: World | None = None) -> World:
    """Return the processes of a run whose instructions are written down."""
    return World(of, np.random.Generator(np.random.PCG64(2 if before else 1)), Written, before)


Scene: TypeAlias = Callable[[], World | Written]


def a_barrier_with_two_servers() -> World:
    run = world(workload({"name": "bsp", "placement": SERVERS}, evaluate_every=0.01, checkpoint_every=0.01))
    run.heal()
    return run


def a_worker_is_lost_at_a_barrier() -> World:
    run = world(workload("bsp", 3))
    run.let_all_happen()
    run.kill("worker 1")
    run.heal()
    return run


def a_worker_is_lost_and_replaced() -> World:
    run = world(workload({"name": "asp", "placement": SERVERS}, recovery={"min_workers": 1}))
    run.let_all_happen()
    run.kill("worker 1")
    for _ in range(3):
        run.let_all_happen()
    run.heal()
    return run


def evaluator_and_replica_are_lost() -> World:
    of = workload("ssp", recovery={"replicas": 1}, evaluate_every=0.01, stop={"updates": 8})
    run = world(of)
    run.let_all_happen()
    run.kill("evaluator")
    run.let_all_happen()
    run.kill("replica")
    run.heal()
    return run


def a_ring_loses_a_member() -> World:
    run = world(workload("all_reduce", 3))
    for _ in range(2):
        run.let_all_happen()
    run.kill("worker 0")
    run.heal()
    return run


def a_switch_by_hand_and_a_stop_with_a_checkpoint() -> World:
    switch = {"name": "strategy_switch", "rule": "manual", "first": "ssp", "second": "all_reduce"}
    run = world(workload(switch, stop={"updates": 50}))
    run.let_all_happen()
    run.ask(msg.RequestSwitch(None))
    for _ in range(4):
        run.let_all_happen()
    run.ask(msg.RequestStop(True))
    run.heal()
    return run


def entries_move_between_servers() -> World:
    run = world(workload({"name": "asp", "placement": MOVING}))
    run.heal()
    return run


def workers_vote_and_a_stop_by_hand() -> World:
    run = world(workload("selsync", evaluate_every=0.01, stop={"updates": 50}))
    for _ in range(3):
        run.let_all_happen()
    run.ask(msg.RequestStop(False))
    run.heal()
    return run


def a_server_is_retired() -> World:
    run = world(workload({"name": "ssp", "placement": SERVERS}, stop={"updates": 50}))
    for _ in range(2):
        run.let_all_happen()
    run.ask(msg.RoleLeaves("server 1"))
    run.heal()
    return run


def a_worker_is_retired_and_another_sends_nonsense() -> World:
    run = world(workload("asp", 3))
    run.let_all_happen()
    run.ask(msg.RoleLeaves("worker 2"))
    run.let_all_happen()
    run.refuse("worker 1")
    run.heal()
    return run


def losses_are_measured() -> World:
    run = world(workload("adacomm", stop={"updates": 6}))
    for _ in range(3):
        run.let_all_happen()
    run.kill("evaluator")
    run.heal()
    return run


def a_profile_has_workers_fail_and_join() -> World:
    cluster = {"workers": 2, "step_time": "constant"}
    cluster |= {"failures": [{"worker": 1, "at_s": 0.15, "rejoin_s": 0.35}]}
    run = world(workload("local_sgd", cluster=cluster, stop={"seconds": 0.8}))
    run.heal()
    return run


def a_server_is_lost() -> World:
    of = workload({"name": "asp", "placement": SERVERS}, recovery={"replicas": 1}, stop={"updates": 50})
    run = world(of)
    for _ in range(2):
        run.let_all_happen()
    run.kill("server 1")
    run.heal()
    return run


def a_process_does_not_report() -> Written:
    connection = {"start_within_s": 25, "say_after_s": 10}
    others = ("worker 0", "evaluator", "client")
    live = Written(workload("asp", connection=connection), [*others, "worker 1"], None)
    for name in others:
        live.handle(Received(name, msg.Hello(name)), 0.0)
        live.handle(Received(name, msg.Ready()), 0.5)
    for second in range(1, 27):
        live.handle(Tick(), float(second))
    return live


def a_run_goes_on_from_a_checkpoint() -> World:
    of = workload("ssp", checkpoint_every=0.01, stop={"updates": 8})
    first = world(of)
    while first.record.start is None:
        first.let_all_happen()
    run = world(of, first)
    run.heal()
    return run


def there_is_no_place_for_the_lost() -> World:
    run = world(workload("asp", 3, recovery={"min_workers": 1}, evaluate_every=0.01))
    run.kill("worker 2")  # before it connects
    run.is_healing = True
    run.let_all_happen()
    for _ in range(4):
        run.report_dead()
        run.pass_time(0.25)
        _settle(run)
    run.find_places(False)
    run.let_all_happen()
    run.kill("evaluator")
    for _ in range(2):
        run.pass_time(0.25)
        _settle(run)
    run.find_places(False)
    run.heal()
    return run


def a_rule_needs_the_evaluator_that_is_lost() -> World:
    run = world(workload("asp", stop={"epochs": 3, "patience": 2}))
    run.let_all_happen()
    run.kill("evaluator")
    run.is_healing = True
    for _ in range(2):
        run.pass_time(0.25)
        _settle(run)
    run.find_places(False)
    run.heal()
    return run


def an_update_moves_little() -> World:
    run = world(workload("bsp", stop={"epochs": 1, "tolerance": 2.0}))
    run.heal()
    return run


def the_replica_is_lost_while_it_is_awaited() -> World:
    run = world(workload("asp", recovery={"replicas": 1}, stop={"updates": 3}))
    run.is_healing = True
    while ("coordinator", "replica") not in run.waiting():
        run.arrive(run.waiting()[0])
    run.kill("replica")
    run.heal()
    return run


def all_workers_are_away_for_a_while() -> World:
    failures = [{"worker": worker, "at_s": 0.15, "rejoin_s": 0.45} for worker in (0, 1)]
    cluster = {"workers": 2, "step_time": "constant", "failures": failures}
    run = world(workload("ssp", cluster=cluster, stop={"updates": 6}))
    run.heal()
    return run


def a_lost_worker_of_which_a_join_is_planned() -> World:
    cluster = {"workers": 2, "step_time": "constant", "joins": [{"worker": 1, "at_s": 0.6}]}
    run = world(workload("asp", cluster=cluster, recovery={"replace_workers": True}, stop={"updates": 8}))
    run.let_all_happen()
    run.kill("worker 1")
    run.heal()
    return run


def pushes_are_judged_by_their_distance() -> World:
    run = world(workload({"consistency": "asp", "aggregation": "bounded_step"}))
    run.heal()
    return run


def pushes_are_judged_by_their_products() -> World:
    run = world(workload({"consistency": "bsp", "aggregation": "krum"}, 4))
    run.heal()
    return run


def losses_of_candidates_are_measured() -> World:
    run = world(workload(LOSS_WEIGHTED, stop={"updates": 3}))
    run.heal()
    return run


def _settle(run: World) -> None:
    while pairs := run.waiting():
        run.arrive(pairs[0])


SCENES: tuple[Scene, ...] = (
    a_barrier_with_two_servers,
    a_worker_is_lost_at_a_barrier,
    a_worker_is_lost_and_replaced,
    evaluator_and_replica_are_lost,
    a_ring_loses_a_member,
    a_switch_by_hand_and_a_stop_with_a_checkpoint,
    entries_move_between_servers,
    workers_vote_and_a_stop_by_hand,
    a_server_is_retired,
    a_worker_is_retired_and_another_sends_nonsense,
    losses_are_measured,
    a_profile_has_workers_fail_and_join,
    a_server_is_lost,
    a_process_does_not_report,
    a_run_goes_on_from_a_checkpoint,
    there_is_no_place_for_the_lost,
    a_rule_needs_the_evaluator_that_is_lost,
    an_update_moves_little,
    the_replica_is_lost_while_it_is_awaited,
    all_workers_are_away_for_a_while,
    a_lost_worker_of_which_a_join_is_planned,
    pushes_are_judged_by_their_distance,
    pushes_are_judged_by_their_products,
    losses_of_candidates_are_measured,
)


def transcript(scene: Scene) -> str:
    """Return a scene in words."""
    played = scene()
    live = played if isinstance(played, Written) else played.live
    assert isinstance(live, Written)
    return "\n".join([*live.lines, ""])


def file_of(scene: Scene) -> Path:
    """Return where its transcript is kept."""
    return FOLDER / f"{scene.__name__}.txt"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in SCENES:
        file_of(each).write_text(transcript(each))
