"""The map of `psbench reproduce stale_momentum` on digits, by counterfactuals of one recorded schedule.

`python -m tests.stale_momentum` asks `ps.why` at every rate, with ten seeds, and stores the value and the
digest of every run in why.csv beside the paper's files.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import psbench as ps
from psbench.causes import Answer
from psbench.causes.shares import Shares, shares_of
from psbench.metrics import interval
from psbench_papers.cells import experiment_of
from psbench_papers.library import load, stored

RATES = ("0p125", "0p25", "0p5", "1", "1p5", "2")
SEEDS = 10
FILE = stored("stale_momentum").with_name("why.csv")


def question(rate: str, seed: int = 0) -> tuple[ps.Experiment, ps.Experiment]:
    """Return ASP with momentum, and BSP without it at the same effective rate."""
    paper = load("stale_momentum")
    momentum, plain = (
        experiment_of(paper, f"digits_{rate}_stale_{kind}", "quick", seed).but(name="")
        for kind in ("momentum", "plain")
    )
    return momentum, plain.but(strategy="bsp")


def answer(rate: str, seeds: int = SEEDS, seed: int = 0) -> Answer:
    return ps.why(*question(rate, seed), ["staleness", "momentum"], seeds=seeds, processes=1, progress=False)


def rows(rate: str, found: Answer) -> Iterator[dict[str, str]]:
    """Yield what every run of an answer came to."""
    for pair in found.pairs:
        runs = {" + ".join(sorted(replaced)) or "nothing": run for replaced, run in pair.runs.items()}
        for replaced, run in {**runs, "the other run": pair.other}.items():
            yield {
                "rate": rate.replace("p", "."),
                "seed": str(pair.seed),
                "replaced": replaced,
                "val_loss": repr(run.log.evaluations()[-1]["val_loss"]),
                "params_digest": run.meta["params_digest"],
            }


def table(path: Path = FILE) -> Iterator[str]:
    """Yield the lines of the page's table, computed from the stored values."""
    values: dict[str, dict[str, dict[str, float]]] = {}
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            of_seed = values.setdefault(row["rate"], {}).setdefault(row["seed"], {})
            of_seed[row["replaced"]] = float(row["val_loss"])
    for rate, seeds in values.items():
        found = [_shares(of_seed) for of_seed in seeds.values()]
        numbers = [
            [each.gap for each in found],
            [each.rest for each in found],
            [each.first["staleness"] for each in found],
            [each.last["staleness"] for each in found],
            [each.first["momentum"] for each in found],
            [each.last["momentum"] for each in found],
            [each.joint["staleness", "momentum"] for each in found],
        ]
        yield f"| {rate} | {' | '.join(map(_amount, numbers))} |"


def _shares(of_seed: dict[str, float]) -> Shares:
    def value(replaced: frozenset[str]) -> float:
        return of_seed[" + ".join(sorted(replaced)) or "nothing"]

    return shares_of(["staleness", "momentum"], value, of_seed["the other run"])


def _amount(values: Sequence[float]) -> str:
    mean, half = interval(values)
    return f"{mean:.3g} ± {half:.2g}"


def main(path: Path = FILE) -> None:
    found = []
    for rate in RATES:
        of_rate = answer(rate)
        found += rows(rate, of_rate)
        print(f"rate {rate}: {of_rate.sentence}\n{of_rate.frame()}\n{of_rate.joint()}", flush=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, found[0])
        writer.writeheader()
        writer.writerows(found)


if __name__ == "__main__":
    main()
