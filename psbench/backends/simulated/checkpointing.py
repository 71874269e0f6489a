"""A simulation as a checkpoint, and a simulation that goes on from one.

Steps and messages under way are in no checkpoint: their workers begin anew, with the batches, the step
times and the memory of their codecs that they had when they were last answered. What the last answer has
still to tell workers is in it, so that a barrier goes on as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from itertools import count
from typing import TYPE_CHECKING, Any

from torch import Tensor

from psbench.backends.checkpointing import actions_from_plain, actions_to_plain, named, released, under
from psbench.backends.schedule import next_checkpoint
from psbench.checkpoints.file import Checkpoint
from psbench.checkpoints.folder import CheckpointFolder
from psbench.core import events as ev
from psbench.core.actions import Action
from psbench.core.view import Status
from psbench.training.batches import Position

if TYPE_CHECKING:
    from psbench.backends.simulated.simulation import Simulation

_WAITS = (Status.PUSHED, Status.NEW)
#: what happens to nobody's step; all other happenings are void
_EVENTS: dict[str, Any] = {each.__name__: each for each in (ev.Join, ev.Leave, ev.Timer, ev.Evaluated)}


class CheckpointWriter:
    """Writes checkpoints, at switches and every so many epochs.

    Parameters
    ----------
    simulation : Simulation
    folder : CheckpointFolder or None
        Where they go; none are written without it.
    """

    def __init__(self, simulation: Simulation, folder: CheckpointFolder | None) -> None:
        self._sim, self._folder = simulation, folder
        self._every = simulation.workload.experiment.checkpoint_every
        self.paths: list[str] = [] if folder is None else folder.paths
        #: a checkpoint is due from that many samples on, and under another composition
        self.due_samples, self.composition = 0.0, 0
        self._plan(0.0)

    def _plan(self, epoch: float) -> None:
        """Know that there is one of that epoch."""
        self._due = next_checkpoint(epoch, self._every)
        self.due_samples = self._due * self._sim.workload.dataset_size

    def go_on(self) -> None:
        """Know what the engine has come to."""
        view = self._sim.engine.view
        self.composition = view.composition
        self._plan(view.epoch)

    def label(self) -> str:
        """Return what a checkpoint of the answer that is being performed is called; empty if none is due."""
        engine = self._sim.engine
        view = engine.view
        if view.composition != self.composition:
            return f"switch-version-{view.version}"
        return "" if engine.measuring else f"epoch-{view.epoch:g}"  # half an answer; the next will do

    def record(self, label: str, rest: Sequence[Action]) -> None:
        """Write a checkpoint, with what is still to be performed of the answer."""
        view = self._sim.engine.view
        self.composition = view.composition
        if view.epoch >= self._due:
            self._plan(view.epoch)
        if self._folder is not None:
            self._folder.write(label, checkpoint_of(self._sim, rest))


def checkpoint_of(sim: Simulation, rest: Sequence[Action]) -> Checkpoint:
    """Return all that the simulation needs to go on, with what is still to be performed of an answer."""
    tensors, workers = _workers(sim, released(rest))
    facts = {
        "time_s": sim.now,
        "engine": None if sim.engine.measuring else sim.engine.state_dict(),
        "spec": sim.workload.experiment.spec(),
        "rest": actions_to_plain(rest),
        "events": _agenda(sim),
        "workers": workers,
        "network": sim.network.state_dict(),
        "stop_rules": sim.lookout.ending.state_dict(),
        "next_push": sim.next_push,
        "ring_ends_s": sim.ring_ends,
        "handed_over_s": sim.handed_over,
        "evaluated": list(sim.lookout.evaluated),
        "movement": sim.server.movement,
    }
    if sim.workers is not None:
        told, own = sim.workers.wire.state_dict()
        facts["codecs"] = told
        tensors |= named("codecs/", own)
    for number, (payload, buffers) in sim.payloads.items():
        tensors |= {f"push/{number}/payload": payload, f"push/{number}/buffers": buffers}
    tensors |= {f"version/{version}": held for version, held in sim.meter.held.items()}
    if sim.server.aggregate is not None:
        tensors["aggregate"] = sim.server.aggregate
    made = Checkpoint.of(sim.server, facts)
    made.tensors |= {name: tensor.clone() for name, tensor in tensors.items()}
    return made


def _agenda(sim: Simulation) -> list[list[Any]]:
    entries = sorted(entry for entry in sim.agenda.heap if type(entry[4]).__name__ in _EVENTS)
    return [[*entry[:3], type(entry[4]).__name__, asdict(entry[4])] for entry in entries]


def _workers(sim: Simulation, spared: Collection[int]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors and plain data of each worker that has begun."""
    tensors: dict[str, Tensor] = {}
    told = {}
    for number, seen in sim.engine.view.workers.items():
        waits = number in spared or (seen.status in _WAITS and not seen.overlapping)
        own, plain = sim.worker_state(number, waits)
        told[str(number)] = plain
        tensors |= named(f"worker/{number}/", own)
    return tensors, told


def go_on(sim: Simulation, checkpoint: Checkpoint) -> list[Action]:
    """Put a new simulation where another was, and return what is to be performed first."""
    state, tensors = checkpoint.state, checkpoint.tensors
    engine, experiment = sim.engine, sim.workload.experiment
    engine.load_state_dict(state["engine"])
    view = engine.view
    sim.compose_anew()
    checkpoint.restore(sim.server)
    sim.server.aggregate, sim.server.movement = tensors.get("aggregate"), state["movement"]
    pushes = under("push/", tensors)
    for number in view.pending:
        if f"{number}/payload" in pushes:
            sim.payloads[number] = pushes[f"{number}/payload"], pushes[f"{number}/buffers"]
    sim.meter.held = {int(version): held for version, held in under("version/", tensors).items()}
    sim.now, sim.ring_ends, sim.handed_over = state["time_s"], state["ring_ends_s"], state["handed_over_s"]
    sim.network.load_state_dict(state["network"])
    sim.lookout.ending.load_state_dict(state["stop_rules"], view.epoch)
    sim.push_ids = count(state["next_push"])
    sim.lookout.evaluated = tuple(state["evaluated"])
    sim.recorder.go_on()
    _expect(sim, state["events"])
    _go_on_workers(sim, state, tensors)
    rest = actions_from_plain(state["rest"], sim.composition.own_steps)
    return [*rest, *engine.resume(released(rest), experiment.stop.epochs)]


def _expect(sim: Simulation, agenda: Sequence[Sequence[Any]]) -> None:
    """Let happen what had not happened yet, in the order in which events of one instant are to come."""
    for time, priority, worker, name, fields in agenda:
        event = _EVENTS[name](**fields)
        sim.agenda.add(time, priority, worker, event)
        if isinstance(event, ev.Evaluated):
            sim.lookout.unseen = event


def _go_on_workers(sim: Simulation, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    used = [0] * sim.workload.profile.num_workers
    for name, plain in state["workers"].items():
        number = int(name)
        used[number] = plain["used"]
        if plain["position"] is not None:
            sim.trainer.go_to(number, Position(*plain["position"]))
        sim.load_worker(number, plain, under(f"worker/{name}/", tensors))
    sim.step_times.load_state_dict({"used": used})
    if sim.workers is not None:
        sim.workers.wire.load_state_dict(state["codecs"], under("codecs/", tensors))
