"""Compare predictions with live runs on shaped networks: calibrate, run live, predict, and print one table.

python -m tests.twin.shaped --network unequal --out FOLDER [--quick] [--repeats 5] [--strategies bsp,ssp]
python -m tests.twin.shaped --network unequal --out FOLDER --compare    # what FOLDER has, with today's fit

Runs are recorded in FOLDER/NETWORK, in turns, each with a seed of its own; what is there already is not run
again (`--again`: probes and links are). Machines are emulated by waiting, so that cores that
others use matter less. Needs root: see `tests.twin.networks`.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from psbench.backends.dask import diagnose
from psbench.backends.dask.doctor import Diagnosis, Link
from psbench.errors import ParameterError
from psbench.experiment import Experiment
from psbench.percents import percent
from psbench.results.run import Run
from psbench.runs.execution import run as run_experiment
from psbench.system.files import write_text
from psbench.twin.calibration import Calibration
from psbench.twin.forecast import predict
from psbench.twin.links import MeasuredLinks
from psbench.twin.measures import measures_of
from psbench.twin.predictions import Predicted
from psbench.twin.probe import TURNS, measured_links, probes_of, with_stamps
from psbench.twin.recording import DIGITS, Recorded, emulated
from tests.twin.networks import NETWORKS, SCHEDULER, cluster

STRATEGIES: dict[str, Any] = {
    "bsp": "bsp",
    "asp": "asp",
    "ssp": {"name": "ssp", "staleness_bound": 3},
    "k_bsp": "k_bsp",
    "backup_workers": "backup_workers",
    "local_sgd": {"name": "local_sgd", "local_steps": 4},
    "all_reduce": "all_reduce",
    "d_psgd": "d_psgd",
}
#: what the probes are runs of; the others are predicted without having been run
FITTED = ("bsp", "asp", "all_reduce")
#: goals: the error of fitted strategies and of others, and the median width of bands
ERRORS, WIDTH = {True: 0.10, False: 0.15}, 0.25
#: live differences exceed noise from so many times what single runs deviate by
_NOISES = 2.0
#: what a diagnosis has of links
_WAYS = ("links", "at_once")


def experiment_on(name: str) -> Experiment:
    """Return the experiment of a network, with its workers on the machines that are no server's."""
    connection = {"resources": {"TRAIN": 1}}
    return emulated(len(NETWORKS[name].links) - 1).but(scheduler=SCHEDULER, connection=connection)


# -------------------------------------------------------------------- live runs


def missing(recorded: Recorded, names: Sequence[str], repeats: int) -> list[tuple[str, int]]:
    """Return the live runs that are not recorded yet, in turns: the strategy, and which repeat."""
    return [
        (name, turn)
        for turn in range(repeats)
        for name in names
        if len(recorded.runs.get(f"live/{name}", ())) <= turn and f"live/{name}" not in recorded.failed
    ]


def record_fit(name: str, folder: Path, again: bool) -> None:
    """Record the probes and the links, as `psbench calibrate` measures them, unless a folder has them."""
    experiment, found = experiment_on(name), read(folder)
    if "fit" in found.runs and (folder / "diagnosis.json").exists() and not again:
        return
    found.load = os.getloadavg()[0] / (os.cpu_count() or 1)
    every = TURNS * probes_of(experiment, with_peers=True)
    probes = [each.but(seed=seed) for seed, each in enumerate(every)]
    runs = []
    for number, probe in enumerate(probes, 1):
        say(f"{name}: probe {number} of {len(probes)}, {probe.title}")
        runs.append(run_experiment(with_stamps(probe)))
    model_bytes = runs[0].meta["model_bytes"]
    diagnosis = diagnose(experiment, on_step=lambda text: say(f"{name}: {text}"), also=model_bytes)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "diagnosis.json", json.dumps(_plain(diagnosis)))
    found.runs.pop("fit", None)
    for run in runs:
        found.add("fit", run, folder)


