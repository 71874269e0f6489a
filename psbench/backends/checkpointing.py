"""State of a run in a checkpoint, besides the model, and its use by a resumed run; for both backends."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

from torch import Tensor

from psbench.checkpoints.file import Checkpoint
from psbench.core import actions as act
from psbench.core.actions import Action
from psbench.core.engine import Engine
from psbench.core.peer_to_peer import PeerToPeer
from psbench.core.strategy import Strategy
from psbench.core.view import WAITING, ClusterView, Status, WorkerView

#: actions that may follow the model of an answer and have an effect afterwards: a checkpoint holds them
_LATE: dict[str, type[act.Release] | type[act.Tell] | type[act.SetTimer]] = {
    "release": act.Release,
    "tell": act.Tell,
    "wake": act.SetTimer,
}


def is_late(action: Action) -> bool:
    """Return whether an action comes after the model update of its answer, and so after its checkpoint."""
    return not isinstance(action, (act.Apply, act.Handover, act.Reassign, act.Mix))


def split_at_model(actions: Sequence[Action]) -> tuple[Sequence[Action], Sequence[Action]]:
    """Return the actions up to the model update of an answer, and those after it.

    >>> before, after = split_at_model([act.Release(0), act.Apply([], []), act.Release(1)])
    >>> len(before), [release.worker for release in after]
    (2, [1])
    """
    first = 1 + max((i for i, action in enumerate(actions) if not is_late(action)), default=-1)
    return actions[:first], actions[first:]


def makes_version(actions: Iterable[Action]) -> bool:
    """Return whether an answer changes the model or moves entries between servers."""
    return not all(map(is_late, actions))


def actions_to_plain(rest: Iterable[Action]) -> list[dict[str, Any]]:
    """Return the actions of an answer that are still to be performed, as plain data."""
    names: dict[type[Action], str] = {kind: name for name, kind in _LATE.items()}
    return [{"do": names[type(a)]} | asdict(a) for a in rest if type(a) in names]


def actions_from_plain(rest: Iterable[Mapping[str, Any]], composition: Strategy) -> list[Action]:
    """Return the actions of `actions_to_plain`; workers without a model of their own receive the model."""
    actions = [_LATE[each["do"]](**{k: v for k, v in each.items() if k != "do"}) for each in rest]
    for action in actions:
        if isinstance(action, act.Release) and not composition.own_steps:
            action.send = True
    return list(actions)


def resumed(
    engine: Engine, rest: Sequence[Action], epochs: float | None, again: Collection[int]
) -> list[Action]:
    """Return the first actions of a resumed run: the rest of an answer, then releases for void work.

    Workers in `again` repeat their steps and are not released; `epochs` is the new number of the stop rule.
    """
    void = engine.resume(released(rest), epochs, again)
    for action in rest:
        if isinstance(action, act.Release):
            action.allowance = engine.view.workers[action.worker].allowance
    return [*rest, *void]


def released(rest: Iterable[Action]) -> list[int]:
    return [action.worker for action in rest if isinstance(action, act.Release)]


def idle_workers(view: ClusterView, spared: Collection[int]) -> dict[int, bool]:
    """Return for every worker that ever joined whether all its messages were handled.

    It was of workers that wait and of those `spared`, whose release is in the checkpoint: it holds them as
    they are, or, if they compute beside their push, as of that push. All others have left, or are in the
    middle of steps; of them it holds what they had at their last release.
    """
    return {worker.id: worker.id in spared or worker.status in WAITING for worker in view.workers.values()}


#: when a worker that computes had what a checkpoint holds of it: it takes its steps since then again
Since = Literal["release", "push"]


class Resumption(NamedTuple):
    """State from which a run continues after a checkpoint.

    Attributes
    ----------
    checkpoint : Checkpoint
        Without what had become void.
    rest : list of Action
        What is still to be performed of the last answer.
    again : set of int
        Workers that take their steps since their last release or push again, from what they held then.
    """

    checkpoint: Checkpoint
    rest: list[Action]
    again: set[int]


def resumption(checkpoint: Checkpoint, view: ClusterView, composition: Strategy) -> Resumption:
    """Return the state from which a run continues; the engine has loaded its own state.

    A worker whose state is missing from the checkpoint restarts with the whole model: live, its
    part may not have come in time.
    """
    rest = actions_from_plain(checkpoint.state["rest"], composition)
    spared, parts = {*released(rest)}, checkpoint.state["workers"]
    since = {int(name): part["since"] for name, part in parts.items() if "since" in part}
    again = {w for w in since if _goes_on(view.workers[w], parts[str(w)], w in spared)}
    models = {int(name) for name, part in parts.items() if "loop" in part}
    rest = [each for each in rest if not _lacks_own_model(each, models)]
    return Resumption(_without(checkpoint, since.keys() - again), rest, again)


def _goes_on(worker: WorkerView, part: Mapping[str, Any], spared: bool) -> bool:
    """Return whether a worker's stored state matches the next message that the engine expects from it."""
    if part["since"] == "push":
        return spared or (worker.status is Status.PUSHED and worker.overlapping)
    loop = part["loop"]
    return not spared and worker.status is Status.COMPUTING and loop["ticket"] == worker.ticket


def _lacks_own_model(action: Action, models: Collection[int]) -> bool:
    """Return whether an action refers to a model that its worker does not hold."""
    if not isinstance(action, act.Release):
        return False
    return (action.aggregate or action.fragment >= 0) and action.worker not in models


#: what stays of the part of a worker whose steps are void, and of its tensors the residual
KEPT_WHEN_VOID = {"position", "used", "num_sent", "ready_s", "messages"}


def _without(checkpoint: Checkpoint, void: Collection[int]) -> Checkpoint:
    """Return a checkpoint in which these workers have their place in the data and their residual alone."""
    if not void:
        return checkpoint
    workers = dict(checkpoint.state["workers"])
    for worker in map(str, void):
        workers[worker] = {name: each for name, each in workers[worker].items() if name in KEPT_WHEN_VOID}
    gone = tuple(f"worker/{worker}/{kind}" for worker in void for kind in ("model/", "held"))
    tensors = {name: each for name, each in checkpoint.tensors.items() if not name.startswith(gone)}
    return Checkpoint(tensors, checkpoint.state | {"workers": workers})


def repeats_steps(composition: Strategy) -> bool:
    """Return whether workers repeat the steps that a checkpoint interrupts, from the models they had then.

    Under a barrier none is. Without a server others change a worker's model while it computes: it is stored
    as it is then.
    """
    waits = composition.consistency.barrier and not composition.communication.overlaps
    return not (waits or isinstance(composition.placement, PeerToPeer))


#: prefix of what a worker's selection remembers, among its tensors
SELECTION = "selection/"


def kept_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the model and the selection's memory from a restored worker's tensors."""
    return {name: value for name, value in tensors.items() if name.startswith(("model/", SELECTION))}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in tensors.items()}
