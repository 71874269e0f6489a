"""Objects of Python in the panel: models and data of one's own, which the page knows by name only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psbench.core.own import Own
from psbench.experiment import Experiment


def own_parts(experiment: Experiment) -> dict[str, Own]:
    """Return the parts of an experiment that hold an object which somebody passed, by field."""
    parts = {name: getattr(experiment, name) for name in Experiment.model_fields}
    return {name: part for name, part in parts.items() if isinstance(part, Own)}


def with_objects(values: Mapping[str, Any], own: Mapping[str, Own]) -> dict[str, Any]:
    """Return the panel's values with the objects where they say `own`."""
    return {key: own[key] if key in own and _says_own(value) else value for key, value in values.items()}


def options(own: Mapping[str, Own]) -> dict[str, dict[str, Any]]:
    """Return the option by which each can be picked; it has no controls."""
    return {
        name: {"name": Own.name, "summary": f"Yours: {part.type}.", "source": "", "fields": []}
        for name, part in own.items()
    }


def _says_own(value: Any) -> bool:
    return value == Own.name or (isinstance(value, Mapping) and value.get("name") == Own.name)
