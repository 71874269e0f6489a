"""The user's predictions of a run and their errors, and a challenge that the panel checks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from psbench.errors import ParameterError, UnknownName
from psbench.experiment import Experiment
from psbench.percents import UNIT
from psbench.results.run import Run

#: differences below these count as right: points of accuracy, at the end and on average along a drawn curve,
#: and share of a speed-up
_CLOSE_ACCURACY, _CLOSE_CURVE, _CLOSE_SPEED = 0.01, 0.05, 0.15
#: who waits less than this share of the time does not really wait
_NOBODY = 0.01


@dataclass(frozen=True)
class Prediction:
    """The user's predictions for the next run; None for missing ones.

    Parameters
    ----------
    most_waiting : int, "nobody" or None
        The worker that will wait most.
    accuracy : float or None, 0 to 1
        Validation accuracy at the end.
    times_as_fast : float or None
        How many times as fast as the run before it, to the end.
    curve : sequence of float or None, 0 to 1
        Validation accuracy at equal shares of the epochs: before training, ..., at the end; at least two.

    Raises
    ------
    ParameterError
        If there is no such worker, accuracy or speed.
    """

    most_waiting: int | Literal["nobody"] | None = None
    accuracy: float | None = None
    times_as_fast: float | None = None
    curve: Sequence[float] | None = None

    def __post_init__(self) -> None:
        most = self.most_waiting
        if not (most is None or most == "nobody" or (type(most) is int and most >= 0)):
            raise ParameterError(f"prediction: most_waiting must be a worker or 'nobody', got {most!r}")
        if self.accuracy is not None and not 0 <= self.accuracy <= 1:
            raise ParameterError(f"prediction: accuracy must be from 0 to 1 (100 %), got {self.accuracy:g}")
        if self.times_as_fast is not None and self.times_as_fast <= 0:
            raise ParameterError(f"prediction: times_as_fast must be above 0, got {self.times_as_fast:g}")
        if self.curve is not None and (len(self.curve) < 2 or not all(0 <= y <= 1 for y in self.curve)):
            raise ParameterError("prediction: curve needs at least two accuracies from 0 to 1 (100 %)")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Prediction:
        """Return the prediction from plain data.

        Raises
        ------
        UnknownName, ParameterError
        """
        _check_names("prediction", values, cls.__dataclass_fields__)
        return cls(**values)

    def against(self, run: Run, before: Run | None = None) -> str:
        """Return a comparison of predictions and results, one line each; for a notebook's cell.

        Parameters
        ----------
        run : Run
        before : Run or None
            What the run was expected to be as fast as.
        """
        earlier = None if before is None else before.summary()
        return "\n".join(str(g["text"]) for g in gaps(self, run.summary(), earlier, run.log.evaluations()))


def gaps(
    prediction: Prediction,
    summary: Mapping[str, Any],
    before: Mapping[str, Any] | None = None,
    evaluations: Sequence[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
    r"""Return for each prediction the result, as text, and whether the prediction was right.

    Parameters
    ----------
    prediction : Prediction
    summary : mapping
        Of the run (`Run.summary()`).
    before : mapping or None
        Of the run before it.
    evaluations : sequence of mapping
        Of the run (`EventLog.evaluations`), for a drawn curve.

    Examples
    --------
    >>> came = {"idle_fraction": [0.4, 0.0], "final": {"val_accuracy": 0.95}, "time_s": 2.0}
    >>> gaps(Prediction(most_waiting=1), came)[0]["text"]
    'You expected worker 1 to wait most: it waited 0\xa0% of its time, worker 0 waited most (40\xa0%).'
    """
    found = []
    if prediction.most_waiting is not None:
        found.append(_waiting(prediction.most_waiting, summary["idle_fraction"]))
    if prediction.accuracy is not None:
        found.append(_accuracy(prediction.accuracy, summary["final"]["val_accuracy"]))
    if prediction.times_as_fast is not None:
        found.append(_speed(prediction.times_as_fast, summary, before))
    if prediction.curve is not None:
        found.append(_curve(prediction.curve, evaluations))
    return found


def _waiting(expected: int | str, idle: Sequence[float]) -> dict[str, Any]:
    most = max(range(len(idle)), key=lambda worker: idle[worker], default=None)
    if most is None or idle[most] < _NOBODY:
        said = "nobody" if expected == "nobody" else f"worker {expected}"
        return _gap(f"You expected {said} to wait most; nobody waited.", expected == "nobody")
    came = f"worker {most} ({_percent(idle[most])})"
    if expected == "nobody":
        return _gap(f"You expected nobody to wait; {came} waited most.", False)
    worker = int(expected)
    if worker >= len(idle):
        return _gap(f"There is no worker {worker}; the workers are 0 to {len(idle) - 1}.", False)
    if worker == most:
        return _gap(f"You expected worker {expected} to wait most, and that was right: {came}.", True)
    text = (
        f"You expected worker {expected} to wait most: it waited {_percent(idle[worker])} of its time, "
        f"worker {most} waited most ({_percent(idle[most])})."
    )
    return _gap(text, False)


def _accuracy(expected: float, came: float | None) -> dict[str, Any]:
    if came is None:
        return _gap("This run was not evaluated, so there is no accuracy to compare with.", False)
    off = came - expected
    text = (
        f"You expected {_percent(expected)} accuracy; it was {_percent(came)}, {100 * off:+.1f} points off."
    )
    return _gap(text, abs(off) <= _CLOSE_ACCURACY)


def _speed(expected: float, summary: Mapping[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    if before is None or not summary["time_s"]:
        return _gap("There is no previous run to compare the speed with.", False)
    came = before["time_s"] / summary["time_s"]
    text = f"You expected {expected:.3g} times as fast as the previous run; it was {came:.3g} times."
    return _gap(text, abs(came / expected - 1) <= _CLOSE_SPEED)


def _curve(expected: Sequence[float], evaluations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Compare a drawn curve with the measured one, which is returned too: (share of the run, accuracy)."""
    came = [(e["epoch"], e["val_accuracy"]) for e in evaluations if e.get("val_accuracy") is not None]
    if len(came) < 2:
        return _gap("This run was not evaluated along the way, so there is no curve to compare with.", False)
    epochs, values = np.array(came).T
    share = epochs / epochs[-1]
    drawn = np.interp(share, np.linspace(0, 1, len(expected)), expected)
    off = np.abs(values - drawn)
    worst = int(off.argmax())
    text = (
        f"The curve that you drew is {100 * off.mean():.1f} points off on average, most at epoch "
        f"{epochs[worst]:.3g}: you drew {_percent(drawn[worst])}, it was {_percent(values[worst])}."
    )
    return _gap(text, bool(off.mean() <= _CLOSE_CURVE)) | {"came": np.stack([share, values], 1).tolist()}


