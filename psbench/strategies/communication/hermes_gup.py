"""HermesGUP: a worker pushes when its test loss has fallen far below its earlier losses."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, inf, isfinite, sqrt
from typing import Self

import numpy as np
from pydantic import PrivateAttr, SerializeAsAny, model_validator

from psbench.core import Directive, Orders, OwnSteps, WorkerPolicy, parameter
from psbench.core.parts import CodecPart, codec_field
from psbench.errors import ParameterError

SOURCE = "Hermes, Alg. 1"


class HermesGUPPolicy(WorkerPolicy):
    """Test the loss at the end of every chunk; the worker's policy of `HermesGUP`."""

    alpha: float
    beta: float
    patience: int
    window: int

    _losses: list[float] = PrivateAttr(default_factory=list)  # Q, emptied by a push
    _quiet: int = PrivateAttr(0)  # N_iter: chunks since the last push
    _steps: int = PrivateAttr(1)  # of a chunk; without orders a chunk is one step
    _done: int = PrivateAttr(0)

    def on_orders(self, orders: Orders) -> None:
        """Begin a chunk of the ordered size."""
        if "samples" in orders:
            self._steps = ceil(orders["passes"] * orders["samples"] / orders["batch_size"])
            self._done = 0

    def after_step(self, stats: Mapping[str, float]) -> Directive:
        """Continue to the end of the chunk; there, push or report."""
        self._done += 1
        if self._done < self._steps:
            return "continue"
        self._done = 0
        return "push" if self.is_major(stats["test_loss"]) else "report"

    def report(self, stats: dict[str, float]) -> dict[str, float]:
        """Return the required statistics, and the number of steps of the chunk."""
        return stats | {"chunk_steps": self._steps}

    def is_major(self, loss: float) -> bool:
        """Record the test loss of a chunk, and return whether to push (Alg. 1, lines 4 to 12)."""
        if not isfinite(loss):
            return True  # the server ends the run with it; without a push it would not end
        self._losses = [*self._losses, loss][-self.window :]
        major = z_score(self._losses) <= self.alpha
        if major:
            self._losses = []  # what comes next is another model's
        self._quiet = 0 if major else self._quiet + 1
        if self._quiet >= self.patience:
            self.alpha *= 1.0 - self.beta
        return major


def z_score(losses: list[float]) -> float:
    """Return the z-score of the last loss among all losses, including itself.

    At least -sqrt(m - 1) for m losses; infinity where the losses do not differ.

    Examples
    --------
    >>> z_score([2.0, 1.0]), z_score([1.0])
    (-1.0, inf)
    """
    sigma = float(np.std(losses))
    # equal losses may have a mean that differs from them in its last digit
    return (losses[-1] - float(np.mean(losses))) / sigma if len(set(losses)) > 1 and sigma else inf


class HermesGUP(OwnSteps):
    """Train locally on chunks of data, and push only after a clear improvement.

    At the end of a chunk it takes the loss of its model on test samples. If that is so far below the losses
    since the last push that its z-score is at most alpha, the worker pushes its parameters, waits for the
    model and continues from it; else it reports and continues. Alpha rises towards 0 while no push succeeds,
    so that smaller improvements count as training converges.

    Parameters
    ----------
    alpha : float, -100 to 0
        Largest z-score that is pushed. About Phi(alpha) of normally distributed losses are that low: 9.7 %
        for -1.3.
    prefetch : bool
        Whether the data of the next chunk travels while the worker computes on this one. A backend that
        charges for data lets a worker wait for what the computing time does not cover; on Dask workers
        have their data from the beginning and nothing is charged.

    Notes
    -----
    Reduces to: pushing any decrease for alpha near 0; never pushing for one below -sqrt(window - 1) that
    stays there (beta = 0), which is refused.
    A chunk is what the straggler part orders (`dual_binary_search`): several passes over some samples;
    without such orders it is one step.
    Our reading: eq. (4), with the loss itself in mean and deviation (as the code has it; this is what makes
    -3 the least z of ten losses, where the paper's range of alpha ends), population deviation, no push where
    losses do not differ, the window emptied by a push, alpha not restored by it. The local optimizer
    is reset with the model that answers a push, since its momentum belongs to the model given up. All
    workers take the loss on the same samples of the validation set, which no worker trains on (the code takes
    the last 15 % of every chunk, which another chunk may have for training). In virtual time it costs
    test_samples seconds_per_sample / 3 / speed of the worker: a forward pass is about a third of a step.
    A loss of NaN or infinity is pushed, so that the run ends with it.

    Examples
    --------
    >>> policy = HermesGUP(alpha=-0.9).worker_policy()
    >>> [policy.after_step({"test_loss": loss}) for loss in (1.0, 0.9, 0.85)]
    ['report', 'push', 'report']
    """

    name = "hermes_gup"
    source = "Hermes, IV-B, Alg. 1"
    reads = ("test_loss",)
    pushes = "alone"
    chunks = True

    alpha: float = parameter(
        -1.3, "largest z-score of a test loss that causes a push", source="Hermes V-B", ge=-100, lt=0
    )
    beta: float = parameter(
        0.1, "share by which alpha shrinks while nothing is pushed", source="Hermes V-B", ge=0, lt=1
    )
    patience: int = parameter(
        5, "chunks without a push before alpha shrinks", unit="chunks", source="Hermes, Table I", ge=1
    )
    window: int = parameter(
        10, "number of recent test losses in the z-score", source="Hermes V-A", ge=2, le=10_000
    )
    prefetch: bool = parameter(
        True, "send the data of the next chunk while a worker computes the current one", source="Hermes IV-D"
    )
    test_samples: int = parameter(
        500, "validation samples for a test loss", unit="samples", source="ours", ge=1
    )
    codec: SerializeAsAny[CodecPart] = codec_field("codec of vectors sent to the servers", "fp16")
    codec_down: SerializeAsAny[CodecPart] = codec_field("codec of vectors sent to the workers", "fp16")

    @property
    def evaluated_samples(self) -> int:  # pyrefly: ignore[bad-override]
        """Samples that a worker takes its test loss over."""
        return self.test_samples

    @model_validator(mode="after")
    def _may_push(self) -> Self:
        least = -sqrt(self.window - 1)
        if self.beta == 0 and self.alpha < least:
            raise ParameterError(
                f"{self.name}: no z-score of {self.window} losses is below {least:.3g}, so nothing would "
                f"ever be pushed with alpha = {self.alpha:g} and beta = 0"
            )
        return self

    def worker_policy(self) -> WorkerPolicy:
        return HermesGUPPolicy(alpha=self.alpha, beta=self.beta, patience=self.patience, window=self.window)
