"""Content of `psbench list`, generated from the parts' declarations."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from psbench.core.part import REGISTRY, Part
from psbench.core.specification import Specification, allowed_values
from psbench.core.strategy import DOMAINS, Strategy
from psbench.core.switching_strategy import SwitchingStrategy
from psbench.errors import UnknownName
from psbench.references import resolve

#: what may be listed, and the domains of parts that are shown then
KINDS: dict[str, tuple[str, ...]] = {
    "strategies": (),
    "parts": (*DOMAINS, "codec", "neighbourhoods", "reassignment", "step_time"),
    "sharding": ("sharding",),
    "rules": ("switching",),
    "datasets": ("data",),
    "models": ("model",),
    "clusters": ("cluster",),
    "optimizers": ("optimizer", "schedule"),
    "losses": ("loss",),
    "metrics": ("metric",),
}
#: what one of a kind is called, if not as all of them without an s
_ONE = {"strategies": "strategy", "rules": "switch rule", "datasets": "data set", "losses": "loss"}
#: parts that a strategy has unless something else sets it apart
_USUAL = ("mean", "every_step", "fixed", "parameter_server", "reshuffle")


def entries(kind: str) -> list[dict[str, Any]]:
    """Return the entries of a kind, as plain data.

    Returns
    -------
    list of dict
        `domain`, `about` (the domain of the part that sets it apart), `name`, `summary`, `source` and
        `parameters`: each with `name`, `default`, `unit`, `range`, `summary` and `source`.

    Raises
    ------
    UnknownName
    """
    from psbench import clusters, data, models, sharding
    from psbench.optimization import layerwise, muon, own_functions, torch_optimizer
    from psbench.strategies import CATALOGUE, codecs

    if kind not in KINDS:
        raise UnknownName("kind of things to list", kind, KINDS)
    # imported so that their parts are registered
    _ = (clusters, codecs, data, layerwise, models, muon, own_functions, sharding, torch_optimizer)
    if kind == "strategies":
        return [_published(entry) for entry in CATALOGUE.values()]
    return [_part(cls) for domain in KINDS[kind] for cls in REGISTRY[domain].values()]


def entry_of(kind: str, name: str) -> dict[str, Any]:
    """Return one entry with its parts, and the full `references` it cites.

    `parts` has the `domain`, `name` and `text` of each part. A second name of a strategy finds its entry.

    Raises
    ------
    UnknownName
    """
    from psbench.strategies import CATALOGUE, second_names

    known = {entry["name"]: entry for entry in entries(kind)}
    others = second_names() if kind == "strategies" else {}
    name = others[name][0] if name in others else name
    if name not in known:
        raise UnknownName(_ONE.get(kind, kind.removesuffix("s")), name, [*known, *others])
    parts = _parts_of(CATALOGUE[name]()) if kind == "strategies" else [_class_of(known[name])]
    texts = [{"domain": cls.domain, "name": cls.name, "text": inspect.getdoc(cls) or ""} for cls in parts]
    return known[name] | {"parts": texts, "references": _references(known[name], texts)}


def _references(entry: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the full references cited by an entry, its parameters and its parts' docstrings, each once."""
    sources = [entry["source"], *(each["source"] for each in entry["parameters"])]
    texts = "; ".join([*sources, *(part["text"] for part in parts)])
    return [f"{reference.key}: {reference.text}" for reference in resolve(texts)[0]]


def _class_of(entry: Mapping[str, Any]) -> type[Part]:
    return REGISTRY[entry["domain"]][entry["name"]]


def _parts_of(made: Strategy | SwitchingStrategy) -> list[type[Part]]:
    """Return the parts that characterise a strategy: its consistency, and parts other than the defaults."""
    if isinstance(made, SwitchingStrategy):
        return [type(made.rule)]
    parts = [getattr(made, domain) for domain in DOMAINS]
    return [type(part) for part in parts if part.domain == "consistency" or part.name not in _USUAL]


def _published(entry: Any) -> dict[str, Any]:
    from psbench.strategies import domain_of

    made = entry()
    switches = isinstance(made, SwitchingStrategy)
    defaults = {name: getattr(made, name) for name in entry.parameters} if switches else {}
    return {
        "domain": "strategy",
        "about": domain_of(made),
        "name": entry.name,
        "summary": entry.summary,
        "source": entry.source,
        "parameters": _parameters(entry.parameters, defaults),
    }


def _part(cls: type[Part]) -> dict[str, Any]:
    return {
        "domain": cls.domain,
        "about": cls.domain,
        "name": cls.name,
        "summary": inspect.getdoc(cls).splitlines()[0].rstrip(".") if cls.__doc__ else "",  # pyrefly: ignore[missing-attribute]
        "source": cls.source,
        "parameters": _parameters(cls.model_fields, {}),
    }


def _parameters(fields: Mapping[str, FieldInfo], defaults: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        _parameter(name, info, defaults.get(name, info.get_default(call_default_factory=True)))
        for name, info in fields.items()
    ]


def _parameter(name: str, info: FieldInfo, default: Any) -> dict[str, Any]:
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    return {
        "name": name,
        "default": None if default is PydanticUndefined else _plain(default),
        "unit": extra.get("unit", ""),
        "range": allowed_values(info) or _names_allowed(info),
        "summary": info.description or "",
        "source": extra.get("source", ""),
    }


def _names_allowed(info: FieldInfo) -> str:
    """Return the names of parts that an optional field accepts, or the fields of its other types."""
    kinds = get_args(info.annotation)
    if type(None) not in kinds:
        return ""
    own = [get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in kinds]
    for kind in (each for each in own if isinstance(each, type)):
        if issubclass(kind, Part):
            return " | ".join(["null", *REGISTRY[kind.domain]])
        if issubclass(kind, Specification):
            ranges = {name: allowed_values(field) for name, field in kind.model_fields.items()}
            fields = [f"{name}: {range_}" if range_ else name for name, range_ in ranges.items()]
            return " | ".join(["null", *fields])
    return ""


def _plain(value: Any) -> Any:
    """Return plain data; a part or strategy is replaced by its name."""
    if isinstance(value, BaseModel):
        return getattr(value, "name", None) or value.model_dump(mode="json")
    return json.loads(json.dumps(value))
