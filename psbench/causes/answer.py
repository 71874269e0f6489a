"""The answer to `why`: a sentence, a waterfall, a table, and the underlying runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from psbench.causes.shares import Replaced, Shares
from psbench.errors import ParameterError
from psbench.metrics.interval import interval, standard_deviation
from psbench.results.run import Run

if TYPE_CHECKING:
    import pandas as pd

    from psbench.charts import Figure, Sheet

#: how the rest is named
REST = "not explained by these causes"


@dataclass(frozen=True)
class PairAnswer:
    """The answer of one seed.

    Attributes
    ----------
    seed : int
    own : float
        The value of the run that is explained.
    shares : Shares
    placebo : float
        By how much the value changes if the same run draws its mini-batches in another order.
    refused : mapping of cause to reason
        Causes that cannot be asked of these runs.
    runs : mapping of replaced causes to Run
        The runs that were computed; the empty set is the recorded run.
    other : Run
        The run that it is compared with.
    """

    seed: int
    own: float
    shares: Shares
    placebo: float
    refused: Mapping[str, str]
    runs: Mapping[Replaced, Run]
    other: Run


@dataclass(frozen=True)
class Answer:
    """Explanation of the difference between the final values of two runs.

    Attributes
    ----------
    value : str
        What is explained, such as "val_loss".
    name, against : str
        Of the run that is explained, and of the one that it is compared with.
    pairs : sequence of PairAnswer
        One for each seed.
    """

    value: str
    name: str
    against: str
    pairs: Sequence[PairAnswer]

    # ---------------------------------------------------------------- numbers

    @property
    def causes(self) -> list[str]:
        """The causes in which the runs differ, with any seed; the largest share first."""
        names = dict.fromkeys(name for pair in self.pairs for name in pair.shares.shares)
        return sorted(names, key=lambda name: -abs(self._mean(lambda shares: shares.shares.get(name, 0.0))))

    @property
    def gap(self) -> float:
        """The mean difference between the runs."""
        return self._mean(lambda shares: shares.gap)

    @property
    def rest(self) -> float:
        """The mean difference that these causes do not explain."""
        return self._mean(lambda shares: shares.rest)

    @property
    def explains(self) -> bool:
        """Return True if some cause has a larger share than the rest; else no waterfall is drawn."""
        shares = [self._mean(lambda each, name=name: each.shares.get(name, 0.0)) for name in self.causes]
        return any(abs(share) > abs(self.rest) for share in shares)

    @property
    def noise(self) -> float | None:
        """Standard deviation over seeds of the effect of other mini-batches; None with one seed."""
        return standard_deviation([pair.placebo for pair in self.pairs])

    @property
    def refused(self) -> Mapping[str, str]:
        """The causes that could not be tested, with the reasons."""
        return {name: reason for pair in self.pairs for name, reason in pair.refused.items()}

    def frame(self) -> pd.DataFrame:
        """Return a row for the rest and each cause.

        Returns
        -------
        DataFrame
            `cause`; `share`, `first` (replaced alone) and `last` (replaced last): means over seeds;
            `share_ci`, `first_ci`, `last_ci`, half-widths of their 95 % intervals (NaN of one seed).
        """
        import pandas as pd

        columns = ["cause", "share", "share_ci", "first", "first_ci", "last", "last_ci"]
        rows = [{"cause": name, **row} for name, row in self._rows().items()]
        return pd.DataFrame(rows, columns=columns)

    def _rows(self) -> dict[str, dict[str, float]]:
        """Return the numbers of the rest and of each cause, the largest share first."""
        rows = {REST: self._spread("share", lambda shares: shares.rest)}
        for name in self.causes:
            row = self._spread("share", lambda shares, name=name: shares.shares.get(name, 0.0))
            row |= self._spread("first", lambda shares, name=name: shares.first.get(name, 0.0))
            row |= self._spread("last", lambda shares, name=name: shares.last.get(name, 0.0))
            rows[name] = row
        return rows

    def joint(self) -> pd.DataFrame:
        """Return a row for each pair of causes, with the `effect` of both beyond that of each alone."""
        import pandas as pd

        pairs = dict.fromkeys(two for pair in self.pairs for two in pair.shares.joint)
        rows = [
            {
                "cause": x,
                "other": y,
                **self._spread("effect", lambda shares, x=x, y=y: shares.joint.get((x, y), 0.0)),
            }
            for x, y in pairs
        ]
        return pd.DataFrame(rows, columns=["cause", "other", "effect", "effect_ci"])

    def run(self, *causes: str, seed: int | None = None) -> Run:
        """Return the run in which these causes were replaced; of the first seed unless another is given.

        Raises
        ------
        KeyError
            If there is none.
        """
        pair = next(each for each in self.pairs if seed is None or each.seed == seed)
        return pair.runs[frozenset(causes)]

    def computed(self) -> Iterator[tuple[str, Run]]:
        """Yield every run that the answer rests on, with its name: first those of the first seed."""
        for pair in self.pairs:
            for replaced, run in pair.runs.items():
                what = f", {' and '.join(sorted(replaced))} of {self.against}" if replaced else ""
                yield f"{self.name}{what}, seed {pair.seed}", run
            yield f"{self.against}, seed {pair.seed}", pair.other

    def save(self, folder: str | Path) -> list[Path]:
        """Save every run that the answer rests on, each in a folder of its own, and return these."""
        place = Path(folder)
        return [run.save(place / _slug(name), overwrite=True) for name, run in self.computed()]

    def report(self, path: str | Path) -> Path:
        """Write a report of both runs, over all seeds, that begins with this answer; see `Comparison`."""
        from psbench.results.comparison import comparison_of

        runs = [pair.runs[frozenset()] for pair in self.pairs] + [pair.other for pair in self.pairs]
        return comparison_of(runs).report(path, self)

    def _mean(self, number: Callable[[Shares], float]) -> float:
        return float(np.mean([number(pair.shares) for pair in self.pairs]))

    def _spread(self, name: str, number: Callable[[Shares], float]) -> dict[str, float]:
        mean, half = interval([number(pair.shares) for pair in self.pairs])
        return {name: mean, f"{name}_ci": float("nan") if half is None else half}

    # ---------------------------------------------------------------- words

    @property
    def sentence(self) -> str:
        """The answer in words."""
        gap = self._spread("gap", lambda shares: shares.gap)
        own = float(np.mean([pair.own for pair in self.pairs]))
        than = "higher" if gap["gap"] >= 0 else "lower"
        found = [
            f"{self.name} ends with a {self.value} of {own:.3g}, which is "
            f"{_amount(gap, 'gap', signed=False)} {than} than that of {self.against}{self._over_seeds()}."
        ]
        if not self.causes:
            found.append("The runs differ in none of the tested causes.")
            return " ".join(found + (["All of it is unexplained.", *self._doubts()] if gap["gap"] else []))
        rest = self._spread("rest", lambda shares: shares.rest)
        if not self.explains:
            found.append(
                f"These causes do not explain it: {_amount(rest, 'rest')} remains when all of them are "
                "replaced, more than any of them accounts for."
            )
            return " ".join([*found, *self._doubts()])
        found.append(f"{REST.capitalize()}: {_amount(rest, 'rest')}.")
        rows = self._rows()
        parts = [f"{name} {_amount(rows[name], 'share')}" for name in self.causes]
        found.append(f"The shares of the causes: {', '.join(parts)}.")
        found += filter(None, [self._together(name, rows[name]) for name in self.causes])
        return " ".join([*found, *self._doubts()])

    def _over_seeds(self) -> str:
        number = len(self.pairs)
        return f" (mean over {number} seeds, with 95 % intervals)" if number > 1 else " (one seed)"

    def _together(self, name: str, row: Mapping[str, float]) -> str:
        """Return a sentence on a cause's effect together with another one, if its share hides that effect."""
        share, first, last = row["share"], row["first"], row["last"]
        joint = {
            (set(two) - {name}).pop(): abs(effect)
            for *two, effect in self.joint()[["cause", "other", "effect"]].itertuples(index=False)
            if name in two
        }
        noise = 0.0 if self.noise is None else self.noise
        if abs(first - last) <= abs(share) or max(abs(first), abs(last)) <= noise or not joint:
            return ""
        other = max(joint, key=lambda each: joint[each])
        if abs(first) < abs(last):
            return f"Replacing {name} alone changes {first:+.3g}: it acts together with {other}."
        return (
            f"Replacing {name} alone changes {first:+.3g}, and {last:+.3g} once all others are replaced: "
            f"{other} has the same effect."
        )

    def _doubts(self) -> list[str]:
        noise = self.noise
        if noise is None:
            change = self.pairs[0].placebo
            return [
                f"Another draw of the mini-batches alone changes it by {change:+.3g}. One seed is not "
                "enough: repeat with several."
            ]
        return [
            f"Another draw of the mini-batches alone changes it by {noise:.3g} (standard deviation); a "
            "smaller share proves nothing."
        ]

    def text(self, width: int | None = None) -> str:
        """Return the sentence and the table for a terminal."""
        import textwrap

        from psbench.results.text import table_text

        sentence = textwrap.fill(self.sentence, width or 100)
        return f"{sentence}\n\n{table_text(*self.cells(), self.remarks, width)}"

    @property
    def question(self) -> str:
        """The question that is answered."""
        from psbench.optimization.direction import is_lower_better

        metrics = self.pairs[0].other.experiment.metrics
        try:
            worse = (self.gap > 0) == is_lower_better(self.value, metrics, "why")
        except ParameterError:  # a metric of one's own that does not say which values are good
            return f"Why is {self.name} different from {self.against}?"
        return f"Why is {self.name} {'worse' if worse else 'better'} than {self.against}?"

    @property
    def remarks(self) -> list[str]:
        """Why causes could not be asked."""
        return [f"not tested: {name}: {reason}" for name, reason in self.refused.items()]

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the headings and the rows of the table of causes, as text; the rest comes first."""
        rows = [
            [row["cause"], *(_cell(row, name) for name in ("share", "first", "last"))]
            for row in self.frame().to_dict("records")
        ]
        return [f"part of {self.value}", "share", "replaced alone", "replaced last"], rows

    def joint_cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the headings and the rows of the table of interactions, as text."""
        rows = [
            [f"{row['cause']} and {row['other']}", _cell(row, "effect")]
            for row in self.joint().to_dict("records")
        ]
        return ["interaction", "effect of both beyond that of each alone"], rows

    def computed_cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the headings and the rows of the table of runs, with their digests, as text."""
        rows = [
            [name, f"{run.log.evaluations()[-1][self.value]:.4g}", run.meta["params_digest"][:16]]
            for name, run in self.computed()
        ]
        return ["run", self.value, "digest of the parameters"], rows

    def __repr__(self) -> str:
        return f"<Answer: {self.sentence}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain data."""
        frame = self.frame().astype(object)
        return {
            "value": self.value,
            "run": self.name,
            "against": self.against,
            "seeds": [pair.seed for pair in self.pairs],
            "sentence": self.sentence,
            "gap": self.gap,
            "rest": self.rest,
            "noise": self.noise,
            "causes": frame.where(frame.notna(), None).to_dict("records"),
            "joint": self.joint().astype(object).where(self.joint().notna(), None).to_dict("records"),
            "refused": dict(self.refused),
        }

    # ---------------------------------------------------------------- picture

    def chart(self, width: int = 640) -> Sheet:
        """Return the waterfall from this run's value to the other's, by way of the causes.

        Raises
        ------
        ValueError
            If the rest is larger than every share: a waterfall would suggest an explanation.
        """
        from psbench.charts import stack

        return stack([self.figure().chart], width)

    def figure(self) -> Figure:
        """Return the waterfall as a figure of a page.

        Raises
        ------
        ValueError
            If the rest is larger than every share.
        """
        from psbench.charts import Figure
        from psbench.charts.waterfall import waterfall_chart

        if not self.explains:
            raise ValueError(f"no waterfall: {self.sentence}")
        steps = self._steps()
        note = "Each bar begins where the one above it ends. Grey: not explained. Lines: 95 % intervals."
        return Figure(waterfall_chart(steps, self.question, self.value), steps, note, "why")

    def _steps(self) -> pd.DataFrame:
        import pandas as pd

        at = float(np.mean([pair.own for pair in self.pairs]))
        nan = float("nan")
        steps = [(self.name, at, at, 0.0, nan, "value")]
        rows = self._rows()
        for name, kind in [(REST, "rest"), *((name, "share") for name in self.causes)]:
            share, half = rows[name]["share"], rows[name]["share_ci"]
            steps.append((name, at, at - share, share, half, kind))
            at -= share
        steps.append((self.against, at, at, 0.0, nan, "value"))
        table = pd.DataFrame(steps, columns=["step", "start", "stop", "share", "half", "kind"])
        return table.assign(low=table["stop"] - table["half"], high=table["stop"] + table["half"])


def _slug(name: str) -> str:
    return "".join(each if each.isalnum() or each in ".-" else "_" for each in name).replace("__", "_")


def _amount(row: Mapping[str, Any], name: str, *, signed: bool = True) -> str:
    mean, half = row[name], row[f"{name}_ci"]
    text = f"{mean:+.3g}" if signed else f"{abs(mean):.3g}"
    return text if np.isnan(half) else f"{text} ± {half:.2g}"


def _cell(row: Mapping[Any, Any], name: str) -> str:
    return "" if np.isnan(row[name]) else _amount(row, name)
