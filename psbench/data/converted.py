"""Tables converted once into memory-mapped arrays; columns are read lazily."""

from __future__ import annotations

import json
import math
import mmap
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from psbench.arrays import Array, Doubles, Floats
from psbench.data.base import MOST_CLASSES, Task
from psbench.data.blocks import Block, Codes, TableColumns, is_text, line_of, numbers_in, parquet_numbers_in
from psbench.data.scaling import blocks, standardise, warn_of_coarse
from psbench.errors import DataError, ParameterError, SpecError
from psbench.progress_events import tell
from psbench.system.files import temporary_name

_FEATURES, _TARGETS, _KEPT, _ABOUT = "features.npy", "targets.npy", "kept-{}.npy", "about.json"
#: numbers as they are read, until they are standardised
_READ = "read-{}.npy"
#: the first whole number that a 64-bit float does not tell from the next
_EXACT = 2**53


@dataclass(frozen=True)
class Conversion:
    """The files of a conversion, and its settings.

    Parameters
    ----------
    files : sequence of path
    columns : sequence of str
    target : int
        The column to be learned, from 0.
    header : bool
    task : "classification" or "regression"
    classes : tuple of str
        What targets 0, 1, ... are called; empty: whatever whole numbers occur.
    val_rows : int or None
        Rows at the end that are for validation.
    val_fraction : float
        The share of them, if `val_rows` is None.
    standardise : bool
    block_size : int, bytes
    keep : tuple of int
        Columns that are no inputs, but kept for shardings.
    kind : "csv" or "parquet"
    texts : tuple of int
        Columns, the target or of `keep`, that hold texts.
    index : tuple of int
        Columns with the index of a frame, which are inputs neither.
    """

    files: Sequence[Path]
    columns: tuple[str, ...]
    target: int
    header: bool
    task: Task
    classes: tuple[str, ...]
    val_rows: int | None
    val_fraction: float
    standardise: bool
    block_size: int
    keep: tuple[int, ...] = ()
    kind: Literal["csv", "parquet"] = "csv"
    texts: tuple[int, ...] = ()
    index: tuple[int, ...] = ()

    @property
    def inputs(self) -> list[int]:
        others = {self.target, *self.keep, *self.index}
        return [place for place in range(len(self.columns)) if place not in others]

    def numbers(self, codes: Codes) -> Iterator[tuple[Path, Block]]:
        """Return the rows, some at a time with their file, in order.

        Texts are numbered as they first occur; `codes` receives the numbers of each column's.
        """
        columns = TableColumns(self.columns, self.inputs, (self.target, *self.keep), codes)
        if self.kind == "parquet":
            return parquet_numbers_in(self.files, columns, self.block_size)
        return numbers_in(self.files, columns, self.header, self.block_size)

    def place_of(self, file: Path, row: int) -> str:
        return f"row {row}" if self.kind == "parquet" else f"line {line_of(file, row + self.header)}"

    def train_rows(self, rows: int) -> int:
        """Return the number of training rows among `rows` rows.

        Raises
        ------
        ParameterError
            If none is left.
        """
        val = round(rows * self.val_fraction) if self.val_rows is None else self.val_rows
        if val >= rows:
            raise ParameterError(
                f"data {self.kind!r}: {val} rows for validation leave none of {rows} to train on; lower "
                "val_rows"
            )
        return rows - val


class _About(BaseModel):
    """The file beside the arrays: their shapes, and the conversion's settings."""

    model_config = ConfigDict(strict=True, extra="forbid")

    rows: Annotated[int, Field(ge=1)]
    train: Annotated[int, Field(ge=1)]
    features: Annotated[int, Field(ge=1)]
    classes: Annotated[list[str], Field(max_length=MOST_CLASSES)]
    target_scale: tuple[FiniteFloat, FiniteFloat]
    kept: list[Literal["<i8", "<f8"]]
    means: list[FiniteFloat] = []
    deviations: list[FiniteFloat] = []


