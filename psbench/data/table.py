"""Tables in CSV files, which may be larger than memory."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from psbench.core.specification import parameter
from psbench.data.base import Dataset, DataSource, Task
from psbench.data.blocks import THREADS, estimated_rows, files_of, first_row
from psbench.data.converted import Converted, Table, convert
from psbench.data.layouts import LAYOUTS, Layout
from psbench.data.location import data_folder
from psbench.errors import DataError, ParameterError, UnknownName
from psbench.seeds import Streams
from psbench.system.limits import check_disk, check_memory

#: of the converted arrays; others are converted again
FORMAT = 1
#: bytes of memory that a training row takes: its place in a shard, in the shard's shuffle, and its label
ROW_MEMORY = 30
#: memory that reading a block takes, of its size: the text, the columns that pandas makes of it, an array
BLOCK_MEMORY = 3


class CSV(DataSource):
    """A table of numbers in CSV files of any size, in the layout of HIGGS, YearPredictionMSD or one of yours.

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
    header : bool
        Whether each file's first line names the columns.
    target : str
        The column to be learned: its name, or its number from 0; negative ones count from the end.
    task : "classification" or "regression"
        Whether targets are classes, which are whole numbers, or numbers to be predicted.
    val_rows : int or None
        Rows at the end that are for validation.
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

    Source
    ------
    Baldi, Sadowski, Whiteson (2014), "Searching for Exotic Particles in High-Energy Physics with Deep
    Learning"; Bertin-Mahieux et al. (2011), "The Million Song Dataset"; both at UCI. Thesis ch. 2.
    """

    name: ClassVar[str] = "csv"
    source: ClassVar[str] = "thesis ch. 2; UCI HIGGS and YearPredictionMSD"

    path: str = parameter("", "a CSV file, or a pattern such as parts/*.csv")
    layout: Literal["columns", "higgs", "year_prediction_msd"] = parameter(
        "columns", "what stands in which column; columns: as header, target and task say"
    )
    header: bool = parameter(False, "whether each file's first line names the columns")
    target: str = parameter("0", "column to learn: its name, or its number from 0 (-1: the last)")
    task: Task = parameter("classification", "whether targets are classes or numbers to be predicted")
    val_rows: int | None = parameter(None, "rows at the end that are for validation", unit="rows", ge=0)
    val_fraction: float | None = parameter(
        None, "share of the rows, at the end, for validation; none: as published, or a fifth", ge=0, lt=1
    )
    standardise: bool = parameter(
        True, "bring features, and targets that are numbers, to mean 0 and deviation 1"
    )
    cache: str | None = parameter(None, "folder of the converted arrays; none: the one PSBENCH_DATA names")
    block_size: int = parameter(8_000_000, "read at a time by each of a few threads", unit="bytes", ge=10_000)

    @field_validator("target", mode="before")
    @classmethod
    def _number_as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.val_rows is not None and self.val_fraction is not None:
            raise ParameterError("data 'csv': give val_rows or val_fraction, not both")
        fields = type(self).model_fields
        for name in ("header", "target", "task"):
            if self.layout != "columns" and getattr(self, name) != fields[name].default:
                raise ParameterError(
                    f"data 'csv': layout {self.layout!r} says itself what {name} is; leave it out, or set "
                    "layout: columns"
                )
        return self

    def load(self, streams: Streams) -> Dataset:
        """Return views of the converted arrays, which are made first if need be; nothing is drawn."""
        import torch

        found = self._converted()
        x, y = torch.from_numpy(found.features), torch.from_numpy(found.targets)
        train = found.train
        return Dataset(
            *(self.name, x[:train], y[:train], x[train:], y[train:], found.classes),
            target_scale=found.target_scale,
        )

    def _converted(self) -> Converted:
        if not self.path:
            raise DataError("data 'csv': no path given; set path to a CSV file")
        files = files_of(self.path)
        folder = data_folder(self.cache) / "csv" / f"{files[0].stem}-{self._key(files)}"
        if not folder.is_dir():
            table = self._table(files)
            self._check_room(table, folder.parent)
            convert(table, folder)
        return Converted.open(folder)

    def _check_room(self, table: Table, folder: Path) -> None:
        """Refuse files whose arrays would fill the disk, or whose shards or blocks would fill the memory."""
        rows = estimated_rows(table.files)
        what = f"data 'csv': about {rows} rows of {len(table.columns)} columns in {self.path}"
        each = 4 * len(table.columns) + 8  # 32-bit floats; classes are 64-bit numbers too
        check_disk(folder, rows * each, what, "set cache to a folder on another disk, or use fewer rows")
        check_memory(rows * ROW_MEMORY, what, "use fewer rows")
        block = min(self.block_size, max(file.stat().st_size for file in table.files))
        what = f"data 'csv': block_size = {self.block_size}, read by {THREADS} threads,"
        check_memory(THREADS * BLOCK_MEMORY * block, what, "lower it")

    def _key(self, files: list[Path]) -> str:
        """Return what names the arrays of these files, as they are now, under these parameters."""
        stats = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        meant = self.model_dump(mode="json", exclude={"path", "cache", "block_size"})
        return hashlib.sha256(json.dumps([FORMAT, stats, meant]).encode()).hexdigest()[:16]

    def _table(self, files: list[Path]) -> Table:
        first = first_row(files[0])
        known = LAYOUTS.get(self.layout)
        if known is None:
            names = tuple(first) if self.header else tuple(f"column {number}" for number in range(len(first)))
            known = Layout(names, self.task, (), rows=5, val_rows=1)
        elif len(first) != len(known.columns):
            raise DataError(
                f"{files[0]}: line 1 has {len(first)} columns, but layout {self.layout!r} has "
                f"{len(known.columns)}; for another layout set layout: columns"
            )
        names = known.columns
        if len(names) < 2:
            raise DataError(f"{files[0]}: has one column only (is it comma-separated?)")
        return Table(
            *(files, names, self._place(names), self.header, known.task, known.classes, self.val_rows),
            known.val_fraction if self.val_fraction is None else self.val_fraction,
            *(self.standardise, self.block_size),
        )

    def _place(self, names: tuple[str, ...]) -> int:
        """Return the number of the column to be learned."""
        if self.header and self.target in names:
            return names.index(self.target)
        try:
            place = int(self.target)
        except ValueError:
            if not self.header:
                raise ParameterError(
                    f"data 'csv': target {self.target!r} is a name, but there is no header; set header: "
                    "true, or give its number"
                ) from None
            raise UnknownName("target of data 'csv'", self.target, names) from None
        if not -len(names) <= place < len(names):
            raise ParameterError(
                f"data 'csv': target {place}, but there are {len(names)} columns, numbered from 0"
            )
        return place % len(names)
