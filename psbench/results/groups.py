"""Groups of runs: the seeds of one specification, duplicates, and differences between groups."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psbench.experiment import LIVE
from psbench.results.labels import differing, labels_of, leaves
from psbench.results.run import Run

#: fields of a specification that a group's label stands for
_NOT_COMPARED = ("name", "strategy")
#: what of a specification tells no group apart: the seed, and how and where a run is made
_WITHOUT_EFFECT = {
    *("seed", "scheduler", "processes", "checkpoint_every", "data.download", "data.root"),
    *("recovery.keep", "recovery.wait_for_workers", "connection.scheduler_file", "connection.ports"),
    *("connection.tls_ca_file", "connection.tls_cert", "connection.tls_key", "connection.say_after_s"),
    # how long a run waits before it begins
    *("connection.connect_within_s", "connection.start_within_s", "connection.listen_within_s"),
}


@dataclass(frozen=True)
class Groups:
    """Runs by label; the runs of a group differ in their seed only.

    Attributes
    ----------
    runs : dict of label to list of Run
    notes : dict of label to list of str
        What was merged, or is no further seed.
    """

    runs: dict[str, list[Run]]
    notes: dict[str, list[str]]


@dataclass
class _Group:
    """The runs of one specification, and how often each was given."""

    runs: list[Run] = field(default_factory=list)
    given: list[int] = field(default_factory=list)
    note: str = ""

    def add(self, run: Run) -> None:
        self.runs.append(run)
        self.given.append(1)

    def find(self, run: Run) -> int | None:
        """Return the index of a run with the same seed and log; None without one."""
        rivals = [i for i, own in enumerate(self.runs) if own.experiment.seed == run.experiment.seed]
        return next((i for i in rivals if _same_log(self.runs[i], run)), None)

    def has_seed(self, run: Run) -> bool:
        return any(own.experiment.seed == run.experiment.seed for own in self.runs)

    def notes(self) -> list[str]:
        twice = [
            f"seed {run.experiment.seed} was given {given} times with the same run, which counts once"
            for run, given in zip(self.runs, self.given, strict=True)
            if given > 1
        ]
        seeds = [run.experiment.seed for run in self.runs]
        again = [
            f"seed {seed} was run live {seeds.count(seed)} times: its repetitions count like seeds"
            for seed in dict.fromkeys(seeds)
            if seeds.count(seed) > 1
        ]
        return [*filter(None, [self.note]), *twice, *again]


def group(runs: Iterable[Run]) -> Groups:
    """Group runs by everything but their seed, and label each group by its differences from the others.

    Notes
    -----
    The same run given twice (equal specification, seed and log) counts once. A simulated run with the seed of
    another and a different log (stopped, resumed or switched by hand, or made by other library versions) is
    no independent sample either: it goes to a group of its own. Live runs with the same seed differ in their
    timing, and are repetitions.
    """
    by_spec: dict[str, list[_Group]] = {}
    for run in runs:
        _place(run, by_spec.setdefault(json.dumps(compared_spec(run), sort_keys=True), [_Group()]))
    groups = [each for alternatives in by_spec.values() for each in alternatives]
    names = [_name(each.runs[0]) for each in groups]
    labels = labels_of(names, [compared_spec(each.runs[0]) for each in groups])
    return Groups(
        {label: each.runs for label, each in zip(labels, groups, strict=True)},
        {label: notes for label, each in zip(labels, groups, strict=True) if (notes := each.notes())},
    )


def _place(run: Run, alternatives: list[_Group]) -> None:
    """Add a run to the first group that lacks its seed, or count it as a duplicate."""
    for each in alternatives:
        if (place := each.find(run)) is not None:
            each.given[place] += 1
            return
    free = (e for e in alternatives if run.experiment.backend != "simulated" or not e.has_seed(run))
    chosen = next(free, None)
    if chosen is None:
        chosen = _Group(
            note="repeats the seeds of another group of the same specification with other logs (stopped, "
            "resumed or switched by hand, or other library versions): these are not further seeds"
        )
        alternatives.append(chosen)
    chosen.add(run)


def _same_log(a: Run, b: Run) -> bool:
    return a.log is b.log or (len(a.log) == len(b.log) and a.log.digest() == b.log.digest())


def compared_spec(run: Run) -> dict[str, Any]:
    """Return the part of a run's specification that may change its result, except the seed."""
    live = run.experiment.backend == "dask"
    spec = {name: value for name, value in run.experiment.spec().items() if live or name not in LIVE}
    return {name: _with_effect(value, name) for name, value in spec.items() if name not in _WITHOUT_EFFECT}


