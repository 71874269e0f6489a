"""Checkpoints of a live run: what servers and workers tell at one version, and how a run begins from that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from psbench.backends.checkpointing import actions_from_plain, actions_to_plain, named, released, under
from psbench.backends.dask.protocol.roles import CLIENT, worker_name
from psbench.backends.dask.protocol.transport import pack
from psbench.backends.dask.server.store import State
from psbench.backends.schedule import next_checkpoint
from psbench.checkpoints.file import Checkpoint
from psbench.core import events as ev
from psbench.core.actions import Action
from psbench.core.view import Status

if TYPE_CHECKING:
    from psbench.backends.dask.coordinator.coordinator import Coordinator

#: what a keeper without codecs has written
NO_CODEC = {"draws": -1, "aggregates": 0}
_WAITS = (Status.PUSHED, Status.NEW)


@dataclass
class Start:
    """Where a live run goes on: a checkpoint, and what its log has so far."""

    checkpoint: Checkpoint
    rows: int
    texts: list[str]


@dataclass
class _Record:
    """A checkpoint that some have still to tell their part of."""

    label: str
    state: dict[str, Any]
    tensors: State
    missing: set[int]  # workers; -1 for the keeper


class CheckpointWriter:
    """Has checkpoints written, at switches and every so many epochs.

    Everybody is asked before the answer's releases are sent, and tells what it had then, while training goes
    on. Steps and messages under way are in none: a worker that computes tells what it had when it was
    answered.

    Parameters
    ----------
    conductor : Conductor
    """

    def __init__(self, conductor: Coordinator) -> None:
        self._run, self._every = conductor, conductor.workload.experiment.checkpoint_every
        self._due = next_checkpoint(0.0, self._every)
        self._composition = 0
        self._records: dict[int, _Record] = {}

    def __len__(self) -> int:
        return len(self._records)

    def go_on(self) -> None:
        """Know what the engine has come to."""
        view = self._run.engine.view
        self._composition, self._due = view.composition, next_checkpoint(view.epoch, self._every)

    def label(self) -> str:
        """Return what a checkpoint of the answer that is being performed is called; empty if none is due."""
        engine = self._run.engine
        view = engine.view
        if view.composition != self._composition:
            return f"switch-version-{view.version}"
        due = view.epoch >= self._due and not engine.measuring
        return f"epoch-{view.epoch:g}" if due else ""

    def record(self, label: str, rest: Sequence[Action]) -> None:
        """Ask everybody, with what is still to be performed of the answer."""
        run = self._run
        run.log_sender.send()
        self.go_on()
        spared, tag = released(rest), next(run.numbers)
        view = run.engine.view
        waits = {
            w.id: w.id in spared or (w.status in _WAITS and not w.overlapping)
            for w in view.workers.values()
            if w.status is not Status.GONE and worker_name(w.id) not in run.roll.gone
        }
        keys = [(push.worker, push.ticket) for push in view.pending.values()]
        self._records[tag] = _Record(label, self._facts(rest), {}, {-1, *waits})
        for worker, idle in waits.items():
            run.hub.tell(worker_name(worker), {"do": "checkpoint", "tag": tag, "waits": idle})
        numbers = {(push.worker, push.ticket): push.id for push in view.pending.values()}
        run.keeper.record(keys, lambda state: self._told(tag, -1, _kept(state, numbers), {}))

    def _facts(self, rest: Sequence[Action]) -> dict[str, Any]:
        run = self._run
        engine = run.engine
        timers = [[at, 2, 0, "Timer", asdict(e)] for at, e in run.agenda.entries() if isinstance(e, ev.Timer)]
        return {
            "time_s": run.now,
            "engine": None if engine.measuring else engine.state_dict(),
            "logged": list(run.log_sender.logged),
            "rest": actions_to_plain(rest),
            "events": timers,
            "workers": {},
            "codecs": run.keeper.wire,
            "network": {"up_free_s": run.now, "down_free_s": run.now, "carried_bytes": 0.0},
            "stop_rules": run.lookout.ending.state_dict(),
            "next_push": run.next_push,
            "ring_ends_s": 0.0,
            "handed_over_s": 0.0,
            "evaluated": [-1, -1],
            "movement": run.keeper.movement,
            "awaited": run.lookout.evaluations.numbers_at(engine.view.version),
        }

    def told(self, worker: int, tag: int, tensors: State, plain: dict[str, Any]) -> None:
        """Take what a worker tells."""
        self._told(tag, worker, named(f"worker/{worker}/", tensors), plain)

    def leave(self, worker: int) -> None:
        """Wait no longer for a worker that is gone."""
        for tag in list(self._records):
            self._told(tag, worker, {}, None)

    def _told(self, tag: int, who: int, tensors: State, plain: dict[str, Any] | None) -> None:
        record = self._records.get(tag)
        if record is None or who not in record.missing:
            return
        record.missing.discard(who)
        record.tensors |= tensors
        if who >= 0 and plain is not None:
            record.state["workers"][str(who)] = plain
        if not record.missing:
            del self._records[tag]
            self._store(record)

    def _store(self, record: _Record) -> None:
        shapes, flat = pack(record.tensors)
        told = {"do": "checkpoint", "label": record.label, "shapes": shapes, "state": record.state}
        self._run.hub.tell(CLIENT, told, flat)


def _kept(state: State, numbers: dict[tuple[int, int], int]) -> State:
    """Name a keeper's tensors as checkpoints do."""
    found: State = {}
    for name, tensor in state.items():
        kind, _, which = name.partition("/")
        if kind in ("payload", "buffers") and which:
            worker, ticket = map(int, which.split("/"))
            found[f"push/{numbers[worker, ticket]}/{kind}"] = tensor
        else:
            found[{"held": f"version/{which}", "unsaid": "codecs/residual"}.get(kind, name)] = tensor
    return found


