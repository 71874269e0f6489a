"""Remarks below tables and above charts: the meaning of numbers, and caveats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from psbench.core.target import Target


def of_interval(deviation: bool = False) -> str:
    """Return the explanation of ±."""
    more = ", in brackets the standard deviation" if deviation else ""
    return f"± is the half-width of a 95 % interval over seeds (t distribution){more}"


#: where a target comes from that was not given with the runs
STOPPED_AT, BEST, HALF = (
    "at which all experiments stop",
    "the best that all runs reached",
    "which half of the runs reached",
)


def of_target(target: Target, source: str, rows: Iterable[Mapping[Any, Any]]) -> list[str]:
    """Return the meaning of times to target, and the treatment of seeds that did not reach it.

    Parameters
    ----------
    target : Target
    source : str
        Where it comes from; empty if it was given.
    rows : iterable of mapping
        Of a table of means, with `n` and `time_to_target_reached`.
    """
    lines = [f"target: {target}" + (f", {source}" if source else "")]
    if any(row["time_to_target_reached"] < row["n"] for row in rows):
        lines.append(
            "m of n, ≥ t: m of n seeds reached the target; the others did not while they ran, so the mean "
            "is at least t"
        )
    return lines


def of_runs(found: Iterable[tuple[str, Any, Sequence[str]]], most: int | None = None) -> list[str]:
    """Return the warnings of runs, each once for all seeds of a group that have it.

    Parameters
    ----------
    found : iterable of (label, seed, warnings)
    most : int, optional
        Lines; the last says how many more there are.

    Examples
    --------
    >>> of_runs([("asp", 0, ["lost"]), ("asp", 1, ["lost"]), ("bsp", 0, ["late"])])
    ['asp, seeds 0, 1: lost', 'bsp, seed 0: late']
    >>> of_runs([("asp", 0, ["lost", "late"]), ("bsp", 0, ["late"])], most=1)
    ['asp, seed 0: lost', 'and 2 more warnings of runs']
    """
    seeds: dict[tuple[str, str], list[str]] = {}
    for label, seed, texts in found:
        for text in texts:
            seeds.setdefault((label, text), []).append(str(seed))
    lines = [
        f"{label}, seed{'s' if len(own) > 1 else ''} {', '.join(own)}: {text}"
        for (label, text), own in seeds.items()
    ]
    if most is None or len(lines) <= most:
        return lines
    return [*lines[:most], f"and {len(lines) - most} more warnings of runs"]
