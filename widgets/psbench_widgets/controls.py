"""Controls of the panel, generated from the parts' declarations.

A control is plain data that the page draws: kind, default, limits, unit, description and source of one
field. A part or strategy that is registered appears by itself.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from psbench.core.part import REGISTRY, Part
from psbench.core.specification import choices_of
from psbench.core.stop import Stop
from psbench.core.strategy import DOMAINS, Strategy
from psbench.core.user_object import Own
from psbench.errors import SpecError, in_short
from psbench.experiment import Experiment
from psbench.specfile import dump_yaml, parse_yaml
from psbench.strategies import CATALOGUE, Published, domain_of
from psbench_widgets.own_objects import options

#: fields of an experiment that are sections of the panel, in the order shown, and their headings
SECTIONS = {
    "data": "Data",
    "model": "Model",
    "cluster": "Cluster",
    "strategy": "Strategy",
    "sharding": "Sharding",
    "optimizer": "Optimizer",
    "stop": "Stop when",
}
#: fields of an experiment that the panel leaves out: it writes no folder while a run goes on
_ELSEWHERE = {*SECTIONS, "checkpoint_every"}
#: largest number of seeds that one press may queue: more are an afternoon's work, to be scripted
MOST_SEEDS = 30
#: the panel's own control: not part of an experiment, but how many of them a press queues
SEEDS = {
    "name": "seeds",
    "label": "seeds",
    "description": "runs to queue: this seed, the next, and so on; compared with an interval",
    **{"unit": "runs", "source": "", "kind": "integer", "optional": False},
    **{"min": 1, "max": MOST_SEEDS, "default": 1},
}
#: the convention of the learning rate that the parts declare
AUTO = Strategy.model_fields["lr_scaling"].default
_LIMITS = {"ge": "min", "gt": "above", "le": "max", "lt": "below"}


def form(own: Mapping[str, Own] | None = None) -> dict[str, Any]:
    """Return everything that the page needs to draw the controls; `own` are objects that were passed."""
    yours = options(own or {})
    rest = {name: info for name, info in Experiment.model_fields.items() if name not in _ELSEWHERE}
    return {
        "sections": [{"key": key, "title": title} for key, title in SECTIONS.items()],
        "domains": {
            domain: [*([yours[domain]] if domain in yours else []), *map(option, parts.values())]
            for domain, parts in REGISTRY.items()
        },
        "compose": list(DOMAINS),
        "lr_scaling": _lr_scaling(),
        "strategies": _strategies(*CATALOGUE),
        "stop": fields(Stop.model_fields),
        "rest": [*fields(rest), SEEDS],
    }


def _lr_scaling() -> dict[str, Any]:
    """Return the control of the learning-rate scaling, with the parts' own default as first choice."""
    found = control("lr_scaling", Strategy.model_fields["lr_scaling"])
    return found | {"choices": [AUTO, *found["choices"]]}


@cache
def _strategies(*names: str) -> list[dict[str, Any]]:
    """Return these strategies of the catalogue as options, cached for repeated use."""
    return [published(CATALOGUE[name]) for name in names]


def published(entry: Any) -> dict[str, Any]:
    """Return a strategy of the catalogue as an option; `parts` are the parts of its composition."""
    parts = {part.domain: part.name for part in entry().parts} if isinstance(entry, Published) else None
    offered = fields(entry.parameters)
    if parts is None:
        _take_defaults(offered, entry())
    return {
        "name": entry.name,
        "label": label_of(entry.name),
        "summary": entry.summary,
        "source": entry.source,
        "fields": offered,
        "parts": parts,
        "domain": (domain := domain_of(entry())),
        "lr_scaling": AUTO,
        "title": SPELLED_OUT.get(entry.name, ""),
        "short": IN_SHORT.get(entry.name, ""),
        "words": " ".join([SPELLED_OUT.get(entry.name, ""), FIELD_WORDS.get(domain, ""), _told(entry)]),
    }


def label_of(name: str) -> str:
    """Return the panel's name of a strategy: abbreviations in capitals, other names in words.

    >>> label_of("ssp"), label_of("strategy_switch")
    ('SSP', 'strategy switch')
    """
    return (
        name.upper() if name in SPELLED_OUT and "_" not in name and len(name) < 6 else name.replace("_", " ")
    )


#: the field's names of what the catalogue has abbreviations for
SPELLED_OUT = {
    "bsp": "bulk synchronous parallel",
    "ssp": "stale synchronous parallel",
    "asp": "asynchronous parallel",
    "dssp": "dynamic stale synchronous parallel",
    "local_sgd": "local stochastic gradient descent",
    "easgd": "elastic averaging SGD",
    "dc_asgd": "delay-compensated asynchronous SGD",
    "fedavgm": "federated averaging with momentum",
    "fedadam": "federated Adam",
    "fedbuff": "federated learning with buffered asynchronous aggregation",
    "fedasync": "asynchronous federated learning",
    "osp": "overlapped synchronisation parallel",
}
#: what a name that says nothing to a beginner stands for, in the sentence of the panel
IN_SHORT = {"bsp": "all wait for all", "ssp": "a bounded lead", "asp": "no waiting"}
#: what the field calls what strategies of a domain are about
FIELD_WORDS = {
    "consistency": "synchronous asynchronous stale staleness bound barrier parameter server",
    "aggregation": "aggregation averaging parameter server",
    "communication": "communication local sgd",
    "stragglers": "straggler slow worker load balancing backup",
    "placement": "parameter server sharding all-reduce ring decentralized",
    "switching": "switching hybrid adaptive",
}


