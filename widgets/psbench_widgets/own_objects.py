"""Python objects in the panel: the user's models and data; the page has only their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psbench.core.part import Part
from psbench.core.user_object import Own
from psbench.experiment import Experiment


def own_parts(experiment: Experiment) -> dict[str, Own]:
    parts = {name: getattr(experiment, name) for name in Experiment.model_fields}
    return {name: part for name, part in parts.items() if isinstance(part, Own)}


def with_objects(values: Mapping[str, Any], own: Mapping[str, Own]) -> dict[str, Any]:
    """Return the panel's values with `own` replaced by the objects."""
    return {key: own[key] if key in own and _says_own(value) else value for key, value in values.items()}


def options(own: Mapping[str, Own]) -> dict[str, dict[str, Any]]:
    """Return an option without controls for each object."""
    return {
        name: {"name": Own.name, "title": f"yours: {title(part)}", "summary": f"Yours: {part.type}."}
        | {"source": "", "fields": []}
        for name, part in own.items()
    }


def title(part: Part) -> str:
    """Return the title of a part: its name, or the type of an object.

    >>> title(Own(type="__main__.Net")), title(Own(type="(X, y)"))
    ('Net', '(X, y)')
    """
    if not isinstance(part, Own):
        return part.name.replace("_", " ")
    return part.type.rpartition(".")[2] if part.type.replace(".", "").isidentifier() else part.type


def titles_of(experiment: Experiment, *fields: str) -> list[str]:
    """Return the titles of an experiment's parts."""
    return [title(getattr(experiment, name)) for name in fields]


def _says_own(value: Any) -> bool:
    return value == Own.name or (isinstance(value, Mapping) and value.get("name") == Own.name)
