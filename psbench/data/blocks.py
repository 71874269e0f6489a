"""Tables in files, read in blocks; non-numeric cells are reported with their line.

CSV is read with dask.dataframe, Parquet with pyarrow. No more of a table is in memory than a few blocks.
"""

from __future__ import annotations

import codecs
import csv
import glob
import math
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from psbench.arrays import Array, Doubles
from psbench.errors import DataError
from psbench.progress_events import tell
from psbench.system.cores import cores
from psbench.system.files import why_missing
from psbench.system.limits import check_memory

#: how a compressed file begins, and what unpacks it; such a file can only be read from its beginning
_PACKED = {b"\x1f\x8b": "gunzip", b"PK": "unzip", b"BZ": "bunzip2", b"\xfd7": "xz -d", b"\x28\xb5": "unzstd"}

#: blocks that are read at once
THREADS = min(cores(), 4)

#: bytes looked at in each of three places of a file, to estimate how many rows it has
_SAMPLE = 2**16

#: the largest 32-bit float, which inputs and targets become
LARGEST = float(np.finfo(np.float32).max)

#: names that pandas gives a frame's index in a file: none in CSV, "Unnamed: 0" if that was read and saved
_INDEX_NAME = re.compile(r"(unnamed: \d+(\.\d+)*)?|__index_level_\d+__", re.IGNORECASE)

#: by column, the number of each text: how texts are held among numbers
Codes: TypeAlias = dict[int, dict[str, int]]


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table, by their places in its files.

    Parameters
    ----------
    names : tuple of str
        Every row has so many columns.
    inputs : sequence of int
        Read as 64-bit floats.
    others : sequence of int
        The target and columns that are kept: read as they are written, so that ids stay apart.
    codes : mapping of column to (mapping of text to number)
        Those of `others` that hold texts, which are numbered as they first occur.
    """

    names: tuple[str, ...]
    inputs: Sequence[int]
    others: Sequence[int]
    codes: Codes


class Block(NamedTuple):
    """Some rows: inputs, float64, (rows, inputs), and other columns, int64 or float64, (rows,), by index."""

    inputs: Doubles
    others: dict[int, Array]


def is_index_name(name: str) -> bool:
    """Return whether pandas uses such a name for the index of a frame.

    >>> [is_index_name(name) for name in ("", "Unnamed: 0", "__index_level_0__", "id")]
    [True, True, True, False]
    """
    return bool(_INDEX_NAME.fullmatch(name.strip()))


def index_places(names: Sequence[str]) -> tuple[int, ...]:
    """Return the positions of the leading columns whose names are typical of a frame's index.

    >>> index_places(["", "Unnamed: 0", "size", ""])
    (0, 1)
    """
    return tuple(place for place, _ in takewhile(lambda each: is_index_name(each[1]), enumerate(names)))


def warn_of_index(where: str, name: str) -> None:
    """Warn that a column is left out because its name is typical of a frame's index."""
    called = f"column {name.strip()!r}" if name.strip() else "the column without a name"
    warnings.warn(
        f"{where}: {called} looks like the index of a data frame and is excluded from the inputs; to use "
        "it, rename it",
        UserWarning,
        stacklevel=2,
    )


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
            begin = content.read(4)
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from None
    if not begin:
        raise DataError(f"{file}: is empty")
    if begin[:2] in _PACKED:
        raise DataError(
            f"{file}: is compressed, so it cannot be read block by block; unpack it: {_PACKED[begin[:2]]}"
        )
    # a mark in front, or every other byte zero
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in begin:
        raise DataError(
            f"{file}: line 1 is in UTF-16, or is not text; save the file as UTF-8, such as with: "
            f"iconv -f UTF-16 -t UTF-8 {file.name}"
        )


def estimated_rows(files: Sequence[Path]) -> int:
    """Return an estimate of the number of rows, from file sizes and line lengths at three positions."""
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
    """Return the fields of a non-blank line, by default of the first.

    Raises
    ------
    DataError
        If there is none.
    """
    for _, row in islice(_rows(file), after, None):
        return row
    raise DataError(f"{file}: {'has no rows' if after else 'is empty'}")


