"""A strategy is a composition of parts; what cannot work together is refused here, with the reason."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from psbench.core.part import (
    Aggregation,
    Codec,
    Communication,
    Consistency,
    Layout,
    Part,
    Placement,
    Specification,
    Stragglers,
    Switching,
    WorkerPolicy,
    explain,
    make_part,
    parameter,
)
from psbench.errors import DoubtfulComposition, ParameterError

#: (updates since the hand-over, size of the cluster) -> factor of the optimizer's momentum
MomentumScale: TypeAlias = Callable[[int, int], float]

#: the statistics of a step, push or report that backends know
STATISTICS = ("compute_s", "send_s", "loss", "first_loss", "grad_norm_sq", "test_loss")
#: the kinds of numbers that backends measure
MEASURES = ("model_loss", "train_loss", "candidate_loss", "distance_sq", "server_load")


class WireSize(NamedTuple):
    """What a model has to be written on the wire: its tensors, and the bytes of its buffers.

    `ranges` is what each server holds, if that is not as at the start (`Placement.ranges`).
    """

    layout: Layout = ()
    buffer_bytes: int = 0
    ranges: Sequence[Sequence[tuple[int, int]]] | None = None

    def of(self, codec: Codec, placement: Placement) -> int:
        """Return the bytes, each server's slice being written by itself."""
        if not self.layout:
            return self.buffer_bytes
        ranges = placement.ranges(self.layout) if self.ranges is None else self.ranges
        sizes = (sum(stop - start for start, stop in own) for own in ranges)
        return sum(map(codec.num_bytes, sizes)) + self.buffer_bytes

    @property
    def whole(self) -> int:
        """The bytes as 32-bit floats."""
        return 4 * sum(size for _, size in self.layout) + self.buffer_bytes


DOMAINS = ("consistency", "aggregation", "communication", "stragglers", "placement")