def keeper_state(checkpoint: Checkpoint) -> State:
    """Return what a keeper begins with, named as it names it."""
    tensors = checkpoint.tensors
    plain = {"parameters", "buffers", "aggregate"}
    state = {n: t for n, t in tensors.items() if n in plain or n.startswith("optimizer/")}
    state |= named("held/", under("version/", tensors))
    if "codecs/residual" in tensors:
        state["unsaid"] = tensors["codecs/residual"]
    for push in checkpoint.state["engine"]["view"]["pending"]:
        for kind in ("payload", "buffers"):
            name = f"push/{push['id']}/{kind}"
            if name in tensors:
                state[f"{kind}/{push['worker']}/{push['ticket']}"] = tensors[name]
    for worker in checkpoint.state["workers"]:
        if f"worker/{worker}/held" in tensors:
            state[f"worker/{worker}"] = tensors[f"worker/{worker}/held"]
    return state


def tell_workers(run: Coordinator, checkpoint: Checkpoint) -> None:
    """Tell each worker where it was."""
    state, view = checkpoint.state, run.engine.view
    for number in run.roll.workers():
        own: dict[str, Tensor] = under(f"worker/{number}/", checkpoint.tensors)
        shapes, flat = pack(own)
        was = state["workers"].get(str(number))
        plain = {"composition": view.composition, "was": was, "ranges": view.ranges}
        run.hub.tell(worker_name(number), {"do": "resume", "shapes": shapes} | plain, flat)


def first_actions(run: Coordinator, checkpoint: Checkpoint) -> list[Action]:
    """Return what is to be performed first."""
    rest = actions_from_plain(checkpoint.state["rest"], run.engine.composition.own_steps)
    lost = [a for a in rest if getattr(a, "worker", None) not in run.roll.workers() and hasattr(a, "worker")]
    rest = [action for action in rest if action not in lost]
    return [*rest, *run.engine.resume(released(rest), run.workload.experiment.stop.epochs)]


def awaited(run: Coordinator, state: dict[str, Any]) -> list[ev.Event]:
    """Have timers and evaluations that had not come yet come, and return those that are due."""
    events: list[ev.Event] = []
    for at, _, _, name, fields in state["events"]:
        if name == "Timer":
            run.agenda.add(at, ev.Timer(**fields))
        elif name == "Evaluated":
            events.append(ev.Evaluated(**fields))
    for number in state.get("awaited", ()):
        run.lookout.evaluate(number)
    return events
