"""Schema of a paper's files except its claims (`claim`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from decimal import Decimal
from typing import Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from psbench_papers.claim import JUDGED, SCALES, Claim, Scale

#: how two experiments, or one, make the number that is compared; the neutral value says "no effect"
Form: TypeAlias = Literal["value", "speed_up", "ratio", "difference", "sd_ratio"]
NEUTRAL: dict[str, float | None] = {
    **{"value": None, "speed_up": 1.0, "ratio": 1.0, "difference": 0.0, "sd_ratio": 1.0}
}

#: factors from our units to those printed
UNITS: dict[str, float] = {
    **{"x": 1.0, "%": 100.0, "points": 100.0, "s": 1.0, "min": 1 / 60, "1": 1.0, "loss": 1.0},
    **dict.fromkeys(("samples", "versions", "epochs", "examples/s", "MB/s"), 1.0),
}


class _Data(BaseModel):
    """Plain data that is checked and does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PublishedNumber(_Data):
    """One published number, or a published statement that one number is above or below another.

    Parameters
    ----------
    exhibit, row, place : str
        The table or figure, what the row says, and where exactly it stands.
    value : Decimal or None
        As printed: its last digit says how far it was rounded. None if nothing was printed; such a row is
        evidence.
    relation : "=", ">" or "<"
        Whether the number itself was printed, or only that it lies above or below `value`.
    unit : str
        One of `UNITS`.
    reading_error : float
        Half-width of what a number read from a figure, or printed as "about", may be; beside the rounding.
    experiment, baseline : str
        Names in `experiments.yaml`.
    minus, minus_baseline : str
        Two more experiments, whose difference is subtracted from that of the first two: whether a change
        narrows a gap.
    measure : str
        What of a run is compared (`measures`).
    form : str
        How the experiment and the baseline become one number: `speed_up` is baseline / experiment.
    better : "higher", "lower" or ""
        Which side is good: what is better than "the same" is no contradiction.
    runs, sd, baseline_sd : int, float, float
        How many runs theirs are, and their standard deviations, where printed.
    reason : str
        Why a row cannot be run; such a row has no experiment.
    """

    exhibit: str = Field(min_length=1)
    row: str = Field(min_length=1)
    place: str = Field(min_length=1)
    value: Decimal | None = None
    relation: Literal["=", ">", "<"] = "="
    unit: str
    reading_error: float = Field(default=0.0, ge=0)
    experiment: str = ""
    baseline: str = ""
    minus: str = ""
    minus_baseline: str = ""
    measure: str = ""
    form: Form = "value"
    better: Literal["higher", "lower", ""] = ""
    runs: int = Field(default=0, ge=0)
    sd: float | None = Field(default=None, ge=0)
    baseline_sd: float | None = Field(default=None, ge=0)
    reason: str = ""

    @field_validator("unit")
    @classmethod
    def _known_unit(cls, unit: str) -> str:
        if unit not in UNITS:
            raise ValueError(f"unit {unit!r} is not one of {', '.join(UNITS)}")
        return unit

    @model_validator(mode="after")
    def _runs_or_says_why_not(self) -> Self:
        if bool(self.experiment) == bool(self.reason):
            raise ValueError(f"{self.row!r}: give an experiment, or the reason why there is none")
        if self.experiment and not self.measure:
            raise ValueError(f"{self.row!r}: which measure of {self.experiment!r} is compared?")
        if bool(self.baseline) == (self.form == "value") and self.experiment:
            raise ValueError(
                f"{self.row!r}: form {self.form!r} and baseline {self.baseline!r} do not go together"
            )
        if self.value is None and not self.experiment:
            raise ValueError(f"{self.row!r}: give the printed value, or an experiment")
        if bool(self.minus) != bool(self.minus_baseline) or (self.minus and self.form != "difference"):
            raise ValueError(f"{self.row!r}: a difference of differences names four experiments")
        return self

    @property
    def experiments(self) -> list[str]:
        """The experiments that are compared, each pair with its baseline last; empty if it cannot be run."""
        named = (self.experiment, self.baseline, self.minus, self.minus_baseline)
        return [name for name in named if name]

    @property
    def factor(self) -> float:
        """Factor that converts our numbers to the paper's unit."""
        return 1.0 if self.form in ("speed_up", "ratio", "sd_ratio") else UNITS[self.unit]

    @property
    def comparison(self) -> Hashable:
        """The compared experiments; a ratio and its inverse have the same."""
        if self.minus:
            return (tuple(sorted(self.experiments)), self.measure, "difference of differences")
        pair = (self.experiment, self.baseline)
        turned = self.form in ("speed_up", "ratio", "difference", "sd_ratio") and pair != tuple(sorted(pair))
        form = "ratio" if self.form == "speed_up" else self.form
        return (tuple(sorted(pair)) if turned else pair, self.measure, form)

    @property
    def printed(self) -> float:
        """The value of a row that has one."""
        if self.value is None:
            raise ValueError(f"{self.row!r}: nothing was printed")
        return float(self.value)

    @property
    def rounding(self) -> float:
        """Half a unit of the last printed digit; 0 for an exact statement."""
        exponent = None if self.value is None else self.value.as_tuple().exponent
        return 0.5 * 10.0**exponent if self.relation == "=" and isinstance(exponent, int) else 0.0

    @property
    def neutral(self) -> float | None:
        """The value that means "no effect"; None if the number stands alone."""
        return NEUTRAL[self.form]


