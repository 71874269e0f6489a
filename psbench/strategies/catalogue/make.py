"""A strategy from a name, a mapping or a text in a specification."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psbench.core import AnyStrategy, Strategy, SwitchingStrategy
from psbench.core.peer_to_peer import PeerToPeer
from psbench.core.strategy import DOMAINS
from psbench.errors import ParameterError, UnknownName, in_short
from psbench.strategies.catalogue.entry import Entry

#: every published strategy by name, filled by the package
CATALOGUE: dict[str, Entry] = {}


def register(entry: Entry) -> Entry:
    """Add a strategy to the catalogue, and return it.

    A package adds its strategies by an entry point of the group `psbench.strategies`, whose object is a
    module that calls this.

    Raises
    ------
    ParameterError
        If another strategy has that name.
    """
    if CATALOGUE.setdefault(entry.name, entry) != entry:
        raise ParameterError(f"strategy {entry.name!r} is already in the catalogue; give yours another name")
    return entry


def second_names() -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Return the other published names of entries: each with its entry and preset parameters."""
    return {name: (entry.name, values) for entry in CATALOGUE.values() for name, values in entry.also.items()}


def make_strategy(value: Any) -> AnyStrategy:
    """Return a strategy from a strategy, a catalogue name, or a mapping.

    A mapping with the `name` of a catalogue entry refines it; with any other name, or none, it must give
    at least `consistency` and composes a strategy of its own.

    Raises
    ------
    UnknownName, ParameterError
    """
    if isinstance(value, (Strategy, SwitchingStrategy)):
        return value
    if isinstance(value, Entry):
        return value()
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping):
        raise ParameterError(f"strategy: expected a name or a mapping, got {in_short(value)}")
    values = dict(value)
    name = values.get("name")
    if isinstance(name, str) and name in (others := second_names()):
        name, defaults = others[name]
        values = {**defaults, **values}
    if isinstance(name, str) and name in CATALOGUE:
        values.pop("name")
        return CATALOGUE[name](**values)
    if "consistency" in values:
        for unknown in values.keys() - Strategy.model_fields.keys():
            raise UnknownName("part of a strategy", unknown, Strategy.model_fields)
        return Strategy(**values)
    if "first" in values and "second" in values:  # a switch that was given a name of its own
        return CATALOGUE["strategy_switch"](**values)
    if name is None:
        raise ParameterError("strategy: give a name of the catalogue, or compose one: at least `consistency`")
    raise UnknownName("strategy", str(name), [*CATALOGUE, *second_names()])


def domain_of(strategy: AnyStrategy) -> str:
    """Return the domain in which a strategy differs from plain BSP and ASP.

    >>> from psbench.strategies import CATALOGUE, domain_of
    >>> [domain_of(CATALOGUE[name]()) for name in ("ssp", "all_reduce", "double_squeeze", "sync_switch")]
    ['consistency', 'placement', 'communication', 'switching']
    """
    if isinstance(strategy, SwitchingStrategy):
        return "switching"
    if isinstance(strategy.placement, PeerToPeer):
        return "placement"
    plain, own = CATALOGUE["bsp"]().spec(), strategy.spec()
    others = ("stragglers", "communication", "aggregation", "placement")
    return next((domain for domain in others if own[domain] != plain[domain]), "consistency")


def named_spec(strategy: AnyStrategy) -> dict[str, Any]:
    """Return the specification by the catalogue's name and parameters if it has the strategy, else by parts.

    Examples
    --------
    >>> from psbench.strategies import make_strategy, named_spec
    >>> named_spec(make_strategy("ssp"))["staleness_bound"]
    3
    """
    spec: dict[str, Any] = strategy.spec()
    entry = CATALOGUE.get(strategy.name)
    if entry is None:
        return spec
    if isinstance(strategy, SwitchingStrategy):
        named = spec | {key: {"name": spec[key]["name"]} for key in ("first", "second")}
    else:
        values = {
            k: v for domain in DOMAINS for k, v in spec.get(domain, {}).items() if k in entry.parameters
        }
        named = {"name": strategy.name, **values}
    return named if make_strategy(named).spec() == spec else spec