@dataclass(frozen=True)
class Converted:
    """Memory-mapped arrays; writing to them does not change the files.

    Attributes
    ----------
    features : float32, (N, features)
    targets : int64 or float32, (N,)
    classes : tuple of str
    train : int
        Rows from the beginning that are for training; the others are for validation.
    target_scale : (float, float)
        Mean and deviation that were taken out of targets that are numbers.
    kept : list of int64 or float64, (N,)
        Columns for shardings: their numbers, or the places of their texts in alphabetical order.
    """

    features: Floats
    targets: Array
    classes: tuple[str, ...]
    train: int
    target_scale: tuple[float, float]
    kept: list[Array]

    @classmethod
    def open(cls, folder: Path) -> Converted:
        """Map the files that `convert` left in a folder.

        Raises
        ------
        DataError
            If one is missing, cut short, or not what `convert` writes.
        """
        try:
            about = _About.model_validate_json((folder / _ABOUT).read_bytes())
            features = mapped(folder / _FEATURES, "<f4", (about.rows, about.features))
            targets = mapped(folder / _TARGETS, "<i8" if about.classes else "<f4", (about.rows,))
            kept = [
                mapped(folder / _KEPT.format(number), kind, (about.rows,))
                for number, kind in enumerate(about.kept)
            ]
            if about.train > about.rows:
                raise ValueError(f"{about.train} of {about.rows} rows are for training")
            if about.classes and not 0 <= targets.min() <= targets.max() < len(about.classes):
                raise ValueError(f"some targets are not among the {len(about.classes)} classes")
        except (OSError, ValueError) as error:
            reason = "about.json" if isinstance(error, ValidationError) else error
            raise DataError(f"{folder}: is damaged ({reason})") from None
        _read_at_random(features)
        return cls(features, targets, tuple(about.classes), about.train, about.target_scale, kept)


def mapped(path: Path, kind: str, shape: tuple[int, ...]) -> Array:
    """Return the array in a `.npy` file that psbench wrote, mapped to memory; writing to it changes no file.

    The header is compared, and not parsed: it may say anything, in a file that is damaged.

    Raises
    ------
    OSError, ValueError
        If the file is missing or not as long, or its array has another type or shape.
    """
    head = _head(kind, shape)
    expected = len(head) + np.dtype(kind).itemsize * math.prod(shape)
    if (length := path.stat().st_size) != expected:
        raise ValueError(f"{path.name} has {length} bytes, expected {expected}")
    with path.open("rb") as file:
        if file.read(len(head)) != head:
            raise ValueError(f"{path.name} does not hold {kind} of shape {shape}")
    # c: what torch gets may be written to, and never is in the file
    return np.memmap(path, kind, mode="c", offset=len(head), shape=shape)


def _head(kind: str, shape: tuple[int, ...]) -> bytes:
    """Return the header of a `.npy` file, with room for the first length to grow."""
    head = BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": kind, "fortran_order": False, "shape": shape})
    return head.getvalue()


