"""The runs that a paper needs at a scale, with their seeds and costs."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from psbench.errors import DoubtfulComposition, SpecError, UnknownName
from psbench.experiment import LIVE, Experiment
from psbench.seeds import Streams
from psbench_papers.claim import Scale
from psbench_papers.cost import cost
from psbench_papers.schema import Paper, PublishedNumber

#: result: compared; tuning: tries a rate; best: repeats the results at the best rate; sensitivity: all
#: assumed numbers drawn together
Role: TypeAlias = Literal["result", "tuning", "best", "sensitivity"]

#: the seed of tuning trials, which no result uses
TUNING_SEED = 1000
#: seconds until processes beside this one are there, and have loaded torch
_START_S = 8.0
#: labels of the draws of the assumed numbers
DRAWS = tuple(f"draw {number}" for number in range(12))
#: seeds of a row's results, unless asked for others
SEEDS: dict[Scale, int] = {"smoke": 1, "quick": 5, "medium": 5, "full": 5}


@dataclass(frozen=True)
class PaperCell:
    """One run.

    Attributes
    ----------
    spec : str
        The whole experiment as canonical JSON.
    label : str
        For tuning the factor of the rate, for sensitivity which draw.
    target_of, target : what times to a target refer to
    seconds : float
        CPU seconds that it is expected to take.
    source : str
        What they were computed from; empty if they were measured.
    """

    paper: str
    experiment: str
    seed: int
    role: Role
    label: str
    spec: str
    target_of: str
    target: float | None
    seconds: float
    memory_mb: float
    source: str = ""

    @property
    def key(self) -> str:
        """The key of a stored record: a digest of everything that determines the run and its measures."""
        content = json.dumps([self.spec, self.target_of, self.target])
        return hashlib.sha256(content.encode()).hexdigest()[:24]


def rows_of(paper: Paper, scale: Scale, table: str | None = None) -> list[PublishedNumber]:
    """Return the rows of a paper, or of one table or figure.

    At scale medium they are those of claims of which a row at least is run there.

    Raises
    ------
    UnknownName
        If there is no such table; upper and lower case, spaces and points are ignored.
    """
    if table is None:
        return _of_claims_at(paper, scale) if scale == "medium" else list(paper.rows)
    exhibits = list(dict.fromkeys(row.exhibit for row in paper.rows))
    found = [name for name in exhibits if _slug(name) == _slug(table)]
    if not found:
        raise UnknownName(f"table or figure of {paper.name!r}", table, exhibits)
    return [row for row in paper.rows if row.exhibit in found]


def _of_claims_at(paper: Paper, scale: Scale) -> list[PublishedNumber]:
    run = {row.row for row in paper.rows if runs_at(paper, row, scale)}
    kept = {name for claim in paper.claims if run & set(claim.rows) for name in claim.rows}
    return [row for row in paper.rows if row.row in kept]


def runs_at(paper: Paper, row: PublishedNumber, scale: Scale) -> bool:
    return not row.reason and all(paper.has(name, scale) for name in row.experiments)


def seeds_of(paper: Paper, name: str, scale: Scale, asked: int | None) -> int:
    """Return the number of seeds of an experiment: as requested, or from its set-up, or from the scale."""
    own = paper.setups[paper.experiments[name].setup].seeds.get(scale, SEEDS[scale])
    return own if asked is None else asked


def results(paper: Paper, scale: Scale, seeds: int | None, table: str | None = None) -> list[PaperCell]:
    """Return the runs that the rows, and the figures of a whole paper, compare.

    All experiments with one seed come before those with the next, so that what is stopped can be judged.
    """
    cells = [
        _cell(paper, name, scale, seed, "result", "")
        for name in _needed(paper, scale, table)
        for seed in range(seeds_of(paper, name, scale, seeds))
    ]
    return sorted(_unique(cells), key=lambda cell: cell.seed)


def tuning(paper: Paper, scale: Scale, table: str | None = None) -> list[PaperCell]:
    """Return the trials of rates: as many for every experiment that is tuned."""
    cells = [
        _cell(paper, name, scale, TUNING_SEED, "tuning", f"{factor:g}", {"optimizer.lr": factor})
        for name in _needed(paper, scale, table)
        if _is_tuned(paper, name, scale)
        for factor in paper.rates
    ]
    return _unique(cells)


def best(paper: Paper, scale: Scale, seeds: int | None, factors: dict[str, float]) -> list[PaperCell]:
    """Return the result cells at each experiment's best rate, if it is not the common one."""
    cells = [
        _cell(paper, name, scale, seed, "best", f"{factor:g}", {"optimizer.lr": factor})
        for name, factor in factors.items()
        if factor != 1
        for seed in range(seeds_of(paper, name, scale, seeds))
    ]
    return _unique(cells)


def sensitivity(paper: Paper, scale: Scale, table: str | None = None) -> list[PaperCell]:
    """Return the runs of the sensitive rows with all assumed numbers of a set-up drawn together, seed 0.

    Each is multiplied by a factor whose logarithm is uniform between those of its least and its greatest; the
    factors of a draw are the same for all experiments of the paper. A run that ends after some seconds gets
    longer by the greatest factor: nothing costs more than that, so it arrives where it did as assumed.
    Beyond scale quick only runs without gradients are made so many times.
    """
    rows = {row.row for row in rows_of(paper, scale, table)}
    names = [
        name
        for row in paper.rows
        if row.row in paper.sensitive and row.row in rows and runs_at(paper, row, scale)
        for name in row.experiments
        if scale in ("smoke", "quick") or experiment_of(paper, name, scale, 0).timing_only
    ]
    cells = [
        _cell(paper, name, scale, 0, "sensitivity", label, _drawn(paper, name, scale, number))
        for name in dict.fromkeys(names)
        for number, label in enumerate(DRAWS)
    ]
    return _unique(cells)


