"""Defaults and bounds: what a name without parameters means is part of what was published, and of every
saved number; what may be set is part of every specification that somebody has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema

from psbench.cli.catalogue import KINDS, entries, entry_of
from psbench.clusters.connection import ConnectionSettings
from psbench.clusters.recovery import Recovery
from psbench.core.part import REGISTRY
from psbench.core.stop import Stop
from psbench.experiment import Experiment

#: what a JSON schema calls bounds
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "minLength", "minItems", "enum")
GOLDEN = Path(__file__).with_name("defaults.json")


def is_ours(domain: str, name: str) -> bool:
    """Whether it is the package's, and not of another test."""
    kind = REGISTRY.get(domain, {}).get(name)
    return kind is None or kind.__module__.startswith("psbench.")


def default(parameter: dict[str, Any]) -> Any:
    """Return a default, with the range if there is one."""
    known = parameter.get("range")
    return [parameter["default"], known] if known else parameter["default"]


def bounds(specification: type[BaseModel]) -> dict[str, Any]:
    """Return the bounds of a specification's own fields."""
    found = {}
    for name, field in specification.model_fields.items():
        try:
            schema = TypeAdapter(Annotated[field.annotation, field]).json_schema()
        except PydanticInvalidForJsonSchema:  # an object of its own
            continue
        each = [schema, *schema.get("anyOf", ())]
        # pydantic gives the only choice as an enum of one, or as a constant
        found[name] = [
            {b: part[b] for b in BOUNDS if b in part and len(part.get("enum", "ab")) > 1} for part in each
        ]
    return {name: known for name, known in found.items() if any(known)}


def defaults() -> dict[str, Any]:
    """Return defaults and ranges of the parameters of everything that is listed, and of an experiment."""
    found: dict[str, Any] = {"experiment": Experiment().spec()}
    for specification in (Experiment, Stop, ConnectionSettings, Recovery):
        found[f"bounds of {specification.__name__}"] = bounds(specification)
    for entry in (entry for kind in KINDS for entry in entries(kind)):
        if is_ours(entry["domain"], entry["name"]):
            key = f"{entry['domain']} {entry['name']}"
            found[key] = {each["name"]: default(each) for each in entry["parameters"]}
    return found


def test_defaults_are_changed_deliberately() -> None:
    found, golden = json.loads(json.dumps(defaults())), json.loads(GOLDEN.read_text())
    changed = sorted(key for key in found.keys() | golden.keys() if found.get(key) != golden.get(key))
    assert found == golden, (
        f"tests/defaults.json differs in {', '.join(changed)}; if this is intended, run "
        "`python tests/test_defaults.py` and look at the changed lines"
    )


def test_a_field_that_may_be_left_out_shows_what_it_takes():
    shown = {each["name"]: each["range"] for each in entry_of("optimizers", "sgd")["parameters"]}
    assert shown["decay"] == "null | matrices"
    assert set(shown["schedule"].split(" | ")) == {"null", *REGISTRY["schedule"]}
    assert shown["clip"] == "null | norm: > 0 | value: > 0"


if __name__ == "__main__":
    lines = [
        f"{json.dumps(key)}: {json.dumps(value, sort_keys=True)}" for key, value in sorted(defaults().items())
    ]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")  # a line each: a change is easy to see
