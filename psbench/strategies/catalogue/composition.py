"""Entries of the catalogue that are one composition of parts."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from pydantic.fields import FieldInfo

from psbench.core import Part, Strategy, make_part
from psbench.core.part import REGISTRY
from psbench.core.strategy import DOMAINS
from psbench.errors import ParameterError, UnknownName

# imported so that their parts are registered, whichever a composition names
from psbench.strategies import aggregation, communication, consistency, placement, selection, stragglers  # noqa: F401
from psbench.strategies.catalogue.entry import Entry

#: the parts of a plain parameter server
PLAIN = {
    "consistency": "asp",
    "aggregation": "mean",
    "communication": "every_step",
    "stragglers": "fixed",
    "placement": "parameter_server",
}


@dataclass(frozen=True)
class Published(Entry):
    """A named composition.

    Parameters
    ----------
    parts : list of part classes
        Of each domain that differs from a plain parameter server.
    defaults : dict
        Parameters whose default differs from that of their part.
    """

    parts: Collection[type[Part]] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def part_classes(self) -> dict[str, type[Part]]:
        """The part class of each domain, of the selection only if the entry has one of its own."""
        plain = {domain: REGISTRY[domain][name] for domain, name in PLAIN.items()}
        return plain | {part.domain: part for part in self.parts}

    @property
    def parameters(self) -> dict[str, FieldInfo]:
        """The hyper-parameters of the composition's parts, by name."""
        fields = (part.model_fields for part in self.part_classes.values())
        return with_defaults({n: info for own in fields for n, info in own.items()}, self.defaults)

    @property
    def __signature__(self) -> inspect.Signature:
        """The parameters that a user may set."""
        keyword = inspect.Parameter.KEYWORD_ONLY
        usual = {name: f.get_default(call_default_factory=True) for name, f in self.parameters.items()}
        own = [inspect.Parameter(name, keyword, default=value) for name, value in usual.items()]
        return inspect.Signature([*own, *(inspect.Parameter(d, keyword, default=None) for d in DOMAINS)])

    def __call__(self, **values: Any) -> Strategy:
        """Return the strategy with these parameters.

        Raises
        ------
        UnknownName, ParameterError
        """
        settings: dict[str, Any] = {"name": values.pop("name", self.name)}
        settings["lr_scaling"] = values.pop("lr_scaling", "auto")
        replaced = {domain: make_part(domain, values.pop(domain)) for domain in DOMAINS if domain in values}
        taken: set[str] = set()  # a parameter that several parts have is one, which each of them gets
        for domain, part in self.part_classes.items():
            own = {name: values[name] for name in part.model_fields if name in values}
            taken |= own.keys()
            if domain in replaced and own:
                raise ParameterError(
                    f"strategy {self.name!r}: give {', '.join(own)} inside {domain}, which you replace"
                )
            usual = {name: value for name, value in self.defaults.items() if name in part.model_fields}
            settings[domain] = replaced.get(domain) or part(**usual | own)
        settings |= {domain: part for domain, part in replaced.items() if domain not in settings}
        for unknown in sorted(values.keys() - taken):
            raise UnknownName(
                f"parameter of strategy {self.name!r}", unknown, [*self.parameters, *DOMAINS, "lr_scaling"]
            )
        return Strategy(**settings)


def with_defaults(fields: dict[str, FieldInfo], defaults: Mapping[str, Any]) -> dict[str, FieldInfo]:
    """Return the fields with other defaults."""
    changed = {name: copy(fields[name]) for name in defaults}
    for name, info in changed.items():
        info.default, info.default_factory = defaults[name], None
    return fields | changed