def is_text(value: str) -> bool:
    """Return whether a field is a text, neither a number nor empty.

    >>> is_text("setosa"), is_text("1.5"), is_text("nan"), is_text(" ")
    (True, False, False, False)
    """
    return bool(value.strip()) and bool(_no_number(value)) and not _is_nan(value)


def names_header(row: Sequence[str]) -> bool:
    """Return whether a first line is a header: none of its texts is a number.

    A line with both is one of data, whose fault is named when it is read.

    >>> names_header(["size", "price"]), names_header(["1.5", "?"])
    (True, False)
    """
    return all(_no_number(text) and not _is_nan(text) for text in row)


def numbers_columns(row: Sequence[str]) -> bool:
    """Return whether a first line consists of the column numbers 0, 1, ..., at least two.

    pandas names columns so where they have no names; before them a saved index has no name at all.

    >>> [numbers_columns(row.split(",")) for row in ("0,1,2", ",0,1", "0,1,kind", "1,2,3", "0,kind", "0,1,5")]
    [True, True, True, False, False, False]
    """
    columns = row if row[0].strip() else row[1:]
    numbers = {place: text.strip() for place, text in enumerate(columns) if not is_text(text)}
    return len(numbers) > 1 and all(text == str(place) for place, text in numbers.items())


def _is_nan(text: str) -> bool:
    try:
        return math.isnan(float(text))
    except ValueError:
        return False


# ---------------------------------------------------------------- CSV


def numbers_in(
    files: Sequence[Path], columns: TableColumns, header: bool, block_size: int
) -> Iterator[tuple[Path, Block]]:
    """Return the files' rows, some at a time with their file, in order.

    Parameters
    ----------
    files : sequence of path
    columns : TableColumns
    header : bool
        Whether the first line of each file is to be passed over.
    block_size : int, bytes
        Of a file, read at a time. As many blocks are read at once as there are processors, at most four.

    Raises
    ------
    DataError
        On the first row that does not have as many finite numbers, naming file, line and column.
    """
    sizes = [file.stat().st_size for file in files]
    for number, file in enumerate(files):
        rows = 0
        before, share = sum(sizes[:number]) / sum(sizes), sizes[number] / sum(sizes)
        for done, block in _blocks(file, columns, header, block_size):
            if isinstance(block, OSError):
                raise DataError(f"{file}: cannot be read: {block.strerror or block}")
            if not isinstance(block, Block) or not _are_finite(block):
                raise _fault(file, rows + header, columns, block)
            rows += len(block.inputs)
            yield file, block
            tell(f"reading {file.name}", before + share * done)


def _are_finite(block: Block) -> bool:
    """Return whether all numbers are finite as 32-bit floats."""
    with np.errstate(invalid="ignore"):
        return all(bool((np.abs(each) <= LARGEST).all()) for each in (block.inputs, *block.others.values()))


def _blocks(file: Path, columns: TableColumns, header: bool, block_size: int) -> Iterator[tuple[float, Any]]:
    """Yield the share of a file that has been read, and the block or error."""
    try:
        for done, frame in _computed(_parts(file, columns, header, block_size)):
            yield done, _block(frame, columns)
    except (ValueError, OSError) as error:
        yield 1.0, error


def _computed(parts: Sequence[Any]) -> Iterator[tuple[float, Any]]:
    """Return the frames of tasks, computed a few at a time, each with the share that is then done."""
    import dask

    for begin in range(0, len(parts), THREADS):
        with _quietly():
            frames = dask.compute(*parts[begin : begin + THREADS], scheduler="threads", num_workers=THREADS)
        for place, frame in enumerate(frames, begin + 1):
            yield place / len(parts), frame