def _told(entry: Any) -> str:
    """Return further search words of a strategy: the topics of its codecs, if any."""
    sends = entry().spec().get("communication", {})
    codecs = {sends.get(way, {}).get("name", "none") for way in ("codec", "codec_down")}
    return "compression quantization sparsification" if codecs != {"none"} else ""


def _take_defaults(offered: list[dict[str, Any]], made: Any) -> None:
    """Fill in declared fields without a default in a pair of strategies: both strategies and the rule."""
    for found in offered:
        value = getattr(made, found["name"])
        if found["kind"] == "strategy":
            found["default"] = {"name": value.name}
        elif found["kind"] == "part":
            found["default"] = value.model_dump(mode="json")


@cache
def option(part: type[Part]) -> dict[str, Any]:
    summary = (part.__doc__ or "").strip().partition("\n")[0]
    return {"name": part.name, "summary": summary, "source": part.source, "fields": fields(part.model_fields)}


def fields(declared: Mapping[str, FieldInfo]) -> list[dict[str, Any]]:
    return [control(name, info) for name, info in declared.items()]


def control(name: str, info: FieldInfo) -> dict[str, Any]:
    """Return the control of one field.

    `kind` is integer, number, bool, choice, text, part (of `domain`), strategy, or yaml for anything else.
    """
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    label, unit = _labelled(name, str(extra.get("unit", "")))
    found: dict[str, Any] = {
        "name": name,
        "label": label,
        "description": info.description or "",
        "unit": unit,
        "source": extra.get("source", ""),
        **_kind(name, info),
        **_limits(info.metadata),
    }
    return found | {"default": _default(info, found["kind"])}


def _labelled(name: str, unit: str) -> tuple[str, str]:
    """Return a field's label and the unit beside it: neither repeats the other.

    >>> _labelled("bandwidth_mbit_s", "Mbit/s"), _labelled("scan_s_per_sample", "s")
    (('bandwidth', 'Mbit/s'), ('scan per sample', 's'))
    >>> _labelled("workers", "workers"), _labelled("seconds_per_step", "s")
    (('workers', ''), ('seconds per step', ''))
    """
    words = name.replace("_", " ")
    if (len(unit) > 2 and unit in words.split()) or (unit == "s" and "seconds" in words):
        return words, ""
    return f" {words} ".replace(f" {unit.lower().replace('/', ' ')} ", " ").strip(), unit


def _kind(name: str, info: FieldInfo) -> dict[str, Any]:
    bare, optional = _without_none(info.annotation)
    found: dict[str, Any] = {"kind": "yaml"}
    if choices := choices_of(bare, info):
        found = {"kind": "choice", "choices": choices}
    elif isinstance(bare, type) and issubclass(bare, Part):
        found = {"kind": "part", "domain": bare.domain}
    elif isinstance(bare, type) and issubclass(bare, Strategy):
        found = {"kind": "strategy"}
    elif bare in _SIMPLE:
        found = {"kind": _SIMPLE[bare]}
    return found | {"optional": optional}


_SIMPLE: dict[Any, str] = {bool: "bool", int: "integer", float: "number", str: "text"}


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """Return the annotation without None, and whether None was allowed."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation, False
    kept = [arg for arg in get_args(annotation) if arg is not type(None)]
    bare = kept[0] if len(kept) == 1 else annotation
    return bare, len(kept) < len(get_args(annotation))


def _limits(metadata: Iterable[Any]) -> dict[str, Any]:
    return {
        ours: getattr(item, theirs)
        for item in metadata
        for theirs, ours in _LIMITS.items()
        if getattr(item, theirs, None) is not None
    }


def _default(info: FieldInfo, kind: str) -> Any:
    value = info.get_default(call_default_factory=True)
    if value is PydanticUndefined or kind == "strategy":
        return None
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return as_yaml(value) if kind == "yaml" and value is not None else value


def as_yaml(value: Any) -> str:
    """Return a value as one line of YAML, as a user would type it."""
    plain = list(value) if isinstance(value, tuple) else value
    return dump_yaml(plain, default_flow_style=True, width=10_000).strip().removesuffix("...").strip()


def read(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Parse the YAML text in the page's values; return the values, and an error by section.

    Examples
    --------
    >>> read({"cluster": {"speed": {"$yaml": "[1, 0.5]"}, "workers": 2}})
    ({'cluster': {'speed': [1, 0.5], 'workers': 2}}, {})
    """
    plain, errors = {}, {}
    for section, below in values.items():
        try:
            plain[section] = _parsed(below, section)
        except SpecError as error:
            errors[section] = str(error)
    return plain, errors


def _parsed(value: Any, field: str) -> Any:
    if isinstance(value, list):
        return [_parsed(item, field) for item in value]
    if not isinstance(value, Mapping):
        return value
    if set(value) != {"$yaml"}:
        return {name: _parsed(below, name) for name, below in value.items()}
    text = str(value["$yaml"])
    try:
        return parse_yaml(text, field)
    except SpecError as error:  # as long as the user is typing
        closes = {"[": "]", "{": "}"}.get(text.strip()[:1], "")
        open_bracket = closes and closes not in text
        reason = (
            f"it has no closing {closes}" if open_bracket else str(error).rpartition(": is not YAML: ")[2]
        )
        raise SpecError(f"{field.replace('_', ' ')}: {in_short(text)} is incomplete; {reason}") from None
