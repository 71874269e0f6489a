"""Checks the user's input: at once without data, and soon after with the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from psbench.core.user_object import Own
from psbench.experiment import Experiment
from psbench_widgets.check import check
from psbench_widgets.latest_task import LatestTask
from psbench_widgets.names import paths_apart
from psbench_widgets.probe import probe, warm_up


class Checker:
    """Answers the page's checks; only the newest one is checked with data.

    Parameters
    ----------
    send : callable
        Sends a message to the page.
    warm : callable
        Called with an experiment that can be run, from the thread that probes.
    on_error : callable
        Called with the traceback of a check that failed.
    """

    def __init__(
        self,
        send: Callable[[dict[str, Any]], None],
        warm: Callable[[Experiment], None],
        on_error: Callable[[str], None],
    ) -> None:
        self._send, self._warm = send, warm
        self._task = LatestTask("psbench-probe", on_error)

    def check(
        self, values: Mapping[str, Any], own: Mapping[str, Own], number: int, shown: Experiment | None = None
    ) -> None:
        """Send the result of a check, and later of a check with data; `number` identifies the check.

        It says too in what the picks differ from the run that is shown, if one is.
        """
        result = check(values, own)
        picked = result.experiment
        differs = [] if picked is None or shown is None else paths_apart(picked, shown)
        self._send({"kind": "verdict", "seq": number, "differs": differs, **result.plain()})
        experiment = result.experiment
        if experiment is not None:
            self._task.ask(lambda: self._probe(number, experiment))

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the newest check has been answered."""
        self._task.wait(timeout_s)

    def close(self) -> None:
        """Drop a check that has not begun and wait for the one that has."""
        self._task.close()

    def _probe(self, number: int, experiment: Experiment) -> None:
        self._send({"kind": "probe", "seq": number, **probe(experiment)})
        self._warm(experiment)
        warm_up()
