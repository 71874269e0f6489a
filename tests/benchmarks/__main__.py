"""Run rows and print them as a table."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from rich.console import Console
from rich.table import Table

from tests.benchmarks.measure import Row, Skipped

NAMES = (
    *("simulated_overhead", "simulated_events", "import_time", "memory", "codecs"),
    *("live_asynchronous", "live_all_reduce", "live_map_reduce", "live_charts", "overlap", "reassignment"),
)


def main() -> None:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description="Measure speed against peers."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--list", action="store_true", help="only say which rows there are")
    parser.add_argument("--peer-python", help="a Python that has ray or tensorflow, for live_asynchronous")
    asked = parser.parse_args()
    if asked.peer_python:
        os.environ["PSBENCH_PEER_PYTHON"] = asked.peer_python
    console = Console(width=160)
    console.print(_summary() if asked.list else _run(console, asked.names or NAMES))


def _summary() -> Table:
    table = Table("name", "what it measures")
    for name in NAMES:
        words = importlib.import_module(f"tests.benchmarks.{name}").__doc__ or ""
        table.add_row(name, words.partition("\n")[0])
    return table


def _run(console: Console, names: tuple[str, ...] | list[str]) -> Table:
    table = Table("what", "ours", "beside", "measured", "at least", "towards", "")
    for name in names:
        with console.status(name):
            rows = importlib.import_module(f"tests.benchmarks.{name}").run()
        for row in rows:
            if isinstance(row, Skipped):
                table.add_row(row.what, "", row.reason, "", "", "", "skipped")
            else:
                table.add_row(*_cells(row), style="" if row.verdict != "not reached" else "red")
    return table


def _cells(row: Row) -> tuple[str, ...]:
    def figure(value: float | None) -> str:
        if value is None:
            return ""
        return f"{value:,.0f} {row.unit}" if value >= 1000 else f"{value:.3g} {row.unit}"

    sign = "<= " if row.lower_is_better else ">= "
    least = "" if row.at_least is None else sign + figure(row.at_least)
    return row.what, row.ours, row.other, figure(row.value), least, figure(row.towards), row.verdict


if __name__ == "__main__":
    sys.exit(main())
