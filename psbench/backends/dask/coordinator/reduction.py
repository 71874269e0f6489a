"""Under All-Reduce a version is stamped after its ring: the ring comes before the engine hears of the push.

The engine decides who takes part in a ring and with which weights, and stamps what it decides. So another
engine in the same state is asked first. The workers add up what it says, and when they have the sum, the
run's own engine is given the event, at the time of then, as in virtual time. Events that come meanwhile wait.
"""

from __future__ import annotations

from psbench.backends.dask.coordinator.run_state import RunState, Script, Wait
from psbench.backends.dask.protocol.roles import names_or_count, worker_name
from psbench.backends.dask.server.all_reduce import AllReduceStore
from psbench.core import events as ev
from psbench.core.actions import Apply
from psbench.core.engine import Engine


class Reduction:
    """Has workers add up their payloads."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._spare: Engine | None = None  #: loaded again and again
        #: the spare, while it is in the state of the run's own; where that measures, it does so too
        self._preview: Engine | None = None

    def before(self, event: ev.Event) -> Script[None]:
        """Have the sum made that the answer to an event will make a version from, if it will."""
        run = self._run
        began, updates = run.clock_s, self._updates_after(event)
        if not updates:
            return
        run.in_ring = event
        yield from self.of(updates[0])
        if not run.ending:  # else it stays unheard
            run.in_ring = None
        if type(event) is ev.Push:
            seconds = run.clock_s - began
            event.send_s += seconds
            event.stats = (event.stats or {}) | {ev.COLLECTIVE: seconds}

    def of(self, apply: Apply) -> Script[None]:
        """Have the sum made of an update's pushes, unless it was, and wait until all have it."""
        store = self._run.store
        assert isinstance(store, AllReduceStore)
        while not store.has_sum_for(apply):  # again, if all who had it are lost
            store.reduce(apply)
            yield Wait(
                lambda: not store.adding_up,
                lambda: f"{self._adding_up(store)} (in a ring)",
            )

    def _adding_up(self, store: AllReduceStore) -> str:
        names = [*map(worker_name, store.adding_up)]
        return names_or_count(names, self._run.view.num_active, "workers")

    def _updates_after(self, event: ev.Event) -> list[Apply]:
        """Return the updates that the answer to an event would have now."""
        engine = self._run.engine
        if not engine.measuring:
            self._preview = None
            if self._can_complete(event):
                self._preview = self._spare = self._spare or self._run.workload.engine(None)
                self._preview.load_state_dict(engine.state_dict())
        elif self._preview is not None and not self._preview.measuring:
            self._preview = None  # it has decided otherwise, at another time
        if self._preview is None:
            return []
        answer = self._preview.handle(event, self._run.now)
        return [each for each in answer if isinstance(each, Apply)]

    def _can_complete(self, event: ev.Event) -> bool:
        """Whether an event can complete a barrier: the last worker's, or one at which others are dropped."""
        computing = {*self._run.view.computing} - {getattr(event, "worker", None)}
        return not computing or self._run.engine.hears_pushes
