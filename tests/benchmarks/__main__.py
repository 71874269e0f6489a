"""Run rows and print them as a table."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from tests.benchmarks import measure
from tests.benchmarks.measure import Row, Rows, Skipped

NAMES = (
    *("simulated_overhead", "simulated_events", "processes", "import_time", "memory", "codecs", "outer_step"),
    *("wire", "live_start", "live_asynchronous", "live_all_reduce", "live_map_reduce", "panel"),
    *("overlap", "reassignment", "selections", "partial_reduce", "hogwild", "why", "many_gradients"),
)

#: rows that run only by name
LONG = ("many_workers", "many_peers", "scaling", "recovery", "detached_rows")
HEADINGS = ("what", "ours", "beside", "measured", "at least", "towards", "")

ROOT = Path(__file__).parents[2]
#: measures rows with the code of the checkout that it runs in
_ELSEWHERE = """
import importlib, json, sys
from dataclasses import asdict
from tests.benchmarks import measure
name, most = sys.argv[1:]
given = measure.in_turns
measure.in_turns = lambda sides, repeats: given(sides, min(repeats, int(most)))
rows = importlib.import_module(f"tests.benchmarks.{name}").run()
print(json.dumps([asdict(row) for row in rows if isinstance(row, measure.Row)]))
"""


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
    parser.add_argument(
        "--against",
        metavar="DIR",
        type=Path,
        help="another checkout, such as an older commit's worktree, whose own rows are measured in turns",
    )
    parser.add_argument("--repeats", type=int, default=99, help="at most so many repeats of each measurement")
    asked = parser.parse_args()
    if asked.peer_python:
        os.environ["PSBENCH_PEER_PYTHON"] = asked.peer_python
    console = Console(width=160)
    if asked.list:
        console.print(_summary())
        return
    given = measure.in_turns  # before the rows import it
    measure.in_turns = lambda sides, repeats: given(sides, min(repeats, asked.repeats))
    if asked.against:
        console.print(_compared(console, asked.names or NAMES, asked.against.resolve(), asked.repeats))
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


def _compared(console: Console, names: Sequence[str], other: Path, repeats: int) -> Table:
    """Measure each name here, there, there and here; the better of both figures counts."""
    table = Table("what", f"{other.name or other}", "here", "here / there", "at least")
    for name in names:
        found: dict[Path, dict[str, Row]] = {ROOT: {}, other: {}}
        for place in (ROOT, other, other, ROOT):
            with console.status(f"{name} in {place}"):
                for row in _rows_of(place, name, repeats):
                    best = found[place].setdefault(row.what, row)
                    if (row.value < best.value) == row.lower_is_better:
                        found[place][row.what] = row
        for what, row in found[ROOT].items():
            cells, then = _cells(row), found[other].get(what)
            before = "" if then is None else _cells(then)[3]
            change = "" if then is None else f"{row.value / then.value:.2f}"
            table.add_row(what, before, cells[3], change, cells[4], style=_style(row))
    return table


def _rows_of(place: Path, name: str, repeats: int) -> list[Row]:
    """Measure rows with the code of a checkout, in a process of its own; none if it lacks them."""
    if not (place / "tests" / "benchmarks" / f"{name}.py").exists():
        return []
    paths = os.pathsep.join(map(str, (place, place / "widgets")))
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": ""}  # compiled once
    command = [sys.executable, "-c", _ELSEWHERE, name, str(repeats)]
    done = subprocess.run(command, cwd=place, env=environment, stdout=subprocess.PIPE, check=True)
    return [Row(**each) for each in json.loads(done.stdout.splitlines()[-1])]


def _table(rows: Rows) -> Table:
    table = Table(*HEADINGS)
    for row in rows:
        table.add_row(*_cells(row), style=_style(row))
    return table


def _style(row: Row | Skipped) -> str:
    return "red" if row.verdict == "not reached" else ""


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
