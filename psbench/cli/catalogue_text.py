"""`psbench list` as text: a table of one line each, and one entry in full."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

#: characters of a line where there is no terminal
_PIPED = 200


def print_entries(kind: str, found: Sequence[Mapping[str, Any]]) -> None:
    """Print entries as a table that fits a screen: one line each, grouped by topic."""
    from rich.markup import escape
    from rich.table import Table

    console = _console()
    domains = list(dict.fromkeys(entry["about"] for entry in found))
    grouped = len(domains) > 1
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.expand = console.is_terminal
    if grouped:
        table.add_column("about", style="dim", no_wrap=True, min_width=max(map(len, domains)))
    longest = max(len(entry["name"]) for entry in found)
    table.add_column("name", style="bold", no_wrap=True, min_width=longest)
    table.add_column("description", no_wrap=True, overflow="ellipsis", ratio=1)
    for domain in domains:
        for number, entry in enumerate(entry for entry in found if entry["about"] == domain):
            lead = [domain if number == 0 or not console.is_terminal else ""] if grouped else []
            table.add_row(*lead, entry["name"], escape(entry["summary"]))
    console.print(table)
    console.print(f"psbench list {kind} NAME shows one in full", style="dim")


def print_entry(entry: Mapping[str, Any]) -> None:
    """Print one entry in full: summary, source, parameters, and its parts' docstrings."""
    console = _console(wrap=True)
    console.print(f"{entry['name']}: {entry['summary']}", style="bold", markup=False)
    if entry["source"]:
        console.print(f"source: {entry['source']}", markup=False)
    _print_parameters(console, entry["parameters"])
    for part in entry["parts"]:
        console.print()
        console.print(f"{part['domain']} {part['name']}", style="bold", markup=False)
        console.print(part["text"], markup=False, soft_wrap=True)
    if entry["references"]:
        console.print("\nReferences", style="bold")
    for reference in entry["references"]:
        console.print(reference, markup=False)


def _print_parameters(console: Any, parameters: Iterable[Mapping[str, Any]]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("parameter", "default", "range", "meaning"):
        table.add_column(heading, no_wrap=heading == "parameter", overflow="fold")
    for each in parameters:
        limits = " ".join(filter(None, [each["unit"], each["range"]]))
        source = f" ({each['source']})" if each["source"] else ""
        words = (json.dumps(each["default"]), limits, f"{each['summary']}{source}")
        table.add_row(each["name"], *map(escape, words))
    if table.row_count:
        console.print()
        console.print(table)


def _console(wrap: bool = False) -> Any:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:  # what is piped is not cut to the width of a screen
        console.width = 100 if wrap else _PIPED
    return console
