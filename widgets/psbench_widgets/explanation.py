"""The panel's answer to "Why is this run worse?", computed in a thread of its own."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import Any

from psbench import why
from psbench.causes import Answer
from psbench.errors import Cancelled, ParameterError, PsbenchError
from psbench.progress import time_left
from psbench.results.run import Run
from psbench.runs.sweeps.display import words
from psbench.runs.sweeps.execution import Progress
from psbench_widgets.livechart import LiveChart
from psbench_widgets.run_table import RunTable
from psbench_widgets.static_picture import as_columns, static, titles


class Explanation:
    """Asks `psbench.why` about two runs of the table, one question at a time.

    Parameters
    ----------
    runs : RunTable
    publish : callable
        Called with the state of the answer, and the charts that show it, whenever they are new.
    on_error : callable
        Called with the traceback of a failure.
    renderer : "canvas" or "svg"
    """

    def __init__(
        self,
        runs: RunTable,
        publish: Callable[[dict[str, Any], list[dict[str, Any]]], None],
        on_error: Callable[[str], None],
        renderer: str,
    ) -> None:
        self._runs, self._publish, self._on_error = runs, publish, on_error
        self._thread: threading.Thread | None = None
        self._cancelled = threading.Event()
        self.chart = LiveChart(renderer=renderer)
        self.answer: Answer | None = None

    def ask(self, number: int, against: int, seeds: int) -> None:
        """Begin to answer.

        Raises
        ------
        ParameterError
            If a question is being answered, or if there are no two such runs.
        """
        if self._thread is not None and self._thread.is_alive():
            raise ParameterError("why: a question is being answered; cancel it first")
        pair = [self._runs[each].run for each in (number, against)]
        if number == against or None in pair:
            raise ParameterError("why: pick two different runs that are over")
        self._cancelled.clear()
        self.answer = None
        self._publish({"state": "running", "words": "reads the two runs", "fraction": 0.0}, [])
        self._thread = threading.Thread(
            target=self._run, args=(*pair, seeds), name="psbench-why", daemon=True
        )
        self._thread.start()

    def cancel(self) -> None:
        """Stop answering; runs under way are ended."""
        self._cancelled.set()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the question is answered."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def close(self) -> None:
        """End the thread, and close the chart's channel to the page."""
        self.cancel()
        self.wait()
        self.chart.close()

    def computed(self, place: int) -> tuple[str, Run]:
        """Return a run that the answer rests on, with its name.

        Raises
        ------
        ParameterError
            If there is none.
        """
        found = [] if self.answer is None else list(self.answer.computed())
        if not 0 <= place < len(found):
            raise ParameterError("why: there is no such run")
        return found[place]

    def _run(self, mine: Run, other: Run, seeds: int) -> None:
        try:
            answer = why(mine, other, seeds=seeds, progress=self._show)
        except Cancelled:
            self._publish({"state": "cancelled", "words": "cancelled"}, [])
        except PsbenchError as error:
            self._publish({"state": "refused", "words": str(error)}, [])
        except Exception:
            self._publish({}, [])
            self._on_error(traceback.format_exc())
        else:
            self.answer = answer
            self._draw(answer)

    def _show(self, progress: Progress) -> None:
        if self._cancelled.is_set():
            raise Cancelled("why: cancelled")
        left = time_left(progress.fraction, progress.spent_s)
        said = words(progress) if left else f"{words(progress)}, time left not yet known"
        self._publish({"state": "running", "words": said, "fraction": progress.fraction}, [])

    def _draw(self, answer: Answer) -> None:
        charts = []
        if answer.explains:
            figure = answer.figure()
            spec, rows = static(figure)
            self.chart.title, self.chart.note = titles(figure)
            self.chart.spec = spec
            self.chart.replace(as_columns(rows))
            self.chart.state = "done"
            charts = [{"uid": self.chart.uid, "group": "why"}]
        plain = {
            "state": "answered",
            "question": answer.question,
            "sentence": answer.sentence,
            "causes": answer.cells(),
            "joint": answer.joint_cells(),
            "remarks": answer.remarks,
            "runs": answer.computed_cells(),
        }
        self._publish(plain, charts)
