"""Schedule of a run: evaluations, the end, checkpoints, and workers that join or fail.

Both backends ask this module, and pass in the engine's view and functions that do what is due.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from psbench.backends.checkpointing import makes_version
from psbench.clusters import Profile
from psbench.core.actions import Action
from psbench.core.events import Join, Leave
from psbench.core.stop import Stop
from psbench.core.view import ClusterView


class StopRules:
    """The stop rules of an experiment, and their evaluations.

    Parameters
    ----------
    stop : Stop
    evaluate_every : float, epochs
    lower : bool
        Whether what `stop.patience` watches improves as it falls.
    """

    def __init__(self, stop: Stop, evaluate_every: float, lower: bool = True) -> None:
        self._stop = stop
        self._sign = 1.0 if lower else -1.0
        self._every = evaluate_every
        self._evaluations = 0
        self._best = float("inf")
        self._since_best = 0
        #: the time of the run at which it ends; infinity without such a rule
        self.deadline_s = math.inf if stop.seconds is None else stop.seconds

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs, as plain data."""
        done = {"evaluations": self._evaluations, "every": self._every}
        return done | {"best": self._best, "since_best": self._since_best}

    def load_state_dict(self, state: dict[str, Any], epoch: float) -> None:
        self._best, self._since_best = state["best"], state["since_best"]
        same = state["every"] == self._every
        self._evaluations = state["evaluations"] if same else int(epoch / self._every + 1e-9)

    @property
    def next_epoch(self) -> float:
        """The epoch before which neither an evaluation nor an end by epochs is due."""
        epochs = self._stop.epochs
        following = (self._evaluations + 1) * self._every
        return (following if epochs is None else min(following, epochs)) * (1 - 1e-9)

    @property
    def next_version(self) -> float:
        """The version before which only an end by epochs can be due."""
        return 1 if self.sees_movement else self._stop.updates or math.inf

    @property
    def sees_movement(self) -> bool:
        """Return True if a rule uses the distance of the last update (`Server.movement`)."""
        return self._stop.tolerance is not None

    def evaluation_due(self, view: ClusterView) -> int | None:
        """Return the number of the evaluation due at this version, if any, and count it."""
        number = int(view.epoch / self._every + 1e-9)
        if number <= self._evaluations:
            return None
        self._evaluations = number
        return number

    def evaluates_and_continues(self, view: ClusterView) -> bool:
        """Return whether an evaluation is due and the run does not end, without counting the evaluation."""
        due = int(view.epoch / self._every + 1e-9) > self._evaluations
        return due and not self.after_update(view, math.inf)

    def after_update(self, view: ClusterView, movement: float) -> str:
        """Return the reason why the run ends at this version; empty if it continues."""
        stop = self._stop
        if stop.epochs is not None and view.epoch >= stop.epochs - 1e-9:
            return _done(f"{stop.epochs:g}", "epoch")
        if stop.updates is not None and view.version >= stop.updates:
            return _done(f"{stop.updates}", "update")
        if stop.tolerance is not None and movement < stop.tolerance:
            return f"an update moved the model by less than {stop.tolerance:g}"
        return ""

    def at(self, now: float) -> str:
        """Return the reason why the run ends at this time; empty if it continues."""
        if now < self.deadline_s:
            return ""
        seconds = f"{self.deadline_s:g}"
        return "1 second has passed" if seconds == "1" else f"{seconds} seconds have passed"

    def after_evaluation(self, values: dict[str, float]) -> str:
        """Return the reason why the run ends with this evaluation; empty if it continues."""
        stop = self._stop
        if stop.target_accuracy is not None and values["val_accuracy"] >= stop.target_accuracy:
            return f"validation accuracy reached {stop.target_accuracy:g}"
        if stop.target is not None and stop.target.reached(values.get(stop.target.column)):
            return f"{stop.target.called} reached {stop.target.bound:g}"
        if stop.patience is not None:
            value = self._sign * values[stop.watched]
            better = value < self._best
            self._best = min(self._best, value)
            self._since_best = 0 if better else self._since_best + 1
            if self._since_best >= stop.patience:
                what = "validation loss" if stop.patience_metric is None else stop.patience_metric
                return f"{what} has not improved for {stop.patience} evaluations"
        return ""


