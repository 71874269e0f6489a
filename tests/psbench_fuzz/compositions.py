"""Strategies drawn from all registered parts, with hyper-parameters that are valid and mostly small."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias, cast, get_args, get_origin

import numpy as np
from pydantic.fields import FieldInfo

from psbench import strategies
from psbench.core import AnyStrategy, Part, Strategy, SwitchingStrategy
from psbench.core.compatibility import Composition, misfits
from psbench.core.part import REGISTRY
from psbench.core.specification import limits_of
from psbench.core.strategy import DOMAINS
from psbench.core.switching_strategy import LaterSwitch
from psbench.errors import ParameterError, SpecError
from psbench.strategies.selection import Reshuffle
from psbench.testing.random_cluster import fitting_sizes

#: attempts at something valid with a given part before it is said that nothing goes with it
_ATTEMPTS = 5000
#: attempts by chance alone, which seldom finds four parts that need each other; then they are mended
_BY_CHANCE = 200
#: default of a whole number, such as of local steps, above which it is mostly drawn
_MANY = 5
#: share of the combinations of parts that are not tried because their defaults do not fit together
_SKIPPED = 0.9
#: share of the parts of which all parameters are drawn: two that are seldom set may be wrong together
_ALL_DRAWN = 0.25
#: parts drawn again, one at a time, in search of a combination that fits
_MENDINGS = 200
#: sizes above this are drawn seldom, as they take longer
_FEW_WORKERS = 5
#: fields of a switching strategy that are drawn; its strategies and its rule are drawn as parts
_OF_SWITCHING = ("momentum", "ramp_updates", "cost_s")


#: the class of a part of each domain
Kinds: TypeAlias = dict[str, type[Part]]


def registered(*domains: str) -> list[type[Part]]:
    """Return psbench's own part classes of these domains, by name."""
    _ = strategies.CATALOGUE  # whose import registers the parts
    return [
        kind
        for domain in domains
        for _, kind in sorted(REGISTRY.get(domain, {}).items())
        if kind.__module__.startswith("psbench.")
    ]


def draw_part(kind: type[Part], rng: np.random.Generator, **fixed: Any) -> Part:
    """Return a part with half or all of its parameters at random non-default values.

    Raises
    ------
    ParameterError
        If none was found that is valid.
    """
    share = 1.0 if rng.random() < _ALL_DRAWN else 0.5
    for _ in range(_ATTEMPTS):
        try:
            return kind(**draw_fields(kind.model_fields, rng, share) | fixed)
        except SpecError:  # a value out of range, or two that do not go together
            continue
    raise ParameterError(f"{kind.domain} {kind.name!r}: no valid parameters were found by chance")


def draw_fields(fields: dict[str, FieldInfo], rng: np.random.Generator, share: float = 0.5) -> dict[str, Any]:
    """Return random values for that share of the fields, and for most fields with a large default."""
    drawn = {}
    for name, field in fields.items():
        default = field.get_default(call_default_factory=True) if field.annotation is int else 0
        if rng.random() < (max(0.9, share) if default > _MANY else share):
            drawn[name] = _value(field, rng)
    return drawn


def _value(field: FieldInfo, rng: np.random.Generator) -> Any:
    kind, default = field.annotation, field.get_default(call_default_factory=True)
    if isinstance(default, Part):  # as a codec
        known = registered(default.domain)
        return draw_part(known[rng.integers(len(known))], rng)
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        return choices[rng.integers(len(choices))]
    if kind is bool:
        return bool(rng.integers(2))
    return _number(field, kind, default, rng)


def _number(field: FieldInfo, kind: Any, default: Any, rng: np.random.Generator) -> Any:
    limits = limits_of(field)
    low, high = (limits.get(a, limits.get(b)) for a, b in (("ge", "gt"), ("le", "lt")))
    if kind is int:
        return int((low or 0) + rng.integers(6))
    if kind is float and low is not None and high is not None and high - low <= 1:
        return float(rng.uniform(low, high))
    return float((default or 1.0) * 10 ** rng.uniform(-3, 1)) if kind is float else default