def _parts(file: Path, columns: TableColumns, header: bool, block_size: int) -> Any:
    """Return the tasks that each read a block of a file."""
    import dask.dataframe as dd

    # a column more than there may be: pandas would make an index of what is too much in a block's first row
    *names, spare = (str(number) for number in range(len(columns.names) + 1))
    # blank lines before the header are skipped with it
    skipped = next(_rows(file))[0] if header else 0
    options: dict[str, Any] = {
        "header": None,
        "skiprows": skipped,
        "names": [*names, spare],
        "index_col": False,
    }
    # what pandas sees to guess at types, which are given: a small part, but all of the first line
    options["sample"] = min(2**18, block_size)
    # among texts NA and None are such as any, and not what is missing
    numbers = [names[place] for place in columns.inputs]
    options |= {"keep_default_na": False, "na_values": {name: [""] for name in (*numbers, spare)}}
    with _quietly():
        kinds = dict.fromkeys([*names, spare], object) | dict.fromkeys(numbers, np.float64)
        return dd.read_csv(str(file), blocksize=block_size, dtype=kinds, **options).to_delayed()


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress pandas warnings about conditions that are checked later, and about Dask's calls."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Length of header or names")
        warnings.filterwarnings("ignore", "overflow encountered", RuntimeWarning)
        warnings.filterwarnings("ignore", "The inplace keyword in DataFrame")
        yield


def _block(frame: Any, columns: TableColumns) -> Block:
    """Return a block of a frame.

    Raises
    ------
    ValueError
        If some row has too many columns, or a value of the others is no number.
    """
    *_, spare = frame
    if frame[spare].notna().any():
        raise ValueError("too many columns")
    others = {}
    for place in columns.others:
        texts = [text.strip() for text in frame[str(place)].fillna("").tolist()]
        known = columns.codes.get(place)
        if known is None:
            others[place] = _exact(texts)
        elif "" in texts:
            raise ValueError("no value")
        else:
            others[place] = np.array([known.setdefault(text, len(known)) for text in texts], dtype=np.int64)
    inputs = frame[[str(place) for place in columns.inputs]].to_numpy(dtype=np.float64)
    return Block(inputs, others)


def _exact(texts: Sequence[str]) -> Array:
    """Return numbers as int64 if all are whole and written so, else as float64."""
    together = "".join(texts)
    if not together.isascii() or "_" in together:  # float takes more for numbers than a table has
        raise ValueError("not a number")
    whole = together.translate({ord(sign): None for sign in "+-"}).isdecimal()
    if not whole:
        return np.array([float(text) for text in texts])
    try:
        return np.array([int(text) for text in texts], dtype=np.int64)
    except OverflowError:
        raise ValueError("too large") from None


def _fault(file: Path, rows: int, columns: TableColumns, found: Any) -> DataError:
    """Return the error for the first fault after `rows` rows."""
    names = columns.names
    for line, row in islice(_rows(file), rows, None):
        if len(row) != len(names):
            return DataError(f"{file}: line {line} has {len(row)} columns, expected {len(names)}")
        for number, text in enumerate(row):
            if number in columns.codes and text.strip():
                continue
            if fault := _no_number(text) or (number in columns.others and _too_long(text)):
                where = f"line {line}, column {number} ({names[number]})"
                hint = "; or if this line names the columns, set header: true" if rows == 0 else ""
                return DataError(
                    f"{file}: {where}: {text.strip()!r} {fault}; correct or remove the line{hint}"
                )
    problem = (
        " ".join(str(found).split()) if isinstance(found, Exception) else "its lines do not match its rows"
    )
    return DataError(f"{file}: cannot be read after row {rows}: {problem}")


def line_of(file: Path, row: int) -> int:
    return next(islice(_rows(file), row, None))[0]


def _no_number(text: str) -> str:
    if odd := next((letter for letter in text if not letter.isascii() and letter.isspace()), ""):
        return f"is not a number: it contains the special space U+{ord(odd):04X}"
    try:
        if not text.isascii():  # digits of other scripts, which float would take
            return "is not a number"
        value = float(text.replace("_", "?"))
    except ValueError:
        return "is not a number"
    return "" if math.isfinite(value) and abs(value) <= LARGEST else "is not a finite number"


