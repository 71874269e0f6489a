"""Entries of the catalogue that change from one strategy to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic.fields import FieldInfo

from psbench.core import Strategy, Switching, SwitchingStrategy
from psbench.core.switching_strategy import LaterSwitch
from psbench.errors import ParameterError, UnknownName
from psbench.strategies.catalogue.composition import with_defaults
from psbench.strategies.catalogue.entry import Entry
from psbench.strategies.catalogue.make import make_strategy


@dataclass(frozen=True)
class PublishedSwitch(Entry):
    """A named pair of strategies with a rule; for the parameters see `SwitchingStrategy`.

    Parameters
    ----------
    rules : tuple of Switching
        A keyword that no switching strategy has is a parameter of the rule: of the first of these that has
        all that are given. Without one, the first is the rule.
    defaults : dict
        Other parameters whose default differs.
    """

    first: str
    second: str
    rules: tuple[Switching, ...]
    defaults: dict[str, Any] = field(default_factory=dict)

    @property
    def parameters(self) -> dict[str, FieldInfo]:
        """The hyper-parameters by name."""
        names = dict.fromkeys(("first", "second", *SwitchingStrategy.model_fields))
        own = {n: SwitchingStrategy.model_fields[n] for n in names if n != "name"}
        return with_defaults(own, self.defaults)

    def __call__(self, **values: Any) -> SwitchingStrategy:
        """Return the switching strategy with these parameters.

        Raises
        ------
        UnknownName, ParameterError
        """
        of_rule = {name: values.pop(name) for name in [*values] if name not in SwitchingStrategy.model_fields}
        first = _single(values.pop("first", self.first))
        second = _single(values.pop("second", self.second))
        rule = self._rule(values.pop("rule", None), of_rule)
        if "then" in values:
            values["then"] = later_switches(values["then"])
        settings: dict[str, Any] = {"name": self.name, "first": first, "second": second, "rule": rule}
        return SwitchingStrategy(**settings | self.defaults | values)

    def _rule(self, given: Any, values: dict[str, Any]) -> Any:
        known = [*SwitchingStrategy.model_fields, *(n for r in self.rules for n in type(r).model_fields)]
        for unknown in (name for name in values if name not in known):
            raise UnknownName(f"parameter of strategy {self.name!r}", unknown, dict.fromkeys(known))
        if given is not None and values:
            raise ParameterError(f"strategy {self.name!r}: give {', '.join(values)} inside the rule")
        if given is not None:
            return given
        for rule in self.rules:
            own = type(rule).model_fields
            if values.keys() <= own.keys():
                return type(rule)(**{name: getattr(rule, name) for name in own} | values)
        raise ParameterError(f"strategy {self.name!r}: no rule has all of {', '.join(values)}")


def later_switches(value: Any) -> tuple[LaterSwitch, ...]:
    """Return the second and later switches of a specification.

    Raises
    ------
    UnknownName, ParameterError
    """
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ParameterError(
            f"then: expected a list of switches such as {{to: asp, rule: ...}}, got {value!r}"
        )
    return tuple(map(_later_switch, value))


def _later_switch(value: Any) -> LaterSwitch:
    if isinstance(value, LaterSwitch):
        return value
    if not isinstance(value, Mapping):
        raise ParameterError(f"then: expected a mapping such as {{to: asp, rule: ...}}, got {value!r}")
    to = value.get("to")
    return LaterSwitch(**dict(value) | {"to": to if to is None or isinstance(to, int) else _single(to)})


def _single(value: Any) -> Strategy:
    strategy = make_strategy(value)
    if not isinstance(strategy, Strategy):
        raise ParameterError(
            "strategy_switch: a strategy to switch from or to cannot itself switch; list further switches "
            "under `then`"
        )
    return strategy
