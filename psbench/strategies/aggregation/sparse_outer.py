"""The server's half of SparseLoCo: a step along the mean of the values sent for each entry."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low
from typing import Any, Literal

from pydantic import PrivateAttr

from psbench.core import Action, Aggregation, Apply, ClusterView, Measure, Push, parameter
from psbench.core.arithmetic import Pushed, State, Step, Vector
from psbench.core.needs import NEEDS_BARRIER

SOURCE = "Sarfi et al. 2025 (SparseLoCo)"


class SparseOuter(Aggregation):
    """Step along the workers' sparse differences: x <- x - lr A(q), without momentum.

    Parameters
    ----------
    combine : "mean_of_senders" or "mean"
        A: of each entry the mean over the workers that sent it, as the authors' code has it, or over all
        workers, as the paper writes.
    clip : "median_norm" or "none"
        Whether longer differences are shortened to the median norm; of an even number of norms that is the
        lower of the two in the middle, as torch has it.

    Notes
    -----
    Reduces to: `outer` with 'plain', with 'mean' and without clipping.
    The two means are equal for one worker, and differ by the number of workers where no two send the same
    entry. An entry that a worker sends as 0 counts as not sent.
    The authors' code applies the rate twice, where differences are added up and here; this part does so once.
    Our reading: norms are of whole differences, where the authors clip each tensor's by itself.

    Source
    ------
    Sarfi et al. (2025), "Communication Efficient LLM Pre-training with SparseLoCo", Alg. 1; the mean of
    senders and the clipping are of the authors' code, tplr-ai/templar c2397ac, src/tplr/compress.py, lines
    472-474 and 526-556; the rate is applied twice in src/tplr/neurons.py, lines 153 and 427.
    """

    name = "sparse_outer"
    source = SOURCE
    payload = "difference"
    needs = (NEEDS_BARRIER,)
    weighs_samples = False

    outer_lr: float = parameter(1.0, "rate of the server", source=SOURCE, gt=0)
    combine: Literal["mean_of_senders", "mean"] = parameter(
        "mean_of_senders",
        "mean of each entry over the workers that sent it, or over all workers",
        source=SOURCE,
    )
    clip: Literal["median_norm", "none"] = parameter(
        "median_norm", "whether to shorten longer differences to the median length", source=SOURCE
    )

    _asked: list[int] = PrivateAttr(default_factory=list)  # pushes of the commit that is being measured

    @property
    def measures(self) -> tuple[str, ...]:  # pyrefly: ignore[bad-override]
        """The squared norms, if they are needed."""
        return ("dot",) if self.clip == "median_norm" else ()

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Request the norms, or apply all pushes unchanged."""
        if self.clip == "none":
            return [Apply(pushes, [1.0] * len(pushes))]
        self._asked = [push.id for push in pushes]
        return [Measure("aggregation", {f"dot:{number}:{number}": None for number in self._asked})]

    def on_measured(self, facts: dict[str, Any], view: ClusterView) -> list[Action]:
        """Weigh each push so that none is longer than the median."""
        norms = [facts[f"dot:{number}:{number}"] ** 0.5 for number in self._asked]
        longest = median_low(norms)
        weights = [longest / norm if norm > longest else 1.0 for norm in norms]
        return [Apply([view.pending[number] for number in self._asked], weights)]

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        """Step along the mean of the sent values."""
        total = step.sum(pushes)
        if self.combine == "mean":
            x.sub_(total, alpha=self.outer_lr / len(pushes))
            return
        senders = sum((push.vector != 0).to(x.dtype) for push in pushes)
        x.sub_(total / senders.clamp_(min=1), alpha=self.outer_lr)  # pyrefly: ignore[missing-attribute]
