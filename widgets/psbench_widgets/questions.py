"""Comparison of predictions with a run, and verdict on the challenge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psbench.experiment import Experiment
from psbench.results.run import Run
from psbench_widgets.predictions import Challenge, Prediction, gaps


class Questions:
    """Holds the goal of a panel and the prediction of its next run.

    Parameters
    ----------
    start : Experiment
        What the panel shows at first.
    challenge : Challenge, mapping or None
    """

    def __init__(self, start: Experiment, challenge: Challenge | Mapping[str, Any] | None) -> None:
        self._start = start
        self._challenge = None if challenge is None else Challenge.of(challenge)
        self.prediction = Prediction()
        self._why = ""
        self._reached = False
        self._gaps: list[dict[str, Any]] = []

    def judge(
        self, number: int, run: Run, summary: Mapping[str, Any] | None, before: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Compare a finished run with the predictions, and return the data that the page shows.

        A goal that was reached stays reached.
        """
        if summary is not None:
            self._gaps = gaps(self.prediction, summary, before, run.log.evaluations())
        if self._challenge is not None and not self._reached:
            reached, why = self._challenge.verdict(self._start, run.experiment, run.log.evaluations())
            self._reached, self._why = reached, f"run {number}: {why}"
        return self.plain()

    def plain(self) -> dict[str, Any]:
        """Return the data that the page shows."""
        text = self._challenge.words() if self._challenge is not None else ""
        return {"text": text, "reached": self._reached, "why": self._why, "gaps": self._gaps}
