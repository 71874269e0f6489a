"""Synthetic tables in the layout of published ones, of any size: as a data set, and as CSV files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, ClassVar, Literal, NamedTuple

import numpy as np

from psbench.arrays import Doubles, Floats
from psbench.core.specification import parameter
from psbench.data.base import Dataset, DataSource
from psbench.data.layouts import LAYOUTS, TableLayout
from psbench.data.scaling import standardise
from psbench.errors import ParameterError, SpecError, UnknownName
from psbench.progress_events import tell
from psbench.seeds import Streams
from psbench.system.files import atomic_write
from psbench.system.limits import check_disk, check_memory

#: rows made from one stream of chance: a table of any length begins with the rows of a shorter one
BLOCK = 8192

#: latent factors of a row, and the share of a feature's variance that they explain. They make features
#: correlated: with 90 features the variance along some directions is ten times that along others, and
#: gradient descent is slow along these; with a larger share a learning rate of 0.1 would diverge
_FACTORS, _SHARE = 3, 0.25
#: deviation of the linear and of the curved part of the score whose logistic is the chance of class 1
_LINEAR, _CURVED = 1.0, 1.5
#: share of the variance of a number to be predicted that the features explain
_EXPLAINED = 0.5
#: years: mean and deviation such that hardly one in ten thousand is cut at the published ends
_YEAR, _SPREAD, _ENDS = 1980.0, 8.0, (1922, 2011)


class SyntheticTable(DataSource):
    """Rows in the layout of HIGGS or YearPredictionMSD, drawn from the seed; only the layout is real.

    Features are normal with a scale of their own each, and share latent factors; they are neither the physics
    nor the music that they are named after. Labels follow a logistic model with a quadratic part, which a
    perceptron can learn and logistic regression cannot; years follow a linear model with as much noise as
    signal. Features, and years, are standardised: mean 0 and deviation 1 over the training rows.

    Notes
    -----
    Reduces to: the data set `csv` of the file that `generate` writes with the same rows and seed, to the nine
    digits that are written.
    """

    name: ClassVar[str] = "synthetic_table"
    source: ClassVar[str] = "thesis ch. 2, the layouts; the models are ours"

    layout: Literal["higgs", "year_prediction_msd"] = parameter(
        "higgs", "data set whose columns and task are used"
    )
    samples: int = parameter(20_000, "rows, training and validation together", unit="samples", ge=2)
    val_fraction: float = parameter(0.2, "share of the rows, at the end, for validation", ge=0, lt=1)

    def load(self, streams: Streams) -> Dataset:
        """Return a new draw, the same for the same seed."""
        import torch

        layout = LAYOUTS[self.layout]
        self._check_memory(len(layout.columns))
        train = self.samples - round(self.samples * self.val_fraction)
        if train == 0:
            raise ParameterError(
                f"data 'synthetic_table': val_fraction {self.val_fraction:g} leaves nothing to train on"
            )
        features, targets = self._drawn(layout, streams)
        standardise(features, train)
        scale = (0.0, 1.0)
        if layout.task == "regression":
            mean, deviation = standardise(targets, train)
            scale = float(mean), float(deviation)
        x = torch.from_numpy(features)
        y = torch.from_numpy(targets if layout.task == "regression" else targets.astype(np.int64))
        train_x, train_y, val_x, val_y = x[:train], y[:train], x[train:], y[train:]
        return Dataset(self.name, train_x, train_y, val_x, val_y, layout.classes, target_scale=scale)

    def _check_memory(self, columns: int) -> None:
        what = f"data 'synthetic_table': samples = {self.samples} of {columns - 1} features"
        # 32-bit floats, and for classes once more the targets as 64-bit numbers
        needed = self.samples * (4 * columns + 8)
        check_memory(needed, what, "lower samples, or use `psbench generate` and data 'csv'")

    def _drawn(self, layout: TableLayout, streams: Streams) -> tuple[Floats, Floats]:
        """Return all features, (samples, features), and targets, (samples,)."""
        features = np.empty((self.samples, len(layout.columns) - 1), dtype=np.float32)
        targets = np.empty(self.samples, dtype=np.float32)
        for number, (x, y) in enumerate(tables(layout, self.samples, streams)):
            begin = number * BLOCK
            features[begin : begin + len(x)], targets[begin : begin + len(x)] = x, y
        return features, targets


class GroundTruth(NamedTuple):
    """The model that rows are drawn from: factor loadings, scales and offsets of features, and weights."""

    loadings: Doubles
    units: Doubles
    offsets: Doubles
    linear: Doubles
    curved: Doubles

    @classmethod
    def of(cls, layout: TableLayout, streams: Streams) -> GroundTruth:
        """Draw the model of a seed."""
        rng = streams.generator("look_alike truth")  # a seed gives what it gave under the former name
        features = len(layout.columns) - 1
        loadings = rng.standard_normal((_FACTORS, features))
        return cls(
            loadings=loadings / np.linalg.norm(loadings, axis=0),
            units=10 ** rng.uniform(-1, 2, features),
            offsets=rng.standard_normal(features),
            linear=rng.standard_normal(features),
            curved=rng.standard_normal(features),
        )

    def score(self, weights: Doubles, features: Doubles) -> Doubles:
        """Return a weighted sum of the features with deviation 1, (rows,)."""
        own = (1 - _SHARE) * (weights**2).sum() + _SHARE * ((self.loadings @ weights) ** 2).sum()
        return np.asarray(features @ weights / np.sqrt(own))


def tables(layout: TableLayout, rows: int, streams: Streams) -> Iterator[tuple[Floats, Floats]]:
    """Return features, (n, features), and targets, (n,), some rows at a time; both float32."""
    truth = GroundTruth.of(layout, streams)
    for number, begin in enumerate(range(0, rows, BLOCK)):
        features, targets = _block(layout, truth, streams.generator("look_alike", number))
        kept = min(BLOCK, rows - begin)
        yield features[:kept], targets[:kept]


def _block(layout: TableLayout, truth: GroundTruth, rng: np.random.Generator) -> tuple[Floats, Floats]:
    count = len(truth.units)
    shared = rng.standard_normal((BLOCK, _FACTORS)) @ truth.loadings
    plain = np.sqrt(_SHARE) * shared + np.sqrt(1 - _SHARE) * rng.standard_normal((BLOCK, count))
    linear = truth.score(truth.linear, plain)
    if layout.task == "classification":
        score = _LINEAR * linear + _CURVED * (truth.score(truth.curved, plain) ** 2 - 1) / np.sqrt(2)
        targets = rng.random(BLOCK) < 1 / (1 + np.exp(-score))
    else:
        noisy = np.sqrt(_EXPLAINED) * linear + np.sqrt(1 - _EXPLAINED) * rng.standard_normal(BLOCK)
        targets = np.clip(np.rint(_YEAR + _SPREAD * noisy), *_ENDS)
    features = truth.units * (plain + truth.offsets)
    return features.astype(np.float32), targets.astype(np.float32)


def generate(layout: str, path: str | Path, rows: int, *, seed: int = 0, overwrite: bool = False) -> Path:
    """Write a synthetic table as CSV, some rows at a time, and return its path.

    The file is there whole or not at all. One with more rows and the same seed begins with the same rows.

    Parameters
    ----------
    layout : "higgs" or "year_prediction_msd"
    path : path
    rows : int, >= 1
    seed : int, >= 0
    overwrite : bool
        Whether a file that is there may be replaced.

    Raises
    ------
    SpecError
        If there is no such layout, the file is there already or cannot be written, or the disk is too small.
    """
    if layout not in LAYOUTS:
        raise UnknownName("layout", layout, LAYOUTS)
    if rows < 1 or seed < 0:
        raise ParameterError(
            f"generate: rows = {rows}, seed = {seed}; rows must be at least 1, and seed at least 0"
        )
    path = Path(path)
    if path.is_dir():
        raise SpecError(f"{path}: is a folder; name a file in it, such as {path / layout}.csv")
    if path.exists() and not overwrite:
        raise SpecError(f"{path}: exists already; choose another name, or overwrite it (--force)")
    with atomic_write(path) as file:
        _write(LAYOUTS[layout], file, path, rows, Streams(seed))
    return path


def _write(layout: TableLayout, file: BinaryIO, path: Path, rows: int, streams: Streams) -> None:
    import pyarrow as pa
    from pyarrow import csv

    done = 0
    options = csv.WriteOptions(include_header=False)
    for features, targets in tables(layout, rows, streams):
        columns = [pa.array(targets.astype(np.int64)), *map(pa.array, features.T.copy())]
        csv.write_csv(pa.table(columns, names=list(layout.columns)), file, options)
        if done == 0:
            check_disk(path.parent, file.tell() * rows // len(targets), f"{path}: {rows} rows", "make fewer")
        done += len(targets)
        tell(f"writing {path.name}", done / rows)
