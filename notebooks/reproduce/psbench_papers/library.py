"""The available papers, read from their files."""

from __future__ import annotations

import csv
import io
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from psbench.core.typed_data import typed
from psbench.errors import DataError, UnknownName
from psbench_papers.claim import Scale
from psbench_papers.schema import Paper

#: in the order in which `--all` runs them
NAMES = (
    *("strategy_switch", "hermes", "adacomm", "thesis", "sharding"),
    *("dbs_sgd", "sync_switch", "halos", "asyncdiloco"),
    *("data_aware", "batch_selection", "stale_momentum"),
    *("m_sync", "ringmaster", "ringleader", "birch"),
)

#: of a paper: what was run, what is claimed, the printed numbers
FILES = ("experiments.yaml", "claims.yaml", "published.csv")

#: ten times as fast where PyYAML was built with libyaml
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FILES = resources.files("psbench_papers")


def load(name: str) -> Paper:
    """Return a paper.

    Parameters
    ----------
    name : str
        One of `NAMES`, or a folder with the three files of a paper of your own.

    Raises
    ------
    UnknownName
    DataError
        If one of its files is missing, or not what it should be.

    Examples
    --------
    >>> load("hermes").rows[0].place
    'Table III, row "MNIST, ASP", column "Speedup"'
    """
    if name in NAMES:
        return _shipped(name)
    if not Path(name).is_dir():
        raise UnknownName("paper", name, NAMES)
    return _read(Path(name).resolve())


@cache
def _shipped(name: str) -> Paper:
    return _read(Path(str(_FILES)) / name)


def _read(folder: Path) -> Paper:
    try:
        texts = [(folder / file).read_text(encoding="utf-8") for file in FILES]
        content, claims = (yaml.load(text, _LOADER) for text in texts[:2])
    except (OSError, UnicodeError) as error:
        raise DataError(f"paper {folder}: {error}; a paper has {', '.join(FILES)}") from None
    except yaml.YAMLError as error:
        raise DataError(f"paper {folder}: no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise DataError(
            f"paper {folder}: {FILES[0]} is not a mapping; see sharding/{FILES[0]} in psbench_papers"
        )
    return parse(folder.name, content | {"claims": claims}, texts[2])


def parse(name: str, content: dict[str, Any], table: str) -> Paper:
    """Return a paper from the content of its three files.

    Raises
    ------
    DataError
    """
    rows = [{key: text for key, text in row.items() if text} for row in csv.DictReader(io.StringIO(table))]
    return typed(Paper, {"name": name, "rows": tuple(rows), **content}, f"paper {name!r}")


def stored(name: str, scale: Scale = "quick") -> Path:
    """Return the file of a paper's stored runs, which may not exist."""
    return Path(str(_FILES)) / name / f"{scale}.parquet"
