"""Event logs as files: Parquet and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from psbench.core.log import ROW, EventLog, Kind
from psbench.errors import DataError
from psbench.system.files import atomic_write

FORMAT = 1  #: of the files; a reader refuses another


def write_log(log: EventLog, path: Path, run_id: str | None = None) -> None:
    """Write a log as Parquet (`.parquet`) or JSON (`.json`), whole or not at all."""
    with atomic_write(path) as file:
        write_log_to(file, path.suffix, log, run_id)


def write_log_to(file: BinaryIO, suffix: str, log: EventLog, run_id: str | None) -> None:
    """Write a log to a file that is open, as its suffix says, with the identity of its run."""
    if suffix == ".json":
        file.write(_as_json(log, run_id).encode())
    else:
        _write_parquet(log, file, run_id)


def read_log(path: Path) -> EventLog:
    """Read a log written by `write_log`.

    Raises
    ------
    DataError
        If the file is missing, cut short, or no log of this format.
    """
    try:
        return _from_json(path) if path.suffix == ".json" else _read_parquet(path)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: is not an event log that can be read ({error})") from None


def _as_json(log: EventLog, run_id: str | None) -> str:
    columns: dict[str, list[Any]] = {name: values.tolist() for name, values in log.columns().items()}
    columns["kind"] = [Kind(kind).name.lower() for kind in columns["kind"]]
    for name in ("compute_s", "send_s", "loss"):  # JSON has no nan
        columns[name] = [value if value == value else None for value in columns[name]]
    content = {"format": FORMAT, "run_id": run_id, "columns": columns, "texts": log.texts}
    return json.dumps(content, allow_nan=False)


def _from_json(path: Path) -> EventLog:
    content = json.loads(path.read_text())
    _check_format(content.get("format"))
    columns = content["columns"]
    columns["kind"] = [int(Kind[name.upper()]) for name in columns["kind"]]
    for name in ("compute_s", "send_s", "loss"):
        columns[name] = [float("nan") if value is None else value for value in columns[name]]
    return EventLog.from_columns(columns, content["texts"])


def _write_parquet(log: EventLog, file: BinaryIO, run_id: str | None) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    about = {"psbench.format": str(FORMAT), "psbench.texts": json.dumps(log.texts)}
    if run_id is not None:
        about["psbench.run_id"] = run_id
    pq.write_table(pa.table(log.columns(), metadata=about), file, compression="zstd")


def run_id_of_log(path: Path) -> str | None:
    """Return the identity of the run in the file of a log; None if it has none."""
    if path.suffix == ".json":
        name: str | None = json.loads(path.read_text(encoding="utf-8")).get("run_id")
        return name
    import pyarrow.parquet as pq

    found = (pq.read_schema(path).metadata or {}).get(b"psbench.run_id")
    return None if found is None else found.decode()


def _read_parquet(path: Path) -> EventLog:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    about = table.schema.metadata or {}
    _check_format(int(about[b"psbench.format"]))
    columns = {name: np.asarray(table[name]) for name in ROW.names or ()}
    return EventLog.from_columns(columns, json.loads(about[b"psbench.texts"]))


def _check_format(found: Any) -> None:
    if found != FORMAT:
        raise ValueError(f"format {found}, expected {FORMAT}")
