"""A workload whose engine, server and trainer report their calls to a witness.

Its arithmetic is that of names: each entry of the model is the number of its version, and each entry of a
gradient the number of its step, so that whoever holds one knows which it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from psbench.core.engine import Engine
from psbench.testing.witness import WatchedEngine, Witness
from psbench.training.build import Workload
from psbench.training.server import Server
from psbench.training.trainer import StepResult, StepTask, Trainer

if TYPE_CHECKING:
    from psbench.core import EventLog, Pushed


class WatchedServer(Server):
    """A server whose model is its version number; see `Server`."""

    def __init__(self, witness: Witness, *given: Any, **options: Any) -> None:
        self._witness, self._uses = witness, 0
        super().__init__(*given, **options)
        self.parameters.zero_()

    def use(self, aggregation: Any, fragments: Any = ()) -> None:
        """Use another aggregation part; every call after the first is a hand-over."""
        super().use(aggregation, fragments)
        self._uses += 1
        if self._uses > 1:
            self._witness.handed_over(self._uses - 1)

    def apply(self, pushes: Sequence[Pushed], how: Any = None) -> None:
        """Report the payloads of the version, and make it."""
        self._witness.made(how.version, [int(push.vector[0]) for push in pushes])
        self.parameters.fill_(how.version)


class WatchedTrainer(Trainer):
    """A trainer that computes the number of the step; see `Trainer`."""

    def __init__(self, witness: Witness, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._witness, self._numbers = witness, count(1)

    def result(self, job: StepTask, parameters: Tensor, buffers: Tensor) -> StepResult:
        """Report the version that a worker computed from, and return the step's number as gradient."""
        number = next(self._numbers)
        self._witness.computed(job.worker, int(parameters[0]), number)
        return StepResult(torch.full_like(parameters, float(number)), buffers.clone(), 1.0)


@dataclass(frozen=True)
class WatchedWorkload(Workload):
    """A watched workload; see `Workload`.

    Attributes
    ----------
    witness : Witness
        Backends whose model and workers are not of this workload's `server()` and `trainer()` report to it.
    """

    witness: Witness | None = None

    @classmethod
    def of(cls, workload: Workload, witness: Witness) -> WatchedWorkload:
        return cls(**vars(workload), witness=witness)

    @property
    def _watcher(self) -> Witness:
        assert self.witness is not None
        return self.witness

    def engine(self, log: EventLog | None, make: Any = Engine) -> Engine:
        """Return a watched engine; an engine without a log, used for trials, is not watched."""
        return super().engine(log, make if log is None else partial(WatchedEngine, self._watcher))

    def server(self, make: Any = Server) -> Server:
        return super().server(partial(WatchedServer, self._watcher))

    def trainer(self, make: Any = Trainer) -> Trainer:
        return super().trainer(partial(WatchedTrainer, self._watcher))