class Strategy(Specification):
    """One composition: a part for each question.

    Parameters
    ----------
    name : str
        What charts and tables call it.
    consistency, aggregation, communication, stragglers, placement : Part
        A part, its name, or a mapping with its name and parameters.
    lr_scaling : "none" or "by_share"
        The optimizer's rate for an update of k pushes in a cluster of n workers: the single-node rate, or
        that rate times k/n. With `by_share` a sample moves the model equally far whatever the strategy:
        ASP and SSP use lr/n, k-ASP lr k/n, a full barrier lr (thesis 2.1.2, eqs. 2.1-2.3; our reading for
        1 < k < n, which both k = 1 and k = n imply).

    Raises
    ------
    ParameterError
        If the parts do not fit together.
    """

    name: str = "custom"
    consistency: Consistency
    aggregation: Aggregation = Field(default_factory=lambda: _default("aggregation", "mean"))
    communication: Communication = Field(default_factory=lambda: _default("communication", "every_step"))
    stragglers: Stragglers = Field(default_factory=lambda: _default("stragglers", "fixed"))
    placement: Placement = Field(default_factory=lambda: _default("placement", "parameter_server"))
    lr_scaling: Literal["none", "by_share"] = parameter(
        "none", "learning rate of an update of k pushes: as given, or times k/n", source="thesis 2.1.2"
    )
    _rule_reads: tuple[str, ...] = PrivateAttr(default=())

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise explain(error, type(self), "strategy") from None
        for doubt in doubts(self):  # here, because validators run again where a strategy is part of another
            warnings.warn(f"strategy {self.name!r}: {doubt}", DoubtfulComposition, stacklevel=2)

    @field_validator(*DOMAINS, mode="before")
    @classmethod
    def _part(cls, value: Any, info: Any) -> Part:
        return make_part(info.field_name, value)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for reason in misfits(self):
            raise ParameterError(f"strategy {self.name!r}: {reason}")
        return self

    @property
    def parts(self) -> tuple[Part, ...]:
        """The five parts in the order of `DOMAINS`."""
        return (self.consistency, self.aggregation, self.communication, self.stragglers, self.placement)

    @property
    def reads(self) -> tuple[str, ...]:
        """The statistics of a push or report that some part reads, or the switch rule."""
        return tuple(sorted({*self._rule_reads, *(name for part in self.parts for name in part.reads)}))

    def under_rule(self, rule: Switching) -> Strategy:
        """Return the composition as one of a switching strategy with that rule."""
        found = self.model_copy()
        found._rule_reads = rule.reads
        return found

    @property
    def measures(self) -> tuple[str, ...]:
        """The kinds of numbers that some part asks for with `Measure`."""
        return tuple(sorted({name for part in self.parts for name in part.measures}))

    @property
    def own_steps(self) -> bool:
        """Whether a worker moves a model of its own between pushes, or votes on its steps."""
        m = self.communication
        return m.local or m.overlaps or m.pushes == "together"

    @property
    def pushes_raw_gradients(self) -> bool:
        """Whether every worker pushes a 32-bit gradient after every step, and nothing else."""
        m = self.communication
        pushes = type(m.worker_policy()).after_step is WorkerPolicy.after_step
        told = {"compute_s", "send_s", "loss"} >= set(self.reads)
        written = {m.codec.name, m.codec_down.name} != {"none"}
        return pushes and told and not (self.own_steps or m.accumulates or written)

    @property
    def unknown_statistics(self) -> list[str]:
        """What parts read or measure although no backend knows it."""
        return sorted({*self.reads} - {*STATISTICS}) + sorted({*self.measures} - {*MEASURES})

    @property
    def needs_gradients(self) -> str:
        """The part whose decisions depend on tensors; empty if none does, so that a run may be timed only."""
        for part in self.parts:
            if set(part.measures) - {"server_load"} or not set(part.reads) <= {"compute_s", "send_s"}:
                return part.name
        return "" if set(self._rule_reads) <= {"compute_s", "send_s"} else "its switch rule"

    @property
    def reads_validation(self) -> bool:
        """Whether some part decides by a loss over validation data."""
        return bool({"test_loss", "model_loss", "candidate_loss"} & {*self.reads, *self.measures})

    @property
    def sends_differences(self) -> bool:
        """Whether a worker that sends its model sends what has changed since the model it was sent."""
        return self.aggregation.payload == "parameters" and not self.communication.codec.entrywise

    def forgets_residual(self, before: Strategy) -> bool:
        """Whether what codecs have not said under the composition `before` this one cannot say in its pushes.

        A gradient's entries are no parameters: what is missing of the one cannot be added to the other.
        """
        remembers = before.communication.codec.has_memory and not before.placement.collective
        return remembers and self.aggregation.payload != before.aggregation.payload

    def bytes_up(self, size: WireSize, num_workers: int) -> int:
        """Return the bytes of a push."""
        num_bytes = size.of(self.communication.codec, self.placement)
        return self.placement.bytes_up(num_bytes, num_workers)

    def bytes_down(self, size: WireSize, num_workers: int, whole: bool = False) -> int:
        """Return the bytes of an answer; `whole` is that of the first one to a worker."""
        codec = self.communication.codec_down
        bare = whole and not codec.entrywise
        num_bytes = size.whole if bare else size.of(codec, self.placement)
        return self.placement.bytes_down(num_bytes, num_workers)

    @property
    def compositions(self) -> tuple[Strategy, ...]:
        """The compositions that may be in force: this one."""
        return (self,)

    def check(self, num_workers: int, global_batch: int) -> None:
        """Raise ParameterError if a part cannot work on a cluster of that size."""
        for part in self.parts:
            part.check(num_workers, global_batch)

    def momentum_scale_of(self, index: int) -> MomentumScale | None:
        """Return how the optimizer's momentum is scaled: not at all."""
        return None

    def spec(self) -> dict[str, Any]:
        """Return plain data from which an equal strategy can be made."""
        return (
            {"name": self.name}
            | {p.domain: p.model_dump(mode="json") for p in self.parts}
            | {"lr_scaling": self.lr_scaling}
        )


