"""Live runs in monitoring systems: spans for OpenTelemetry, counters for Prometheus."""

from __future__ import annotations

import json
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from psbench.arrays import Array
from psbench.core.imports import is_there
from psbench.core.log import EventLog, Kind
from psbench.errors import SpecError
from psbench.metrics.pushes import Staleness
from psbench.metrics.rows import Rows, pick, trained
from psbench.metrics.spans import PHASES, Spans, reason_text
from psbench.metrics.totals import SpanTotals
from psbench.metrics.traffic import bytes_of

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

#: upper ends of the histogram of staleness, in versions
_STALENESS = (0, 1, 2, 4, 8, 16, 32, 64, 128)


class Telemetry:
    """An observer that reports a run to OpenTelemetry and Prometheus while it goes on.

    Each activity of a worker (`metrics.timeline`) becomes a span below one span for the run. Time is the wall
    clock's; of a simulated run it is the virtual one, from when the run began.

    Parameters
    ----------
    name : str
        The name of the run, an attribute of its span.
    tracer_provider : opentelemetry.trace.TracerProvider or None
        None: the global one, which `opentelemetry-instrument` configures.
    registry : prometheus_client.CollectorRegistry or None
        For the counters; None: one for this run alone, as the attribute `registry`.

    Raises
    ------
    SpecError
        If a package is not installed.

    Notes
    -----
    Counters: `psbench_pushes_total`, `psbench_discarded_total` and `psbench_worker_seconds_total` by worker
    (the last by phase, too), `psbench_updates_total`, `psbench_samples_total` and `psbench_bytes_total` (by
    direction). `psbench_staleness` is a histogram, `psbench_evaluation` a gauge by name. A run that returns
    to a checkpoint repeats work: counters count it twice, as they must not fall.

    Examples
    --------
    >>> from prometheus_client import start_http_server  # doctest: +SKIP
    >>> with Telemetry("asp") as telemetry:  # doctest: +SKIP
    ...     start_http_server(9464, addr="127.0.0.1", registry=telemetry.registry)
    ...     ps.run(experiment, observer=telemetry)
    """

    def __init__(
        self,
        name: str = "",
        *,
        tracer_provider: TracerProvider | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        if missing := [each for each in ("opentelemetry", "prometheus_client") if not is_there(each)]:
            raise SpecError(f"{missing[0]} is not installed: pip install 'psbench[otel]'")
        import prometheus_client as prometheus
        from opentelemetry import trace

        self.registry = prometheus.CollectorRegistry() if registry is None else registry
        self._counters = _Counters(self.registry)
        self._tracer = trace.get_tracer("psbench", tracer_provider=tracer_provider)
        self._name = name
        self._begin_ns = 0
        self._log = EventLog()
        self._run: trace.Span | None = None
        self._start_again()

    def _start_again(self) -> None:
        self._read, self._totals, self._staleness = 0, SpanTotals(), Staleness()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all spans; those under way end with the last row that was read."""
        if self._run is not None:
            self._trace(self._log, self._totals.new_spans[1])
            self._run.end(self._time_ns(self._totals.end_s))
            self._run = None

    def __call__(self, log: EventLog) -> None:
        """Read the new rows of a log."""
        self._log = log
        has_returned = len(log) < self._read  # to a checkpoint, whose rows were reported before
        if has_returned:
            self._start_again()
        rows = log.rows(self._read)
        self._read += len(rows)
        self._totals.read(log, rows)
        staleness = self._staleness.read(rows)
        if has_returned or not len(rows):
            return
        if self._run is None:
            self._begin_ns = time.time_ns() - round(1e9 * float(rows["time_s"][-1]))
            self._run = self._tracer.start_span(
                "run", start_time=self._begin_ns, attributes={"psbench.name": self._name}
            )
        over = self._totals.new_spans[0]
        self._trace(log, over)
        self._counters.add(log, rows, over, staleness)

    def _time_ns(self, time_s: float) -> int:
        return self._begin_ns + round(1e9 * time_s)

    def _trace(self, log: EventLog, spans: Spans) -> None:
        from opentelemetry import trace

        assert self._run is not None
        within = trace.set_span_in_context(self._run)
        for worker, phase, start_s, end_s, reason, _ in zip(*(each.tolist() for each in spans), strict=True):
            attributes: dict[str, str | int] = {"psbench.worker": worker}
            if text := reason_text(log, reason):
                attributes["psbench.reason"] = text
            span = self._tracer.start_span(
                PHASES[phase], within, start_time=self._time_ns(start_s), attributes=attributes
            )
            span.end(self._time_ns(end_s))


class _Counters:
    """The counters of a run in Prometheus's client."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._applied = self._version = self._counted = 0
        self._is_serverless = False
        import prometheus_client as prometheus

        def counter(name: str, text: str, *labels: str) -> prometheus.Counter:
            return prometheus.Counter(f"psbench_{name}", text, labels, registry=registry)

        self._pushes = counter("pushes", "Pushes that arrived.", "worker")
        self._discarded = counter("discarded", "Pushes that were discarded.", "worker")
        self._updates = counter("updates", "Versions of the model; without a server, of all workers.")
        self._samples = counter("samples", "Samples that the model was trained on.")
        self._bytes = counter("bytes", "Payload bytes of pushes (up) and models (down).", "direction")
        self._seconds = counter("worker_seconds", "Seconds of each activity.", "worker", "phase")
        self._staleness = prometheus.Histogram(
            "psbench_staleness",
            "Staleness of applied pushes in versions.",
            buckets=_STALENESS,
            registry=registry,
        )
        self._evaluation = prometheus.Gauge(
            "psbench_evaluation", "The last evaluated value.", ("name",), registry=registry
        )

    def add(self, log: EventLog, rows: Rows, spans: Spans, staleness: Array) -> None:
        """Count new rows, with the spans that they ended and the staleness of the pushes they applied."""
        for kind, counter in ((Kind.PUSH, self._pushes), (Kind.DISCARD, self._discarded)):
            for worker, count in zip(*_counts(pick(rows, kind)["worker"]), strict=True):
                counter.labels(worker).inc(count)
        for stale in staleness.tolist():
            self._staleness.observe(stale)
        self._count_updates(rows)
        self._samples.inc(int(trained(rows)["samples"].sum(dtype=np.int64)))
        for direction, count in bytes_of(rows).items():
            self._bytes.labels(direction).inc(count)
        seconds = spans.end_s - spans.start_s
        for worker, phase in {*zip(spans.worker.tolist(), spans.phase.tolist(), strict=True)}:
            own = (spans.worker == worker) & (spans.phase == phase)
            self._seconds.labels(worker, PHASES[phase]).inc(float(seconds[own].sum()))
        for row in pick(rows, Kind.EVALUATED):
            for name, value in json.loads(log.text(int(row["text"]))).items():
                if value is not None:
                    self._evaluation.labels(name).set(value)

    def _count_updates(self, rows: Rows) -> None:
        """Count versions, or without a server, which models that are mixed tell, all that workers made."""
        applied = pick(rows, Kind.APPLY)
        self._applied += len(applied)
        self._version = max(self._version, int(applied["version"].max(initial=0)))
        self._is_serverless = self._is_serverless or bool((rows["kind"] == Kind.MIX).any())
        total = self._applied if self._is_serverless else self._version
        self._updates.inc(max(0, total - self._counted))
        self._counted = max(total, self._counted)


def _counts(workers: Array) -> tuple[list[int], list[int]]:
    """Return the workers that occur, and how often."""
    found, counts = np.unique(workers, return_counts=True)
    return found.tolist(), counts.tolist()