def _check_names(kind: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise UnknownName(kind, str(name), known)


def _percent(share: float) -> str:
    return f"{100 * share:.3g}{UNIT}"


def _gap(text: str, right: bool) -> dict[str, Any]:
    return {"text": text, "right": right}


@dataclass(frozen=True)
class Challenge:
    r"""A goal: an accuracy, perhaps within a time, perhaps without touching some settings.

    Parameters
    ----------
    accuracy : float, 0 to 1
        Validation accuracy to reach.
    within_s : float or None, seconds
        In which time of the run.
    keep : sequence of str
        Fields of the experiment that must stay as they are, such as "cluster".

    Examples
    --------
    >>> Challenge(0.95, within_s=8, keep=("cluster",)).words()
    'reach 95\xa0% in 8 s without touching the cluster'
    """

    accuracy: float
    within_s: float | None = None
    keep: Sequence[str] = ()

    @classmethod
    def of(cls, value: Challenge | Mapping[str, Any]) -> Challenge:
        """Return the challenge of plain data.

        Raises
        ------
        UnknownName, ParameterError
        """
        if not isinstance(value, Challenge):
            _check_names("part of a challenge", value, cls.__dataclass_fields__)
            if "accuracy" not in value:
                raise ParameterError("challenge: give the accuracy to reach, from 0 to 1")
            value = cls(**value)
        if not 0 < value.accuracy <= 1:
            raise ParameterError(f"challenge: accuracy must be from 0 to 1 (100 %), got {value.accuracy:g}")
        _check_names("field of an experiment to keep", value.keep, Experiment.model_fields)
        return value

    def words(self) -> str:
        """Return the goal in words."""
        within = f" in {self.within_s:g} s" if self.within_s is not None else ""
        kept = [name.replace("_", " ") for name in self.keep]
        without = f" without touching the {' and the '.join(kept)}" if kept else ""
        return f"reach {_percent(self.accuracy)}{within}{without}"

    def verdict(
        self, start: Experiment, run: Experiment, evaluations: Sequence[Mapping[str, Any]]
    ) -> tuple[bool, str]:
        """Return whether a run reaches the goal, and when or why not.

        Parameters
        ----------
        start : Experiment
            What the panel showed first.
        run : Experiment
        evaluations : sequence of mapping
            `time_s` and `val_accuracy`, in order (`EventLog.evaluations`).
        """
        spec, first = run.spec(), start.spec()
        for name in self.keep:
            if spec.get(name) != first.get(name):
                return False, f"the {name.replace('_', ' ')} was changed"
        values = [(e["time_s"], e["val_accuracy"]) for e in evaluations if e.get("val_accuracy") is not None]
        reached = [time_s for time_s, value in values if value >= self.accuracy]
        if not reached:
            best = max((value for _, value in values), default=None)
            return False, "not evaluated" if best is None else f"best so far {_percent(best)}"
        if self.within_s is not None and reached[0] > self.within_s:
            return False, f"reached after {reached[0]:.3g} s"
        return True, f"after {reached[0]:.3g} s"
