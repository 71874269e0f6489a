"""Files written whole or not at all; event logs as Parquet and JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from psbench.core.log import ROW, EventLog, Kind
from psbench.errors import DataError, SpecError

FORMAT = 1  #: of the files; a reader refuses another


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a neighbour of `path` to write to; it takes the place of `path` if the block succeeds.

    Raises
    ------
    SpecError
        If the file cannot be written there; nothing is left then.
    """
    part = path.with_name(path.name + ".part")
    try:
        yield part
        os.replace(part, path)
    except OSError as error:
        raise SpecError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """Check that files can be written to a folder, which is made on trial if it is not there.

    Raises
    ------
    SpecError
    """
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    probe = folder / f".psbench-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"psbench")
    except OSError as error:
        raise SpecError(
            f"{folder}: cannot be written: {error.strerror}; choose another output folder"
        ) from None
    finally:
        with suppress(OSError):
            probe.unlink()
        with suppress(OSError):
            for each in made:
                each.rmdir()


def write_log(log: EventLog, path: Path) -> None:
    """Write a log as Parquet (`.parquet`) or JSON (`.json`), whole or not at all."""
    with whole(path) as part:
        put_log(log, part, path.suffix)


def put_log(log: EventLog, path: Path, suffix: str) -> None:
    """Write a log in the format that `suffix` names."""
    if suffix == ".json":
        path.write_text(_as_json(log), encoding="utf-8")
    else:
        _write_parquet(log, path)


def read_log(path: Path) -> EventLog:
    """Read a log written by `write_log`.

    Raises
    ------
    DataError
        If the file is missing, cut short, or no log of this format.
    """
    try:
        return _from_json(path) if path.suffix == ".json" else _read_parquet(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: is not an event log that can be read ({error})") from None


def _as_json(log: EventLog) -> str:
    columns: dict[str, list[Any]] = {name: values.tolist() for name, values in log.columns().items()}
    columns["kind"] = [Kind(kind).name.lower() for kind in columns["kind"]]
    for name in ("compute_s", "send_s", "loss"):  # JSON has no nan
        columns[name] = [value if value == value else None for value in columns[name]]
    return json.dumps({"format": FORMAT, "columns": columns, "texts": log.texts}, allow_nan=False)


def _from_json(path: Path) -> EventLog:
    content = json.loads(path.read_text())
    _check_format(content.get("format"))
    columns = content["columns"]
    columns["kind"] = [int(Kind[name.upper()]) for name in columns["kind"]]
    for name in ("compute_s", "send_s", "loss"):
        columns[name] = [float("nan") if value is None else value for value in columns[name]]
    return EventLog.from_columns(columns, content["texts"])


def _write_parquet(log: EventLog, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    about = {"psbench.format": str(FORMAT), "psbench.texts": json.dumps(log.texts)}
    pq.write_table(pa.table(log.columns(), metadata=about), path, compression="zstd")


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
