"""Run rows and print them as a table."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from tests.benchmarks.measure import Row, Rows, Skipped

NAMES = (
    *("simulated_overhead", "simulated_events", "processes", "import_time", "memory", "codecs", "outer_step"),
    *("wire", "live_start", "live_asynchronous", "live_all_reduce", "live_map_reduce", "panel"),
    *("overlap", "reassignment", "selections", "partial_reduce", "hogwild", "why"),
)

#: rows that run only by name
LONG = ("many_workers", "many_peers", "scaling", "recovery")
HEADINGS = ("what", "ours", "beside", "measured", "at least", "towards", "")


def main() -> None:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description="Measure speed against peers."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES + LONG))
    parser.add_argument("--list", action="store_true", help="only say which rows there are")
    parser.add_argument("--peer-python", help="a Python that has ray or tensorflow, for live_asynchronous")
    parser.add_argument(
        "--markdown", metavar="FILE", help="write the table for notebooks/site/measurements.md to a file too"
    )
    asked = parser.parse_args()
    if asked.peer_python:
        os.environ["PSBENCH_PEER_PYTHON"] = asked.peer_python
    console = Console(width=160)
    if asked.list:
        console.print(_summary())
        return
    rows = _measured(console, asked.names or NAMES)
    console.print(_table(rows))
    if asked.markdown:
        Path(asked.markdown).write_text(markdown(rows), encoding="utf-8")


def _summary() -> Table:
    table = Table("name", "what it measures")
    for name in NAMES + LONG:
        words = importlib.import_module(f"tests.benchmarks.{name}").__doc__ or ""
        table.add_row(name, words.partition("\n")[0])
    return table


def _measured(console: Console, names: Sequence[str]) -> Rows:
    rows: Rows = []
    for name in names:
        with console.status(name):
            rows += importlib.import_module(f"tests.benchmarks.{name}").run()
    return rows


def _table(rows: Rows) -> Table:
    table = Table(*HEADINGS)
    for row in rows:
        table.add_row(*_cells(row), style="red" if row.verdict == "not reached" else "")
    return table


def markdown(rows: Rows) -> str:
    """Return the table for measurements.md, under a line that says on what machine and when."""
    lines = [HEADINGS, ("---",) * len(HEADINGS), *map(_cells, rows)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{_machine()}, {datetime.now(UTC):%d %B %Y}\n\n{table}\n"


def _machine() -> str:
    """Say what machine this is, and which versions matter."""
    cores, memory = psutil.cpu_count(), psutil.virtual_memory().total / 2**30
    versions = f"Python {platform.python_version()}, torch {metadata.version('torch')}"
    return f"{_processor()}, {cores} cores, {memory:.0f} GiB; {platform.system()}, {versions}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def _cells(row: Row | Skipped) -> tuple[str, ...]:
    if isinstance(row, Skipped):
        return row.what, "", row.reason, "", "", "", row.verdict

    def figure(value: float | None) -> str:
        if value is None:
            return ""
        return f"{value:,.0f} {row.unit}" if value >= 1000 else f"{value:.3g} {row.unit}"

    sign = "<= " if row.lower_is_better else ">= "
    least = "" if row.at_least is None else sign + figure(row.at_least)
    return row.what, row.ours, row.other, figure(row.value), least, figure(row.towards), row.verdict


if __name__ == "__main__":
    sys.exit(main())