def _too_long(text: str) -> str:
    digits = text.strip().lstrip("+-")
    # int would refuse thousands of digits
    fits = not digits.isdecimal() or (len(digits) < 300 and int(digits) < 2**63)
    return "" if fits else "is not a 64-bit integer; write ids as texts, such as id1"


def _rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Return lines that are not blank: number, from 1, and texts.

    Raises
    ------
    DataError
        If a line is not UTF-8, or no line of CSV.
    """
    # surrogateescape: what is no UTF-8 is found with its line
    with file.open(encoding="utf-8", errors="surrogateescape", newline="") as lines:
        for number, line in enumerate(lines, 1):
            # spreadsheets put a mark in front, which is no part of the first name, nor of a number
            text = line.removeprefix("\ufeff") if number == 1 else line
            if not text.strip(" \t\r\n"):
                continue
            try:
                text.encode()
                row = next(csv.reader([text]))
            except UnicodeEncodeError as error:
                byte = ord(text[error.start]) - 0xDC00
                raise DataError(
                    f"{file}: line {number} is not UTF-8 (byte {byte:#04x}); save the file as UTF-8"
                ) from None
            except csv.Error as error:
                raise DataError(f"{file}: line {number}: {error}; correct or remove the line") from None
            yield number, row


# ---------------------------------------------------------------- Parquet


class ParquetColumns(NamedTuple):
    """Columns of Parquet files: their names, and which hold texts, or the index of a frame, by place."""

    names: tuple[str, ...]
    texts: tuple[int, ...]
    index: tuple[int, ...]


def parquet_columns(files: Sequence[Path]) -> ParquetColumns:
    """Return the columns of Parquet files, which are the same in all.

    Raises
    ------
    DataError
        If a file is no Parquet, is damaged, has two columns of one name, or others than the first file.
    """
    import pyarrow as pa

    found: list[ParquetColumns] = []
    for file in files:
        with _opened(file) as table, _reading(file):
            schema = table.schema_arrow
            pandas = schema.pandas_metadata or {}
            saved = {name for name in pandas.get("index_columns", ()) if isinstance(name, str)}
            names = tuple(schema.names)
            kinds = enumerate(schema.types)
            numeric = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
            texts = tuple(place for place, kind in kinds if not any(is_such(kind) for is_such in numeric))
            index = tuple(place for place, name in enumerate(names) if name in saved)
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise DataError(f"{file}: has two columns {twice!r}; rename one")
        found.append(ParquetColumns(names, texts, index))
        if names != found[0].names:
            raise DataError(
                f"{file}: has columns {', '.join(names)}, but {files[0]} {', '.join(found[0].names)}"
            )
    # a column may hold texts in one file and numbers in another: both are then read as texts
    texts = {place for each in found for place in each.texts}
    return found[0]._replace(texts=tuple(sorted(texts)))


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Raise pyarrow's errors about a damaged file as DataError."""
    import pyarrow as pa

    try:
        yield
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
        raise DataError(f"{file}: is not a Parquet file, or is damaged ({reason}); write it again") from None


@contextmanager
def _opened(file: Path, texts: Sequence[str] = ()) -> Iterator[Any]:
    """Open a Parquet file, after checking its metadata; columns of `texts` are read as dictionaries."""
    import pyarrow.parquet as pq

    with _reading(file):
        table = pq.ParquetFile(file, read_dictionary=list(texts))
    try:
        with _reading(file):
            _check_sizes(file, table.metadata)
        yield table
    finally:
        table.close()


def _check_sizes(file: Path, about: Any) -> None:
    """Check a Parquet file's metadata before memory is allocated.

    Row groups are asked, and not their columns, whose damaged metadata make pyarrow end the process.
    """
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    if any(group.num_rows < 0 or group.total_byte_size < 0 for group in groups):
        raise ValueError("a row group has a negative size")
    if (rows := sum(group.num_rows for group in groups)) != about.num_rows:
        raise ValueError(f"its header has {about.num_rows} rows, but its row groups have {rows}")
    largest = max((group.total_byte_size for group in groups), default=0)
    check_memory(largest, f"{file}: its largest row group", "write smaller row groups")


