"""Tables turned, once, into arrays in files that are mapped to memory: what is not looked at is not read."""

from __future__ import annotations

import json
import mmap
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from psbench.arrays import Array, Floats, Integers
from psbench.data.base import MOST_CLASSES, Task
from psbench.data.blocks import Codes, line_of, numbers_in, parquet_numbers_in
from psbench.data.scaling import blocks, standardise
from psbench.errors import DataError, ParameterError, SpecError
from psbench.progress_events import tell
from psbench.system.files import temporary_name

_FEATURES, _TARGETS, _LABELS = "features.npy", "targets.npy", "labels.npy"
_KEPT, _ABOUT = "kept.npy", "about.json"
#: the first whole number that a 32-bit float does not tell from the next
_EXACT = 2**24


@dataclass(frozen=True)
class Conversion:
    """Which files, and what is to be made of them.

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
        Columns, the target or of `keep`, that may hold texts.
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

    @property
    def inputs(self) -> list[int]:
        """The columns that are inputs."""
        return [place for place in range(len(self.columns)) if place not in (self.target, *self.keep)]

    def numbers(self, codes: Codes) -> Iterator[tuple[Path, Floats]]:
        """Return the rows, some at a time with their file, float32, (rows, columns), in order.

        Texts are numbered as they first occur; `codes` holds the numbers of each column's.
        """
        if self.kind == "parquet":
            return parquet_numbers_in(self.files, self.columns, codes, self.block_size)
        return numbers_in(self.files, self.columns, self.header, self.block_size, codes)

    def place_of(self, file: Path, row: int) -> str:
        """Return where in its file a row is, in words; `row` counts from 0."""
        return f"row {row}" if self.kind == "parquet" else f"line {line_of(file, row + self.header)}"

    def train_rows(self, rows: int) -> int:
        """Return how many of so many rows are for training.

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


@dataclass(frozen=True)
class Converted:
    """Arrays that are views of files; what is written to them changes no file.

    Attributes
    ----------
    features : float32, (N, features)
    targets : int64 or float32, (N,)
    classes : tuple of str
    train : int
        Rows from the beginning that are for training; the others are for validation.
    target_scale : (float, float)
        Mean and deviation that were taken out of targets that are numbers.
    kept : float32, (N, columns)
        Columns for shardings.
    """

    features: Floats
    targets: Array
    classes: tuple[str, ...]
    train: int
    target_scale: tuple[float, float]
    kept: Floats

    @classmethod
    def open(cls, folder: Path) -> Converted:
        """Map the files that `convert` left in a folder.

        Raises
        ------
        DataError
            If one is missing or cut short.
        """
        try:
            about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
            # c: what torch gets may be written to, and never is in the file
            features = np.load(folder / _FEATURES, mmap_mode="c")
            targets = np.load(folder / (_LABELS if about["classes"] else _TARGETS), mmap_mode="c")
            _read_at_random(features)
            mean, deviation = about["target_scale"]
            there = (folder / _KEPT).is_file()
            kept = (
                np.load(folder / _KEPT, mmap_mode="c") if there else np.zeros((len(targets), 0), np.float32)
            )
            return cls(features, targets, tuple(about["classes"]), about["train"], (mean, deviation), kept)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{folder}: is damaged ({error}); remove it, and the table is read again"
            ) from None


