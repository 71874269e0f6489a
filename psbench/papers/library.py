"""The papers that are here, read from their files."""

from __future__ import annotations

import csv
import io
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from psbench.core.specification import problem
from psbench.errors import DataError, UnknownName
from psbench.papers.schema import Paper

#: in the order in which `--all` runs them
NAMES = ("strategy_switch", "hermes", "adacomm", "thesis", "sharding", "dbs_sgd", "sync_switch")

#: ten times as fast where PyYAML was built with libyaml
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FILES = resources.files("psbench.papers")


@cache
def load(name: str) -> Paper:
    """Return a paper.

    Raises
    ------
    UnknownName
    DataError
        If one of its files is not what it should be.

    Examples
    --------
    >>> load("hermes").rows[0].place
    'Table III, row "MNIST, ASP", column "Speedup"'
    """
    if name not in NAMES:
        raise UnknownName("paper", name, NAMES)
    folder = _FILES / name
    content, claims = (
        yaml.load((folder / name).read_text(encoding="utf-8"), _LOADER)
        for name in ("experiments.yaml", "claims.yaml")
    )
    content["claims"] = claims
    return parse(name, content, (folder / "published.csv").read_text(encoding="utf-8"))


def parse(name: str, content: dict[str, Any], table: str) -> Paper:
    """Return a paper from what its three files hold.

    Raises
    ------
    DataError
    """
    rows = [{key: text for key, text in row.items() if text} for row in csv.DictReader(io.StringIO(table))]
    try:
        return Paper(name=name, rows=tuple(rows), **content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DataError(f"paper {name!r}: {where}: {problem(first)}") from None


def stored(name: str) -> Path:
    """Return the file of the quick runs of a paper that come with psbench; it may not exist."""
    return Path(str(_FILES)) / name / "quick.parquet"
