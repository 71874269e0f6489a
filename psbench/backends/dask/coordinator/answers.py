"""How an answer of the engine is performed: the model, then a checkpoint and the replica, then releases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psbench.backends.checkpointing import split_at_model
from psbench.backends.dask.coordinator.actions import ActionPerformer
from psbench.backends.dask.coordinator.checkpointing import CheckpointWriter, events_to_plain
from psbench.backends.dask.coordinator.evaluation import Evaluation
from psbench.backends.dask.coordinator.pushes import PushIntake
from psbench.backends.dask.coordinator.replication import Replication
from psbench.backends.dask.coordinator.run_state import RunState, Script
from psbench.core.actions import Action, Release


class Answers:
    """Performs answers of the engine, one after another."""

    def __init__(
        self,
        run: RunState,
        actions: ActionPerformer,
        evaluation: Evaluation,
        checkpoints: CheckpointWriter,
        replication: Replication,
        pushes: PushIntake,
    ) -> None:
        self._run, self._actions, self._evaluation = run, actions, evaluation
        self._checkpoints, self._replication, self._pushes = checkpoints, replication, pushes

    def perform(self, actions: Sequence[Action]) -> Script[None]:
        """Perform an answer; a checkpoint falls between the model it makes and its releases."""
        ending, evaluation = self._run.ending, self._evaluation
        evaluation.before_answer(actions)
        self._actions.begin(actions)
        label, replicates = self._checkpoints.due(actions), self._replication.due(actions)
        if label or replicates:
            make, actions = split_at_model(actions)
            if (yield from self._perform_each(make, completely=bool(label))) or ending.status == "finished":
                if replicates:
                    yield from self._replication.keep(actions, self.state())
                if label:
                    self.write(label, actions)
        if not (yield from self._perform_each(actions)):
            evaluation.after_answer()  # releases with which models were asked for are not sent
            return
        if self._actions.keeps_steps:  # steps that are kept after a vote count too
            yield from evaluation.after_update()
            ending.unanswered = bool(ending)
        if not ending.status:
            evaluation.after_answer()

    def write(self, label: str, rest: Sequence[Action] = ()) -> None:
        """Write a checkpoint, after the log up to it; `rest` is still to be performed of the answer."""
        self._run.log_stream.send()
        self._checkpoints.write(label, rest, self.state())
        if self._checkpoints.stopping:
            self._run.ending.stop()

    def _perform_each(self, actions: Sequence[Action], completely: bool = False) -> Script[bool]:
        """Perform actions, and return whether the run goes on.

        Those of the version with which it finishes are performed `completely` if a checkpoint is written.
        """
        run, ending = self._run, self._run.ending
        if ending:
            ending.unanswered = ending.unanswered or any(type(action) is Release for action in actions)
            return False
        for action in actions:
            script = self._actions.perform_one(action, run.now)
            if script is not None:
                yield from script
            if ending.status and ending.cuts_answer(completely):
                return False
        return not ending.status

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds of the coordinator itself, now."""
        run = self._run
        now = run.now
        return {
            "time_s": now,
            "logged": list(run.log_stream.logged),
            "events": events_to_plain([*((now, event) for event in run.events), *run.timers.entries()]),
            "network": {"up_free_s": now, "down_free_s": now, "carried_bytes": 0.0},
            "stop_rules": run.rules.state_dict(),
            "next_push": self._pushes.next_number,
            "awaited": self._evaluation.queue.numbers,
            "movement": self._evaluation.movement,
        }
