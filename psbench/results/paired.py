"""Significance tests: strategies against the baseline, paired by seed, with Holm's correction.

Runs of one seed draw the same data, start and order of samples, so a paired test takes out what both drew
alike. Times are compared by the logarithm of their ratio. Student's paired t test, corrected over the
strategies by the step-down method of Holm 1979.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from psbench.errors import ParameterError
from psbench.metrics import interval

#: what is tested: column of `measured`, as ratios?, words and factor for a reader
_TESTED = (
    ("time_s", True, "time", 1.0),
    ("time_to_target_s", True, "time to target", 1.0),
    ("val_accuracy", False, "validation accuracy", 100.0),
    ("val_loss", False, "validation loss", 1.0),
)
_KNOWN = {name for name, *_ in _TESTED}
#: two-sided, for the correction
LEVEL = 0.05


def paired_tests(
    measured: Mapping[str, Mapping[int, Mapping[str, float | None]]],
    baseline: str,
    without_times: Mapping[str, str],
) -> pd.DataFrame:
    """Return one row per strategy other than the baseline and per number known for all seeds of both.

    Of times that are 0 there is no ratio, and no row.

    Parameters
    ----------
    measured : mapping of label to (mapping of seed to numbers)
    baseline : str
    without_times : mapping
        Labels whose times do not compare with the baseline's.

    Returns
    -------
    DataFrame
        `strategy`, `measure`, `seeds` (pairs), `difference` (of times the ratio to the baseline), its 95 %
        interval `low` and `high`, `p` (two-sided), `p_holm` (corrected over the strategies), `is_real`
        (`p_holm` is at most .05).

    Raises
    ------
    ParameterError
        If a strategy shares fewer than two seeds with the baseline.
    """
    rows = []
    for label in measured:
        if label == baseline:
            continue
        seeds = sorted(measured[label].keys() & measured[baseline].keys())
        if len(seeds) < 2:
            raise ParameterError(
                f"compare: a test pairs runs by their seed, and {label} shares {len(seeds)} with {baseline} "
                f"({_seeds(measured[label])}; {_seeds(measured[baseline])}); give both at least two equal "
                "seeds"
            )
        numbers = measured[label][seeds[0]]
        own = [(n, False, _words(n), 1.0) for n in numbers if n.startswith("val_") and n not in _KNOWN]
        for name, ratio, words, _ in (*_TESTED, *own):
            pairs = [(measured[label][seed][name], measured[baseline][seed].get(name)) for seed in seeds]
            if (ratio and label in without_times) or any(None in pair for pair in pairs):
                continue
            if ratio and any(0 in pair for pair in pairs):  # a target that was met before the first step
                continue
            rows.append({"strategy": label, "measure": words, "seeds": len(seeds), **_test(pairs, ratio)})
    names = ("strategy", "measure", "seeds", "difference", "low", "high", "p")
    frame = pd.DataFrame(rows, columns=names)
    frame["p_holm"] = frame.groupby("measure")["p"].transform(_holm)
    frame["is_real"] = frame["p_holm"] <= LEVEL
    return frame


def in_words(tests: pd.DataFrame, baseline: str) -> list[str]:
    """Return a line for each strategy and measure."""
    factors = {words: (ratio, factor) for _, ratio, words, factor in _TESTED}
    lines = []
    for row in tests.to_dict("records"):
        ratio, factor = factors.get(row["measure"], (False, 1.0))
        form, unit = ("{:.3g}", " x") if ratio else ("{:+.2f}", " points") if factor != 1 else ("{:+.3g}", "")
        value, low, high = (form.format(row[name] * factor) for name in ("difference", "low", "high"))
        real = "a difference" if row["is_real"] else "no difference is shown"
        lines.append(
            f"{row['strategy']} against {baseline}, {row['measure']}: {value}{unit} ({low} to {high}), "
            f"p = {row['p_holm']:.2g}: {real}"
        )
    rule = "paired t test over seeds; p by Holm's correction over the strategies, 95 % intervals without it"
    return [*lines, rule] if lines else []


def _words(name: str) -> str:
    words = name.removeprefix("val_").replace("_", " ")
    taken = any(words == known for _, _, known, _ in _TESTED)
    return name if taken else words


def _test(pairs: Sequence[tuple[Any, Any]], ratio: bool) -> dict[str, float]:
    from scipy.special import stdtr

    own, other = (np.array(side, dtype=float) for side in zip(*pairs, strict=True))
    gaps = np.log(own / other) if ratio else own - other
    mean, half = interval(gaps)
    assert half is not None  # there are two pairs and more
    error = float(gaps.std(ddof=1)) / math.sqrt(len(gaps))
    # rounding aside, the same difference in every seed: nothing varies, so nothing is left to chance
    p = (
        float(mean == 0)
        if error <= 1e-12 * abs(mean)
        else 2 * float(stdtr(len(gaps) - 1, -abs(mean) / error))
    )
    shown = [math.exp(x) if ratio else x for x in (mean, mean - half, mean + half)]
    return {**dict(zip(("difference", "low", "high"), shown, strict=True)), "p": p}


def _holm(values: pd.Series[float]) -> list[float]:
    """Return p-values corrected by Holm's step-down method.

    >>> _holm(pd.Series([0.03, 0.001, 0.024]))
    [0.048, 0.003, 0.048]
    """
    found, largest = [0.0] * len(values), 0.0
    for rank, place in enumerate(np.argsort(values.to_numpy(), kind="stable")):
        largest = max(largest, min(1.0, float(values.iloc[place]) * (len(values) - rank)))
        found[place] = largest
    return found


def _seeds(runs: Mapping[int, Any]) -> str:
    return f"seeds {', '.join(map(str, sorted(runs)))}"
