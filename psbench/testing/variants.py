"""Variants of a strategy with one hyper-parameter at either end of its range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from psbench.core import AnyStrategy, Part, Strategy, SwitchingStrategy
from psbench.core.specification import limits_of
from psbench.core.strategy import DOMAINS
from psbench.errors import PsbenchError
from psbench.testing.random_cluster import fitting_sizes

#: upper ends of unlimited numbers; the small one is for those that may not exceed the number of workers
_LARGE = (1_000_000, 4)
_SMALL = 1e-6


def variants(strategy: AnyStrategy, most_workers: int = 6) -> Iterator[AnyStrategy]:
    """Yield the strategy with one hyper-parameter at one end, if it accepts some size of cluster."""
    for variant in _all(strategy):
        if fitting_sizes(variant, most_workers):
            yield variant


def _all(strategy: AnyStrategy) -> Iterator[AnyStrategy]:
    if isinstance(strategy, Strategy):
        yield from _of_composition(strategy)
        return
    for key in ("first", "second"):
        for changed in _of_composition(getattr(strategy, key)):
            yield _changed(strategy, **{key: changed})
    for rule in _of_part(strategy.rule):
        yield _changed(strategy, rule=rule)
    for name in ("momentum", "ramp_updates"):
        for end in extreme_values(SwitchingStrategy.model_fields[name]):
            try:
                yield _changed(strategy, **{name: end})
            except PsbenchError:  # the workers of its second strategy have their own momentum
                continue


def _of_composition(strategy: Strategy) -> Iterator[Strategy]:
    for domain in DOMAINS:
        for part in _of_part(getattr(strategy, domain)):
            try:
                changed = _changed(strategy, **{domain: part})
            except PsbenchError:  # this value does not fit the other parts
                continue
            assert isinstance(changed, Strategy)
            yield changed


def _of_part(part: Part) -> Iterator[Part]:
    values = {name: getattr(part, name) for name in type(part).model_fields}
    for name, field in type(part).model_fields.items():
        for end in extreme_values(field):
            if end == values[name]:
                continue
            try:
                yield type(part)(**values | {name: end})
            except PsbenchError:  # another parameter forbids it
                continue


def extreme_values(field: FieldInfo) -> list[Any]:
    """Return the extreme values of a field: of a number, all choices, or both booleans."""
    kind = field.annotation
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    if kind is bool:
        return [False, True]
    if kind not in (int, float):
        return []
    limits = limits_of(field)
    nudge = 1 if kind is int else _SMALL
    low = limits.get("ge", limits["gt"] + nudge if "gt" in limits else None)
    high = limits.get("le", limits["lt"] - nudge if "lt" in limits else None)
    lows = [] if low is None else [low]
    highs = list(_LARGE) if high is None else [high]
    return [kind(value) for value in (*lows, *highs)]


def _changed(strategy: AnyStrategy, **changes: Any) -> AnyStrategy:
    values = {name: getattr(strategy, name) for name in type(strategy).model_fields}
    made: type[Strategy] | type[SwitchingStrategy] = type(strategy)
    return made(**values | changes)
