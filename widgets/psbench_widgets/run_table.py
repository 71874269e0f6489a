"""The runs of a panel: running, failed, and finished ones that can be compared."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psbench import charts
from psbench.errors import ParameterError
from psbench.experiment import Experiment
from psbench.percents import spaced
from psbench.results.comparison import Comparison, comparison_of
from psbench.results.run import Run, load_runs
from psbench_widgets.bridge import Job
from psbench_widgets.names import fork_name, names_of
from psbench_widgets.own_objects import titles_of

#: points of a run's curve beside its name
POINTS = 24


@dataclass(eq=False)
class RunEntry:
    """One line of the table of runs."""

    number: int
    experiment: Experiment
    status: str
    name: str = ""
    run: Run | None = None
    summary: dict[str, Any] | None = None
    error: str = ""
    ticked: bool = False
    #: what tells it apart from the other runs of the table
    own_name: str = ""
    #: of a fork: see `Job.forked`
    forked: tuple[str, ...] = ()
    _curve: list[float] = field(default_factory=list)
    #: whether it is a run of a cluster, which the panel follows
    is_detached: bool = False

    @property
    def label(self) -> str:
        """The user's name for the run, or else its differences from others."""
        return self.name or self.own_name or self.experiment.title

    @property
    def name_parts(self) -> tuple[str, ...]:
        """The run's name; for a fork its origin's name, and the change of each fork."""
        return self.forked if self.forked and self.name == fork_name(*self.forked) else (self.label,)

    def plain(self) -> dict[str, Any]:
        """Return the line as the page draws it."""
        experiment, strategy = self.experiment, str(self.experiment.strategy.name)
        found = {
            "number": self.number,
            "label": self.label,
            "whole_name": "".join(self.name_parts),
            "strategy": strategy,
            "colour": "var(--psb-line)",  # until it is ticked, and in the charts
            "about": ", ".join(titles_of(experiment, "data", "model", "cluster")),
            "seed": experiment.seed,
            "backend": experiment.backend,
            "status": self.status,
            "error": self.error,
            "ticked": self.ticked,
            "can_compare": self.run is not None,
            "detached": self.is_detached,
        }
        if self.summary and self.run is not None:
            if not self._curve:
                self._curve = _sparkline(self.run)
            return found | _measures(self.summary) | {"curve": self._curve}
        return found | ({"reason": "before training began"} if self.status == "stopped" else {})


def _measures(summary: dict[str, Any]) -> dict[str, Any]:
    names = ("epochs", "time_s", "updates", "best_val_accuracy", "digest")
    idle = summary["idle_fraction"]
    return {name: summary[name] for name in names} | {
        "reason": spaced(summary["reason"]),
        "val_accuracy": summary["final"]["val_accuracy"],
        "idle": sum(idle) / len(idle) if idle else None,
        "staleness": summary["staleness"]["mean"],
        "warnings": summary["warnings"],
    }