def _with_effect(value: Any, field: str) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: below for name, below in value.items() if f"{field}.{name}" not in _WITHOUT_EFFECT}


def _name(run: Run) -> str:
    return str(run.meta.get("name") or run.meta.get("strategy") or "run")


def differences(groups: Mapping[str, Sequence[Run]]) -> dict[str, dict[str, str]]:
    """Return the differences between groups besides the strategy: field -> label -> value as text.

    Such as `{"cluster": {"bsp": "c1", "asp": "c2"}}`. Parts of the same name are distinguished by the
    parameters that differ.
    """
    specs = {label: compared_spec(runs[0]) for label, runs in groups.items()}
    fields = dict.fromkeys(name for spec in specs.values() for name in spec if name not in _NOT_COMPARED)
    found = {}
    for name in fields:
        if name in LIVE and any(name not in spec for spec in specs.values()):
            continue  # that a run was simulated is said by its backend
        values = [spec.get(name) for spec in specs.values()]
        if any(value != values[0] for value in values):
            found[name] = dict(zip(specs, _in_words(values), strict=True))
    return found


def _in_words(values: Sequence[Any]) -> list[str]:
    """Return each value as its name, with the fields that distinguish it from others of that name.

    >>> _in_words([{"name": "c1"}, {"name": "c2", "latency_s": 0.0}])
    ['c1', 'c2']
    >>> _in_words([{"epochs": 3.0}, {"epochs": 1.0}]), _in_words([64, 128])
    (['epochs 3', 'epochs 1'], ['64', '128'])
    >>> _in_words([None, {"name": "adam", "lr": 0.1}])
    ['none', 'adam']
    """
    if not all(isinstance(value, Mapping) for value in values):
        plain = ("none" if value is None else value for value in values)
        return [
            str(value["name"] if isinstance(value, Mapping) and "name" in value else value) for value in plain
        ]
    return [
        _part_in_words(value, [v for v in values if v.get("name") == value.get("name")]) for value in values
    ]


def _part_in_words(own: Mapping[str, Any], rivals: Sequence[Mapping[str, Any]]) -> str:
    flat = [dict(leaves(rival)) for rival in rivals]
    known = dict(leaves(own))
    shown = [_leaf_in_words(key, known[key]) for key in differing(flat) if key in known]
    name = str(own.get("name", ""))
    if not shown:
        return name
    return f"{name} ({', '.join(shown)})" if name else ", ".join(shown)


def _leaf_in_words(key: str, value: Any) -> str:
    """Return a field and its value as text; a list of mappings (JSON in `leaves`) is written out.

    >>> _leaf_in_words("lr", 0.5), _leaf_in_words("failures", "[]")
    ('lr 0.5', 'no failures')
    >>> _leaf_in_words("failures", '[{"worker": 1, "at_s": 0.5, "rejoin_s": null}]')
    'failures: worker 1, at_s 0.5'
    """
    if isinstance(value, str) and value.startswith("[{"):
        each = (
            ", ".join(_leaf_in_words(*item) for item in mapping.items() if item[1] is not None)
            for mapping in json.loads(value)
        )
        return f"{key}: {'; '.join(each)}"
    if value == "[]":
        return f"no {key}"
    return f"{key} {value:g}" if isinstance(value, (int, float)) else f"{key} {value}"
