"""What a checkpoint holds beside the model, and what a resumed run reads of it; for both backends."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor

from psbench.checkpoints.file import Checkpoint
from psbench.core import actions as act
from psbench.core.actions import Action
from psbench.core.engine import Engine
from psbench.core.strategy import Strategy
from psbench.core.view import WAITING, ClusterView

#: actions that may follow the model of an answer and have an effect afterwards: a checkpoint holds them
_LATE: dict[str, type[act.Release] | type[act.Tell] | type[act.SetTimer]] = {
    "release": act.Release,
    "tell": act.Tell,
    "wake": act.SetTimer,
}


def is_late(action: Action) -> bool:
    """Return whether an action comes after the model of its answer, and so after a checkpoint of it."""
    return not isinstance(action, (act.Apply, act.Handover, act.Reassign, act.Mix))


def split_at_model(actions: Sequence[Action]) -> tuple[Sequence[Action], Sequence[Action]]:
    """Return the actions that make the model of an answer, and those after it.

    >>> before, after = split_at_model([act.Release(0), act.Apply([], []), act.Release(1)])
    >>> len(before), [release.worker for release in after]
    (2, [1])
    """
    first = 1 + max((i for i, action in enumerate(actions) if not is_late(action)), default=-1)
    return actions[:first], actions[first:]


def makes_version(actions: Iterable[Action]) -> bool:
    """Return whether an answer changes the model, or who holds it."""
    return not all(map(is_late, actions))


def actions_to_plain(rest: Iterable[Action]) -> list[dict[str, Any]]:
    """Return as plain data what is still to be performed of an answer."""
    names: dict[type[Action], str] = {kind: name for name, kind in _LATE.items()}
    return [{"do": names[type(a)]} | asdict(a) for a in rest if type(a) in names]


def actions_from_plain(rest: Iterable[Mapping[str, Any]], composition: Strategy) -> list[Action]:
    """Return the actions of `actions_to_plain`.

    A worker without a model of its own is sent the model in any case. So is one that has pushed and computes
    on, whole: its steps since are void, and its own model with them.
    """
    actions = [_LATE[each["do"]](**{k: v for k, v in each.items() if k != "do"}) for each in rest]
    for action in actions:
        if isinstance(action, act.Release) and not composition.own_steps:
            action.send = True
        elif isinstance(action, act.Release) and composition.communication.overlaps:
            action.aggregate, action.fragment = False, -1
    return list(actions)


def resumed(engine: Engine, rest: Sequence[Action], epochs: float | None) -> list[Action]:
    """Return what a run resumed with so many epochs performs first: the rest of an answer, then releases."""
    again = engine.resume(released(rest), epochs)
    for action in rest:
        if isinstance(action, act.Release):
            action.allowance = engine.view.workers[action.worker].allowance
    return [*rest, *again]


def released(rest: Iterable[Action]) -> list[int]:
    """Return the workers that are released."""
    return [action.worker for action in rest if isinstance(action, act.Release)]


def idle_workers(view: ClusterView, spared: Collection[int]) -> dict[int, bool]:
    """Return of every worker that ever joined whether a checkpoint holds it as it is now.

    It does of workers that wait and of those `spared`, whose release is in the checkpoint. All others have
    left, or are in the middle of a step, which is void; of them it holds what they had at their last release.
    """
    return {
        worker.id: worker.id in spared or (worker.status in WAITING and not worker.overlapping)
        for worker in view.workers.values()
    }


def with_current_names(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint with the names of this version, whichever version wrote it."""
    state = {_FORMER_STATE.get(name, name): value for name, value in checkpoint.state.items()}
    return Checkpoint({_current_tensor(name): t for name, t in checkpoint.tensors.items()}, state)


def _current_tensor(name: str) -> str:
    for former, now in _FORMER_TENSORS.items():
        if name.startswith(former):
            name = now + name.removeprefix(former)
    return name.removesuffix("/unsaid") + "/residual" if name.endswith("/unsaid") else name


#: how tensors and names in the state of checkpoints that older versions wrote begin, and today's
_FORMER_TENSORS = {
    "wire/": "codecs/",
    "optimizer/block_momentum": "aggregation/block_momentum/momentum",
    "optimizer/stage_": "aggregation/dyn_sgd_versioned/stage_",
}
_FORMER_STATE = {"agenda": "events", "ending": "stop_rules", "wire": "codecs"}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with a prefix to their names."""
    return {prefix + name: value for name, value in tensors.items()}
