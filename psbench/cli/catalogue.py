"""What `psbench list` shows: made from the parts' own declarations, and naming none of them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from psbench.core.part import REGISTRY, Part
from psbench.core.strategy import DOMAINS, Strategy
from psbench.core.switching_strategy import SwitchingStrategy
from psbench.errors import UnknownName

#: what may be listed, and the domains of parts that are shown then
KINDS: dict[str, tuple[str, ...]] = {
    "strategies": (),
    "parts": (*DOMAINS, "codec", "reassignment", "step_time"),
    "sharding": ("sharding",),
    "rules": ("switching",),
    "datasets": ("data",),
    "models": ("model",),
    "clusters": ("cluster",),
    "optimizers": ("optimizer",),
    "losses": ("loss",),
    "metrics": ("metric",),
}
_LIMITS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def entries(kind: str) -> list[dict[str, Any]]:
    """Return what there is of a kind, as plain data.

    Returns
    -------
    list of dict
        `domain`, `name`, `summary`, `source` and `parameters`: each with `name`, `default`, `unit`, `range`,
        `summary` and `source`.

    Raises
    ------
    UnknownName
    """
    from psbench import clusters, codecs, data, models, sharding
    from psbench.strategies import CATALOGUE
    from psbench.training import losses, optim, own_functions, scores

    if kind not in KINDS:
        raise UnknownName("kind of things to list", kind, KINDS)
    # imported so that their parts are registered
    _ = (clusters, codecs, data, losses, models, optim, own_functions, scores, sharding)
    if kind == "strategies":
        return [_published(entry) for entry in CATALOGUE.values()]
    return [_part(cls) for domain in KINDS[kind] for cls in REGISTRY[domain].values()]


def _published(entry: Any) -> dict[str, Any]:
    made = entry()
    defaults = {name: getattr(made, name) for name in entry.parameters} if _switches(made) else {}
    return {
        "domain": "strategy",
        "name": entry.name,
        "summary": entry.summary,
        "source": entry.source,
        "parameters": _parameters(entry.parameters, defaults),
    }


def _switches(made: Strategy | SwitchingStrategy) -> bool:
    return isinstance(made, SwitchingStrategy)


def _part(cls: type[Part]) -> dict[str, Any]:
    return {
        "domain": cls.domain,
        "name": cls.name,
        "summary": inspect.getdoc(cls).splitlines()[0].rstrip(".") if cls.__doc__ else "",  # type: ignore[union-attr]
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
        "range": _range(info),
        "summary": info.description or "",
        "source": extra.get("source", ""),
    }


def _plain(value: Any) -> Any:
    """Return plain data; a part or strategy by its name."""
    if isinstance(value, BaseModel):
        return value.name  # type: ignore[attr-defined]
    return json.loads(json.dumps(value))


def _range(info: FieldInfo) -> str:
    """Return the allowed values in words.

    >>> from psbench.consistency import KBSP
    >>> _range(KBSP.model_fields["k"]), _range(KBSP.model_fields["cancel"])
    ('>= 1', 'immediate | on_arrival')
    """
    if get_origin(info.annotation) is Literal:
        choices = get_args(info.annotation)
        return " | ".join(map(str, choices)) if len(choices) > 1 else ""
    limits = [
        (sign, getattr(m, name)) for m in info.metadata for name, sign in _LIMITS.items() if hasattr(m, name)
    ]
    return ", ".join(f"{sign} {limit:g}" for sign, limit in limits)


def print_entries(found: Iterable[Mapping[str, Any]], *, with_domain: bool) -> None:
    """Print entries as a table: name, what it does, source; its parameters below it."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:  # a table that is piped has all the room it wants
        console.width = 240
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    headings = [*(["part of"] if with_domain else []), "name", "what it is", "source"]
    for heading in headings:
        table.add_column(heading, no_wrap=heading in ("name", "part of"), overflow="fold")
    for entry in found:
        lead = [entry["domain"]] if with_domain else []
        table.add_row(*lead, f"[bold]{entry['name']}[/bold]", _safe(entry["summary"]), _safe(entry["source"]))
        for each in entry["parameters"]:
            blank = [""] if with_domain else []
            table.add_row(
                *blank, f"  {each['name']}", _safe(_words(each)), _safe(each["source"]), style="dim"
            )
    console.print(table)


def _words(each: Mapping[str, Any]) -> str:
    facts = [each["unit"], f"default {json.dumps(each['default'])}", each["range"]]
    return f"{each['summary']} ({'; '.join(filter(None, facts))})".strip()


def _safe(text: str) -> str:
    from rich.markup import escape

    return escape(text)