class UpdateSchedule:
    """Evaluates, or ends the run, if due after an update.

    Parameters
    ----------
    rules : StopRules
    view : ClusterView
        The engine's.
    evaluate : callable
        Called with the number of an evaluation that is due.
    movement : callable
        Returns how far the last update moved the model; see `Server.movement`.
    end : callable
        Called with the reason when the run ends.
    """

    def __init__(
        self,
        rules: StopRules,
        view: ClusterView,
        *,
        evaluate: Callable[[int], None],
        movement: Callable[[], float],
        end: Callable[[str], None],
    ) -> None:
        self._rules, self._view = rules, view
        self._evaluate, self._movement, self._end = evaluate, movement, end
        #: nothing can be due before that many samples and that version
        self._from_samples, self._from_version = 0.0, rules.next_version

    @property
    def may_be_due(self) -> bool:
        """Return True if this version may require an evaluation or end the run."""
        view = self._view
        return view.samples >= self._from_samples or view.version >= self._from_version

    def after_update(self) -> None:
        """Evaluate, or end the run, if due; call after every update."""
        view, rules = self._view, self._rules
        if view.samples < self._from_samples and view.version < self._from_version:
            return
        number = rules.evaluation_due(view)
        if number is not None:
            self._evaluate(number)
        reason = rules.after_update(view, self._movement())
        if reason:
            self._end(reason)
        self._from_samples = view.dataset_size * rules.next_epoch


class CheckpointSchedule:
    """Schedule of checkpoints, at switches, at intervals of epochs and before a stop, with their names.

    Parameters
    ----------
    view : ClusterView
        The engine's.
    every : float or None, epochs

    Attributes
    ----------
    from_samples : float
        The next checkpoint by epochs is due from that many samples on.
    composition : int
        The composition of the last checkpoint; one is due under another.
    stopping : bool
        Whether the run ends with its next version, and a checkpoint of it.
    """

    def __init__(self, view: ClusterView, every: float | None) -> None:
        self._view, self._every = view, every
        self.from_samples, self.composition = 0.0, 0
        self.stopping = False
        self._plan(0.0)

    def stop(self) -> None:
        """End the run with a checkpoint of its next version: after a barrier no work is lost."""
        self.stopping, self.from_samples = True, 0.0

    def label(self, measuring: bool = False, actions: Iterable[Action] | None = None) -> str:
        """Return the name of the checkpoint due with an answer or after a version; empty if none is due.

        An engine that is `measuring` has decided half of its answer, so a checkpoint by epochs waits for
        the next one. That of a stop waits for one that makes a version.
        """
        view = self._view
        if view.in_force != self.composition:
            return f"switch-version-{view.version}"
        if view.samples < self.from_samples or measuring:
            return ""
        if self.stopping and actions is not None and not makes_version(actions):
            return ""
        return f"stopped-version-{view.version}" if self.stopping else f"epoch-{view.epoch:g}"

    def advance(self) -> None:
        """Plan the next checkpoint, after one was written or the run was resumed from one."""
        self.composition = self._view.in_force
        self._plan(self._view.epoch)

    def _plan(self, epoch: float) -> None:
        self.from_samples = next_checkpoint(epoch, self._every) * self._view.dataset_size


def next_checkpoint(epoch: float, every: float | None) -> float:
    """Return the epoch of the checkpoint after this epoch.

    >>> next_checkpoint(1.25, 0.5), next_checkpoint(1.5, 0.5), next_checkpoint(3.0, None)
    (1.5, 2.0, inf)
    >>> next_checkpoint(0.3, 0.1)  # although 0.3 / 0.1 is a little below 3
    0.4
    """
    return math.inf if every is None else every * (math.floor(epoch / every + 1e-9) + 1)


def membership_events(profile: Profile, after_s: float = -1.0) -> list[tuple[float, Join | Leave]]:
    """Return a cluster's joins, failures and returns after `after_s`, with their times.

    Shapes
    ------
    times : seconds of the run; events of one instant are to happen in this order
    """
    events: list[tuple[float, Join | Leave]] = [(join.at_s, Join(join.worker)) for join in profile.joins]
    for failure in profile.failures:
        events.append((failure.at_s, Leave(failure.worker, "failed")))
        if failure.rejoin_s is not None:
            events.append((failure.rejoin_s, Join(failure.worker)))
    return [(at_s, event) for at_s, event in events if at_s > after_s]


def _done(number: str, what: str) -> str:
    return f"{number} {what} is done" if number == "1" else f"{number} {what}s are done"
