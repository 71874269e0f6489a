"""The result of a run: log, model and summary, in memory and on disk."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from psbench.checkpoints.file import Checkpoint
from psbench.core.checked_log import check_log
from psbench.core.imports import is_there
from psbench.core.log import EventLog
from psbench.errors import DataError, SpecError, in_short
from psbench.experiment import Experiment
from psbench.results.identity import check_folder, comment, remove_files_of_others, run_id_in_yaml
from psbench.results.record_file import read_facts
from psbench.results.storage import read_log, write_log_to
from psbench.system.files import atomic_write, why_missing

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor, nn

    from psbench.charts import Sheet
    from psbench.charts.display import Style, Width

#: beside the model; they take their places from last to first
_FILES = ("run.json", "log", "experiment.yaml")


@dataclass(repr=False)
class Run:
    """The result of a run: log, model and summary.

    `notebooks/site/glossary.md` defines the terms of the summary.

    Attributes
    ----------
    experiment : Experiment
    log : EventLog
        The only record; everything shown is derived from it.
    meta : dict
        Plain data that the log does not hold: sizes, labels per worker, versions, how the run ended.
    parameters, buffers : float32 tensors or None
        The final model, flat; None in timing-only mode.
    """

    experiment: Experiment
    log: EventLog
    meta: dict[str, Any]
    parameters: Tensor | None = None
    buffers: Tensor | None = None

    def __repr__(self) -> str:
        return f"<Run of {self.experiment.title}, seed {self.experiment.seed}: {self.meta.get('reason')}>"

    def summary(self) -> dict[str, Any]:
        """Return the run's measured quantities as plain data."""
        from psbench.metrics import summarise

        return summarise(self.log, self._specified() | self.meta)

    def _specified(self) -> dict[str, Any]:
        """Return the parts of the specification that warnings depend on."""
        experiment = self.experiment
        found: dict[str, Any] = {"whole_rate": [each.whole_rate for each in experiment.strategy.compositions]}
        rules = [rule.model_dump(mode="json") for rule in experiment.rules]
        return found | ({"rules": rules, "planned_epochs": experiment.stop.epochs} if rules else {})

    def frame(self, table: str = "curves") -> DataFrame:
        """Return a table of the run.

        Parameters
        ----------
        table : str
            "curves", "training", "events", "contributions", "trained", "neighbourhoods", "utilisation" or
            "energy".
            The evaluations (`metrics.evaluations`: a row each, with `epoch`, `time_s`, `updates`, `bytes` and
            the values); the smoothed loss of the training steps (`metrics.training_loss`); every row of the
            event log, with the names of its kinds (`core.log.Kind`) and its texts; what became of each
            worker's gradients (`metrics.contributions`); which classes, and which of the selection's
            neighbourhoods, the model was trained on (`metrics.trained_groups`); what workers, servers and
            links did over time (`metrics.utilisation`); energy and cost by machine (`metrics.energy`).
        """
        from psbench.results.frames import frame_of

        return frame_of(self, table)

    def export(self, path: str | Path, table: str = "curves") -> Path:
        """Write a table of the run as CSV or Parquet, as the name ends; see `results.export`."""
        from psbench.results.export import write_run

        return write_run(self, path, table)

    def tensorboard(self, folder: str | Path) -> Path:
        """Write the run's curves for TensorBoard; see `results.export.write_tensorboard`."""
        from psbench.results.export import write_tensorboard

        return write_tensorboard(self, folder, self.experiment.to_yaml())

    def perfetto(self, path: str | Path) -> Path:
        """Write the run as a trace for Perfetto or Chrome; see `results.chrome_trace.write_chrome_trace`."""
        from psbench.results.chrome_trace import write_chrome_trace

        return write_chrome_trace(self, path)

    def chart(
        self, *names: str, x: str = "time_s", width: Width | None = None, style: Style = "screen"
    ) -> Sheet:
        """Return the run's charts, as the report and the panel show them; see `charts.run_chart`.

        With `style="paper"` they are a figure of a two-column paper, `width` "column" (3.4 inches) or "page"
        (7), whose `save` writes SVG and PDF in that size; title and warnings are left to its caption.

        Raises
        ------
        UnknownName, ParameterError
            If there is no such chart, style or width.
        """
        from psbench.charts import run_chart
        from psbench.charts.display import pixels_of, styled

        sheet = run_chart(self, *names, x=x, width=pixels_of(style, width), strategy=self.experiment.strategy)
        return styled(sheet, self.summary()["warnings"], style, width)

    @property
    def metrics(self) -> DataFrame:
        """The evaluations: `epoch`, `time_s`, `updates`, `bytes`, and each value, as `val_loss`."""
        from psbench.metrics import evaluations

        return evaluations(self.log)

    def model(self, model: Any = None) -> nn.Module:
        """Return the trained network as a torch module with its own tensors, in eval mode.

        Parameters
        ----------
        model : module, class or function, optional
            The network of one's own that the run began with, where the run was read from a folder; it is
            copied, and not changed.

        Raises
        ------
        SpecError
            In timing-only mode, which has none; or if the network is an object that the folder does not hold,
            or `model` is another one.
        """
        from psbench.training.trained import trained_module

        if self.parameters is None or self.buffers is None:
            raise SpecError("a timing-only run has no model")
        experiment = self.experiment if model is None else self.experiment.but(model=model)
        return trained_module(experiment, self.meta, self.parameters, self.buffers)

    def save_model(self, path: str | Path, model: Any = None) -> Path:
        """Write the trained network's state_dict to a `.safetensors` file, and return its path.

        It loads into the same network with `module.load_state_dict(safetensors.torch.load_file(path))`.

        Raises
        ------
        SpecError
            As `model`, or if the file cannot be written.
        """
        from psbench.training.trained import write_safetensors

        about = {"psbench.run_id": self.run_id} if self.run_id else {}
        write_safetensors(self.model(model), Path(path), about)
        return Path(path)

    @property
    def run_id(self) -> str | None:
        """The identity that every file of the run carries; see `results.identity`."""
        found: str | None = self.meta.get("run_id")
        return found

    @staticmethod
    def prepare_to_save() -> None:
        """Import the modules of `save` early, so that a terminated run need not wait for them."""
        import pandas as pd  # noqa: F401

        write_log_to(BytesIO(), ".parquet", EventLog(), None)

    def save(
        self, folder: str | Path, *, overwrite: bool = False, log: Literal["parquet", "json"] = "parquet"
    ) -> Path:
        """Write the run to a folder: specification, log, record, model; and return it.

        Parameters
        ----------
        folder : path
        overwrite : bool
            Whether the files of another run in that folder are removed. The run's own are replaced anyway.
        log : "parquet" or "json"
            How the log is written. JSON is about five times as large; a browser reads it without pyarrow.

        Raises
        ------
        SpecError
            If the folder cannot be written, or holds another run.
        """
        folder = Path(folder)
        if log not in ("parquet", "json"):
            raise SpecError(f"log: {log!r} is not a format of logs; give 'parquet' or 'json'")
        check_folder(folder, self.run_id, overwrite=overwrite)
        record = {"meta": self.meta, "summary": self.summary()}
        remove_files_of_others(folder, self.run_id)
        # all files are written before the first takes its place; the record, which makes it a run, is last
        with ExitStack() as files:
            names = [f"log.{log}" if name == "log" else name for name in _FILES]
            into = {name: files.enter_context(atomic_write(folder / name)) for name in names}
            into["run.json"].write(json.dumps(record, indent=1, allow_nan=False).encode())
            write_log_to(into[f"log.{log}"], f".{log}", self.log, self.run_id)
            into["experiment.yaml"].write((comment(self.run_id) + self.experiment.to_yaml()).encode())
            if self.parameters is not None and self.buffers is not None:
                tensors = {"parameters": self.parameters, "buffers": self.buffers}
                Checkpoint(tensors, {"run_id": self.run_id}).save(folder / "model.npz")
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """Read a run written by `save`; without torch, its model is left out.

        Raises
        ------
        DataError
            If a file is missing, cut short, or of another run.
        """
        folder = Path(folder)
        meta = _read_meta(folder)
        log_file, spec_file, model_file = _log_of(folder), folder / "experiment.yaml", folder / "model.npz"
        log, owner = read_log(log_file)
        experiment = Experiment.from_yaml(spec_file)
        model = Checkpoint.load(model_file) if model_file.is_file() and is_there("torch") else None
        run = cls(experiment, log, meta)
        # a user may have removed the line that names the run
        owners = {log_file: owner, spec_file: run_id_in_yaml(spec_file) or run.run_id}
        if model is not None:
            owners[model_file] = model.state.get("run_id")
        _check_one_run(run.run_id, owners)
        _check_workers(folder, experiment, meta)
        check_log(log_file, log, experiment.num_workers)
        if model is not None:
            run.parameters, run.buffers = _model_of(model_file, model.tensors, meta)
        return run


