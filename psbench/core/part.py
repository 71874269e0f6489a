"""Parts: the pure pieces that a strategy is composed of, and the registry of their names.

A part is a frozen pydantic model: its fields are its hyper-parameters, declared once with range, unit,
description and source, and everything else (YAML, command line, panel, tables) is made from them. A part's
state is kept in private attributes (`PrivateAttr`) of plain data. The base class of each
domain is in `core.parts`.
"""

# no `from __future__ import annotations`: pydantic would compile these texts again for each subclass

import copy
import inspect
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import model_serializer

from psbench.core.actions import Action
from psbench.core.specification import Specification
from psbench.core.view import ClusterView
from psbench.errors import ParameterError, UnknownName, in_short

if TYPE_CHECKING:
    from psbench.core.needs import Need

#: every part by domain and name, filled as the classes are made
REGISTRY: dict[str, dict[str, type["Part"]]] = {}


class Part(Specification):
    """Base of all parts; subclasses with a `name` are registered under their domain."""

    domain: ClassVar[str] = ""
    name: ClassVar[str] = ""
    #: properties of the other parts without which it cannot work, beside those that its parents declare
    needs: ClassVar[tuple["Need", ...]] = ()
    #: statistics of a push or report that the part reads; no others are computed
    reads: ClassVar[tuple[str, ...]] = ()
    #: kinds of numbers that the part asks for with `Measure`
    measures: ClassVar[tuple[str, ...]] = ()
    #: whether it can be made from its name; what stands for an object of Python cannot
    registered: ClassVar[bool] = True

    @classmethod
    def error_name(cls) -> str:
        """Return the name of the part in error messages."""
        return f"{cls.domain} {cls.name!r}"

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if not cls.registered or not cls.__dict__.get("name"):  # an inherited name is the parent's
            return
        if not cls.__module__.startswith("psbench."):
            _refuse_misplaced(cls)
        known = REGISTRY.setdefault(cls.domain, {})
        other = known.get(cls.name, cls)
        # a cell of a notebook that is run again defines its class again
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ParameterError(
                f"{cls.domain} {cls.name!r} is defined already, by {other.__module__}.{other.__qualname__}; "
                f"give {cls.__qualname__} another name"
            )
        known[cls.name] = cls

    @model_serializer(mode="wrap")
    def _with_name(self, handler: Any) -> dict[str, Any]:
        return {"name": self.name, **handler(self)}

    def fresh(self) -> Self:
        """Return an equal part in its initial state."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields})

    def check(self, num_workers: int, global_batch: int) -> None:
        """Raise ParameterError if the part cannot work on a cluster of that size."""

    def start(self, view: ClusterView) -> list[Action]:
        """Start: called once before any other hook, and again after a switch."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Return the part's state (its private attributes) as plain data."""
        return copy.deepcopy(dict(self.__pydantic_private__ or {}))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from `state_dict`."""
        for name, value in state.items():
            setattr(self, name, copy.deepcopy(value))


def overrides(part: object, hook: str) -> bool:
    """Return whether a part's class, or a parent outside of `psbench.core`, overrides this hook.

    Examples
    --------
    >>> from psbench.strategies.communication import LocalSGD
    >>> from psbench.strategies.consistency import BSP
    >>> overrides(BSP(), "on_push"), overrides(LocalSGD(), "receive")
    (True, False)
    """
    owner = next((each for each in type(part).__mro__ if hook in vars(each)), None)
    return owner is not None and not owner.__module__.startswith("psbench.core.")


def _refuse_misplaced(cls: type[Part]) -> None:
    """Reject a method that is a hook of other parts, or a likely misspelling: it would never be called."""
    hooks = {name for base in cls.__mro__[1:] for name in vars(base)}
    for name, value in vars(cls).items():
        if not inspect.isfunction(value) or name.startswith("_") or name in hooks:
            continue
        if family := _family_with(cls.domain, name):
            raise ParameterError(
                f"{cls.domain} {cls.name!r}: nothing calls its method {name!r}, a hook of parts that derive "
                f"from {family.__name__}; derive it from {family.__module__}.{family.__name__}"
            )
        domains = dict.fromkeys(base.domain for base in Part.__subclasses__() if base.domain)
        others = [domain for domain in domains if _family_with(domain, name)]
        if others:
            raise ParameterError(
                f"{cls.domain} {cls.name!r}: nothing calls its method {name!r}, a hook of {others[0]} parts. "
                "Begin the name of a private method with an underscore"
            )
        as_hook = name.startswith("on_")  # perhaps one of another domain
        found = get_close_matches(name, hooks - vars(cls).keys(), 1, 0.8)
        longer = any(name in near or near in name for near in found)  # as a helper `steps` beside `step`
        if as_hook or (found and not longer):
            known = ", ".join(sorted(hook for hook in hooks if hook.startswith("on_")))
            hint = f"did you mean {found[0]!r}?" if found else f"a {cls.domain} part has {known}."
            raise ParameterError(
                f"{cls.domain} {cls.name!r}: nothing calls its method {name!r}; {hint} "
                "Begin the name of a private method with an underscore"
            )


def _family_with(domain: str, hook: str) -> type[Part] | None:
    """Return the class in `psbench.core` of that domain with such a hook; None if there is none."""
    waiting = [each for each in Part.__subclasses__() if each.domain == domain]
    while waiting:
        kind = waiting.pop(0)
        if inspect.isfunction(vars(kind).get(hook)):
            return kind
        waiting += [each for each in kind.__subclasses__() if each.__module__.startswith("psbench.core.")]
    return None


def make_part(domain: str, value: Any) -> Part:
    """Return a part from a part, a name, or a mapping with `name` and parameters.

    Raises
    ------
    UnknownName, ParameterError
    """
    if isinstance(value, Part):
        if value.domain != domain:
            raise ParameterError(f"{value.name!r} is a {value.domain} part, not a {domain} part")
        return value
    if isinstance(value, str):
        value = {"name": value}
    known = REGISTRY.get(domain, {})
    if not known:
        raise ParameterError(f"{domain}: no part has been loaded so far; import psbench.strategies first")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        names = ", ".join(sorted(known))
        raise ParameterError(
            f"{domain}: expected a name or a mapping with a name, got {in_short(value)} (known: {names})"
        )
    values = dict(value)
    name = values.pop("name")
    if name not in known:
        raise UnknownName(f"{domain} part", name, known)
    return known[name](**values)
