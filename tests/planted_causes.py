"""Planted causes: pairs of runs of which one cause is known to be the largest, beside weak ones and a rest.

`python -m tests.planted_causes` asks `ps.why` about all of them, and prints how often the cause comes first.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

import psbench as ps

#: of each kind
PLANTS = 20
#: seeds of an answer
SEEDS = 3
KINDS = ("rate", "staleness", "samples", "codec", "momentum")
#: kinds of gaps that none of the causes that are asked for explains
UNLISTED = ("noise", "amount", "codec")
NONE = "none"
#: causes that are asked for; those of a codec are without staleness, which encoded pushes do not have
ASKED = ("staleness", "rate", "momentum", "samples")


@dataclass(frozen=True)
class Plant:
    """A question, and the cause that must come first; "" if that is the unexplained part."""

    mine: ps.Experiment
    other: ps.Experiment
    causes: tuple[str, ...]
    cause: str

    def answer(self, seeds: int = SEEDS) -> ps.causes.Answer:
        return ps.why(self.mine, self.other, self.causes, seeds=seeds, processes=1, progress=False)

    def comes_first(self, answer: ps.causes.Answer) -> bool:
        """Return whether the planted cause has the largest share, and a larger one than the rest."""
        if not self.cause:
            return not answer.explains
        return answer.explains and answer.causes[0] == self.cause


def plant(kind: str, number: int) -> Plant:
    """Return one plant of a kind: its sizes, its weak causes and its schedules are drawn.

    Beside the planted cause the runs differ in the rate (by up to 4 %), in the shards (weakly skewed) and in
    the schedule: ASP with unequal speeds against SSP, or against BSP where staleness is planted.
    """
    rng = np.random.default_rng([KINDS.index(kind), number])
    workers = int(rng.choice([6, 8]))
    speed = [round(float(each), 2) for each in rng.uniform(0.4, 1.0, workers)]
    lr = float(rng.uniform(0.15, 0.3))
    other = _with(
        strategy={"name": "ssp", "staleness_bound": int(rng.integers(1, 4))},
        cluster={"name": "custom", "workers": workers, "speed": speed},
        optimizer={"name": "sgd", "lr": round(lr, 4)},
        model={"name": "mlp", "hidden": [int(rng.choice([8, 16]))]},
        seed=1000 * number,
    )
    weak: dict[str, Any] = {
        "optimizer": {"name": "sgd", "lr": round(lr * float(rng.uniform(0.96, 1.04)), 4)},
        "sharding": {"name": "dirichlet", "alpha": round(float(rng.uniform(5, 20)), 2)},
    }
    mine = other | weak | {"strategy": "asp"}
    causes = ASKED
    if kind == "rate":
        mine["optimizer"] = {"name": "sgd", "lr": round(lr * float(rng.uniform(0.2, 0.5)), 4)}
    elif kind == "staleness":
        rates = mine["optimizer"]["lr"], other["optimizer"]["lr"]
        for run, rate in zip((mine, other), rates, strict=True):  # where delays matter to this network
            run["optimizer"] = {"name": "sgd", "lr": round(rate / 2 + 0.05, 4), "momentum": 0.9}
        other["strategy"] = "bsp"
    elif kind == "samples":
        mine["sharding"] = {"name": "dirichlet", "alpha": round(float(rng.uniform(0.03, 0.1)), 3)}
    elif kind == "codec":
        ratio = round(float(rng.uniform(0.01, 0.03)), 3)
        mine["strategy"] = {"name": "asp", "codec": {"name": "top_k", "ratio": ratio}}
        causes = ("codec", "rate", "momentum", "samples")
    elif kind == "momentum":
        # momentum acts together with staleness, of which both runs must have as much: their schedules differ
        # in who arrives when, and the bound is rarely felt
        other["strategy"] = {"name": "ssp", "staleness_bound": 6}
        rate = float(rng.uniform(0.6, 0.9))
        for run in (mine, other):
            run["cluster"] = run["cluster"] | {"speed": [round(0.8 + each / 5, 2) for each in speed]}
            run["stop"], run["evaluate_every"] = {"epochs": 4}, 4
        mine["optimizer"] = {"name": "sgd", "lr": round(rate / 10, 4), "momentum": 0.9}
        other["optimizer"] = {"name": "sgd", "lr": round(rate * float(rng.uniform(0.96, 1.04)), 4)}
    return Plant(ps.Experiment(**mine), ps.Experiment(**other), causes, kind)


def unlisted(number: int) -> Plant:
    """Return a gap that none of the causes explains: noise of a worker, less work, or a codec."""
    kind = UNLISTED[number % len(UNLISTED)]
    found = plant("rate", number)
    mine, other = (each.but(optimizer=found.other.optimizer) for each in (found.mine, found.other))
    if kind == "noise":
        noisy = {"worker": 0, "how": "noise", "after": 0}
        mine = mine.but(cluster=mine.spec()["cluster"] | {"corruptions": [noisy]})
    elif kind == "amount":
        mine = mine.but(stop={"epochs": 0.5})
    else:
        mine = mine.but(strategy={"name": "asp", "codec": {"name": "top_k", "ratio": 0.01}})
    causes = ("rate", "samples") if kind == "codec" else ASKED
    return Plant(mine, other, causes, "")


def _with(**changes: Any) -> dict[str, Any]:
    batch = 16 * changes["cluster"]["workers"]
    common = {"data": "digits", "batch_size": batch, "stop": {"epochs": 2}, "evaluate_every": 2}
    return common | {"processes": 1} | changes


def _tried(case: tuple[str, int]) -> tuple[str, int, bool, str]:
    kind, number = case
    found = unlisted(number) if kind == NONE else plant(kind, number)
    answer = found.answer()
    return kind, number, found.comes_first(answer), answer.sentence


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plants", type=int, default=PLANTS, help="of each kind")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", default=[*KINDS, NONE], choices=[*KINDS, NONE])
    asked = parser.parse_args()
    cases = [(kind, number) for kind in asked.kinds for number in range(asked.plants)]
    first: dict[str, list[bool]] = {}
    for kind, number, good, sentence in _each(cases, asked.processes):
        first.setdefault(kind, []).append(good)
        if not good:
            print(f"{kind}, {number}: {sentence}", flush=True)
        if number == asked.plants - 1:
            print(f"{kind}: first in {sum(first[kind])} of {len(first[kind])}", flush=True)


def _each(cases: list[tuple[str, int]], processes: int) -> Iterator[tuple[str, int, bool, str]]:
    if processes == 1:
        yield from map(_tried, cases)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(_tried, cases)


if __name__ == "__main__":
    main()