class SwitchingStrategy(Specification):
    """Two compositions and the rule that changes from one to the other.

    At the change everybody finishes (or is cancelled, as the rule says), what is buffered is committed,
    a checkpoint is written, the model is handed over, and all begin under the new composition.

    Parameters
    ----------
    first, second : Strategy
    rule : Switching
    momentum : str
        What becomes of the optimizer's momentum. At every hand-over, "zero" begins anew with the optimizer's
        state, and all others keep it. While the second strategy is in force, n workers multiply the
        optimizer's coefficient by: "zero" and "keep" 1; "off" 0; "scaled" 1/n; "ramped" 1/n, 2/n, 4/n, ... up
        to 1; "ramped_additive" 1/n, 2/n, 3/n, ... up to 1.
    ramp_updates : int, updates, >= 1
        Updates under the second strategy from one value of a ramp to the next.
    cost_s : float, seconds, >= 0
        Time that the hand-over takes, in addition to draining.

    Notes
    -----
    Our reading of the ramps, which the sources give for 8 workers (0.9/8, 0.9/4, 0.9/2, 0.9, and steps of an
    eighth): they begin at 1/n, and the steps of the additive one are 1/n. Under the first strategy, also if
    one comes back to it, the coefficient is the optimizer's own.

    What a codec with error feedback has not said yet (`Channel`) is handed over with the model: the new one
    has it in its memory, and one without memory sends it with the worker's first push. Where one composition
    pushes gradients and the other models, the two do not add up; it is forgotten, and a note in the log says
    so. A server's own memory of aggregates (DoubleSqueeze) ends with them: its model has all of it already,
    and is what the workers are sent.

    Source
    ------
    Provatas et al., "Strategy-Switch", IEEE Access 2025, which dumps only the model at the switch: "zero";
    Li et al., "Sync-Switch", ICDCS 2021: the others; `protocols` 7.1, 7.2.
    """

    #: policies under which the second strategy's updates use less momentum than the optimizer's
    REDUCED: ClassVar[tuple[str, ...]] = ("off", "scaled", "ramped", "ramped_additive")

    name: str = "strategy_switch"
    first: Strategy
    second: Strategy
    rule: Switching
    momentum: Literal["zero", "keep", "off", "scaled", "ramped", "ramped_additive"] = parameter(
        "zero",
        "the optimizer's momentum at the switch: begun anew, kept, or kept and used less from then on",
        source="Strategy-Switch dumps only the model; Sync-Switch, ICDCS 2021",
    )
    ramp_updates: int = parameter(
        2000,
        "updates from one value of a ramp to the next",
        unit="updates",
        source="Sync-Switch, ICDCS 2021 (additive ramp)",
        ge=1,
    )
    cost_s: float = parameter(0.0, "time the hand-over takes, after draining", unit="s", ge=0)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise explain(error, type(self), "strategy") from None

    @field_validator("rule", mode="before")
    @classmethod
    def _rule(cls, value: Any) -> Part:
        return make_part("switching", value)

    @model_validator(mode="after")
    def _has_momentum_to_reduce(self) -> Self:
        if self.momentum in self.REDUCED and self.second.communication.local:
            raise ParameterError(
                f"strategy {self.name!r}: momentum {self.momentum!r} reduces the server's momentum, and the "
                f"workers of {self.second.name!r} step with optimizers of their own; use 'zero' or 'keep'"
            )
        return self

    def momentum_scale_of(self, index: int) -> MomentumScale | None:
        """Return how the optimizer's momentum is scaled under a composition; None if it is not."""
        return self._momentum_scale if index == 1 and self.momentum in self.REDUCED else None

    def _momentum_scale(self, updates: int, num_workers: int) -> float:
        """Return the factor of the update after so many under the second strategy.

        >>> from psbench.strategies import strategy_switch
        >>> ramp = strategy_switch(momentum="ramped", ramp_updates=10)._momentum_scale
        >>> [ramp(updates, 8) for updates in (0, 9, 10, 20, 30, 10**9)]
        [0.125, 0.125, 0.25, 0.5, 1.0, 1.0]
        """
        if self.momentum == "off":
            return 0.0
        stages = 0 if self.momentum == "scaled" else min(updates // self.ramp_updates, num_workers)
        parts = 2**stages if self.momentum == "ramped" else 1 + stages
        return min(1.0, parts / num_workers)

    @property
    def compositions(self) -> tuple[Strategy, ...]:
        """The compositions that may be in force."""
        return (self.first.under_rule(self.rule), self.second.under_rule(self.rule))

    def check(self, num_workers: int, global_batch: int) -> None:
        """Raise ParameterError if a part cannot work on a cluster of that size."""
        for strategy in self.compositions:
            strategy.check(num_workers, global_batch)
        self.rule.check(num_workers, global_batch)

    def spec(self) -> dict[str, Any]:
        """Return plain data from which an equal strategy can be made."""
        return {
            "name": self.name,
            "first": self.first.spec(),
            "second": self.second.spec(),
            "rule": self.rule.model_dump(mode="json"),
            "momentum": self.momentum,
            "ramp_updates": self.ramp_updates,
            "cost_s": self.cost_s,
        }


AnyStrategy: TypeAlias = Strategy | SwitchingStrategy


def misfits(strategy: Strategy) -> list[str]:
    """Return why the parts cannot work together; empty if they can. From declared properties alone."""
    c, a, m = strategy.consistency, strategy.aggregation, strategy.communication
    s, p = strategy.stragglers, strategy.placement
    checks = [
        (
            m.pushes == "alone" and c.waits_for != "none",
            f"{m.name}: a worker that may never push would stall the others, who wait under {c.name}",
        ),
        (m.pushes == "together" and not c.barrier, f"{m.name}: all push together, which needs a barrier"),
        (
            a.reply == "aggregate" and not c.barrier,
            f"{a.name}: a worker that is not in a commit would miss its aggregate; needs a barrier",
        ),
        (
            m.local and a.payload == "gradient" and a.reply != "aggregate",
            f"{m.name} with {a.name}: steps kept on the worker would be lost",
        ),
        (
            a.payload == "parameters" and not m.local,
            f"{a.name} with {m.name}: a worker that does not step by itself has no model of its own to send",
        ),
        (
            a.reply == "aggregate" and not m.local,
            f"{a.name} with {m.name}: a worker that does not step by itself cannot apply an aggregate",
        ),
        (
            m.overlaps and (a.payload != "gradient" or c.cancels),
            f"{m.name}: pushes accumulated gradients and cannot be interrupted",
        ),
        (
            m.overlaps and not a.takes_sums,
            f"{a.name} with {m.name}: a push of several steps would count as one; use 'accumulated'",
        ),
        (a.takes_sums and not m.overlaps, f"{a.name} with {m.name}: each push is a mean already, not a sum"),
        (
            a.needs_barrier and not c.barrier,
            f"{a.name}: takes a commit for the work of all since the last; {c.name} has no barrier",
        ),
        (
            a.one_at_a_time and not c.singly,
            f"{a.name}: weighs one push against its own state; {c.name} commits several",
        ),
        (
            p.collective and not (m.codec.entrywise and m.codec_down.entrywise),
            f"{p.name}: vectors are added up on their way, as codecs whose bits belong together do not allow",
        ),
        (
            p.stateless_workers and {m.codec.name, m.codec_down.name} != {"none"},
            f"{p.name}: its tasks hand on 32-bit floats; set both codecs to 'none'",
        ),
        (
            p.collective and m.overlaps,
            f"{m.name}: its workers are not at one model, which {p.name} needs",
        ),
        (s.needs_chunks and not m.chunks, f"{s.name}: sizes chunks of data, which {m.name} does not know"),
        (
            s.needs_progress and not m.reports_progress,
            f"{s.name}: looks at the workers' progress, which {m.name} does not tell",
        ),
        (s.needs_barrier and not c.barrier, f"{s.name}: cuts batches anew at a barrier; {c.name} has none"),
        (
            p.collective and (not c.barrier or c.cancels),
            f"{p.name}: a collective operation needs everybody, which {c.name} does not give",
        ),
        (
            p.stateless_workers and (a.payload != "gradient" or m.local or m.overlaps or m.accumulates),
            f"{p.name}: its tasks keep nothing between steps",
        ),
    ]
    return [reason for wrong, reason in checks if wrong]


def doubts(strategy: Strategy) -> list[str]:
    """Return what of a valid composition is probably not meant; empty if nothing is."""
    c, a, s = strategy.consistency, strategy.aggregation, strategy.stragglers
    checks = [
        (
            c.barrier and s.varies_batch and not a.weighs_samples,
            f"{s.name} cuts batches of different sizes, and {a.name} counts them alike: the update is no "
            "longer the gradient of the global batch; use aggregation 'mean'",
        ),
    ]
    return [doubt for doubtful, doubt in checks if doubtful]


def _default(domain: str, name: str) -> Any:
    return make_part(domain, name)
