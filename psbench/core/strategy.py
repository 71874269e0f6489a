"""A strategy: one part for each of six questions, checked to fit together (`core.compatibility`)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal, Self, TypeAlias

from pydantic import Field, PrivateAttr, field_validator, model_validator

from psbench.core.arithmetic import ToAll
from psbench.core.called_hooks import has_own_half, has_own_policy, never_called
from psbench.core.collective import Collective
from psbench.core.compatibility import doubts, misfits, usual_lr_scaling
from psbench.core.part import Part, make_part, overrides
from psbench.core.parts import (
    Aggregation,
    Communication,
    Consistency,
    FragmentRanges,
    Placement,
    Selection,
    Stragglers,
    Switching,
)
from psbench.core.specification import Specification, parameter
from psbench.core.wire_size import WireSize
from psbench.errors import DoubtfulComposition, ParameterError

#: (updates since the hand-over, size of the cluster) -> factor of the optimizer's momentum
MomentumScale: TypeAlias = Callable[[int, int], float]

#: the statistics of a step, push or report that backends know
STATISTICS = ("compute_s", "send_s", "loss", "first_loss", "grad_norm_sq", "test_loss", "push_norm")
#: the kinds of numbers that backends measure
MEASURES = ("model_loss", "train_loss", "candidate_loss", "distance_sq", "dot", "server_load")

DOMAINS = ("consistency", "aggregation", "communication", "stragglers", "placement", "selection")


class Strategy(Specification):
    """One composition: a part for each question.

    `notebooks/site/glossary.md` defines the six parts and the terms of their parameters.

    Parameters
    ----------
    name : str
        Name in charts and tables.
    consistency, aggregation, communication, stragglers, placement, selection : Part
        A part, its name, or a mapping with its name and parameters. In a run that switches, a composition
        that names no selection goes on with that of the one before it.
    lr_scaling : "auto", "none" or "by_share"
        The optimizer's rate for an update of k pushes in a cluster of n workers: the single-node rate, or
        that rate times k/n. With `by_share` a sample moves the model by the same amount in every strategy:
        ASP and SSP use lr/n, k-ASP lr k/n, a full barrier lr (thesis 2.1.2, eqs. 2.1-2.3; our reading for
        1 < k < n, which both k = 1 and k = n imply).
        "auto" takes what the parts declare: `by_share` where the consistency commits every push by itself
        (`singly`), pushes are gradients (`payload`), and the aggregation's weights do not share the rate out
        already (`shares_rate`, as division by staleness does); else `none`. What is written down always says
        which of the two it is.

    Raises
    ------
    ParameterError
        If the parts do not fit together.

    Warns
    -----
    DoubtfulComposition
        If they fit, and are probably not meant so: such as whole rates for pushes that are committed singly.

    Examples
    --------
    >>> [Strategy(consistency=name).lr_scaling for name in ("asp", "bsp", "k_asp")]
    ['by_share', 'none', 'none']
    """

    name: str = "custom"
    consistency: Consistency
    aggregation: Aggregation = Field(default_factory=lambda: _default("aggregation", "mean"))
    communication: Communication = Field(default_factory=lambda: _default("communication", "every_step"))
    stragglers: Stragglers = Field(default_factory=lambda: _default("stragglers", "fixed"))
    placement: Placement = Field(default_factory=lambda: _default("placement", "parameter_server"))
    selection: Selection = Field(default_factory=lambda: _default("selection", "reshuffle"))
    lr_scaling: Literal["none", "by_share"] = parameter(
        "auto",
        "learning rate of an update of k pushes: as given, or times k/n; auto: as the parts declare",
        source="thesis 2.1.2",
        validate_default=True,
    )
    _rule_reads: tuple[str, ...] = PrivateAttr(default=())

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        for doubt in doubts(self):  # not in a validator, which runs again where a strategy is part of another
            warnings.warn(f"strategy {self.name!r}: {doubt}", DoubtfulComposition, stacklevel=2)

    @field_validator(*DOMAINS, mode="before")
    @classmethod
    def _part(cls, value: Any, info: Any) -> Part:
        return make_part(info.field_name, value)

    @field_validator("lr_scaling", mode="before")
    @classmethod
    def _usual(cls, value: Any, info: Any) -> Any:
        if value != "auto":
            return value
        known = [info.data[domain] for domain in ("consistency", "aggregation") if domain in info.data]
        # without one of the two that is the error to report
        return usual_lr_scaling(*known) if len(known) == 2 else "none"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for reason in (*misfits(self), *never_called(self)):
            raise ParameterError(f"strategy {self.name!r}: {reason}")
        return self

    @property
    def parts(self) -> tuple[Part, ...]:
        """The six parts in the order of `DOMAINS`."""
        m = self.communication
        return (self.consistency, self.aggregation, m, self.stragglers, self.placement, self.selection)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The statistics of a push or report that some part reads, or the switch rule."""
        parts = *self.parts, self.communication.codec
        return tuple(sorted({*self._rule_reads, *(name for part in parts for name in part.reads)}))

    def under_rule(self, rule: Switching) -> Strategy:
        """Return the composition as one of a switching strategy with that rule."""
        found = self.model_copy()
        found._rule_reads = rule.reads
        vars(found).pop("reads", None)  # of the composition alone
        return found

    @property
    def measures(self) -> tuple[str, ...]:
        """The kinds of numbers that parts request with `Measure`."""
        return tuple(sorted({name for part in self.parts for name in part.measures}))

    @property
    def holds_versions(self) -> bool:
        """Return True if servers keep the versions from which workers and pending pushes started."""
        return "distance_sq" in self.measures or self.aggregation.needs_base

    @property
    def own_steps(self) -> bool:
        """Return True if a worker updates its own model between pushes, or votes on its steps."""
        m = self.communication
        return self.has_local_steps or m.overlaps or m.pushes == "together"

    @property
    def has_local_steps(self) -> bool:
        """Return True if a worker has an optimizer of its own and keeps its steps between pushes."""
        return self.communication.steps_by_itself

    @property
    def pushes_raw_gradients(self) -> bool:
        """Return True if every worker pushes exactly a 32-bit gradient after every step."""
        m = self.communication
        columns = {"compute_s", "send_s", "loss"} >= set(self.reads)
        own = self.computes_on_workers or m.accumulates or has_own_policy(m) or self.selection.chooses
        return columns and not (own or m.is_encoded)

    @property
    def computes_on_workers(self) -> bool:
        """Return True if a worker updates a model, or pushes another payload than the mean gradient."""
        return self.own_steps or has_own_half(self.communication)

    @property
    def _pushes_every_step(self) -> bool:
        return not overrides(self.communication.worker_policy(), "after_step")

    @property
    def decides_own_rounds(self) -> bool:
        """Return True if a worker itself decides the number of mini-batches in a push.

        Not where all vote after every mini-batch, or a worker cuts a single one into pieces.
        """
        m = self.communication
        return not (self._pushes_every_step or m.pushes == "together" or m.reports_progress)

    @property
    def vectors_of_a_push(self) -> int:
        """Number of vectors with an entry per parameter in a push."""
        return 1 + len(self.aggregation.carries)

    @property
    def vectors_of_an_answer(self) -> int:
        """Number of vectors with an entry per parameter in an answer to a worker."""
        return 1 + len(self.aggregation.sends)

    @property
    def sends_fragments(self) -> bool:
        """Return True if a push carries a fragment of the model instead of all entries."""
        return type(self.communication).fragments is not Communication.fragments

    @property
    def keeps_steps(self) -> bool:
        """Return True if workers make progress without an update, by keeping a step after a vote."""
        return self.communication.pushes == "together"

    @property
    def unknown_statistics(self) -> list[str]:
        """Statistics that parts read or measure although no backend provides them."""
        return sorted({*self.reads} - {*STATISTICS}) + sorted({*self.measures} - {*MEASURES})

    @property
    def needs_gradients(self) -> str:
        """The part whose decisions depend on tensors; empty if none does, and `timing_only` is possible."""
        if self.selection.remembers:
            return self.selection.name
        for part in (*self.parts, self.communication.codec):
            if set(part.measures) - {"server_load"} or not set(part.reads) <= {"compute_s", "send_s"}:
                return part.name
        return "" if set(self._rule_reads) <= {"compute_s", "send_s"} else "its switch rule"

    @property
    def reads_validation(self) -> bool:
        """Return True if some part decides by a validation loss."""
        return bool({"test_loss", "model_loss", "candidate_loss"} & {*self.reads, *self.measures})

    @property
    def sends_differences(self) -> bool:
        """Return True if a worker that pushes its model sends the difference from the model it received."""
        return self.aggregation.payload == "parameters" and not self.communication.codec.entrywise

    @property
    def whole_rate(self) -> bool:
        """Return True if an update applies the optimizer's full rate, however many gradients it has."""
        a = self.aggregation
        return self.lr_scaling == "none" and a.payload == "gradient" and not a.shares_rate

    @property
    def leaves_residuals(self) -> bool:
        """Return True if workers keep residuals of their pushes (error feedback)."""
        codec = self.communication.codec.has_memory and not isinstance(self.placement, Collective)
        return codec or self.aggregation.exchanges

    def forgets_residual(self, before: Strategy) -> bool:
        """Return True if residuals from the composition `before` cannot be sent under this one.

        Gradients and parameters differ in unit: the residual of the one cannot be added to the other. Nor can
        that of one vector to a push of several. Who has not pushed under `before` may have one of a
        composition before it.
        """
        a, last = self.aggregation, before.aggregation
        return (a.payload, a.carries) != (last.payload, last.carries) or self.sends_fragments

    def sums(self, size: WireSize, version: int) -> list[tuple[int, bool]]:
        """Return the bytes of each sum of an exchange that makes the next version.

        With whether it is none, but a message of so many bytes from each member to all.
        """
        entries = self.aggregation.sums(size.shapes, version)
        if not entries:
            return [(size.of(self.communication.codec, self.placement), False)]
        sums = [(e.num_bytes, True) if isinstance(e, ToAll) else (4 * e, False) for e in entries]
        first, to_all = sums[0]
        if to_all:  # running statistics go with the first sum, or by themselves
            return [(size.buffer_bytes, False), *sums] if size.buffer_bytes else sums
        return [(first + size.buffer_bytes, False), *sums[1:]]

    def _exchanged_bytes(self, size: WireSize, version: int, num_workers: int, way: Literal[0, 1]) -> int:
        assert isinstance(self.placement, Collective)  # no other is fit for an exchange
        of_all, sums = self.placement.to_all_bytes, self.sums(size, version)
        return round(sum(of_all(each, num_workers)[way] if to_all else each for each, to_all in sums))

    def bytes_up(
        self,
        size: WireSize,
        num_workers: int,
        fragment: FragmentRanges | None = None,
        version: int = 0,
        setting: int = -1,
    ) -> int:
        """Return the bytes of a push of a fragment or of all entries, computed on that version.

        `setting`: that of the worker's codec.
        """
        if self.aggregation.exchanges:
            return self.placement.bytes_up(self._exchanged_bytes(size, version, num_workers, 0), num_workers)
        codec, vectors = self.communication.codec, self.vectors_of_a_push
        num_bytes = size.of(codec, self.placement, fragment, vectors, setting)
        return self.placement.bytes_up(num_bytes, num_workers)

    def bytes_down(
        self,
        size: WireSize,
        num_workers: int,
        whole: bool = False,
        fragment: FragmentRanges | None = None,
        version: int = 1,
    ) -> int:
        """Return the bytes of an answer with that version; `whole` for the first one to a worker."""
        if self.aggregation.exchanges and not whole:
            return self.placement.bytes_down(
                self._exchanged_bytes(size, version - 1, num_workers, 1), num_workers
            )
        codec = self.communication.codec_down
        bare = whole and not codec.entrywise
        # members of a collective make the state themselves
        vectors = (
            self.vectors_of_a_push if isinstance(self.placement, Collective) else self.vectors_of_an_answer
        )
        num_bytes = size.whole(vectors) if bare else size.of(codec, self.placement, fragment, vectors)
        return self.placement.bytes_down(num_bytes, num_workers)

    @property
    def compositions(self) -> tuple[Strategy, ...]:
        """The compositions that may be in force: this one."""
        return (self,)

    @property
    def requests(self) -> tuple[tuple[float, int | None], ...]:
        """The switches at set times: none."""
        return ()

    def check(self, num_workers: int, global_batch: int) -> None:
        """Raise ParameterError if a part cannot work on a cluster of that size."""
        for part in self.parts:
            part.check(num_workers, global_batch)

    def momentum_scale_of(self, index: int) -> MomentumScale | None:
        """Return the scaling of the optimizer's momentum: None."""
        return None

    def spec(self) -> dict[str, Any]:
        """Return the specification: plain data from which an equal strategy is made."""
        named = (p for p in self.parts if p.domain != "selection" or self.names_selection)
        return (
            {"name": self.name}
            | {p.domain: p.model_dump(mode="json") for p in named}
            | {"lr_scaling": self.lr_scaling}
        )

    @property
    def names_selection(self) -> bool:
        """Return True if the composition names its selection, which replaces the previous one."""
        return "selection" in self.model_fields_set

    def after(self, before: Strategy) -> Strategy:
        """Return the composition after another one, with that one's selection unless it names its own."""
        return self if self.names_selection else self.model_copy(update={"selection": before.selection})


def _default(domain: str, name: str) -> Any:
    return make_part(domain, name)
