"""Runs of several strategies side by side: results, and caveats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import pandas as pd

from psbench.core.target import Target, plain_target, target_of
from psbench.metrics import clock_of, evaluations
from psbench.results import remarks
from psbench.results.budget import budgets, by_value, no_speed_up, unequal_epochs
from psbench.results.comparison_table import numbers_of_run, table_of, text_cells
from psbench.results.groups import differences
from psbench.results.paired import in_words, paired_tests
from psbench.results.run import Run
from psbench.results.text import ShownTable

#: fields of which the budget is made; `budget` says where they differ
_BUDGET = ("stop", "batch_size")
#: fields that make accuracies and losses those of another task
_TASK = ("data", "model")
#: characters of a remark on what differs; what is longer is in the table
_LONGEST = 200
#: true of most first looks, so that charts leave it to the table
FEW = "fewer than three seeds: differences may be chance"


@dataclass(frozen=True, repr=False)
class Compared(ShownTable):
    """Runs grouped by strategy; the members of a group differ in their seed only.

    Attributes
    ----------
    groups : dict of label to list of Run
    baseline : str
        The label that speed-ups refer to.
    target : float, Target or None
        For the time to target: a validation accuracy, or a bound of another metric.
    notes : mapping of label to sequence of str
        Runs that were given twice, or are no further seeds; see `groups.group`.
    test : bool
        Whether the remarks say which differences are real; see `tests`.
    equal : str
        At what equal amount the runs were cut, in words; empty if they are whole.
    early : sequence of str
        Which runs were evaluated long before that.
    axis : str
        What curves are drawn against unless another axis is asked for: what is equal, or time.
    target_source : str
        Where the target comes from, in words; empty if it was given.
    """

    groups: dict[str, list[Run]]
    baseline: str
    target: float | Target | None
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    test: bool = False
    equal: str = ""
    early: Sequence[str] = ()
    axis: str = "time"
    target_source: str = ""

    @cached_property
    def summaries(self) -> dict[str, list[dict[str, Any]]]:
        """The summary of each run, in the order of `groups`."""
        return {label: [run.summary() for run in runs] for label, runs in self.groups.items()}

    @property
    def aim(self) -> Target | None:
        """The target, of any metric."""
        return target_of(self.target)

    @property
    def runs(self) -> list[Run]:
        return [run for runs in self.groups.values() for run in runs]

    @cached_property
    def differences(self) -> dict[str, dict[str, str]]:
        """Differences between the groups besides the strategy: field -> label -> value as text."""
        return differences(self.groups)

    @property
    def budget(self) -> str:
        """Description of every run's budget; it says so if the budgets differ."""
        return self.equal or budgets(self.groups)

    @property
    def no_speed_up(self) -> dict[str, str]:
        """Reasons for missing speed-ups, by label; see `budget.no_speed_up`."""
        base = self.groups[self.baseline]
        found = {label: no_speed_up(runs, base, self.equal) for label, runs in self.groups.items()}
        return {label: reason for label, reason in found.items() if reason}

    @property
    def no_test(self) -> dict[str, str]:
        """Reasons for missing tests against the baseline, by label; see `budget.unequal_epochs`."""
        base = self.groups[self.baseline]
        found = {label: unequal_epochs(runs, base, self.equal) for label, runs in self.groups.items()}
        return {label: reason for label, reason in found.items() if reason}

    @property
    def warnings(self) -> list[str]:
        """Caveats to read before trusting a difference."""
        found = [f"{self.budget}: compare with care"] if "unequal" in self.budget else []
        found += self.early
        if task := [name for name in _TASK if name in self.differences]:
            found.append(f"not the same {' and '.join(task)}: accuracies and losses are of different tasks")
        few = [label for label, runs in self.groups.items() if len(runs) < 3]
        if few and len(self.groups) > 1:
            found.append(FEW if len(few) == len(self.groups) else f"{', '.join(few)}: {FEW}")
        if self.aim is not None and not any(self.aim.column in evaluations(r.log) for r in self.runs):
            found.append(f"no run has a {self.aim.called}, so none can reach the target")
        return found + remarks.of_runs(
            (label, summary["seed"], summary["warnings"])
            for label, summaries in self.summaries.items()
            for summary in summaries
        )

    @property
    def remarks(self) -> list[str]:
        """The meaning of the table's numbers, and the warnings."""
        said = "unequal" in self.budget  # by a warning
        lines = [*([] if said else [self.budget]), *self._differing(), *self._clocks()]
        if len(self.groups) > 1:
            lines += self._speed_ups()
        if any(len(runs) > 1 for runs in self.groups.values()):
            lines.append(remarks.of_interval(deviation=True))
        if self.aim is not None:
            lines += remarks.of_target(self.aim, self.target_source, self.table().to_dict("records"))
        if self.test:
            lines += in_words(self.tests(), self.baseline)
            lines += [
                f"no test of {each} against {self.baseline}: {why}" for each, why in self.no_test.items()
            ]
        lines += [f"{label}: {text}" for label, texts in self.notes.items() for text in texts]
        return [*lines, *self._rates(), *(f"warning: {text}" for text in self.warnings)]

    def _rates(self) -> list[str]:
        """Return the learning rate of each strategy, if the rates differ."""
        found: dict[str, dict[str, list[str]]] = {}
        for label, runs in self.groups.items():  # a switching strategy names those of its two strategies
            for rate in filter(None, (runs[0].meta.get("lr_convention") or "").split("; ")):
                found.setdefault(rate.partition(":")[0], {}).setdefault(rate, []).append(label)
        return [
            f"learning rate of {rate}" + (f" ({', '.join(labels)})" if len(of) > 1 else "")
            for of in found.values()
            for rate, labels in of.items()
        ]

    def _differing(self) -> list[str]:
        """Return the differing fields besides the strategy; the budget has a separate line."""
        lines = []
        for name, values in self.differences.items():
            words = by_value(values)
            if len(words) > _LONGEST:
                words = f"{len(set(values.values()))} values, in its column"
            if name not in _BUDGET:
                lines.append(f"not the same {name.replace('_', ' ')}: {words}")
        return lines

    def _speed_ups(self) -> list[str]:
        """Return remarks on the baseline of speed-ups, and on missing ones."""
        missing = self.no_speed_up
        others = [label for label in self.groups if label != self.baseline]
        lines = [] if all(label in missing for label in others) else [f"speed-up against {self.baseline}"]
        reasons = {
            reason: [label for label in others if missing.get(label) == reason] for reason in missing.values()
        }
        return lines + [
            f"no speed-up of {', '.join(labels)} against {self.baseline}: {reason}"
            for reason, labels in reasons.items()
            if labels
        ]

    def _clocks(self) -> list[str]:
        clocks = sorted({clock_of(run.meta) for run in self.runs} - {""})
        if len(clocks) > 1:
            return [
                "virtual and wall-clock seconds cannot be compared: they have columns and charts of their own"
            ]
        return ["times are wall-clock seconds"] if clocks == ["wall"] else []

    def table(self) -> pd.DataFrame:
        """Return one row per strategy, with means over seeds.

        `{column}_ci` is the half-width of the 95 % interval and `{column}_sd` the standard deviation; both
        are missing with one seed. What is not the same for all (`differences`) has a column in words.
        `speed_up` is missing where backend, cluster, data, model or budget are not the baseline's, or runs
        are not complete or ended because a time was over (`no_speed_up`). Where some seeds did not reach the
        target, `time_to_target_s` is missing, `time_to_target_reached` says how many did, and
        `time_to_target_at_least_s` is the least that the mean can be.

        Times are in seconds, `bytes` in MB (1e6, with the data that workers are sent), fractions 0 to 1.
        Where some runs are simulated and some live, `virtual_time_s` and `wall_time_s` stand in the place of
        `time_s`, and likewise for `time_to_target_s`.
        """
        return table_of(self.groups, self.summaries, self.baseline, self.aim, self.no_speed_up)

    def tests(self) -> pd.DataFrame:
        """Test which differences from the baseline are significant, paired by seed; see `paired_tests`.

        Groups that went further than the baseline by over 5 %, or less far, are left out (`no_test`).
        """
        numbers = {
            label: {
                run.experiment.seed: numbers_of_run(run, summary, self.aim)
                for run, summary in zip(runs, self.summaries[label], strict=True)
            }
            for label, runs in self.groups.items()
            if label not in self.no_test
        }
        return paired_tests(numbers, self.baseline, self.no_speed_up)

    def frame(self, table: str = "curves") -> pd.DataFrame:
        """Return a table of all runs, stacked (`Run.frame`), each row with its `label` and `seed`."""
        from psbench.results.frames import frame_of_groups

        return frame_of_groups(self.groups, table)

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return headings and rows as text, without columns that are empty everywhere."""
        return text_cells(self.table(), list(self.differences))

    def renamed(self, labels: Mapping[str, str]) -> Self:
        """Return the comparison with other labels; labels not given are kept."""
        return replace(
            self,
            groups={labels.get(label, label): runs for label, runs in self.groups.items()},
            baseline=labels.get(self.baseline, self.baseline),
            notes={labels.get(label, label): texts for label, texts in self.notes.items()},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data: table, budget, warnings and the summaries of all runs."""
        frame = self.table().astype(object)
        return {
            "budget": self.budget,
            "baseline": self.baseline,
            "target": None if self.aim is None else plain_target(self.aim),
            "differences": self.differences,
            "table": frame.where(frame.notna(), None).to_dict("records"),
            "notes": {label: list(texts) for label, texts in self.notes.items()},
            "warnings": self.warnings,
            **({"tests": self.tests().to_dict("records")} if self.test else {}),
            "runs": self.summaries,
        }

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self.groups)}: {len(self.runs)} runs>"