def _read_at_random(features: Array) -> None:
    """Disable read-ahead for the file: rows of mini-batches are accessed at random.

    Without it a system may read megabytes around every row, which beyond memory are gone when their turn
    comes.
    """
    file: Any = features.base
    if isinstance(file, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
        file.madvise(mmap.MADV_RANDOM)


def convert(table: Conversion, folder: Path) -> None:
    """Read a table and write its arrays to a folder, which is created atomically.

    Memory needed is that of a few blocks, however large the files are; the arrays take 4 bytes a number, and
    8 more until they are standardised.

    Raises
    ------
    DataError, SpecError
        If a file is not what it says, or the folder cannot be written.
    """
    with _neighbour(folder) as part:
        codes: Codes = {place: {} for place in table.texts}
        read = _copy(table, part, codes)
        train = table.train_rows(read.rows)
        about: dict[str, Any] = {
            "rows": read.rows,
            "train": train,
            "features": len(table.inputs),
            "target_scale": (0.0, 1.0),
            "classes": [],
            "kept": [_kept(read.others[place], codes.get(place)) for place in table.keep],
        }
        if table.standardise:
            tell("standardising", 0.0)
            mean, deviation = _scaled(read.features, train, part / _FEATURES)
            about |= {"means": mean.tolist(), "deviations": deviation.tolist()}
        target = read.others[table.target]
        if table.task == "classification":
            names = _ranked(target, codes[table.target]) if table.target in codes else ()
            known = [*range(len(table.classes or names))] or sorted(read.classes)
            about["classes"] = list(table.classes or names or map(_in_full, known))
            _number_classes(target, known, part / _TARGETS)
        elif table.standardise:
            about["target_scale"] = tuple(map(float, _scaled(target, train, part / _TARGETS)))
        else:
            _as_floats(target, part / _TARGETS)
        for spent in part.glob(_READ.format("*")):
            spent.unlink()
        (part / _ABOUT).write_text(json.dumps(about), encoding="utf-8")
        tell("standardising", 1.0)


@contextmanager
def _neighbour(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `folder` if the block succeeds, and is removed otherwise."""
    part = temporary_name(folder.parent)
    try:
        part.mkdir(parents=True)
        yield part
        try:
            part.rename(folder)
        except OSError:
            if not (folder / _ABOUT).is_file():  # else another process was quicker, with the same result
                raise
    except OSError as error:
        raise SpecError(
            f"{folder}: cannot be written: {error.strerror or error}; choose another cache"
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


@dataclass(frozen=True)
class _Read:
    """The files in which a table's numbers are, as they were read, and its different classes."""

    rows: int
    features: Growing
    others: dict[int, Growing]
    classes: set[int | float]


def _copy(table: Conversion, part: Path, codes: Codes) -> _Read:
    """Write the files' numbers as they are."""
    rows: dict[Path, int] = {}
    classes: set[int | float] = set()
    kept = {place: part / _KEPT.format(number) for number, place in enumerate(table.keep)}
    # float64 where they are still to be standardised
    inputs = (part / _READ.format("features"), "<f8") if table.standardise else (part / _FEATURES, "<f4")
    least, most = np.full(len(table.inputs), np.inf), np.full(len(table.inputs), -np.inf)
    with ExitStack() as files:
        features = files.enter_context(Growing(*inputs, (len(table.inputs),)))
        numbers = table.target if table.task == "regression" else None
        others = {
            place: files.enter_context(
                Growing(kept.get(place, part / _READ.format("target")), "<f8" if place == numbers else "<i8")
            )
            for place in (table.target, *table.keep)
        }
        largest = dict.fromkeys(others, 0)
        for file, block in table.numbers(codes):
            before = rows.get(file, 0)
            if table.task == "classification":
                classes |= _classes_in(table, file, before, block.others[table.target])
            features.add(block.inputs)
            least = np.minimum(least, block.inputs.min(axis=0, initial=np.inf))
            most = np.maximum(most, block.inputs.max(axis=0, initial=-np.inf))
            for place, values in block.others.items():
                largest[place] = max(largest[place], _magnitude(values))
                if others[place].kind == "<i8" and values.dtype.kind == "f":
                    others[place].widen()
                if others[place].kind == "<f8" and place != numbers and largest[place] >= _EXACT:
                    raise DataError(
                        f"{file}: column {table.columns[place]!r} has fractions and whole numbers up to "
                        f"{largest[place]}, but 64-bit floats distinguish whole numbers only below "
                        f"{_EXACT}; store it as whole numbers, or as text"
                    )
                others[place].add(values)
            rows[file] = before + len(block.inputs)
    if not any(rows.values()):
        raise DataError(f"{table.files[0]}: has no rows")
    if table.kind == "csv" and not table.header:
        _check_header(table, codes)
    if not table.standardise:
        names = [table.columns[place] for place in table.inputs]
        warn_of_coarse(str(table.files[0]), least, most, names)
    if table.task == "classification" and not table.classes and len(classes) < 2:
        only = next(iter(codes.get(table.target) or {}), _in_full(classes.pop()))
        raise DataError(f"{table.files[0]}: all rows have the same target, {only}; check target")
    return _Read(sum(rows.values()), features, others, classes)


def _check_header(table: Conversion, codes: Codes) -> None:
    """Raise for a text column with one text, in the first line, above numbers: it is a header."""
    for place, known in codes.items():
        first, *others = known
        if others and not any(map(is_text, others)):
            raise DataError(
                f"{table.files[0]}: line 1, column {place}: {first!r} is text above numbers; if it is the "
                "column's name, set header: true"
            )


def _magnitude(values: Array) -> int:
    return max(abs(int(values.min())), abs(int(values.max()))) if len(values) else 0


def _in_full(value: float) -> str:
    return f"{value:.0f}" if isinstance(value, float) else str(value)


def _classes_in(table: Conversion, file: Path, rows: int, target: Array) -> set[int | float]:
    """Return the distinct targets of a block after `rows` rows of its file."""
    known = len(table.classes)
    wrong = (target < 0) | (target >= known) | (target % 1 > 0) if known else target % 1 != 0
    found = np.unique(target)
    if wrong.any():
        first = int(np.argmax(wrong))
        expected = (
            f"0 to {known - 1}" if known else "a whole number (for numeric targets set task: regression)"
        )
        raise DataError(
            f"{file}: {table.place_of(file, rows + first)}: {target[first]:g} is not a class; expected "
            f"{expected}"
        )
    if len(found) > MOST_CLASSES:
        raise DataError(
            f"{file}: more than {MOST_CLASSES} different targets in column {table.target}; check target, "
            "or set task: regression"
        )
    return set(found.tolist())


def _ranked(column: Growing, codes: dict[str, int]) -> tuple[str, ...]:
    """Renumber a column's texts in alphabetical order, as frames have them; return the texts."""
    names = sorted(codes)
    ranks = np.argsort([codes[name] for name in names])
    values = column.values()
    for begin, end in blocks(len(values)):
        values[begin:end] = ranks[values[begin:end]]
    return tuple(names)


def _kept(column: Growing, codes: dict[str, int] | None) -> str:
    """Return the type of a kept column; text codes are sorted."""
    if codes is not None:
        _ranked(column, codes)
    return column.kind


def _number_classes(targets: Growing, values: Sequence[float], path: Path) -> None:
    """Write the index of each target among the values, as int64."""
    known, read = np.asarray(values), targets.values()
    with Growing(path, "<i8") as labels:
        for begin, end in blocks(len(read)):
            labels.add(np.searchsorted(known, read[begin:end]))


def _as_floats(targets: Growing, path: Path) -> None:
    read = targets.values()
    with Growing(path, "<f4") as floats:
        for begin, end in blocks(len(read)):
            floats.add(read[begin:end])


def _scaled(read: Growing, train: int, path: Path) -> tuple[Doubles, Doubles]:
    """Write numbers with mean 0 and deviation 1, float32; return the means and deviations taken out."""
    values = read.values()
    result = np.lib.format.open_memmap(path, mode="w+", dtype="<f4", shape=values.shape)
    found = standardise(values, train, result)
    result.flush()
    return found


class Growing:
    """A `.npy` file to which rows are added; a context manager.

    Parameters
    ----------
    path : path
    kind : "<f4", "<f8" or "<i8"
        The type.
    shape : tuple of int
        Of one row.
    """

    def __init__(self, path: Path, kind: str, shape: tuple[int, ...] = ()) -> None:
        self._file = path.open("w+b")
        self._path, self._shape = path, shape
        self.kind, self.rows = kind, 0
        self._write_head()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> Literal[False]:
        self._file.seek(0)
        self._write_head()
        self._file.close()
        return False

    def _write_head(self) -> None:
        self._file.write(_head(self.kind, (self.rows, *self._shape)))

    def add(self, block: Array) -> None:
        """Add rows, (rows, *shape)."""
        self._file.write(np.ascontiguousarray(block, dtype=self.kind).data)
        self.rows += len(block)

    def widen(self) -> None:
        """Make 64-bit floats of whole numbers."""
        self._file.flush()
        head = len(_head(self.kind, (self.rows, *self._shape)))
        self.kind = "<f8"
        if self.rows:
            whole = np.memmap(self._path, "<i8", mode="r+", offset=head)
            for begin, end in blocks(len(whole)):
                whole[begin:end] = whole[begin:end].astype("<f8").view("<i8")
            whole.flush()

    def values(self) -> Array:
        """Return all rows, mapped to memory; writing to them changes the file."""
        found: Array = np.load(self._path, mmap_mode="r+")
        return found
