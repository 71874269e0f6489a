"""DynSGD with several versions: pushes of the same worker step are averaged, whenever they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import PrivateAttr

from psbench.core import Action, Aggregation, Apply, ClusterView, Push, Pushed, State, Step, Vector
from psbench.core.needs import NEEDS_SINGLE_PUSHES


class DynSGDVersioned(Aggregation):
    """Average the d pushes of a stage as they arrive: weight each by 1/d, and correct earlier pushes.

    A worker's c-th push belongs to stage c. With the d-th push of a stage the model moves along
    (g - mean of the d - 1 before)/d, so that the stage's pushes have moved it along their mean, however many
    there are. The first one counts wholly, until others arrive.

    Notes
    -----
    Reduces to: BSP on the mean under `ssp` with a bound of 0, at the end of every stage (plain SGD); ConSGD
    at the end of every stage if all workers push once in it; SGD with one worker.
    It takes the optimizer's rate as it is (`lr_scaling` none). The servers keep the mean of every stage that
    some worker has not pushed in yet, at most one more than the staleness bound.
    Our reading, which could not be checked against the full text: "version" is the stage, the number of
    pushes of the worker. Taken as the version that a push started from, pushes in rotation would all count
    wholly, n times as much as in ConSGD. A newcomer begins in the stage of the slowest worker. With
    momentum the corrections are steps like any other.

    Examples
    --------
    >>> from psbench.core.view import WorkerView
    >>> view = ClusterView(2, 1, 1, workers={w: WorkerView(w, clock=1) for w in (0, 1)}, min_clock=0)
    >>> part = DynSGDVersioned()
    >>> [part.on_commit([Push(w, w, 1, base_version=0, samples=8)], view)[0].weights for w in (0, 1)]
    [[1.0], [0.5]]
    """

    name = "dyn_sgd_versioned"
    source = "Jiang et al. 2017, several versions; unverified"
    needs = (NEEDS_SINGLE_PUSHES,)
    weighs_samples = False
    shares_rate: ClassVar[bool] = True

    _pushes: dict[str, int] = PrivateAttr(default_factory=dict)  # by stage, of those that are open

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Count the push in its stage, and close the stages in which all have pushed."""
        (push,) = pushes
        stage = view.workers[push.worker].clock - 1
        count = self._pushes[str(stage)] = self._pushes.get(str(stage), 0) + 1
        closes = view.min_clock > stage
        if closes:
            self._pushes = {key: d for key, d in self._pushes.items() if int(key) > stage}
        return [Apply(pushes, [1.0 / count], {"stage": float(stage), "closes": float(closes)})]

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        """Step along (g - m)/d, m being the mean of the stage's d - 1 gradients before; the weight is 1/d."""
        (push,), stage = pushes, int(step.numbers["stage"])
        name = f"stage_{stage}"
        before = state.get(name)
        change = (push.vector if before is None else push.vector - before) * push.weight
        step.move(change)
        state[name] = change if before is None else before + change
        if step.numbers["closes"]:
            for old in [each for each in state if int(each.removeprefix("stage_")) <= stage]:
                del state[old]
