"""Live numbers of a run for monitoring systems: counters on a port for Prometheus, spans for a collector."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from psbench.cli.app import say
from psbench.errors import SpecError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from psbench.backends.control import Observer

#: seconds in which a collector must accept a connection before the run begins
_CONNECT_S = 2.0
#: spans that wait for the collector, and those of one message: a simulated run makes very many at once
_WAITING, _AT_ONCE = 1 << 17, 4096


@contextmanager
def telemetry(targets: Sequence[str], name: str) -> Iterator[Observer | None]:
    """Yield an observer that sends a run to these targets while it goes on; None without targets.

    Parameters
    ----------
    targets : sequence of str
        ``prometheus:PORT``, ``prometheus:HOST:PORT`` or ``otlp:URL``.
    name : str
        Of the run.

    Raises
    ------
    SpecError
        If a target is malformed, is not reachable, or needs a package that is not installed.
    """
    if not targets:
        yield None
        return
    from psbench.results.telemetry import Telemetry

    of_kind: dict[str, list[str]] = {"prometheus": [], "otlp": []}
    for target in targets:
        kind = target.partition(":")[0]
        if kind not in of_kind:
            raise _malformed(target)
        of_kind[kind].append(target)
    with ExitStack() as stack:
        provider = None
        for target in of_kind["otlp"]:
            provider = stack.enter_context(_collector(target, provider))
        observer = Telemetry(name, tracer_provider=provider)
        for target in of_kind["prometheus"]:
            stack.enter_context(_counters(target, observer.registry))
        yield stack.enter_context(observer)


def _malformed(target: str) -> SpecError:
    return SpecError(
        "--telemetry: expected prometheus:PORT, prometheus:HOST:PORT or otlp:URL, as "
        f"otlp:http://127.0.0.1:4318, got {target!r}"
    )


@contextmanager
def _counters(target: str, registry: CollectorRegistry) -> Iterator[None]:
    """Serve the counters in this block, on loopback unless the target names another host."""
    from prometheus_client import start_http_server

    host, _, port = target.partition(":")[2].rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not (port.isdecimal() and 0 < int(port) < 1 << 16):
        raise _malformed(target)
    try:
        server, thread = start_http_server(int(port), addr=host, registry=registry)
    except OSError as error:
        raise SpecError(f"--telemetry: prometheus cannot listen on {host}:{port}: {error.strerror}") from None
    say(f"counters for Prometheus: http://{f'[{host}]' if ':' in host else host}:{port}/metrics")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def _collector(target: str, provider: TracerProvider | None) -> Iterator[TracerProvider]:
    """Yield a provider whose spans are sent to a collector; at the end report lost spans."""
    from psbench.core.imports import is_there  # loads much, and most runs report nowhere

    if not is_there("opentelemetry.exporter.otlp.proto.http"):
        raise SpecError(
            "opentelemetry-exporter-otlp-proto-http is not installed: pip install 'psbench[otel]'"
        )
    _check_reachable(target)
    url = target.partition(":")[2]
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

    class Exporter(OTLPSpanExporter):
        sent = 0

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            result = super().export(spans)
            if result is SpanExportResult.SUCCESS:
                self.sent += len(spans)
            return result

    class Processor(BatchSpanProcessor):
        ended = 0

        def on_end(self, span: ReadableSpan) -> None:
            self.ended += 1
            super().on_end(span)

    whole = url.rstrip("/")
    exporter = Exporter(endpoint=whole if urlsplit(whole).path else f"{whole}/v1/traces")
    processor = Processor(exporter, max_queue_size=_WAITING, max_export_batch_size=_AT_ONCE)
    if provider is None:
        provider = TracerProvider(resource=Resource.create({"service.name": "psbench"}))
    provider.add_span_processor(processor)
    try:
        yield provider
    finally:
        processor.shutdown()
        if lost := processor.ended - exporter.sent:
            say(f"{lost:,} of {processor.ended:,} spans did not reach {url}")


def _check_reachable(target: str) -> None:
    url = target.partition(":")[2]
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        with socket.create_connection((parts.hostname or "", port), _CONNECT_S):
            pass
    except (KeyError, ValueError):
        raise _malformed(target) from None
    except OSError as error:
        raise SpecError(f"--telemetry: no collector answers at {url}: {error.strerror or error}") from None
