"""Event logs as files: Parquet and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NamedTuple

import numpy as np
from pydantic import AfterValidator, BaseModel, Field, create_model

from psbench.arrays import Array
from psbench.core.imports import is_there
from psbench.core.log import ROW, EventLog, Kind
from psbench.core.typed_data import FileData, read_json, typed
from psbench.errors import DataError
from psbench.system.files import atomic_write
from psbench.system.limits import check_memory

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1  #: of the files; a reader refuses another
#: columns that JSON has without NaN
_WITH_GAPS = ("compute_s", "send_s", "loss")
#: rows that are read at a time: what is not of the format takes no more memory than these
_PIECE = 1 << 16


class StoredLog(NamedTuple):
    """A log, and the identity of its run."""

    log: EventLog
    run_id: str | None


def write_log(log: EventLog, path: Path, run_id: str | None = None) -> None:
    """Write a log as Parquet (`.parquet`) or JSON (`.json`), whole or not at all."""
    with atomic_write(path) as file:
        write_log_to(file, path.suffix, log, run_id)


def write_log_to(file: BinaryIO, suffix: str, log: EventLog, run_id: str | None) -> None:
    """Write a log with the identity of its run to an open file, in the format of the suffix."""
    if suffix == ".json":
        file.write(_as_json(log, run_id).encode())
    else:
        _write_parquet(log, file, run_id)


def read_log(path: Path) -> StoredLog:
    """Read a log written by `write_log`; `check_log` validates its rows.

    Raises
    ------
    DataError
        If the file is missing, cut short, or no log of this format.
    """
    return _from_json(path) if path.suffix == ".json" else _read_parquet(path)


def run_id_of_log(path: Path) -> str | None:
    """Return the run's identity in a log file; None if it has none.

    Raises
    ------
    DataError
    """
    if path.suffix == ".json":
        return typed(_Owner, read_json(path), path).run_id
    import pyarrow.parquet as pq

    with _reading(path):
        return _owner(pq.read_schema(path))


def _as_json(log: EventLog, run_id: str | None) -> str:
    columns: dict[str, list[Any]] = {name: values.tolist() for name, values in log.columns().items()}
    columns["kind"] = [Kind(kind).name.lower() for kind in columns["kind"]]
    for name in _WITH_GAPS:
        columns[name] = [value if value == value else None for value in columns[name]]
    content = {"format": FORMAT, "run_id": run_id, "columns": columns, "texts": log.texts}
    return json.dumps(content, allow_nan=False)


class _Owner(BaseModel):
    run_id: str | None = None


def _kind(name: str) -> str:
    if name.upper() not in Kind.__members__ or not name.islower():
        raise ValueError("is not a kind of event")
    return name


@cache
def _json_type() -> type[BaseModel]:
    """Return the type of a JSON log: a list of numbers in range for each column."""
    columns: dict[str, Any] = {}
    for name in ROW.names or ():
        dtype = ROW[name]
        if name == "kind":
            kind: Any = Annotated[str, AfterValidator(_kind)]
        elif dtype.kind == "f":
            kind = float | None if name in _WITH_GAPS else float
        else:
            limits = np.iinfo(dtype)
            kind = Annotated[int, Field(ge=int(limits.min), le=int(limits.max))]
        columns[name] = (list[kind], ...)
    of_columns = create_model("_Columns", __base__=FileData, **columns)
    return create_model(
        "_JsonLog",
        __base__=FileData,
        format=(Annotated[int, Field(ge=FORMAT, le=FORMAT)], ...),
        run_id=(str | None, None),
        columns=(of_columns, ...),
        texts=(list[str], ...),
    )


def _from_json(path: Path) -> StoredLog:
    content: Any = typed(_json_type(), read_json(path), path)
    columns: dict[str, list[Any]] = dict(content.columns)
    columns["kind"] = [int(Kind[name.upper()]) for name in columns["kind"]]
    for name in _WITH_GAPS:
        columns[name] = [float("nan") if value is None else value for value in columns[name]]
    if len({len(values) for values in columns.values()}) > 1:
        raise DataError(f"{path}: its columns have different lengths")
    return StoredLog(EventLog.from_columns(columns, _texts(path, content.texts)), content.run_id)


def _write_parquet(log: EventLog, file: BinaryIO, run_id: str | None) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    about = {"psbench.format": str(FORMAT), "psbench.texts": json.dumps(log.texts)}
    if run_id is not None:
        about["psbench.run_id"] = run_id
    pq.write_table(pa.table(log.columns(), metadata=about), file, compression="zstd")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Add the file's name to errors while reading it."""
    try:
        yield
    except (OSError, ValueError, MemoryError, RecursionError, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path}: is not an event log that can be read ({reason})") from None


def _read_parquet(path: Path) -> StoredLog:
    import pyarrow.parquet as pq

    with _reading(path), pq.ParquetFile(path) as file:
        schema, count = file.schema_arrow, file.metadata.num_rows
        if (found := (schema.metadata or {}).get(b"psbench.format", b"").decode()) != str(FORMAT):
            raise ValueError(f"format {found or 'unknown'}, expected {FORMAT}")
        _check_columns(schema)
        if is_there("psutil"):  # a browser has none, and a limit of its own
            check_memory(2 * count * ROW.itemsize, f"{path}: its {count} rows", "is it the log of a run?")
        rows, run_id = _rows(file, count), _owner(schema)
        texts = typed(list[str], json.loads(schema.metadata.get(b"psbench.texts", b"")), f"{path}: its texts")
    log = EventLog()
    log.extend(rows, _texts(path, texts))
    return StoredLog(log, run_id)


def _owner(schema: pa.Schema) -> str | None:
    found = (schema.metadata or {}).get(b"psbench.run_id")
    return None if found is None else found.decode()


def _check_columns(schema: pa.Schema) -> None:
    import pyarrow as pa

    for name in ROW.names or ():
        expected = pa.from_numpy_dtype(ROW[name].newbyteorder("="))
        if schema.get_all_field_indices(name) == [] or schema.field(name).type != expected:
            raise ValueError(f"it has no column {name!r} of {expected}")


def _rows(file: Any, count: int) -> Array:
    """Return the rows of an open file, read in pieces."""
    found, at = [], 0
    for piece in file.iter_batches(batch_size=_PIECE, columns=list(ROW.names or ())):
        rows = np.zeros(len(piece), dtype=ROW)
        for name in ROW.names or ():
            column = piece[name]
            if column.null_count:
                raise ValueError(f"column {name!r} has missing values")
            rows[name] = column.to_numpy()
        at += len(rows)
        found.append(rows)
    if at != count:
        raise ValueError(f"it has {at} rows, but declares {count}")
    return np.concatenate([np.zeros(0, dtype=ROW), *found])


def _texts(path: Path, texts: list[str]) -> list[str]:
    """Return the texts of a log, checked: unique, with the empty text first."""
    if texts[:1] != [""] or len({*texts}) < len(texts):
        raise DataError(f"{path}: its texts do not begin with the empty text, or contain a duplicate")
    return texts