def _drawn(paper: Paper, name: str, scale: Scale, number: int) -> dict[str, float]:
    """Return the factors of a draw by field; a strategy may lack some of the fields."""
    factors = {}
    spec = experiment_of(paper, name, scale, 0).spec()
    guesses = [guess for guess in paper.guesses if paper.experiments[name].setup in guess.setups]
    for guess in guesses:
        low, high = np.log2(guess.factors)
        share = Streams(0).generator(f"assumed numbers of {paper.name}: {guess.path}", number).random()
        if _at(spec, guess.path) is not None:
            factors[guess.path] = round(float(2 ** (low + (high - low) * share)), 4)
    if _at(spec, "stop.seconds") is not None:
        factors["stop.seconds"] = max(max(g.factors[1], 1 / g.factors[0]) for g in guesses)
    return factors


def _is_tuned(paper: Paper, name: str, scale: Scale) -> bool:
    return scale in paper.setups[paper.experiments[name].setup].tuned


def _needed(paper: Paper, scale: Scale, table: str | None) -> list[str]:
    """Return the experiments that rows and figures use, in the order of the file."""
    rows = rows_of(paper, scale, table)
    used = {name for row in rows for name in row.experiments if runs_at(paper, row, scale)}
    if table is None:
        drawn = (name for d in paper.drawings for name in (*d.experiments, d.baseline) if name)
        used |= {name for name in drawn if paper.has(name, scale)}
    return [name for name in paper.experiments if name in used]


def experiment_of(
    paper: Paper, name: str, scale: Scale, seed: int, factors: dict[str, float] | None = None
) -> Experiment:
    """Return an experiment of a paper.

    Parameters
    ----------
    factors : mapping of dotted path to float, optional
        Numbers of the specification to be multiplied.

    Raises
    ------
    SpecError
    """
    planned = paper.experiments[name]
    setup = paper.setups[planned.setup]
    settings = {**getattr(setup, scale), **getattr(planned, scale), "name": name, "seed": seed}
    spec = {**setup.spec, **planned.spec}
    where = f"experiment {name!r} of paper {paper.name!r}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DoubtfulComposition)  # what is printed is run, doubtful or not
        made = Experiment.from_spec(spec, settings, where=where)
        for path, factor in (factors or {}).items():
            value = _at(made.spec(), path)
            if value is None:
                raise SpecError(f"{where}: there is no {path}")
            made = Experiment.from_spec(made.spec(), {path: factor * value}, where=where)
    return made


def _at(spec: dict[str, Any], path: str) -> float | None:
    """Return the number at a dotted path; None if there is none."""
    value: Any = spec
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return None if value is None else float(value)


def _cell(
    paper: Paper,
    name: str,
    scale: Scale,
    seed: int,
    role: Role,
    label: str,
    factors: dict[str, float] | None = None,
) -> PaperCell:
    setup = paper.setups[paper.experiments[name].setup]
    experiment = experiment_of(paper, name, scale, seed, factors)
    expected = cost(setup, scale, experiment)
    return PaperCell(
        paper=paper.name,
        experiment=name,
        seed=seed,
        role=role,
        label=label,
        spec=json.dumps(_deciding(experiment), sort_keys=True),
        target_of=setup.target_of,
        target=setup.target.get(scale),
        seconds=expected.seconds,
        memory_mb=setup.memory_mb,
        source=expected.source,
    )


def _deciding(experiment: Experiment) -> dict[str, Any]:
    """Return the specification without live-run settings, whose changes affect no record."""
    return {name: value for name, value in experiment.spec().items() if name not in LIVE}


def _unique(cells: Iterable[PaperCell]) -> list[PaperCell]:
    return list({cell.key: cell for cell in cells}.values())


def forecast(cells: Sequence[PaperCell], processes: int) -> tuple[float, float]:
    """Return the seconds and the megabytes that runs are expected to take, side by side.

    Examples
    --------
    >>> forecast([], 2)
    (0.0, 0.0)
    """
    seconds = sum(cell.seconds for cell in cells) / processes
    if cells and processes > 1:
        seconds += _START_S
    largest = sorted((cell.memory_mb for cell in cells), reverse=True)[:processes]
    return seconds, float(sum(largest))


def _slug(name: str) -> str:
    return "".join(each for each in name.lower() if each.isalnum())


def lines(cells: Sequence[PaperCell]) -> Iterator[str]:
    """Yield a description of the planned runs, one line per role."""
    words: dict[Role, str] = {
        "result": "results",
        "tuning": "trials of rates",
        "sensitivity": "runs with all assumed numbers drawn together",
    }
    count = Counter(cell.role for cell in cells)
    yield from (f"{count[role]} {word}" for role, word in words.items() if count[role])


def sources(cells: Sequence[PaperCell]) -> Iterator[str]:
    """Yield the sources of a forecast, one line per product, with the number of runs."""
    for source, count in Counter(cell.source for cell in cells if cell.source).items():
        yield f"  {count} run{'s' if count > 1 else ''}: {source}"


def duration(seconds: float) -> str:
    """Return seconds in words.

    >>> duration(40), duration(150), duration(624), duration(5340), duration(9000), duration(3.6e7)
    ('40 s', '2.5 min', '10 min', '89 min', '2.5 h', '10000 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    value, unit = (seconds / 60, "min") if seconds < 5400 else (seconds / 3600, "h")
    return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
