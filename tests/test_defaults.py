"""Defaults: what a name without parameters means is part of what was published, and of every saved number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from psbench.cli.catalogue import KINDS, entries
from psbench.core.part import REGISTRY
from psbench.experiment import Experiment

GOLDEN = Path(__file__).with_name("defaults.json")


def is_ours(domain: str, name: str) -> bool:
    """Whether it is the package's, and not of another test."""
    kind = REGISTRY.get(domain, {}).get(name)
    return kind is None or kind.__module__.startswith("psbench.")


def defaults() -> dict[str, Any]:
    """Return the parameters' defaults of everything that is listed, and of an experiment."""
    found: dict[str, Any] = {"experiment": Experiment().spec()}
    for entry in (entry for kind in KINDS for entry in entries(kind)):
        if is_ours(entry["domain"], entry["name"]):
            key = f"{entry['domain']} {entry['name']}"
            found[key] = {each["name"]: each["default"] for each in entry["parameters"]}
    return found


def test_defaults_are_changed_deliberately() -> None:
    """After a change that is meant, `python tests/test_defaults.py` writes them anew."""
    assert json.loads(json.dumps(defaults())) == json.loads(GOLDEN.read_text())


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(defaults(), indent=1, sort_keys=True) + "\n")