def _plain(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return what a diagnosis has of links, as data."""
    plain = {way: [[*ends, link] for ends, link in getattr(diagnosis, way).items()] for way in _WAYS}
    return {"workers": diagnosis.workers, "placed": diagnosis.placed, **plain}


def links_of(name: str, folder: Path) -> MeasuredLinks | None:
    """Return the links as `psbench calibrate` has them, from the recorded diagnosis."""
    plain = json.loads((folder / "diagnosis.json").read_text())
    found = Diagnosis(plain["workers"], placed=plain["placed"])
    for way in _WAYS:
        for start, end, link in plain[way]:
            *numbers, sizes = link
            getattr(found, way)[start, end] = Link(*numbers, tuple(map(tuple, sizes)))
    with mock.patch("psbench.backends.dask.diagnose", return_value=found):
        return measured_links(experiment_on(name), say)


def record(name: str, folder: Path, names: Sequence[str], repeats: int, batches: int, until: float) -> None:
    """Record the live runs that a folder lacks, until a time."""
    experiment, found = experiment_on(name), read(folder)
    began, todo = time.monotonic(), missing(found, names, repeats)
    for number, (strategy, turn) in enumerate(todo):
        if time.monotonic() > until:
            say(f"{name}: {len(todo) - number} live runs are left; run this again")
            return
        left = (time.monotonic() - began) / max(1, number) * (len(todo) - number)
        said = f"{number + 1} of {len(todo)}" + (f", {left:.0f} s left" if number else "")
        say(f"{name}: live {strategy}, repeat {turn + 1} of {repeats} ({said})")
        epochs = batches * experiment.batch_size / DIGITS
        live = experiment.but(strategy=STRATEGIES[strategy], stop={"epochs": epochs}, evaluate_every=1e6)
        # a seed of its own, as the draws of emulated machines are
        seed = 100 * (turn + 1) + [*STRATEGIES].index(strategy)
        found.add(f"live/{strategy}", run_experiment(live.but(seed=seed)), folder)


def read(folder: Path) -> Recorded:
    """Return what a folder has; nothing if there is none."""
    return Recorded.read(folder) if (folder / "twin.json").exists() else Recorded(emulated=False)


def say(text: str) -> None:
    """Print a line of progress."""
    print(text, file=sys.stderr, flush=True)


# -------------------------------------------------------------------- comparison


@dataclass
class Row:
    """A strategy: seconds of an epoch, live and predicted; without a prediction, why there is none."""

    name: str
    live_s: float
    deviation: float
    repeats: int
    predicted_s: float | None = None
    low_s: float = 0.0
    high_s: float = 0.0
    refused: str = ""

    @property
    def error(self) -> float | None:
        """The predicted seconds over the live ones, less 1."""
        return None if self.predicted_s is None else self.predicted_s / self.live_s - 1.0

    @property
    def width(self) -> float | None:
        """The band's width as a share of the predicted mean."""
        return None if self.predicted_s is None else (self.high_s - self.low_s) / self.predicted_s

    @property
    def is_held(self) -> bool:
        """Whether the live mean is in the band."""
        return self.predicted_s is not None and self.low_s <= self.live_s <= self.high_s

    @property
    def goal(self) -> float:
        """The largest error that is wanted."""
        return ERRORS[self.name in FITTED]


@dataclass
class Comparison:
    """The strategies of a network, fastest live first; `not_reproduced`: why its profile is refused."""

    network: str
    rows: list[Row] = field(default_factory=list)
    not_reproduced: str = ""
    failed: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> "Comparison":
        """Read the results of a network."""
        plain = json.loads(file.read_text())
        return cls(**{**plain, "rows": [Row(**row) for row in plain["rows"]]})

    @property
    def noise(self) -> float:
        """By how much single live runs of a strategy deviate from its mean, over all strategies; a share."""
        return statistics.fmean(row.deviation**2 for row in self.rows) ** 0.5

    @property
    def width(self) -> float:
        """The median width of the bands."""
        return statistics.median(row.width for row in self.rows if row.width is not None)

    @property
    def held(self) -> int:
        """The number of live means that are in their bands."""
        return sum(row.is_held for row in self.rows)

    def differ(self, first: Row, second: Row) -> bool:
        """Return whether two live means differ by more than the noise."""
        quick, slow = sorted((first.live_s, second.live_s))
        return slow / quick - 1.0 > _NOISES * self.noise

    def wrong_order(self) -> list[tuple[str, str]]:
        """Return the pairs that differ by more than noise and are predicted otherwise, the faster first."""
        known = [row for row in self.rows if row.predicted_s is not None]
        return [
            (first.name, second.name)
            for place, first in enumerate(known)
            for second in known[place + 1 :]
            if self.differ(first, second) and (first.predicted_s or 0) >= (second.predicted_s or 0)
        ]

    def misses(self) -> Iterator[str]:
        """Yield each goal that is not reached."""
        if self.not_reproduced:
            yield f"{self.network}: refused: {self.not_reproduced}"
        for row in self.rows:
            if row.error is None:
                yield f"{self.network}, {row.name}: refused: {row.refused}"
            elif abs(row.error) > row.goal:
                yield f"{self.network}, {row.name}: {percent(row.error, 1, '+')}, goal {percent(row.goal)}"
        for first, second in self.wrong_order():
            yield f"{self.network}: {first} is faster than {second} live, and predicted to be slower"
        if self.width > WIDTH:
            yield f"{self.network}: median width of bands {percent(self.width)}, goal {percent(WIDTH)}"

    def __str__(self) -> str:
        """Return the table and the goals that are missed."""
        ranked = sorted((row for row in self.rows if row.predicted_s), key=lambda row: row.predicted_s or 0)
        head = (
            f"{self.network:<16}{'live s':>9}{'spread':>8}{'twin s':>9}{'band':>20}{'width':>7}{'error':>8}"
        )
        lines = [head + f"{'live':>6}{'twin':>6}  slower than the one above by more than noise"]
        for place, row in enumerate(self.rows):
            line = f"{row.name:<16}{row.live_s:>9.3f}{percent(row.deviation, 1):>8}"
            if row.error is None or row.width is None:
                line += f"{'refused':>9}{'':>35}{place + 1:>6}{'':>6}"
            else:
                band = f"[{row.low_s:.3f}, {row.high_s:.3f}]"
                line += f"{row.predicted_s:>9.3f}{band:>20}{percent(row.width):>7}"
                line += f"{percent(row.error, 1, '+'):>8}{place + 1:>6}{ranked.index(row) + 1:>6}"
            lines.append(line + ("  yes" if place and self.differ(self.rows[place - 1], row) else ""))
        lines.append(
            f"noise {percent(self.noise, 1)}, median width {percent(self.width)}; "
            f"bands hold {self.held} of {len(self.rows)} live means"
        )
        lines += [f"not obtained: {name}: {why}" for name, why in self.failed.items()]
        return "\n".join([*lines, *(f"not reached: {text}" for text in self.misses())])


def compare(
    name: str, recorded: Recorded, links: MeasuredLinks | None, names: Sequence[str], seeds: int
) -> Comparison:
    """Fit a cluster to the recorded probes, and compare its predictions with the recorded live runs."""
    say(f"{name}: fit to {len(recorded.runs['fit'])} probes")
    fitted = Calibration.of(recorded.runs["fit"], links)
    found = Comparison(name, [], fitted.not_reproduced, dict(recorded.failed))
    # a profile that is refused is compared nevertheless: by how much it is wrong
    fitted = replace(fitted, not_reproduced="")
    for number, strategy in enumerate(names, 1):
        if not (runs := recorded.runs.get(f"live/{strategy}")):
            continue
        say(f"{name}: prediction {number} of {len(names)}, {strategy}")
        row = _live(strategy, runs)
        found.rows.append(row)
        try:
            # as long as the live runs: a beginning, in which no worker has waited yet, counts in both
            batches = round(runs[0].experiment.stop.epochs * DIGITS / runs[0].experiment.batch_size)
            again = predict(fitted, [STRATEGIES[strategy]], seeds=seeds, batches=batches)
            predicted: Predicted = again.rows[0]
        except ParameterError as error:
            row.refused = str(error)
        else:
            band = predicted.epoch_s
            row.predicted_s, row.low_s, row.high_s = band.mean, band.low, band.high
    found.rows.sort(key=lambda row: row.live_s)
    return found


def _live(name: str, runs: Sequence[Run]) -> Row:
    seconds = [measures_of(run).sample_s * run.meta["dataset_size"] for run in runs]
    mean = statistics.fmean(seconds)
    return Row(name, mean, statistics.stdev(seconds) / mean if len(seconds) > 1 else 0.0, len(seconds))


def main() -> int:
    """Record and compare one network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--network", choices=[*NETWORKS], required=True)
    parser.add_argument("--strategies", default=",".join(STRATEGIES), help="names, with commas")
    parser.add_argument("--repeats", type=int, default=5, help="live runs of each strategy")
    parser.add_argument("--batches", type=int, default=30, help="global batches of each live run")
    parser.add_argument("--seeds", type=int, default=10, help="of each prediction")
    parser.add_argument("--minutes", type=float, default=60.0, help="no live run begins later")
    parser.add_argument("--out", type=Path, required=True, help="where runs and results go")
    parser.add_argument("--quick", action="store_true", help="two repeats")
    parser.add_argument("--again", action="store_true", help="measure probes and links again")
    parser.add_argument("--compare", action="store_true", help="run nothing live")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # on the network
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces go
    names, repeats = asked.strategies.split(","), 2 if asked.quick else asked.repeats
    folder = asked.out / asked.network
    if asked.here:
        until = time.monotonic() + 60 * asked.minutes
        record_fit(asked.network, folder, asked.again)
        record(asked.network, folder, names, repeats, asked.batches, until)
        return 0
    if not asked.compare:
        with cluster(NETWORKS[asked.network]) as made:
            again = [*made.enter(0), sys.executable, "-m", "tests.twin.shaped", *sys.argv[1:], "--here"]
            if code := subprocess.run(again, check=False).returncode:
                return code
    found = compare(asked.network, read(folder), links_of(asked.network, folder), names, asked.seeds)
    print(found)
    (folder / "results.json").write_text(json.dumps(asdict(found), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
