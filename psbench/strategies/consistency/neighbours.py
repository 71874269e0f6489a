"""A worker waits only for its neighbours in a graph."""

from __future__ import annotations

from collections import deque

from psbench.core import Action, ClusterView, Commit, Hold, Push, Release, Status
from psbench.core.peer_to_peer import WaitsForNeighbours

#: why a worker waits
REASON = "neighbours"


class Neighbours(WaitsForNeighbours):
    """Release a worker when all its neighbours have sent their models for its exchange.

    That is their model of the same exchange, or, where models are sent before the step, that of its
    beginning. A worker may thus be ahead of another by as many exchanges as there are edges between them
    (one more for those that send first), and a slow one holds up the others at that speed.

    Notes
    -----
    Reduces to: BSP in the complete graph.
    """

    name = "neighbours"
    source = "Lian et al. 2017 (D-PSGD)"

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Release the workers that waited only for this one, and this one if it need not wait."""
        graph = view.graph
        actions = self._go_on(view, [push.worker, *graph.receivers(push.worker)])
        went = any(isinstance(action, Release) and action.worker == push.worker for action in actions)
        return actions if went else [*actions, Hold(push.worker, REASON)]

    def on_join(self, worker: int, view: ClusterView) -> list[Action]:
        """Release a newcomer, and the neighbours that waited for it."""
        return [Release(worker), *self._go_on(view, view.active, (worker,))]

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        """Wait no longer for a worker that has gone."""
        return self._go_on(view, view.active)

    def _go_on(self, view: ClusterView, candidates: list[int], begun: tuple[int, ...] = ()) -> list[Action]:
        """Return the exchanges of ready workers, and their releases.

        `begun` are workers about to be released. Where models are sent before the step, a worker that goes on
        sends its next one, for which others may have waited.
        """
        graph, queue = view.graph, deque(candidates)
        advanced: dict[int, Push] = {}
        while queue:
            worker = view.workers[queue.popleft()]
            push = view.pending.get(worker.last_push)
            waits = worker.status is Status.PUSHED and push is not None and worker.id not in advanced
            if waits and graph.is_ready(worker.id, advanced, begun):
                advanced[worker.id] = push
                if graph.sends_first:
                    queue.extend(sorted(graph.receivers(worker.id, worker.version + 1)))
        together = [Commit([push]) for push in advanced.values()]
        releases = [Release(worker) for worker in advanced]
        if graph.sends_first:  # each sends, at its release, what another of these may take
            return [action for pair in zip(together, releases, strict=True) for action in pair]
        return [*together, *releases]
