"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Spec = Annotated[
    Path | None,
    typer.Argument(metavar="SPEC.yaml", help="The specification; by default the default experiment."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change one value of the specification, written as YAML; may be repeated. "
        "For example strategy=asp, strategy.staleness_bound=5, stop={updates: 100}.",
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="A running Dask scheduler, such as tcp://host:8786; by default a local cluster is started.",
    ),
]
Processes = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Number of concurrent runs; by default one per core.")
]
Telemetry = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TARGET",
        help="Report the run while it goes on: counters for Prometheus at prometheus:PORT (on loopback) or "
        "prometheus:HOST:PORT, spans to a collector of OpenTelemetry at otlp:URL; may be repeated.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace another run in the output folder.")]
