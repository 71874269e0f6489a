"""What a run leaves: its log, its model, its summary, in memory and on disk."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from psbench.checkpoints.file import Checkpoint
from psbench.core.log import EventLog
from psbench.errors import DataError, SpecError
from psbench.experiment import Experiment
from psbench.results.storage import check_writable, put_log, read_log, whole
from psbench.training.workload import Workload

if TYPE_CHECKING:
    from psbench.charts import Sheet

#: beside the model; they take their places from last to first
_FILES = ("run.json", "log.parquet", "experiment.yaml")
#: of a record; metrics and replay cannot do without
_NEEDED = ("status", "num_workers", "dataset_size", "model_bytes", "num_parameters", "layout")


@dataclass(repr=False)
class Run:
    """What a run leaves.

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

        return summarise(self.log, self._rule_facts() | self.meta)

    def _rule_facts(self) -> dict[str, Any]:
        """Return what explains why a switch rule did not fire."""
        rule = self.experiment.rule
        if rule is None:
            return {}
        return {"rule": rule.model_dump(mode="json"), "planned_epochs": self.experiment.stop.epochs}

    def chart(self, *names: str, x: str = "time_s", width: int = 640) -> Sheet:
        """Return the run's charts, as the report and the panel show them; see `charts.run_chart`."""
        from psbench.charts import run_chart

        return run_chart(self, *names, x=x, width=width)

    def model(self) -> Any:
        """Return the final model as a torch module.

        Raises
        ------
        SpecError
            In timing-only mode, which has none.
        """
        if self.parameters is None or self.buffers is None:
            raise SpecError("a timing-only run has no model")
        flat = Workload.build(self.experiment).model
        flat.load(self.parameters, self.buffers)
        return flat.module.eval()

    def save(self, folder: str | Path) -> Path:
        """Write the run to a folder: specification, log, record, model; and return it.

        Raises
        ------
        SpecError
            If the folder cannot be written.
        """
        folder = Path(folder)
        check_writable(folder)
        folder.mkdir(parents=True, exist_ok=True)
        record = {"meta": self.meta, "summary": self.summary()}
        # all files are written before the first takes its place; the record, which makes it a run, is last
        with ExitStack() as files:
            into = {name: files.enter_context(whole(folder / name)) for name in _FILES}
            into["run.json"].write_text(json.dumps(record, indent=1, allow_nan=False), encoding="utf-8")
            put_log(self.log, into["log.parquet"], ".parquet")
            self.experiment.to_yaml(into["experiment.yaml"])
            if self.parameters is not None and self.buffers is not None:
                tensors = {"parameters": self.parameters, "buffers": self.buffers}
                Checkpoint(tensors, {}).save(folder / "model.npz")
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """Read a run that `save` wrote.

        Raises
        ------
        DataError
            If a file is missing or cut short.
        """
        folder = Path(folder)
        meta = _read_meta(folder)
        run = cls(Experiment.from_yaml(folder / "experiment.yaml"), read_log(folder / "log.parquet"), meta)
        if (folder / "model.npz").is_file():
            tensors = Checkpoint.load(folder / "model.npz").tensors
            run.parameters, run.buffers = tensors["parameters"], tensors["buffers"]
        return run


def _read_meta(folder: Path) -> dict[str, Any]:
    path = folder / "run.json"
    if not path.is_file():
        raise DataError(f"{folder}: is not the folder of a run (it has no run.json)")
    try:
        meta: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["meta"]
        missing = [name for name in _NEEDED if name not in meta]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: is not the record of a run ({error})") from None
    if missing:
        raise DataError(f"{path}: is not the record of a run (it has no {', '.join(missing)})")
    return meta
