"""The contract of drivers, which perform the engine's answers.

An engine decides, and has no workers. A driver has workers, links and a model, and decides nothing: the
simulator, the coordinator of a live run, the driver of MapReduce jobs, and the scripted cluster of the tests
are drivers. `psbench.testing.check_backend` plays runs on one and says where it first breaks this contract.

**A driver gets answers.** For each event that it hands to the engine (`Engine.handle`) it gets a list of
actions, which it performs in their order, all of them before it hands over the next event. An answer is
complete: no action is to be added, left out or moved. Two exceptions stand here, in code: a release may be
void (`is_void`), and the end of the run cuts an answer (`Ending.cuts_answer`).

**A driver hands over events** in the order in which they happened, each once, and no event that did not
happen. A push, a vote or a report repeats the ticket of the release that its worker acts on, and a push the
version that its worker began from.

- A worker that leaves has nothing any more: what it computes, and what it sent that has not arrived. A driver
  may hand its push over all the same, with the ticket that it has: the engine finds it void. Its payload is
  in no version, unless the push had been handed over before the worker left: then the engine decides, and
  says `Apply` or `Discard`.
- A worker that joins is another, even under a number that was there before: it has no model, and no steps.
- Each `Measure` is answered by one `Measured` with exactly its names, each `SetTimer` by one `Timer`, unless
  the run ends before. A `Release` that is not void is answered by a message, unless its worker is cancelled,
  dropped or lost.
- Stop rules and evaluations look at a version once it is made (`makes_newest`), before any release of the
  same answer.

**A driver may not decide** who computes, on which version, what a push counts, whether it counts, or in which
order versions are made; nor may it change an action. It decides when events happen: how long a step and a
message take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from psbench.core import actions as act
from psbench.core.actions import Action
from psbench.core.ending import Ending
from psbench.core.events import Timer
from psbench.core.view import ClusterView, Status
from psbench.errors import ProtocolError

#: the result of performing an action: None, or from a driver that has to wait perhaps a script to wait for
Done = TypeVar("Done")
#: performs one action at a time of the run, seconds
Performer: TypeAlias = Callable[[Any, float], Done]

# of a worker that was released, and has left: it may be back
_OUT = Status.GONE, Status.NEW


def is_void(release: act.Release, view: ClusterView) -> bool:
    """Return whether a release is void: its worker has since left or been dropped.

    An answer that goes on after a `Measure` has the departures that were queued meanwhile, and drops come
    last in an answer; the view is as of its end.
    """
    worker = view.workers[release.worker]
    return worker.ticket != release.ticket or worker.status in _OUT


def makes_newest(apply: act.Apply, view: ClusterView) -> bool:
    """Return whether stop rules and evaluations use the version of an update.

    Of several updates in an answer they look at the last: the view, which they read, is as of its end.
    """
    return apply.version == view.version


def timer_of(action: act.SetTimer) -> Timer:
    """Return the event that is due at `action.at`."""
    return Timer(action.key, action.composition_id)


class Driver(Generic[Done]):
    """Performs actions: one method for each kind, called in the order of the answer.

    A subclass defines the methods of the actions that it can perform; the others refuse theirs, so that none
    is left undone unnoticed. `now` is the time of the run at which an answer is performed, in seconds.

    Parameters
    ----------
    view : ClusterView
        The engine's.
    ending : Ending
        How the run ends: whatever ends it says so there.
    """

    #: the method of each kind of action; the engine performs the others by itself
    METHODS: ClassVar[dict[type[Action], str]] = {
        act.Release: "_release_unless_void",
        act.Hold: "hold",
        act.Apply: "apply",
        act.Discard: "discard",
        act.Cancel: "cancel",
        act.Drop: "drop",
        act.Readmit: "readmit",
        act.Tell: "tell",
        act.SetTimer: "set_timer",
        act.Measure: "measure",
        act.Handover: "hand_over",
        act.Reassign: "reassign",
        act.Mix: "mix",
        act.Note: "note",
    }

    def __init__(self, view: ClusterView, ending: Ending) -> None:
        self.view, self.ending = view, ending
        self.performers: dict[type[Action], Performer[Done | None]] = {
            kind: getattr(self, name) for kind, name in self.METHODS.items()
        }

    def perform_one(self, action: Action, now: float) -> Done | None:
        """Perform an action; return a script to wait for before the next one, if the driver has to wait."""
        return self.performers[type(action)](action, now)

    def _release_unless_void(self, release: act.Release, now: float) -> Done | None:
        worker = self.view.workers[release.worker]  # as `is_void`, which would cost a call a step
        if worker.ticket != release.ticket or worker.status in _OUT:
            return self.leave_void(release)
        return self.release(release, now)

    # ---------------------------------------------------------------- workers

    def release(self, release: act.Release, now: float) -> Done | None:
        """Deliver the release to its worker: at once, or after its transfer time.

        It reaches the worker once. To `step`, the worker begins from version `load`: with `send` that is on
        its way to it, as it is now, after all updates that stand before the release in the answer; without,
        the worker has it, or has a model of its own. To `push`, it pushes the steps that it voted on. All
        that it sends until the next release repeats `ticket`. A worker that computes although it has pushed
        acts on the release when its step has ended, if its part says so.
        """
        raise self.refusal(release)

    def leave_void(self, release: act.Release) -> Done | None:
        """Clean up after a release that is void: nothing reaches the worker."""
        return None

    def hold(self, hold: act.Hold, now: float) -> Done | None:
        """Hold the worker. By default nothing is done: a worker without a release waits."""
        return None

    def void(self, worker: int) -> Done | None:
        """Void a worker's step, and its messages that have not arrived; it waits."""
        raise NotImplementedError

    def forget(self, worker: int) -> None:
        """Forget the model, the residual and all else that a worker holds; its place in the data is kept."""
        raise NotImplementedError

    def cancel(self, cancel: act.Cancel, now: float) -> Done | None:
        """Void the worker's step; its release or hold follows."""
        return self.void(cancel.worker)

    def drop(self, drop: act.Drop, now: float) -> Done | None:
        """Void the worker's step; it counts as gone until it is readmitted."""
        return self.void(drop.worker)

    def readmit(self, readmit: act.Readmit, now: float) -> Done | None:
        """Readmit a dropped worker as a joining one, without state."""
        self.leave(readmit.worker)
        return None

    def leave(self, worker: int) -> None:
        """Remove a worker, before the answer to its `Leave` is performed."""
        self.void(worker)
        self.forget(worker)

    def tell(self, tell: act.Tell, now: float) -> Done | None:
        """Deliver orders to a computing worker, which reads them between two steps.

        They reach none that has left since.
        """
        raise self.refusal(tell)

    # ---------------------------------------------------------------- the model

    def apply(self, apply: act.Apply, now: float) -> Done | None:
        """Make the next version from exactly the named pushes with their weights; see `makes_newest`.

        Their payloads are not needed any more.
        """
        raise self.refusal(apply)

    def discard(self, discard: act.Discard, now: float) -> Done | None:
        """Forget the payload of a push: it is in no version."""
        raise self.refusal(discard)

    def measure(self, measure: act.Measure, now: float) -> Done | None:
        """Compute the named numbers from the current model and payloads, for a `Measured` event."""
        raise self.refusal(measure)

    def hand_over(self, handover: act.Handover, now: float) -> Done | None:
        """Hand the model over to another composition; all workers wait, without state.

        Once, with the optimizer's state unless its momentum is forgotten. Releases reach their workers
        `cost_s` seconds later.
        """
        raise self.refusal(handover)

    def reassign(self, change: act.Reassign, now: float) -> Done | None:
        """Move entries with their states to the named servers; no message is in transit."""
        raise self.refusal(change)

    def mix(self, mix: act.Mix, now: float) -> Done | None:
        """Replace workers' models by the given weighted sums, simultaneously."""
        raise self.refusal(mix)

    # ---------------------------------------------------------------- the rest

    def set_timer(self, timer: act.SetTimer, now: float) -> Done | None:
        """Deliver `timer_of(timer)` at `timer.at`, not earlier."""
        raise self.refusal(timer)

    def note(self, note: act.Note, now: float) -> Done | None:
        """Ignore the note: the engine has logged it."""
        return None

    def refusal(self, action: Action) -> ProtocolError:
        """Return the error of an action that this driver cannot perform."""
        return ProtocolError(f"{type(self).__name__} cannot perform {action}")


class PromptDriver(Driver[None]):
    """A driver that never has to wait between two actions of an answer."""

    def perform(self, actions: Iterable[Action], now: float, completely: bool = False) -> bool:
        """Perform actions, and return whether the run continues.

        Those of the version with which it finishes are performed `completely` if a checkpoint is written.
        """
        performers, ending = self.performers, self.ending
        for action in actions:
            performers[type(action)](action, now)
            if ending.status and ending.cuts_answer(completely):
                return False
        return not ending.status
