"""Names of the runs in a panel: their differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psbench.charts.names import UNITS
from psbench.experiment import Experiment
from psbench.results.labels import differing, leaves
from psbench.runs.fork import Fork

#: fields that the table has columns for, or that make no name of a run
_APART = ("name", "seed", "scheduler", "backend", "checkpoint_every", "threads")
#: fields that only repeat what another one says
_REPEATS = ("strategy.name", "strategy.first.name", "strategy.second.name")
#: differences that a name has room for, and letters that the name of a fork of a fork has
_MOST = 3
_LONGEST = 44


def names_of(experiments: Sequence[Experiment]) -> list[str]:
    """Return a name for each experiment: its title, and its differences from others of its kind.

    Examples
    --------
    >>> base = Experiment(strategy="ssp", cluster={"workers": 4})
    >>> other = base.but(strategy={"name": "ssp", "staleness_bound": 10})
    >>> names_of([base, other, base.but(strategy="bsp")])
    ['ssp, bound 3', 'ssp, bound 10', 'bsp']
    >>> names_of([each.but(name="slow") for each in (base, other, base.but(strategy="local_sgd"))])
    ['slow, ssp, bound 3', 'slow, ssp, bound 10', 'slow, local sgd']
    """
    flat = [dict(leaves(_spec(each))) for each in experiments]
    titles = [each.title for each in experiments]
    # whose title is not its strategy's is distinguished by that, too
    repeats = [_REPEATS[bool(each.name) :] for each in experiments]
    return [_name(place, titles, flat, repeats[place]) for place in range(len(titles))]


def paths_apart(picked: Experiment, shown: Experiment) -> list[str]:
    """Return the dotted paths in which two experiments differ.

    >>> base = Experiment(strategy="ssp", cluster={"workers": 4})
    >>> paths_apart(base.but(seed=1, strategy={"name": "ssp", "staleness_bound": 9}), base)
    ['seed', 'strategy.consistency.staleness_bound']
    """
    apart = differing([dict(leaves(each.spec())) for each in (picked, shown)])
    return [path for path in apart if path != "name"]


def fork_name(label: str, *changes: str) -> str:
    """Return the name of a fork, or of a fork of a fork; a long name has only the last change.

    >>> fork_name("ssp", change_name(Fork(0.16, strategy="asp")))
    'ssp -> asp at 0.16 s'
    >>> lost, back = Fork(1.5, worker=3, kill=True), Fork(1.8, worker=3, back=True)
    >>> fork_name("ssp", *map(change_name, (lost, back, Fork(2, worker=3, speed=0.5))))
    'ssp …, worker 3 × 0.5 at 2 s'
    """
    whole = label + "".join(changes)
    return whole if len(whole) <= _LONGEST or len(changes) < 2 else f"{label} …{changes[-1]}"


def change_name(change: Fork) -> str:
    """Return a change's suffix to a run's name."""
    when = f"at {change.at_s:.4g} s"
    if change.strategy is not None:
        to = change.strategy if isinstance(change.strategy, str) else _named_strategy(change.strategy)
        return f" -> {to} {when}" + ("" if change.momentum == "keep" else ", momentum reset")
    if change.speed is not None:
        return f", worker {change.worker} × {change.speed:g} {when}"
    if change.link is not None:
        return f", link {change.worker} × {change.link:g} {when}"
    return f", {change.words()}"


def _named_strategy(strategy: Any) -> str:
    if not isinstance(strategy, Mapping):
        return str(strategy.name)
    bound = strategy.get("staleness_bound")
    return str(strategy["name"]) + ("" if bound is None else f", bound {bound}")


def _name(
    place: int, titles: Sequence[str], flat: Sequence[Mapping[str, Any]], repeats: Sequence[str]
) -> str:
    own = flat[place]
    rivals = [each for title, each in zip(titles, flat, strict=True) if title == titles[place]]
    # what a strategy is made of follows from its name: it tells apart those that have the same
    alike = [each for each in rivals if each.get("strategy.name") == own.get("strategy.name")]
    apart = [
        path
        for path in own
        if path not in repeats
        and any(each.get(path) != own[path] for each in (alike if _is_within_strategy(path) else rivals))
    ]
    for each in rivals:
        missing = [path for path in each if path not in own and path not in apart]
        apart += [path for path in missing if each in alike or not _is_within_strategy(path)]
    # a part's own parameters follow from which part it is
    named = {path.rpartition(".")[0] for path in apart if path.endswith(".name")}
    kept = [p for p in apart if p.endswith(".name") or p.rpartition(".")[0] not in named]
    words = [text for path in kept if (text := _words(path, own.get(path)))]
    more = f" and {len(words) - _MOST} more" if len(words) > _MOST else ""
    return ", ".join([titles[place], *words[:_MOST]]) + more


def _is_within_strategy(path: str) -> bool:
    return path.startswith("strategy.") and path != "strategy.name"


def _words(path: str, value: Any) -> str:
    last = path.rpartition(".")[2]
    if value is None:
        return ""
    if last == "name":
        return str(value).replace("_", " ")
    what = last.removeprefix("staleness_").replace("_", " ")
    if value == "[]":
        return f"no {what}"
    for ending, unit in UNITS.items():
        if last.endswith(ending) and isinstance(value, int | float):
            return f"{what.removesuffix(ending.replace('_', ' '))} {value:g} {unit}"
    if path.startswith("stop."):
        return f"{value:g} {what}" if isinstance(value, int | float) else f"{what} {value}"
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{what} {shown}" if len(shown) <= 24 else what


def _spec(experiment: Experiment) -> dict[str, Any]:
    return {name: value for name, value in experiment.spec().items() if name not in _APART}