class Guess(_Data):
    """An assumed number of the cluster that the paper does not print, with our source."""

    name: str = Field(min_length=1)
    path: str = Field(pattern=r"^[a-z_]+(\.[a-z_]+)+$")
    value: float
    source: str = Field(min_length=1)
    setups: tuple[str, ...] = Field(min_length=1)
    #: the smallest and the largest factor on it when assumed numbers are drawn
    factors: tuple[float, float] = (0.5, 2.0)

    @property
    def unit(self) -> str:
        """Its unit, which the name of the field ends with; empty for a share."""
        if self.path.endswith("_mbit_s"):
            return "Mbit/s"
        return "s" if "seconds" in self.path or self.path.endswith("_s") else ""


class _Settings(_Data):
    """Fields of an experiment, and settings by dotted path at each scale."""

    spec: dict[str, Any] = Field(default_factory=dict)
    smoke: dict[str, Any] = Field(default_factory=dict)
    quick: dict[str, Any] = Field(default_factory=dict)
    medium: dict[str, Any] = Field(default_factory=dict)
    full: dict[str, Any] = Field(default_factory=dict)


class SetUp(_Settings):
    """Common settings of a group of experiments.

    Parameters
    ----------
    called : str
        The set-up in words.
    differs : mapping of scale to str
        What is not as in the paper. At a scale that is not among them nothing is run.
    target_of, target : str, mapping of scale to float
        The evaluated value, and where it has to come to, for times to a target.
    seconds : mapping of scale to float
        CPU seconds of a run, measured on one core: for the forecast. Where a scale is not among them they are
        computed (`psbench_papers.cost`).
    tuned : tuple of scale
        Where rates are tried: each experiment gets the same number of trials.
    """

    called: str = ""
    differs: dict[Scale, str]
    target_of: str = "val_accuracy"
    target: dict[Scale, float] = Field(default_factory=dict)
    seconds: dict[Scale, float]
    memory_mb: float = 400.0
    #: where another number than the scale's: the paper's own number of runs, say
    seeds: dict[Scale, int] = Field(default_factory=dict)
    tuned: tuple[Scale, ...] = ()


class Planned(_Settings):
    """An experiment: a set-up with changes."""

    setup: str
    #: the scales at which it makes sense, of those of its set-up
    scales: tuple[Scale, ...] = SCALES


class Theory(_Data):
    """A closed form for comparison with rows: its name in `closed_forms`, and its arguments.

    An argument may be a number, or [experiment, baseline, measure]: their measured speed-up.
    """

    rows: tuple[str, ...] = Field(min_length=1)
    formula: str
    arguments: dict[str, float | tuple[str, str, str]] = Field(default_factory=dict)


class Drawing(_Data):
    """A figure to be redrawn in the paper's axes.

    Parameters
    ----------
    kind : "bars", "points", "curves", "sweep" or "gaps"
        bars: a measure of each experiment; points: the same, ours alone, for small differences; curves:
        evaluated values along the runs; sweep: `form` of a measure against a number, with a closed form as a
        line; gaps: the difference of each experiment from the baseline of its row against a number, a line
        for each label.
    x, y : str
        curves: columns of the evaluations. sweep, gaps: titles of the axes.
    experiments : tuple of str, or mapping to the number on the x axis
    labels : mapping
        What experiments are called; by default by their strategies, or by their names if two have the same.
    """

    id: str
    title: str
    place: str
    kind: Literal["bars", "points", "curves", "sweep", "gaps"]
    experiments: tuple[str, ...] | dict[str, float]
    labels: dict[str, str] = Field(default_factory=dict)
    x: str = "time_s"
    y: str = "val_accuracy"
    measure: str = "time_s"
    baseline: str = ""
    form: Form = "value"
    formula: str = ""
    arguments: dict[str, float | tuple[str, str, str]] = Field(default_factory=dict)
    argument: str = ""
    note: str = ""


