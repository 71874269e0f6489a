"""Compatibility of parts; each part declares its requirements (`Part.needs`)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Literal, Protocol, get_args

from pydantic import ValidationError

from psbench.core.aggregation import Aggregation, PayloadKind, ReplyKind
from psbench.core.needs import Need
from psbench.core.part import REGISTRY, Part
from psbench.core.parts import Communication, Consistency, Placement, Selection, Stragglers
from psbench.errors import PsbenchError, UnknownName

#: how many parts an error proposes
_PROPOSED = 4


class Composition(Protocol):
    """One part of each domain."""

    @property
    def consistency(self) -> Consistency: ...

    @property
    def aggregation(self) -> Aggregation: ...

    @property
    def communication(self) -> Communication: ...

    @property
    def stragglers(self) -> Stragglers: ...

    @property
    def placement(self) -> Placement: ...

    @property
    def selection(self) -> Selection: ...

    @property
    def lr_scaling(self) -> Literal["none", "by_share"]: ...


def usual_lr_scaling(consistency: Consistency, aggregation: Aggregation) -> Literal["none", "by_share"]:
    singly = consistency.singly and aggregation.payload == "gradient"
    return "by_share" if singly and not aggregation.shares_rate else "none"


def misfits(strategy: Composition) -> list[str]:
    """Return the reasons why the parts cannot be combined, from declared properties alone."""
    a = strategy.aggregation
    declared = (("payload", a.payload, get_args(PayloadKind)), ("reply", a.reply, get_args(ReplyKind)))
    for what, value, known in declared:
        if value not in known:
            raise UnknownName(f"{what} of aggregation {a.name!r}", str(value), known)
    others = strategy.communication, strategy.stragglers, strategy.placement, strategy.selection
    parts = (strategy.consistency, a, *others)
    return [reason for part in parts for reason in _unmet(part, strategy)]


@cache
def needs_of(kind: type[Part]) -> tuple[Need, ...]:
    """Return the needs that a part and the families it derives from declare, the part's own first."""
    return tuple(need for each in kind.__mro__ for need in vars(each).get("needs", ()))


def _unmet(part: Part, strategy: Composition) -> Iterator[str]:
    """Yield an error for each unmet requirement of a part."""
    for need in needs_of(type(part)):
        other = getattr(strategy, need.domain)
        if need.when(part) and not need.is_met(other):
            why = need.why.format(part=part.name, other=other.name)
            remedy = need.remedy.format(part=part.name, other=other.name) or _proposal(need)
            yield f"{why}; {remedy}" if remedy else why


@cache
def _proposal(need: Need) -> str:
    """Return the names of registered parts that meet a requirement with their defaults; may be empty."""
    found = [name for name, kind in REGISTRY.get(need.domain, {}).items() if _meets(kind, need)]
    names = [f"'{name}'" for name in found[:_PROPOSED]]
    if not names:
        return ""
    return f"use {need.domain} {', '.join(names[:-1])}{' or ' if names[:-1] else ''}{names[-1]}"


def _meets(kind: type[Part], need: Need) -> bool:
    try:
        return need.is_met(kind())
    except (PsbenchError, ValidationError):  # it has a parameter without a default
        return False


def doubts(strategy: Composition) -> Iterator[str]:
    """Yield warnings about a valid composition that is probably not intended."""
    c, a, s = strategy.consistency, strategy.aggregation, strategy.stragglers
    if c.barrier and s.varies_batch and not a.weighs_samples:
        yield (
            f"{s.name} gives workers batches of different sizes, and {a.name} weighs them equally: the "
            "update is no longer the gradient of the global batch; use aggregation 'mean'"
        )
    if strategy.lr_scaling == "none" and usual_lr_scaling(c, a) == "by_share":
        yield (
            f"{c.name} commits each push separately, at the full learning rate: the pushes of n "
            "workers move the model n times as far as one update of a barrier; use lr_scaling 'by_share'"
        )
    if strategy.lr_scaling == "by_share" and a.shares_rate:
        yield (
            f"{a.name} already divides the learning rate among pushes, and lr_scaling 'by_share' would "
            "divide it again; use lr_scaling 'none'"
        )