def load_runs(folder: Path) -> list[Run]:
    """Load the run that was saved in a folder, or every run in a folder below it.

    Raises
    ------
    DataError
        If there is none, or one cannot be read.
    """
    if problem := why_missing(folder):
        raise DataError(problem)
    if (folder / "run.json").is_file():
        return [Run.load(folder)]
    found = sorted(path.parent for path in folder.glob("*/run.json"))
    if not found:
        raise DataError(f"{folder}: is not the folder of a run (it has no run.json), and contains none")
    return [Run.load(each) for each in found]


def _log_of(folder: Path) -> Path:
    packed, plain = folder / "log.parquet", folder / "log.json"
    return plain if plain.is_file() and not packed.is_file() else packed


def _check_workers(folder: Path, experiment: Experiment, meta: dict[str, Any]) -> None:
    """Raise if a record has other workers than the specification."""
    if experiment.num_workers != meta["num_workers"]:
        raise DataError(
            f"{folder / 'run.json'}: meta.num_workers: is {meta['num_workers']}, but experiment.yaml has "
            f"{experiment.num_workers}"
        )


def _model_of(path: Path, tensors: dict[str, Tensor], meta: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return parameters and buffers of a file, checked against the sizes in its record."""
    import torch

    size = meta["num_parameters"]
    sizes = {"parameters": size, "buffers": (meta["model_bytes"] - 4 * size) // 4}
    for name, expected in sizes.items():
        found = tensors.get(name)
        if found is None or found.shape != (expected,) or found.dtype != torch.float32:
            what = "is missing" if found is None else f"has {found.dtype} of shape {tuple(found.shape)}"
            raise DataError(f"{path}: tensor {name!r} {what}, expected {expected} numbers of torch.float32")
    return tensors["parameters"], tensors["buffers"]


def _check_one_run(run_id: str | None, owners: dict[Path, str | None]) -> None:
    """Raise if a folder holds files of several runs; checkpoints are checked on resuming."""
    for path, other in owners.items():
        if other != run_id:
            raise DataError(
                f"{path}: belongs to a different run ({in_short(other)}) from run.json ({in_short(run_id)}); "
                "keep each run in a folder of its own"
            )


def _read_meta(folder: Path) -> dict[str, Any]:
    path = folder / "run.json"
    if problem := why_missing(folder):
        raise DataError(problem)
    if not path.is_file():
        raise DataError(f"{folder}: is not the folder of a run (it has no run.json)")
    return read_facts(path)
