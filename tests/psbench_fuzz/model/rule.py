"""Base of the model's rules: hooks that decide nothing by default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from psbench.core import Action, Commit, Hold, Orders, Part, Release
from psbench.core import events as ev
from psbench_fuzz.model.view import ModelCluster

Decisions: TypeAlias = list[Action]


class Rule:
    """One part, read again. `own` is the part itself: only its hyper-parameters and declarations are read."""

    tolerance = 1e-9  #: what rounding may make of its numbers

    def __init__(self, own: Any) -> None:
        self.own = own

    def nothing(self, *given: Any, **named: Any) -> Decisions:
        return []

    start = on_push = on_report = on_leave = on_timer = on_applied = on_measured = on_evaluated = nothing

    def on_start(self, c: ModelCluster) -> Decisions:
        """Release all workers."""
        return [Release(worker) for worker in c.waiting]

    def on_vote(self, vote: ev.Vote, c: ModelCluster) -> Decisions:
        """Hold the worker until all have voted."""
        return [Hold(vote.worker, "vote")]

    def on_join(self, worker: int, c: ModelCluster) -> Decisions:
        """Release a newcomer."""
        return [Release(worker)]

    def on_drained(self, c: ModelCluster) -> Decisions:
        """Commit the pending pushes before a switch."""
        return [Commit(c.buffered())] if c.pending else []

    def on_commit(self, pushes: list[ev.Push], c: ModelCluster) -> Decisions:
        """Return the update from these pushes."""
        raise NotImplementedError

    def on_switch_requested(self, event: ev.SwitchRequested, c: ModelCluster) -> Decisions:
        """Answer a switch that the user asks for."""
        raise NotImplementedError

    def on_release(self, worker: int, c: ModelCluster) -> Orders:
        return {}

    def rate_epoch(self, c: ModelCluster) -> float:
        return c.epoch

    def rate_epochs_per_step(self, c: ModelCluster) -> float:
        """Return the epochs per local step: a global batch if all workers are active."""
        return c.global_batch * len(c.active) / c.num_workers / c.dataset_size


#: the model's rule for each part, by domain and name
RULES: dict[tuple[str, str], type[Rule]] = {}


def rule(domain: str, *names: str) -> Callable[[type[Rule]], type[Rule]]:
    """Register a rule for the parts of these names."""

    def enter(kind: type[Rule]) -> type[Rule]:
        RULES.update({(domain, name): kind for name in names})
        return kind

    return enter


def rule_of(part: Part) -> Any:
    """Return the model's rule for a part, or a fresh copy of the part if there is none."""
    kind = RULES.get((part.domain, part.name))
    known = kind is not None and type(part).__module__.startswith("psbench.")
    return kind(part) if kind is not None and known else part.fresh()
