"""Scenes: short runs of scripted strategies, which together ask a driver for most kinds of action.

A scripted strategy answers pushes by a list, in turn, whatever the cluster does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PrivateAttr

from psbench.core import ClusterView, Consistency, Push, parameter
from psbench.core.actions import (
    Action,
    Cancel,
    Commit,
    Discard,
    Drop,
    Hold,
    Measure,
    Readmit,
    Release,
    SetTimer,
)
from psbench.core.part import REGISTRY

if TYPE_CHECKING:
    from psbench.experiment import Experiment

_SPEED = (1.0, 0.5, 0.25)  # a step of the fastest takes 5 ms
#: seconds between a timer and the answer that sets it
_LATER_S = 0.033
_UPDATES = 40


class Scripted(Consistency):
    """Answer pushes by a script, over and over.

    `commit`: commit all pending pushes and release all that wait. `hold`: let the worker wait for another
    push. `discard`: discard the push. `cancel`: commit and restart all that compute. `drop`: commit
    and drop another worker, which a timer readmits. `measure`: measure the loss, then commit.
    """

    name = "scripted"
    cancels: ClassVar[bool] = True

    script: tuple[str, ...] = parameter(("commit",), "answers to pushes, in turn")

    _pushes: int = PrivateAttr(default=0)

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        line = self.script[self._pushes % len(self.script)]
        self._pushes += 1
        return _LINES[line](push, view)

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        """Release all waiting workers: none waits for the one that has left."""
        return [Release(each) for each in view.waiting]

    def on_measured(self, facts: dict[str, Any], view: ClusterView) -> list[Action]:
        """Commit after a measurement."""
        return _commit(view)

    def on_timer(self, key: str, view: ClusterView) -> list[Action]:
        """Readmit a worker."""
        return [Readmit(int(key))]


# lists and the panel offer what is registered, and this is a tool
del REGISTRY[Scripted.domain][Scripted.name]


def _commit(view: ClusterView) -> list[Action]:
    commit: list[Action] = [Commit(view.buffered())] if view.pending else []
    return [*commit, *(Release(worker) for worker in view.waiting)]


def _hold(push: Push, view: ClusterView) -> list[Action]:
    """Hold the worker if another computes; a later event of the script answers its push."""
    return [Hold(push.worker, "the script")] if view.num_computing else _commit(view)


def _cancel(push: Push, view: ClusterView) -> list[Action]:
    late = view.computing
    voids = [Cancel(worker) for worker in late]
    return [*_commit(view), *voids, *(Release(worker) for worker in late)]


def _drop(push: Push, view: ClusterView) -> list[Action]:
    others = [worker for worker in view.computing if worker != push.worker]
    answer = _commit(view)
    if not others:
        return answer
    return [*answer, Drop(others[0], "the script"), SetTimer(view.now + _LATER_S, str(others[0]))]


_LINES: dict[str, Callable[[Push, ClusterView], list[Action]]] = {
    "commit": lambda push, view: _commit(view),
    "hold": _hold,
    "discard": lambda push, view: [Discard(push, "the script"), Release(push.worker)],
    "cancel": _cancel,
    "drop": _drop,
    "measure": lambda push, view: [Measure("consistency", {"model_loss": None})],
}


@dataclass(frozen=True)
class Scene:
    """A scripted strategy on a small cluster.

    Attributes
    ----------
    name : str
    strategy : anything that `Experiment` takes as one
    leaves : tuple of (worker, seconds)
        The worker that fails, and when, if one does; it is back after `_LATER_S`.
    """

    name: str
    strategy: Any
    leaves: tuple[int, float] | None = None

    @property
    def back_s(self) -> float:
        """Time at which the failed worker returns."""
        assert self.leaves is not None
        return self.leaves[1] + _LATER_S

    def experiment(self) -> Experiment:
        """Return the scene's experiment: three workers, a model of 15 parameters."""
        from psbench.testing.toys import toy_cluster, toy_experiment

        failures = []
        if self.leaves is not None:
            worker, at_s = self.leaves
            failures = [{"worker": worker, "at_s": at_s, "rejoin_s": self.back_s}]
        cluster = toy_cluster([*_SPEED], failures=failures)
        return toy_experiment(
            self.strategy, cluster=cluster, stop={"updates": _UPDATES, "epochs": 50}, processes=1
        )

    @property
    def step_s(self) -> list[float]:
        return [0.005 / speed for speed in _SPEED]


def _scripted(*lines: str) -> dict[str, Any]:
    return {"name": "scripted", "consistency": Scripted(script=lines)}


SCENES = (
    Scene("workers that do not wait", "asp"),
    Scene("a barrier", "bsp"),
    Scene("a bound of the staleness", {"name": "ssp", "staleness_bound": 1}),
    Scene("pushes that are discarded", _scripted("commit", "discard", "hold", "commit", "discard")),
    Scene("work that is cancelled", _scripted("commit", "hold", "cancel")),
    Scene(
        "a worker that is dropped and readmitted", _scripted("commit", "commit", "commit", "drop", "commit")
    ),
    Scene("numbers that are measured", _scripted("commit", "measure", "discard")),
    Scene("a worker that fails", _scripted("commit", "commit", "hold"), leaves=(1, 0.052)),
    Scene("a barrier, and a worker that fails", "bsp", leaves=(2, 0.052)),
    Scene(
        "a switch",
        {
            "name": "strategy_switch",
            "first": "bsp",
            "second": "asp",
            "rule": {"name": "after", "fraction": 0.04, "whole_epochs": False},
        },
    ),
)
