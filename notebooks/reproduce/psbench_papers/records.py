"""The record of each run: its specification, seed, measures, curve and digests, as plain data."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

from pydantic import ConfigDict

from psbench.core.typed_data import read_json, typed
from psbench.errors import DamagedFile, DataError, in_short
from psbench.system.files import atomic_write, check_writable, write_text
from psbench_papers import measures
from psbench_papers.cells import PaperCell

if TYPE_CHECKING:
    from psbench.results.run import Run

FORMAT = 1


@dataclass(frozen=True)
class PaperRecord:
    """A run that was made.

    Attributes
    ----------
    measures : dict
        See `measures.measure`.
    curve : dict of column to list
        The evaluations, thinned.
    staleness : list of int
        Pushes by staleness, from 0 on.
    status : str
        "finished" or "diverged"; runs that diverged are kept.
    digest, params_digest : str
        Of the log and of the model.
    wall_s : float, seconds
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", allow_inf_nan=False)

    key: str
    paper: str
    experiment: str
    seed: int
    role: str
    label: str
    spec: str
    status: str
    measures: dict[str, Any]
    curve: dict[str, list[float | None]]
    staleness: list[int]
    digest: str
    params_digest: str | None
    wall_s: float

    def __post_init__(self) -> None:
        try:
            spec = json.loads(self.spec)
            names = [spec[part]["name"] for part in ("strategy", "data")]
        except (ValueError, KeyError, TypeError, RecursionError):
            names = [None]
        if not all(isinstance(name, str) for name in names):
            raise ValueError(f"spec is no specification of a run: {in_short(self.spec)}")


def record_of(cell: PaperCell, run: Run, summary: Mapping[str, Any]) -> PaperRecord:
    """Return the record of a cell's run, given its summary."""
    own = ("key", "paper", "experiment", "seed", "role", "label", "spec")
    return PaperRecord(
        **{name: getattr(cell, name) for name in own},
        status=summary["status"],
        measures=measures.measure(run, summary, cell.target_of, cell.target),
        curve=measures.curve(run),
        staleness=measures.staleness_counts(run),
        digest=summary["digest"],
        params_digest=summary["params_digest"],
        wall_s=round(summary["wall_s"], 3),
    )


class Store:
    """Store in a folder: whole runs in `runs`, and their records in `records`, one JSON file per key.

    Raises
    ------
    SpecError
        If the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        check_writable(folder)
        self.runs, self._records = folder / "runs", folder / "records"
        self._records.mkdir(parents=True, exist_ok=True)

    def find(self, cell: PaperCell) -> PaperRecord | None:
        """Return the record of a cell; None if it has not been run.

        A file that is not that record counts as none, which a warning (`DamagedFile`) says.
        """
        path = self._path(cell.key)
        if not path.is_file():
            return None
        try:
            record = _read(path)
            if (record.key, record.spec) != (cell.key, cell.spec):
                raise DataError(f"{path}: is the record of another run")
        except DataError as error:
            warnings.warn(DamagedFile(f"{error}; it is made again"), stacklevel=2)
            return None
        return record

    def save(self, record: PaperRecord) -> None:
        """Write a record, whole or not at all."""
        write_text(self._path(record.key), json.dumps({"format": FORMAT} | vars(record), allow_nan=False))

    def _path(self, key: str) -> Path:
        return self._records / f"{key}.json"


def records_in(folder: Path) -> list[PaperRecord]:
    """Return all records that a `Store` keeps in a folder.

    Raises
    ------
    DataError
    """
    return [_read(path) for path in sorted((folder / "records").glob("*.json"))]


def _read(path: Path) -> PaperRecord:
    content = typed(dict[str, Any], read_json(path), path)
    found = content.pop("format", None)
    if found != FORMAT:
        raise DataError(f"{path}: format: must be {FORMAT}, got {in_short(found)}; remove the file")
    return typed(PaperRecord, content, path)


def write_records(path: Path, records: Iterable[PaperRecord]) -> None:
    """Write records as one Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        vars(record) | {name: json.dumps(vars(record)[name]) for name in ("measures", "curve", "staleness")}
        for record in records
    ]
    with atomic_write(path) as file:
        pq.write_table(pa.Table.from_pylist(rows), file, compression="zstd")


def read_records(path: Path) -> list[PaperRecord]:
    """Return the records of a file that `write_records` wrote.

    Raises
    ------
    DataError
    """
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path).to_pylist()
        decoded = [
            row | {name: json.loads(row[name]) for name in ("measures", "curve", "staleness")} for row in rows
        ]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: holds no records of runs ({' '.join(str(error).split())})") from None
    return [typed(PaperRecord, row, f"{path}: row {number}") for number, row in enumerate(decoded)]


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a measure has a finite value."""
    return isinstance(value, (int, float)) and math.isfinite(value)
