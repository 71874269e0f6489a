"""Tables in files read block by block with dask.dataframe; what is no number is refused with its line.

Never more of a table is in memory than a few blocks.
"""

from __future__ import annotations

import csv
import glob
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from psbench.arrays import Floats
from psbench.errors import DataError
from psbench.progress_events import tell
from psbench.system.cores import cores
from psbench.system.files import why_missing

#: how a compressed file begins, and what unpacks it; such a file can only be read from its beginning
_PACKED = {b"\x1f\x8b": "gunzip", b"PK": "unzip", b"BZ": "bunzip2", b"\xfd7": "xz -d", b"\x28\xb5": "unzstd"}

#: blocks that are read at once
THREADS = min(cores(), 4)

#: bytes looked at in each of three places of a file, to estimate how many rows it has
_SAMPLE = 2**16

#: what a 32-bit float can be
LARGEST = float(np.finfo(np.float32).max)


#: by column, the number of each text: how texts are held among numbers
Codes: TypeAlias = dict[int, dict[str, int]]


def files_of(path: str) -> list[Path]:
    """Return the files that a path or a pattern such as `parts/*.csv` names, in alphabetical order.

    Raises
    ------
    DataError
        If there is none, or one is a folder, empty or compressed.
    """
    whole = Path(path).expanduser()
    # a file may be called a[1].csv, and as a pattern that is another one
    found = [whole] if os.path.lexists(whole) else sorted(map(Path, glob.glob(str(whole)))) or [whole]
    for file in found:
        _check(file)
    return found


def _check(file: Path) -> None:
    if file.is_dir():
        raise DataError(f"{file}: is a folder; name its files, such as {file / '*.csv'}")
    if problem := why_missing(file):
        raise DataError(problem)
    try:
        with file.open("rb") as content:
            begin = content.read(2)
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from None
    if not begin:
        raise DataError(f"{file}: is empty")
    if begin in _PACKED:
        raise DataError(
            f"{file}: is compressed, so it cannot be read block by block; unpack it: {_PACKED[begin]}"
        )


def estimated_rows(files: Sequence[Path]) -> int:
    """Return about how many rows files have: from their sizes, and the length of lines in three places."""
    return sum(map(_estimated_rows, files))