def _sparkline(run: Run) -> list[float]:
    """Return the accuracy at some evaluations, evenly picked, the last among them."""
    values = [e["val_accuracy"] for e in run.log.evaluations() if e.get("val_accuracy") is not None]
    every = -(-len(values) // POINTS) if values else 1
    return [round(value, 4) for value in values[::-1][::every][::-1]]


class RunTable:
    """All runs of a panel, by number; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._entries: dict[int, RunEntry] = {}

    def update(self, job: Job, status: str) -> None:
        """Store a job's status, and its run when it has one; a finished run is ticked."""
        summary = job.run.summary() if job.run is not None else None
        with self._lock:
            entry = self._entries.get(job.number)
            if entry is None:
                entry = self._entries[job.number] = RunEntry(job.number, job.experiment, status, job.name)
                entry.forked, entry.is_detached = job.forked, job.detached is not None
                self._name_all()
            if job.run is not None and entry.run is None:
                entry.run, entry.summary = job.run, summary
                entry.ticked = job.run.meta["status"] != "diverged"
            entry.status, entry.error = status, job.error

    def add(self, run: Run, number: int, name: str = "") -> RunEntry:
        """Add a run that was not made in this panel."""
        entry = RunEntry(
            number, run.experiment, str(run.meta.get("status", "finished")), name, run, run.summary()
        )
        entry.ticked = True
        with self._lock:
            self._entries[number] = entry
            self._name_all()
        return entry

    def _name_all(self) -> None:
        """Name every run by its differences from others of its strategy."""
        # a fork is called after the run that it is a fork of, which is not called by what the fork changes
        entries = [entry for entry in self._entries.values() if not entry.name]
        names = names_of([entry.experiment for entry in entries])
        for entry, name in zip(entries, names, strict=True):
            entry.own_name = name

    def __getitem__(self, number: int) -> RunEntry:
        with self._lock:
            if number not in self._entries:
                raise ParameterError(f"there is no run {number} (there are: {sorted(self._entries)})")
            return self._entries[number]

    def __contains__(self, number: int) -> bool:
        return number in self._entries

    def tick(self, number: int, on: bool) -> None:
        """Set whether a run is compared."""
        self[number].ticked = on

    def rename(self, number: int, name: str) -> None:
        """Rename a run; an empty name restores the default."""
        with self._lock:
            self[number].name = name.strip()
            self._name_all()

    def remove(self, number: int) -> None:
        """Remove a finished run from the table."""
        with self._lock:
            if self[number].status in ("queued", "running"):
                raise ParameterError(f"run {number} is {self[number].status}: stop it first")
            del self._entries[number]
            self._name_all()

    def plain(self) -> list[dict[str, Any]]:
        """Return the table of runs as the page draws it, newest first; `same_as` is an equal, older run."""
        with self._lock:
            entries = [entry for _, entry in sorted(self._entries.items())]
            first: dict[tuple[str, int], int] = {}
            lines = []
            ticked = [entry for entry in entries if entry.ticked and entry.run is not None]
            found = charts.looks(self.labels())  # as in the charts
            colours = {entry.number: found[entry.label].colour for entry in ticked}
            for line in (entry.plain() for entry in entries):
                line["colour"] = colours.get(line["number"], line["colour"])
                digest = line.get("digest")
                same = first.setdefault((digest, line["seed"]), line["number"]) if digest else line["number"]
                lines.append(line | {"same_as": f"run {same}" if same != line["number"] else ""})
            return lines[::-1]

    def before(self, number: int) -> RunEntry | None:
        with self._lock:
            found = [e for n, e in sorted(self._entries.items()) if n < number and e.run is not None]
            return found[-1] if found else None

    def ticked(self) -> list[RunEntry]:
        with self._lock:
            return [e for _, e in sorted(self._entries.items()) if e.ticked and e.run is not None]

    def labels(self) -> list[str]:
        """Return the labels of the ticked runs, in the order that gives each its colour."""
        return [entry.label for entry in self.ticked()]

    def compare(self, target: float | None = None) -> Comparison | None:
        """Return the comparison of the ticked runs, by the names that they have here; None without any."""
        entries = self.ticked()
        if not entries:
            return None
        named = {id(entry.run): entry.name or entry.own_name for entry in entries}
        found = comparison_of([entry.run for entry in entries if entry.run is not None], target=target)
        renamed: dict[str, str] = {}
        for label, runs in found.groups.items():
            name = next(filter(None, (named[id(run)] for run in runs)), label)
            renamed[label] = name if name not in renamed.values() else f"{name} ({label})"
        return found.renamed(renamed)

    def save(self, folder: str | Path) -> list[Path]:
        return [_write(entry, Path(folder)) for entry in self.ticked()]

    def load(self, folder: str | Path, number: Callable[[], int]) -> list[RunEntry]:
        """Read the run in `folder`, or every run in a folder below it.

        Raises
        ------
        DataError
            If there is none, or one cannot be read; then nothing is added.
        """
        return [self.add(run, number()) for run in load_runs(Path(folder))]


def _write(entry: RunEntry, folder: Path) -> Path:
    assert entry.run is not None
    name = re.sub(r"[^\w.-]+", "-", f"{entry.label}-{entry.experiment.data.name}-seed{entry.experiment.seed}")
    place, again = folder / name, 1
    while place.exists():
        again += 1
        place = folder / f"{name}-{again}"
    return entry.run.save(place)