def parquet_rows(files: Sequence[Path]) -> int:
    """Return the number of rows in Parquet files."""
    rows = 0
    for file in files:
        with _opened(file) as table:
            rows += table.metadata.num_rows
    return rows


def parquet_numbers_in(
    files: Sequence[Path], columns: TableColumns, block_size: int
) -> Iterator[tuple[Path, Block]]:
    """Return the rows of Parquet files; see `numbers_in`.

    Raises
    ------
    DataError
        On the first value that is missing or no finite number, naming file, row and column.
    """
    # the rows whose numbers take as much memory as a block
    count = max(1, block_size // (8 * len(columns.names)))
    for number, file in enumerate(files):
        with _opened(file, _strings(file, columns)) as table:
            rows, total = 0, table.metadata.num_rows
            for batch in _batches(file, table, count):
                with _reading(file):  # a text may be no UTF-8, a date of no year
                    block = _parquet_block(f"{file}: row", rows, batch, columns)
                rows += len(block.inputs)
                yield file, block
                tell(f"reading {file.name}", (number + rows / max(total, rows)) / len(files))


def _strings(file: Path, columns: TableColumns) -> list[str]:
    """Return the names of columns that are read as dictionaries: a long text is then in memory once."""
    import pyarrow as pa

    with _opened(file) as table, _reading(file):
        kinds = {columns.names[place]: table.schema_arrow.types[place] for place in columns.codes}
    is_such = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return [name for name, kind in kinds.items() if any(each(kind) for each in is_such)]


def _batches(file: Path, table: Any, count: int) -> Iterator[Any]:
    with _reading(file):
        yield from table.iter_batches(batch_size=count, use_pandas_metadata=False)


def _parquet_block(where: str, rows: int, batch: Any, columns: TableColumns) -> Block:
    """Return a batch after `rows` rows as a block; `where` precedes a row's number in errors."""
    with np.errstate(over="ignore"):
        inputs = np.empty((len(batch), len(columns.inputs)))
        for to, place in enumerate(columns.inputs):
            inputs[:, to] = _numeric(batch.column(place))
    others = {}
    for place in columns.others:
        values = _other(batch.column(place), columns.codes.get(place))
        if values.dtype == np.uint64 and (values >= 2**63).any():
            row = int(np.argmax(values >= 2**63))
            raise DataError(
                f"{where} {rows + row}, column {columns.names[place]!r}: {values[row]} is not a "
                "signed 64-bit integer; write ids as texts"
            )
        others[place] = values.astype(np.int64) if values.dtype == np.uint64 else values
    block = Block(inputs, others)
    if not _are_finite(block):
        # of the first row with a fault the first column
        wrong = [~(np.abs(each) <= LARGEST) for each in (*inputs.T, *others.values())]
        places = (*columns.inputs, *columns.others)
        row, place = min(
            (int(np.argmax(each)), at) for each, at in zip(wrong, places, strict=True) if each.any()
        )
        raise DataError(
            f"{where} {rows + row}, column {columns.names[place]!r}: {batch.column(place)[row].as_py()!r} "
            "is not a finite number; correct or remove the row"
        )
    return block


def _other(column: Any, known: dict[str, int] | None) -> Array:
    """Return a column that is not an input, as int64 or float64; missing values become NaN."""
    if known is None:
        return _numeric(column)
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        entries, places = column.dictionary.to_pylist(), column.indices.to_pylist()
    else:
        entries, places = column.to_pylist(), range(len(column))
    # others than texts, as dates are, go by how they are written
    found = [None if place is None else entries[place] for place in places]
    coded = [math.nan if value is None else known.setdefault(str(value), len(known)) for value in found]
    return np.array(coded, dtype=np.float64 if math.nan in coded else np.int64)


def _numeric(column: Any) -> Array:
    """Return a column of numbers as int64, uint64 or float64; missing values become NaN."""
    values: Array = column.to_numpy(zero_copy_only=False)
    if column.null_count or values.dtype.kind == "f":
        return np.array(values, dtype=np.float64)
    return values if values.dtype == np.uint64 else values.astype(np.int64, copy=False)