def _estimated_rows(file: Path) -> int:
    length = file.stat().st_size
    seen = lines = 0
    with file.open("rb") as content:
        for place in (0, length // 2, max(length - _SAMPLE, 0)):
            content.seek(place)
            part = content.read(_SAMPLE)
            seen, lines = seen + len(part), lines + part.count(b"\n")
    return length * max(lines, 1) // max(seen, 1) + 1


def first_row(file: Path, after: int = 0) -> list[str]:
    """Return the texts of the first line that is not blank, or of one after it.

    Raises
    ------
    DataError
        If there is none.
    """
    for _, row in islice(_rows(file), after, None):
        return row
    raise DataError(f"{file}: {'has no rows' if after else 'is empty'}")


def is_text(value: str) -> bool:
    """Return whether a field is a text, and not a number or nothing.

    >>> is_text("setosa"), is_text("1.5"), is_text("nan"), is_text(" ")
    (True, False, False, False)
    """
    return bool(value.strip()) and bool(_no_number(value)) and not _is_nan(value)


def names_header(row: Sequence[str]) -> bool:
    """Return whether a first line names columns: none of its texts is a number.

    A line with both is one of data, whose fault is named when it is read.

    >>> names_header(["size", "price"]), names_header(["1.5", "?"])
    (True, False)
    """
    return all(_no_number(text) and not _is_nan(text) for text in row)


def _is_nan(text: str) -> bool:
    try:
        return math.isnan(float(text))
    except ValueError:
        return False


def numbers_in(
    files: Sequence[Path], columns: Sequence[str], header: bool, block_size: int, codes: Codes
) -> Iterator[tuple[Path, Floats]]:
    """Return the files' rows, some at a time with their file, float32, (rows, columns), in order.

    Parameters
    ----------
    files : sequence of path
    columns : sequence of str
        What the columns are called in messages; every row has so many.
    header : bool
        Whether the first line of each file is to be passed over.
    block_size : int, bytes
        Of a file, read at a time. As many blocks are read at once as there are processors, at most four.
    codes : mapping of column to (mapping of text to number)
        Of the columns that hold texts, which are numbered as they first occur.

    Raises
    ------
    DataError
        On the first row that does not have as many finite numbers, naming file, line and column.
    """
    sizes = [file.stat().st_size for file in files]
    for number, file in enumerate(files):
        rows = 0
        before, share = sum(sizes[:number]) / sum(sizes), sizes[number] / sum(sizes)
        for done, block in _blocks(file, columns, header, block_size, codes):
            if not isinstance(block, np.ndarray) or not np.isfinite(block).all():
                raise _fault(file, rows + header, columns, block, codes)
            rows += len(block)
            yield file, block
            tell(f"reading {file.name}", before + share * done)


def _blocks(
    file: Path, columns: Sequence[str], header: bool, block_size: int, codes: Codes
) -> Iterator[tuple[float, Any]]:
    """Return how much of a file has been read, and the block or the error that it gave."""
    try:
        for done, frame in _computed(_parts(file, len(columns), header, block_size, codes)):
            yield done, _array(frame, codes)
    except ValueError as error:
        yield 1.0, error


def _computed(parts: Sequence[Any]) -> Iterator[tuple[float, Any]]:
    """Return the frames of tasks, computed a few at a time, each with the share that is then done."""
    import dask

    for begin in range(0, len(parts), THREADS):
        with _quietly():
            frames = dask.compute(*parts[begin : begin + THREADS], scheduler="threads", num_workers=THREADS)
        for place, frame in enumerate(frames, begin + 1):
            yield place / len(parts), frame


def _parts(file: Path, columns: int, header: bool, block_size: int, codes: Codes) -> Any:
    """Return the tasks that each read a block of a file."""
    import dask.dataframe as dd

    # a column more than there may be: pandas would make an index of what is too much in a block's first row
    names = [str(number) for number in range(columns + 1)]
    options: dict[str, Any] = {"header": None, "skiprows": int(header), "names": names, "index_col": False}
    # what pandas sees to guess at types, which are given: a small part, but all of the first line
    options["sample"] = min(2**18, block_size)
    if codes:  # among texts NA and None are such as any, and not what is missing
        missing = {name: [""] for name in names if int(name) not in codes}
        options |= {"keep_default_na": False, "na_values": missing}
    with _quietly():
        kinds = {name: object if int(name) in codes else np.float32 for name in names}
        return dd.read_csv(str(file), blocksize=block_size, dtype=kinds, **options).to_delayed()


@contextmanager
def _quietly() -> Iterator[None]:
    """Let pandas not warn of what is looked at afterwards, nor of how Dask calls it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Length of header or names")
        warnings.filterwarnings("ignore", "overflow encountered", RuntimeWarning)
        warnings.filterwarnings("ignore", "The inplace keyword in DataFrame")
        yield


def _array(frame: Any, codes: Codes) -> Any:
    """Return a block as an array, or what is wrong with it."""
    *_, spare = frame
    if frame[spare].notna().any():
        return ValueError("too many columns")
    for place, known in codes.items():
        texts = frame[str(place)]
        numbers = [
            known.setdefault(t.strip(), len(known)) if t.strip() else math.nan for t in texts.fillna("")
        ]
        frame = frame.assign(**{str(place): np.array(numbers, dtype=np.float32)})
    return frame.drop(columns=spare).to_numpy(dtype=np.float32)


def _fault(file: Path, rows: int, columns: Sequence[str], found: Any, codes: Codes) -> DataError:
    """Return the error that names the first fault after so many rows."""
    for line, row in islice(_rows(file), rows, None):
        if len(row) != len(columns):
            return DataError(f"{file}: line {line} has {len(row)} columns, expected {len(columns)}")
        for number, text in enumerate(row):
            if number in codes and text.strip():
                continue
            if fault := _no_number(text):
                where = f"line {line}, column {number} ({columns[number]})"
                return DataError(
                    f"{file}: {where}: {text.strip()!r} {fault}; correct it or leave the line out"
                )
    return DataError(f"{file}: cannot be read after row {rows}: {found}")


def line_of(file: Path, row: int) -> int:
    """Return the line, from 1, of a row, from 0; blank lines are no rows."""
    return next(islice(_rows(file), row, None))[0]


def _no_number(text: str) -> str:
    try:
        value = float(text.replace("_", "?"))
    except ValueError:
        return "is not a number" if text.strip() else "stands where a number should"
    return "" if math.isfinite(value) and abs(value) <= LARGEST else "is not a finite number"


def _rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Return lines that are not blank: number, from 1, and texts."""
    # utf-8-sig: spreadsheets put a mark in front, which is no part of the first name, nor of a number
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, next(csv.reader([line]))


# ---------------------------------------------------------------- Parquet


def parquet_columns(files: Sequence[Path], keep: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the columns of Parquet files, which are the same in all.

    Raises
    ------
    DataError
        If a file is no Parquet, has other columns than the first, or one that is not numeric nor in `keep`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    first: tuple[str, ...] = ()
    for file in files:
        try:
            schema = pq.read_schema(file)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{file}: is no Parquet file ({str(error).splitlines()[0]})") from None
        names = tuple(schema.names)
        first = first or names
        if names != first:
            raise DataError(f"{file}: has columns {', '.join(names)}, but {files[0]} {', '.join(first)}")
        for column in schema:
            kind = column.type
            numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
            if not numeric and column.name not in keep:
                raise DataError(
                    f"{file}: column {column.name!r} is not numeric (it has {kind}); leave it out of the "
                    f"file, or keep it for a sharding: keep: [{column.name}]"
                )
    return first


def parquet_rows(files: Sequence[Path]) -> int:
    """Return how many rows Parquet files have."""
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(file).num_rows for file in files)


def parquet_numbers_in(
    files: Sequence[Path], columns: Sequence[str], codes: Codes, block_size: int
) -> Iterator[tuple[Path, Floats]]:
    """Return the rows of Parquet files; see `numbers_in`.

    Texts, which only the columns of `codes` may have, are numbered in the order in which they first occur.

    Raises
    ------
    DataError
        On the first value that is missing or no finite number, naming file, row and column.
    """
    by_name: dict[str, dict[Any, int]] = {columns[place]: known for place, known in codes.items()}
    for number, file in enumerate(files):
        rows = 0
        for done, frame in _computed(_parquet_parts(file, block_size)):
            block = _parquet_array(frame, columns, by_name)
            wrong = ~np.isfinite(block)
            if wrong.any():
                row, column = map(int, np.argwhere(wrong)[0])
                found = frame[columns[column]].tolist()[row]
                raise DataError(
                    f"{file}: row {rows + row}, column {columns[column]!r}: {found!r} is not a finite "
                    "number; correct it or leave the row out"
                )
            rows += len(block)
            yield file, block
            tell(f"reading {file.name}", (number + done) / len(files))


def _parquet_parts(file: Path, block_size: int) -> Any:
    """Return the tasks that each read some row groups of a file, never split."""
    import dask.dataframe as dd

    with _quietly():
        table = dd.read_parquet(str(file), split_row_groups="adaptive", blocksize=block_size, index=False)
        return table.to_delayed()


def _parquet_array(frame: Any, columns: Sequence[str], codes: dict[str, dict[Any, int]]) -> Floats:
    block = np.empty((len(frame), len(columns)), dtype=np.float32)
    for place, name in enumerate(columns):
        if name in codes and frame[name].dtype.kind not in "fiub":
            known = codes[name]
            gaps = frame[name].isna().to_numpy()
            # others than texts, as dates are, go by how they are written
            texts = map(str, frame[name].tolist())
            block[:, place] = [
                np.nan if gap else known.setdefault(text, len(known))
                for text, gap in zip(texts, gaps, strict=True)
            ]
        else:
            with np.errstate(over="ignore"):
                block[:, place] = frame[name].to_numpy(dtype=np.float64, na_value=np.nan)
    return block
