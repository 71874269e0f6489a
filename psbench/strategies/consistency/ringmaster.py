"""Ringmaster ASGD: asynchronous SGD that ignores gradients whose delay reaches a threshold."""

from __future__ import annotations

from psbench.core import Action, Cancel, ClusterView, Commit, Consistency, Discard, Push, Release, parameter

SOURCE = "Maranjyan, Tyurin, Richtarik 2025 (Ringmaster)"


class Ringmaster(Consistency):
    """Commit a push alone, at once, if its delay is below R; discard it otherwise; no worker waits.

    The delay of a push is the number of versions committed since its worker loaded the model. With `stops`, a
    step whose delay reaches R is cancelled at that commit, and its worker starts again from the new model.

    Notes
    -----
    Reduces to: ASP when R is larger than every delay. R = 1 uses only gradients of the current version.
    The paper's threshold is R = max(1, ceil(sigma^2 / eps)), for a gradient's variance sigma^2 and a target
    eps of the squared gradient norm. A run with R - 1 as the largest staleness is the same rule.
    """

    name = "ringmaster"
    source = f"{SOURCE}, Alg. 4; with `stops` Alg. 5"
    waits_for = "none"
    singly = True
    cancels = True

    max_delay: int = parameter(
        8, "R: smallest delay at which a gradient is discarded", unit="versions", source=SOURCE, ge=1
    )
    stops: bool = parameter(False, "cancel a step as soon as its delay reaches R", source=SOURCE)

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Commit or discard; with `stops`, restart the workers whose delay the commit raises to R."""
        if view.version - push.base_version >= self.max_delay:
            return [Discard(push, "delay"), Release(push.worker)]
        late = [
            worker
            for worker in (view.computing if self.stops else [])
            if view.version + 1 - view.workers[worker].base_version >= self.max_delay
        ]
        restarted = sorted([*late, push.worker])
        return [Commit([push]), *map(Cancel, late), *map(Release, restarted)]