def draw_composition(rng: np.random.Generator, *given: type[Part]) -> Strategy:
    """Return a valid composition with parts of the classes given, which may be a codec's.

    Raises
    ------
    ParameterError
        If nothing was found that goes with them.
    """
    own = {kind.domain: [kind] for kind in given}
    codec, selections = own.pop("codec", None), own.pop("selection", None)
    chance = rng.spawn(1)[0]  # of its own, as a selection goes with nearly all
    choices = {domain: registered(domain) for domain in DOMAINS if domain != "selection"} | own
    for attempt in range(_ATTEMPTS):
        drawn = {domain: known[rng.integers(len(known))] for domain, known in choices.items()}
        if attempt >= _BY_CHANCE:
            drawn = _mended(drawn, choices, rng)
        if _reasons(*drawn.values()) and rng.random() < _SKIPPED:
            continue
        try:
            fixed = {"communication": {"codec": draw_part(codec[0], rng)}} if codec else {}
            composed = Strategy(
                **{domain: draw_part(kind, rng, **fixed.get(domain, {})) for domain, kind in drawn.items()},
                lr_scaling=("none", "by_share")[rng.integers(2)],
            )
        except SpecError:  # the parts do not fit together
            continue
        if (chosen := _with_selection(composed, selections, chance)) is not None:
            return chosen
    raise ParameterError(f"nothing was found that goes with {', '.join(kind.__name__ for kind in given)}")


def _with_selection(
    composed: Strategy, given: list[type[Part]] | None, rng: np.random.Generator
) -> Strategy | None:
    """Return the composition with a selection one time in three; None if the given one does not fit."""
    if given is None and rng.random() < 2 / 3:
        return composed
    known = given or registered("selection")
    selection = draw_part(known[rng.integers(len(known))], rng)
    values = {name: getattr(composed, name) for name in type(composed).model_fields}
    try:
        return Strategy(**values | {"selection": selection})
    except SpecError:
        return None if given else composed


def _mended(drawn: Kinds, choices: dict[str, list[type[Part]]], rng: np.random.Generator) -> Kinds:
    """Return parts with fewer reasons against them: one at a time is drawn again, and kept if no worse."""
    reasons = _reasons(*drawn.values())
    for _ in range(_MENDINGS):
        if not reasons:
            break
        domain = tuple(choices)[rng.integers(len(choices))]
        other = drawn | {domain: choices[domain][rng.integers(len(choices[domain]))]}
        if (found := _reasons(*other.values())) <= reasons:
            drawn, reasons = other, found
    return drawn


@cache
def _reasons(*kinds: type[Part]) -> int:
    """Return the number of conflicts between these parts with their defaults."""
    parts = {"selection": _default(Reshuffle)} | {kind.domain: _default(kind) for kind in kinds}
    return len(misfits(cast(Composition, SimpleNamespace(**parts))))


@cache
def _default(kind: type[Part]) -> Part:
    return kind()


def draw_strategy(rng: np.random.Generator, *given: type[Part]) -> AnyStrategy:
    """Return a valid strategy that some small cluster takes; one in three switches.

    Raises
    ------
    ParameterError
        If none was found.
    """
    parts = [kind for kind in given if kind.domain in (*DOMAINS, "codec")]
    rules = [kind for kind in given if kind.domain == "switching"]
    for _ in range(_ATTEMPTS):
        one = draw_composition(rng, *parts)
        made: AnyStrategy = one
        if rules or rng.random() < 1 / 3:
            try:
                made = _switching(one, rules or registered("switching"), rng)
            except SpecError:
                continue
        if fitting_sizes(made):
            return made
    raise ParameterError("no strategy was found that a small cluster takes")


def _switching(one: Strategy, rules: list[type[Part]], rng: np.random.Generator) -> SwitchingStrategy:
    # with the same stragglers part, whose timers of the first composition must not reach the second
    same = [type(one.stragglers)] if rng.random() < 1 / 3 else []
    both = [one, draw_composition(rng, *same)]
    rng.shuffle(both)
    own = {name: field for name, field in SwitchingStrategy.model_fields.items() if name in _OF_SWITCHING}
    rule = draw_part(rules[rng.integers(len(rules))], rng)
    values: dict[str, Any] = {"first": both[0], "second": both[1], "rule": rule, "then": _then(one, rng)}
    return SwitchingStrategy(**values | draw_fields(own, rng))


def _then(one: Strategy, rng: np.random.Generator) -> tuple[LaterSwitch, ...]:
    """Return at most one further switch: to a new composition, or to one of the first two."""
    if rng.random() < 2 / 3:
        return ()
    to = one if rng.random() < 1 / 3 else draw_composition(rng)
    rules = registered("switching")
    return (LaterSwitch(to=to, rule=draw_part(rules[rng.integers(len(rules))], rng)),)


def draw_size(sizes: list[int], rng: np.random.Generator) -> int:
    few = [size for size in sizes if size <= _FEW_WORKERS]
    known = sizes if rng.random() < 0.1 or not few else few
    return known[rng.integers(len(known))]


def turn(number: int) -> type[Part] | None:
    """Return the part that a block of schedules must contain: every second block has one, in turn."""
    parts = registered(*DOMAINS, "switching", "codec")
    return parts[number // 2 % len(parts)] if number % 2 else None