class Paper(_Data):
    """A paper: the repetition of its experiments, and its printed numbers.

    Raises
    ------
    pydantic.ValidationError
        If a row or figure names an experiment that is not there, or an experiment a set-up.
    """

    name: str
    title: str
    source: str
    #: what it is about, for a reader who has not read it
    about: str = Field(min_length=40, pattern=r"\.$")
    reading: tuple[str, ...]
    setups: dict[str, SetUp]
    experiments: dict[str, Planned]
    guesses: tuple[Guess, ...]
    #: rows for which all assumed numbers are drawn together; of others that they affect no size counts
    sensitive: tuple[str, ...] = ()
    #: factors of the rate that every experiment of a tuned set-up tries
    rates: tuple[float, ...] = (0.5, 1.0, 2.0)
    theories: tuple[Theory, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    claims: tuple[Claim, ...]
    rows: tuple[PublishedNumber, ...]

    def has(self, experiment: str, scale: Scale) -> bool:
        planned = self.experiments[experiment]
        return scale in planned.scales and scale in self.setups[planned.setup].differs

    def assumes(self, row: PublishedNumber) -> bool:
        guessed = {setup for guess in self.guesses for setup in guess.setups}
        return any(self.experiments[name].setup in guessed for name in row.experiments)

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        for name, planned in self.experiments.items():
            _known(planned.setup, self.setups, f"experiment {name!r}: set-up")
        for row in self.rows:
            for experiment in row.experiments:
                _known(experiment, self.experiments, f"row {row.row!r}: experiment")
        rows = [row.row for row in self.rows]
        _unique(rows, "rows named twice")
        for name in (*self.sensitive, *(row for theory in self.theories for row in theory.rows)):
            _known(name, rows, "row")
        for drawing in self.drawings:
            for experiment in filter(None, (*drawing.experiments, drawing.baseline)):
                _known(experiment, self.experiments, f"figure {drawing.id!r}: experiment")
        for guess in self.guesses:
            for setup in guess.setups:
                _known(setup, self.setups, f"guess {guess.name!r}: set-up")
        return self

    @model_validator(mode="after")
    def _every_row_counts_once(self) -> Self:
        """Raise for a row in no claim or in two, and for a comparison that would be counted twice."""
        _unique([claim.name for claim in self.claims], "claims named twice")
        _unique([(claim.says, claim.given) for claim in self.claims], "claims that say the same")
        rows = {row.row: row for row in self.rows}
        claimed = [name for claim in self.claims for name in claim.rows]
        for name in claimed:
            _known(name, rows, "claim: row")
        _unique(claimed, "rows of two claims, or twice of one")
        if free := [name for name in rows if name not in claimed]:
            raise ValueError(f"rows of no claim: {free}")
        judged = {
            claim.name: {rows[name].comparison for name in claim.rows if rows[name].experiment}
            for claim in self.claims
            if claim.kind in JUDGED
        }
        _unique([each for found in judged.values() for each in found], "comparisons of two claims")
        effects = [claim.name for claim in self.claims if claim.test == "effect"]
        for claim in self.claims:
            kept = [rows[name] for name in claim.rows if rows[name].experiment]
            alone = [row.row for row in kept if row.form == "value"]
            where = f"claim {claim.name!r}"
            if claim.control:
                _known(claim.control, effects, f"{where}: control")
            silent = [row.row for row in kept if row.value is None]
            if silent and claim.kind != "evidence":
                raise ValueError(f"{where}: {silent[0]!r} has no printed value: it can be evidence only")
            if alone and claim.kind in JUDGED and claim.test != "number":
                raise ValueError(f"{where}: {alone[0]!r} stands alone: test it as a number")
            none = [row.row for row in kept if row.relation == "=" and row.value == row.neutral]
            if none and claim.kind in JUDGED and claim.test == "effect":
                raise ValueError(f"{where}: {none[0]!r} prints no effect: test it as the same")
            _unique([(row.comparison, row.value, row.relation) for row in kept], f"{where}: rows")
        return self


def _unique(values: list[Any], what: str) -> None:
    if twice := [value for value, count in Counter(values).items() if count > 1]:
        raise ValueError(f"{what}: {twice}")


def _known(name: str, known: Any, what: str) -> None:
    if name not in known:
        raise ValueError(f"{what} {name!r} is not one of: {', '.join(known)}")
