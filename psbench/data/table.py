"""Tables in CSV and Parquet files, which may be larger than memory."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from psbench.core.specification import parameter
from psbench.data.base import Dataset, DataSource
from psbench.data.blocks import (
    THREADS,
    estimated_rows,
    files_of,
    first_row,
    index_places,
    is_index_name,
    is_text,
    names_header,
    numbers_columns,
    parquet_columns,
    parquet_rows,
    warn_of_index,
)
from psbench.data.converted import Conversion, Converted, convert
from psbench.data.layouts import LAYOUTS, TableLayout
from psbench.data.location import data_folder
from psbench.errors import DataError, ParameterError, UnknownName
from psbench.seeds import Streams
from psbench.system.limits import check_disk, check_memory

#: of the converted arrays; others are converted again
FORMAT = 3
#: characters of a file's name in that of the folder of its arrays
_SHOWN = 40
#: bytes of memory that a training row takes: its place in a shard, in the shard's shuffle, and its label
ROW_MEMORY = 30
#: memory that reading a block takes, of its size: the text, the columns that pandas makes of it, an array
BLOCK_MEMORY = 3


class TableFile(DataSource):
    """Base of tables in files: read once in blocks, then memory-mapped; subclasses define columns."""

    mapped: ClassVar[bool] = True

    path: str = parameter("", "a file, or a pattern such as parts/*")
    target: str = parameter("0", "column to learn: its name, or its number from 0 (-1: the last)")
    task: Literal["classification", "regression"] = parameter(
        "classification", "whether targets are classes or numbers to be predicted"
    )
    keep: tuple[str, ...] = parameter((), "columns that are not inputs, but available to shardings")
    val_rows: int | None = parameter(None, "rows at the end that are for validation", unit="rows", ge=0)
    val_fraction: float | None = parameter(
        None, "share of the rows, at the end, for validation; none: as published, or a fifth", ge=0, lt=1
    )
    standardise: bool = parameter(True, "standardise features and numeric targets to mean 0 and deviation 1")
    cache: str | None = parameter(None, "folder of the converted arrays; none: the value of PSBENCH_DATA")
    block_size: int = parameter(
        8_000_000, "size of the blocks that each reading thread reads", unit="bytes", ge=10_000
    )

    @field_validator("target", mode="before")
    @classmethod
    def _number_as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _one_validation_set(self) -> Self:
        if self.val_rows is not None and self.val_fraction is not None:
            raise ParameterError(f"data {self.name!r}: give val_rows or val_fraction, not both")
        return self

    def _table_of(
        self,
        files: list[Path],
        known: TableLayout,
        header: bool = True,
        index: Sequence[int] = (),
        **kind: Any,
    ) -> Conversion:
        """Return the conversion of files with known columns; columns in `index` hold a frame's index."""
        names = known.columns
        target = self.place_of_target(names, named=header)
        if target in index and self.target not in names:
            there = ", ".join(name for place, name in enumerate(names) if place not in index)
            raise ParameterError(
                f"data {self.name!r}: target {self.target} is the saved index of a data frame; name the "
                f"column to learn: {there}"
            )
        return Conversion(
            files=files,
            columns=names,
            target=target,
            header=header,
            task=known.task,
            classes=known.classes,
            val_rows=self.val_rows,
            val_fraction=known.val_fraction if self.val_fraction is None else self.val_fraction,
            standardise=self.standardise,
            block_size=self.block_size,
            keep=self.places_of_kept(names, target, index),
            index=tuple(index),
            **kind,
        )

    def table(self, files: list[Path]) -> Conversion:
        """Return the conversion of some files."""
        raise NotImplementedError(f"{type(self).__name__} must define table")

    def count_rows(self, files: list[Path]) -> int:
        raise NotImplementedError(f"{type(self).__name__} must define count_rows")

    def load(self, streams: Streams) -> Dataset:
        """Return views of the converted arrays, which are created if necessary; nothing is drawn."""
        import torch

        if not self.path:
            raise DataError(f"data {self.name!r}: no path given; set path to a file")
        files = files_of(self.path)
        table = self.table(files)
        found = self._converted(table)
        x, y = torch.from_numpy(found.features), torch.from_numpy(found.targets)
        train = found.train
        return Dataset(
            name=self.name,
            train_x=x[:train],
            train_y=y[:train],
            val_x=x[train:],
            val_y=y[train:],
            classes=found.classes,
            target_scale=found.target_scale,
            features=tuple(table.columns[place] for place in table.inputs),
            columns={table.columns[place]: found.kept[i][:train] for i, place in enumerate(table.keep)},
            val_columns={table.columns[place]: found.kept[i][train:] for i, place in enumerate(table.keep)},
        )

    def _converted(self, table: Conversion) -> Converted:
        # in short: with the key the name would be longer than a file's may be
        key = f"{table.files[0].stem[:_SHOWN]}-{self._key(table.files)}"
        folder = data_folder(self.cache) / self.name / key
        if folder.is_dir():
            try:
                return Converted.open(folder)
            except DataError as error:
                warnings.warn(
                    f"data {self.name!r}: {error}; the table is read again", UserWarning, stacklevel=2
                )
                shutil.rmtree(folder, ignore_errors=True)
        self._check_room(table, folder.parent)
        convert(table, folder)
        return Converted.open(folder)

    def _check_room(self, table: Conversion, folder: Path) -> None:
        """Reject files whose arrays would fill the disk, or whose shards or blocks would fill the memory."""
        rows = self.count_rows(list(table.files))
        what = f"data {self.name!r}: about {rows} rows of {len(table.columns)} columns in {self.path}"
        # inputs as 32-bit floats, and as 64-bit ones until they are standardised; targets twice
        each = (12 if table.standardise else 4) * len(table.inputs) + 8 * (2 + len(table.keep))
        check_disk(folder, rows * each, what, "set cache to a folder on another disk, or use fewer rows")
        check_memory(rows * ROW_MEMORY, what, "use fewer rows")
        read = max(8 * rows * len(table.columns), *(file.stat().st_size for file in table.files))
        block = min(self.block_size, read)
        what = f"data {self.name!r}: block_size = {self.block_size}, read by {THREADS} threads,"
        check_memory(THREADS * BLOCK_MEMORY * block, what, "lower it")

    def _key(self, files: Sequence[Path]) -> str:
        """Return the cache key of these files, in their current state, under these parameters."""
        stats = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        meant = self.model_dump(mode="json", exclude={"path", "cache", "block_size"})
        return hashlib.sha256(json.dumps([FORMAT, stats, meant]).encode()).hexdigest()[:16]

    def place_of_target(self, names: tuple[str, ...], named: bool = True) -> int:
        """Return the index of the target column; `named`: whether columns have names."""
        if named and self.target in names:
            return names.index(self.target)
        try:
            place = int(self.target)
        except ValueError:
            if not named:
                raise ParameterError(
                    f"data {self.name!r}: target {self.target!r} is a name, but there is no header; set "
                    "header: true, or give its number"
                ) from None
            raise UnknownName(f"target of data {self.name!r}", self.target, names) from None
        if not -len(names) <= place < len(names):
            raise ParameterError(
                f"data {self.name!r}: target {place}, but there are {len(names)} columns, numbered from 0"
            )
        return place % len(names)

    def places_of_kept(
        self, names: tuple[str, ...], target: int, index: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """Return the numbers of the columns in `keep`."""
        for name in self.keep:
            if name not in names:
                raise UnknownName(f"column of data {self.name!r}", name, names)
            if names[target] == name:
                raise ParameterError(f"data {self.name!r}: {name!r} is the target; remove it from keep")
        if {*self.keep, names[target], *(names[place] for place in index)} == set(names):
            raise ParameterError(
                f"data {self.name!r}: no column is left for inputs beside {names[target]!r}; keep fewer "
                "columns"
            )
        return tuple(names.index(name) for name in self.keep)


class CSV(TableFile):
    """A table of numbers in CSV files of any size, in the layout of HIGGS, YearPredictionMSD or your own.

    The files are read once, block by block, with dask.dataframe, and kept as arrays of 32-bit floats in files
    that are mapped to memory: training reads the rows of its mini-batches from there. A run with the same
    files and parameters finds them there at once.

    Parameters
    ----------
    path : str
        A file, or a pattern such as `parts/*.csv` whose files are taken in alphabetical order. Compressed
        files are refused, as they cannot be read block by block.
    layout : "columns", "higgs" or "year_prediction_msd"
        The published ones have no header and the target in front: 28 features after the label, 1 for signal,
        or 90 after the year. "columns" is whatever the next three parameters say.
    header : bool or None
        Whether each file's first line names the columns. None: it does if none of its texts is a number; one
        with the numbers of the columns, as pandas writes without names, is refused. A first column without a
        name, or called "Unnamed: 0", is the index of a frame, and left out with a warning.
    task : "classification" or "regression"
        Whether targets are classes, which are whole numbers, or texts in alphabetical order, or numbers to be
        predicted.
    keep : list of str
        Columns that are no inputs, but that a sharding may go by: `{name: column, column: ...}`; these may
        hold texts too, or 64-bit whole numbers.
    val_fraction : float or None
        The share of them instead. Without either it is the published share, of a file of the published size
        the published rows (500,000 of HIGGS and 51,630 of YearPredictionMSD), and else a fifth.
    standardise : bool
        Bring each feature to mean 0 and deviation 1 over the training rows, and targets that are numbers too,
        so that a loss of 1 is that of always predicting the mean (our reading; the thesis is silent).
    cache : str or None
        Folder of the arrays; None takes the one that PSBENCH_DATA names, or else `~/.cache/psbench`. They are
        made again when a file's size or time of change is another; old ones may be removed at any time.
    block_size : int, bytes
        Read at a time, by each of at most four threads.

    Raises
    ------
    DataError
        If a file is missing, empty or compressed, a row has too many or too few columns, or something is not
        a number or no class; file, line and column are named.

    Notes
    -----
    What is held in memory beside the blocks: up to 30 bytes a training row, for shards and their shuffles,
    and a mini-batch. Under gradient descent (`batch_size` is the whole set) a step's mini-batch is a worker's
    share of the data. Shuffled rows of a file beyond memory are a read of the disk each.
    """

    name: ClassVar[str] = "csv"
    source: ClassVar[str] = (
        "thesis ch. 2; Baldi, Sadowski, Whiteson 2014 (HIGGS); Bertin-Mahieux et al. 2011 (YearPredictionMSD)"
    )

    path: str = parameter("", "a CSV file, or a pattern such as parts/*.csv")
    layout: Literal["columns", "higgs", "year_prediction_msd"] = parameter(
        "columns", "meaning of the columns; columns: as given by header, target and task"
    )
    header: bool | None = parameter(None, "whether each file's first line is a header; none: detected")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        defaults = {name: field.default for name, field in type(self).model_fields.items()}
        said = {"header": bool(self.header), "target": self.target, "task": self.task}
        for name, value in said.items():
            if self.layout != "columns" and value != (defaults[name] or False):
                raise ParameterError(
                    f"data 'csv': layout {self.layout!r} defines {name} itself; remove it, or set "
                    "layout: columns"
                )
        return self

    def count_rows(self, files: list[Path]) -> int:
        return estimated_rows(files)

    def table(self, files: list[Path]) -> Conversion:
        """Return the conversion given by the layout or by the first line."""
        first = first_row(files[0])
        known = LAYOUTS.get(self.layout)
        if known is None and self.header is None and numbers_columns(first):
            raise DataError(
                f"{files[0]}: line 1 ({','.join(first)[:40]}) may be column names from pandas or data; set "
                "header: true, or header: false"
            )
        header = known is None and (names_header(first) if self.header is None else self.header)
        if known is None:
            called = (text.strip() if header else "" for text in first)
            names = tuple(text or f"column {number}" for number, text in enumerate(called))
            known = TableLayout(names, self.task, (), rows=5, val_rows=1)
        elif len(first) != len(known.columns):
            raise DataError(
                f"{files[0]}: line 1 has {len(first)} columns, but layout {self.layout!r} has "
                f"{len(known.columns)}; for another layout set layout: columns"
            )
        names = known.columns
        if len(names) < 2:
            raise DataError(f"{files[0]}: has one column only (is it comma-separated?)")
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise DataError(f"{files[0]}: has two columns {twice!r}; rename one")
        index = [place for place in index_places(first) if header and names[place] != self.target]
        table = self._table_of(files, known, header, index)
        for place in index:
            if place not in table.keep:
                warn_of_index(str(files[0]), first[place])
        if self.layout != "columns":
            return table
        row = first_row(files[0], after=int(header))
        named = (table.target,) if self.task == "classification" else ()
        return replace(
            table, texts=tuple(at for at in (*named, *table.keep) if is_text("".join(row[at : at + 1])))
        )


class Parquet(TableFile):
    """A table of numbers in Parquet files of any size; see `CSV` for reading and caching.

    Parameters
    ----------
    target, task, val_rows, val_fraction, standardise, cache, block_size
        As of `CSV`. Columns that the file's metadata call the index of a frame are no inputs.

    Raises
    ------
    DataError
        If a file is missing, no Parquet or damaged, a column is not numeric, or a value is missing or not
        finite; file, row and column are named.

    Notes
    -----
    The same table as CSV gives the same arrays, if its numbers have as many digits there.
    """

    name: ClassVar[str] = "parquet"
    source: ClassVar[str] = "Apache Parquet, through pyarrow"

    path: str = parameter("", "a Parquet file, or a pattern such as parts/*.parquet")

    def count_rows(self, files: list[Path]) -> int:
        return parquet_rows(files)

    def table(self, files: list[Path]) -> Conversion:
        """Return the conversion given by the files' schema."""
        found = parquet_columns(files)
        names = found.names
        if len(names) < 2:
            raise DataError(f"{files[0]}: has one column only; expected inputs and a target")
        guessed = [
            place
            for place, name in enumerate(names)
            if is_index_name(name) and name != self.target and place not in found.index
        ]
        known = TableLayout(names, self.task, (), rows=5, val_rows=1)
        table = self._table_of(files, known, index=(*found.index, *guessed), kind="parquet")
        for place in guessed:
            if place not in table.keep:
                warn_of_index(str(files[0]), names[place])
        learned = (table.target,) if self.task == "classification" else ()
        for place in found.texts:
            if place in table.inputs or (place == table.target and not learned):
                raise DataError(
                    f"{files[0]}: column {names[place]!r} is not numeric; remove it from the file, or keep "
                    f"it for a sharding: keep: [{names[place]}]"
                )
        return replace(table, texts=tuple(at for at in (*learned, *table.keep) if at in found.texts))
