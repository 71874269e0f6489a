"""Export of runs: tables as CSV or Parquet, and scalars for TensorBoard."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

from psbench import metrics
from psbench.errors import SpecError
from psbench.metrics.record import RunRecord
from psbench.results.csv_file import csv_of
from psbench.results.frames import frame_of
from psbench.system.files import atomic_write, check_writable

#: columns that a curve is drawn against, and no curves themselves
_AXES = ("epoch", "time_s", "updates", "bytes")


def write_table(frame: pd.DataFrame, path: str | Path) -> Path:
    """Write a table as CSV or Parquet, as the file's name ends; whole or not at all.

    Raises
    ------
    SpecError
        If the name ends otherwise, or the file cannot be written.
    """
    path = Path(path)
    if path.suffix not in (".csv", ".parquet"):
        raise SpecError(f"{path}: the name of a table must end in .csv or .parquet")
    check_writable(path.parent)
    with atomic_write(path) as file:
        if path.suffix == ".csv":
            file.write(csv_of(frame))
        else:
            frame.to_parquet(file, index=False)
    return path


def write_run(run: RunRecord, path: str | Path, table: str = "curves") -> Path:
    """Write one of the tables of a run (`Run.frame`) as CSV or Parquet.

    Raises
    ------
    SpecError
    """
    return write_table(frame_of(run, table), path)


def write_tensorboard(run: RunRecord, folder: str | Path, specification: str = "") -> Path:
    """Write a run's curves for TensorBoard.

    The step of a scalar is the number of updates, and its "wall time" is the time of the run, virtual or
    real, in seconds: TensorBoard's axis "Relative" then shows it. Training losses are the smoothed ones.

    Parameters
    ----------
    run : RunRecord
    folder : path
        A folder for this run alone; give several of them one parent to see them together.
    specification : str
        YAML that is shown as a text beside the curves.

    Raises
    ------
    SpecError
        If TensorBoard is not installed, or the folder cannot be written.
    """
    if find_spec("tensorboard") is None:
        raise SpecError("tensorboard is not installed: pip install 'psbench[tensorboard]'")
    if find_spec("tensorflow") is not None and find_spec("triton") is not None:
        # TensorBoard imports TensorFlow where there is one; if Triton comes after it (with torchvision, or
        # torch.compile), LLVM ends the process, since both register the same options. Triton first works.
        import_module("triton")
    from torch.utils.tensorboard import SummaryWriter

    folder = Path(folder)
    check_writable(folder)
    training = metrics.training_loss(run.log, run.meta["dataset_size"])
    parts = (("evaluation", frame_of(run)), ("training", training))
    with SummaryWriter(str(folder)) as writer:
        for group, frame in parts:
            for name in (name for name in frame if name not in _AXES):
                for row in frame[["updates", "time_s", name]].dropna().itertuples(index=False):
                    writer.add_scalar(f"{group}/{name}", row[2], row[0], walltime=row[1])
        if specification:
            writer.add_text("experiment", f"```yaml\n{specification}```")
    return folder