def _read_at_random(features: Floats) -> None:
    """Ask for no more of the file than is looked at: rows of mini-batches lie anywhere in it.

    Without it a system may read megabytes around every row, which beyond memory are gone when their turn
    comes.
    """
    file: Any = features.base
    if isinstance(file, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
        file.madvise(mmap.MADV_RANDOM)


def convert(table: Conversion, folder: Path) -> None:
    """Read a table and leave its arrays in a folder, which is there whole or not at all.

    Memory needed is that of a few blocks, however large the files are; the arrays take 4 bytes a number.

    Raises
    ------
    DataError, SpecError
        If a file is not what it says, or the folder cannot be written.
    """
    with _neighbour(folder) as part:
        codes: Codes = {place: {} for place in table.texts}
        values = _copy(table, part, codes)
        features = np.load(part / _FEATURES, mmap_mode="r+")
        targets = np.load(part / _TARGETS, mmap_mode="r+")
        train = table.train_rows(len(features))
        about: dict[str, Any] = {"train": train, "target_scale": (0.0, 1.0), "classes": ()}
        if table.standardise:
            tell("standardising", 0.0)
            mean, deviation = standardise(features, train)
            about |= {"means": mean.tolist(), "deviations": deviation.tolist()}
        if table.task == "classification":
            named = codes.get(table.target) or {}
            names = sorted(named)  # as frames have them: in alphabetical order, which is not that of codes
            about["classes"] = table.classes or tuple(names) or tuple(f"{value:.0f}" for value in values)
            known = range(len(table.classes)) if table.classes else values
            ranks = np.argsort([named[name] for name in names]) if names else None
            _number_classes(targets, known, part / _LABELS, ranks)
            (part / _TARGETS).unlink()
        elif table.standardise:
            about["target_scale"] = tuple(map(float, standardise(targets, train)))
        features.flush()
        targets.flush()
        (part / _ABOUT).write_text(json.dumps(about), encoding="utf-8")
        tell("standardising", 1.0)


@contextmanager
def _neighbour(folder: Path) -> Iterator[Path]:
    """Give a folder to write to, which takes its place if the block succeeds; else nothing is left."""
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


def _copy(table: Conversion, part: Path, codes: Codes) -> list[float]:
    """Write the files' numbers as they are; return the different targets if they are classes."""
    values: set[float] = set()
    rows: dict[Path, int] = {}
    with ExitStack() as files:
        features = files.enter_context(Growing(part / _FEATURES, (len(table.inputs),)))
        targets = files.enter_context(Growing(part / _TARGETS, ()))
        kept = files.enter_context(Growing(part / _KEPT, (len(table.keep),))) if table.keep else None
        for file, block in table.numbers(codes):
            target = block[:, table.target]
            if table.task == "classification":
                values |= _classes_in(table, file, rows.get(file, 0), target)
            features.add(block[:, table.inputs])
            if kept is not None:
                kept.add(block[:, table.keep])
            targets.add(target)
            rows[file] = rows.get(file, 0) + len(block)
    if not any(rows.values()):
        raise DataError(f"{table.files[0]}: has no rows")
    if table.task == "classification" and not table.classes and len(values) < 2:
        only = next(iter(codes.get(table.target) or {}), f"{values.pop():g}")
        raise DataError(f"{table.files[0]}: all rows have the same target, {only}; check target")
    return sorted(values)


def _classes_in(table: Conversion, file: Path, rows: int, target: Floats) -> set[float]:
    """Return the different targets of a block, which follows so many rows of its file."""
    known = len(table.classes)
    if (large := np.abs(target) >= _EXACT).any():
        first = int(np.argmax(large))
        raise DataError(
            f"{file}: {table.place_of(file, rows + first)}: the class is about {target[first]:.0f}, and "
            f"32-bit floats tell whole numbers apart below {_EXACT}; number the classes from 0"
        )
    wrong = (target < 0) | (target >= known) | (target % 1 > 0) if known else target % 1 != 0
    found = np.unique(target)
    if wrong.any():
        first = int(np.argmax(wrong))
        expected = f"0 to {known - 1}" if known else "a whole number; for numbers set task: regression"
        raise DataError(
            f"{file}: {table.place_of(file, rows + first)}: {target[first]:g} is no class; "
            f"expected {expected}"
        )
    if len(found) > MOST_CLASSES:
        raise DataError(
            f"{file}: more than {MOST_CLASSES} different targets in column {table.target}; check target, "
            "or set task: regression"
        )
    return set(map(float, found))


def _number_classes(
    targets: Floats, values: Sequence[float], path: Path, ranks: Integers | None = None
) -> None:
    """Write the place of each target among the values, int64, or the rank of that place."""
    labels = np.lib.format.open_memmap(path, mode="w+", dtype=np.int64, shape=targets.shape)
    for begin, end in blocks(len(targets)):
        places = np.searchsorted(np.asarray(values), targets[begin:end])
        labels[begin:end] = places if ranks is None else ranks[places]
    labels.flush()


class Growing:
    """A `.npy` file of float32 to which rows are added; a context manager.

    Parameters
    ----------
    path : path
    shape : tuple of int
        Of one row.
    """

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        self._file = path.open("wb")
        self._shape, self._rows = shape, 0
        self._head()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> Literal[False]:
        # NumPy leaves room in the header for the first length to grow
        self._file.seek(0)
        self._head()
        self._file.close()
        return False

    def _head(self) -> None:
        about = {"descr": "<f4", "fortran_order": False, "shape": (self._rows, *self._shape)}
        np.lib.format.write_array_header_1_0(self._file, about)

    def add(self, block: Floats) -> None:
        """Add rows, (rows, *shape)."""
        self._file.write(np.ascontiguousarray(block, dtype="<f4").data)
        self._rows += len(block)
