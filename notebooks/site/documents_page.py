"""The page that maps the five founding documents to psbench, made from `documents.yaml`.

Parts name the sections that they follow, and papers' files the exhibits whose numbers are reproduced: both are found
here, so that a row of the file adds only what neither says.
"""

import csv
import re
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

import yaml

from psbench.charts.names import TITLES
from psbench.cli import app
from psbench.cli.catalogue import KINDS, entries
from psbench.cli.extensions import GROUP
from psbench.clusters.recovery import Recovery
from psbench.core.part import REGISTRY
from psbench.experiment import Experiment
from psbench.references import resolve
from psbench.strategies import CATALOGUE

HERE = Path(__file__).parent
# the site is built from a copy of this folder under build/, two levels below the top as well
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PAPERS = NOTEBOOKS / "reproduce" / "psbench_papers"
#: what a source calls a place in a document: a kind, and one or several numbers
_PLACES = re.compile(
    r"(?P<kind>App\.|ch\.|Tables?|Figs?\.|eqs?\.|Algs?\.|Theorem|sec\.)?\s*"
    r"(?P<numbers>\b(?:[IVX]+(?:-[A-E])?|\d+(?:\.\d+)*|[A-C])\b(?:(?:, | and |-|–)\d+(?:\.\d+)*\b)*)"
)
_ONE = {"Tables": "Table", "Figs.": "Fig.", "eqs.": "eq.", "Algs.": "Alg."}


@cache
def documents() -> dict:
    """Return the documents with their rows."""
    return yaml.safe_load((HERE / "documents.yaml").read_text())


def places(document: str, text: str) -> list[str]:
    """Return the places that a citation of a document names, as "3.2.2" and "Fig. 3.3".

    >>> places("thesis", "3.2.2, Table 3.2, Figs. 3.3 and 3.4")
    ['3.2.2', 'Table 3.2', 'Fig. 3.3', 'Fig. 3.4']
    >>> places("adacomm", "eqs. 7-8")
    ['eq. 7', 'eq. 8']
    """
    found = []
    for match in _PLACES.finditer(text):
        kind, numbers = match["kind"] or "", match["numbers"]
        kind = _ONE.get(kind, kind)
        if not kind and not _is_section(document, numbers):
            continue
        first, *rest = re.split(r", | and ", numbers)
        if (span := re.fullmatch(r"(\d+)[-–](\d+)", first)) is not None:
            first, *rest = map(str, range(int(span[1]), int(span[2]) + 1))
        found += [f"{kind} {number}".strip() for number in (first, *rest)]
    return [_named(document, place) for place in found]


def _is_section(document: str, numbers: str) -> bool:
    """Return whether a number without a kind is a section: of the thesis it has a point, of Hermes letters."""
    wanted = {"thesis": r"\d\.\d(?:\.\d)?(?:, \d\.\d(?:\.\d)?)*", "hermes": r"[IVX]+(?:-[A-E])?", "adacomm": r"\d"}
    return re.fullmatch(wanted.get(document, "$^"), numbers) is not None


def _named(document: str, place: str) -> str:
    """Return a place as rows call it: chapters of papers are their sections."""
    if re.fullmatch(r"\d|[IVX]+", place):
        return f"sec. {place}"
    return place


@cache
def cited() -> dict:
    """Return what cites each place of each document: (domain, name, whether for itself or for a parameter)."""
    names = {resolve(each["reference"])[0][0].key: document for document, each in documents().items()}
    found: dict[str, dict[str, set]] = {document: {} for document in documents()}
    for kind in KINDS:
        for entry in entries(kind):
            sources = {(piece, True) for piece in entry["source"].split(";")}
            if kind != "strategies":  # whose parameters are those of its parts
                sources |= {(p, False) for each in entry["parameters"] for p in each["source"].split(";")}
            for piece, is_own in sources:
                works, rest = resolve(piece)
                for document in (names[work.key] for work in works if work.key in names):
                    for place in places(document, rest):
                        found[document].setdefault(place, set()).add((entry["domain"], entry["name"], is_own))
    return found


@cache
def reproduced() -> dict:
    """Return how many published numbers of each exhibit of each document are reproduced: by place and paper."""
    found: dict[str, dict[str, dict[str, int]]] = {document: {} for document in documents()}
    for document, each in documents().items():
        for paper in each["papers"]:
            with (PAPERS / paper / "published.csv").open(newline="") as file:
                for row in csv.DictReader(file):
                    counts = found[document].setdefault(row["exhibit"].removeprefix("Sec. "), {})
                    counts[paper] = counts.get(paper, 0) + 1
    return found


def exhibits(document: str) -> list[str]:
    """Return the figures and tables of a document."""
    found = []
    for kind, count in documents()[document].get("exhibits", {}).items():
        if isinstance(count, dict):
            found += [f"{kind} {chapter}.{i}" for chapter, last in count.items() for i in range(1, last + 1)]
        elif isinstance(count, list):
            found += [f"{kind} {number}" for number in count]
        else:
            found += [f"{kind} {i}" for i in range(1, count + 1)]
    return found


def entries_of(document: str, row: dict) -> list[str]:
    """Return the places in psbench of a row, as Markdown."""
    parts = {(domain, name) for place in row["at"] for domain, name, own in cited()[document].get(place, ()) if own}
    found = [described(f"strategy {name}" if domain == "strategy" else f"part {domain} {name}") for domain, name in sorted(parts)]
    counts: dict[str, int] = {}
    for place in row["at"]:
        for paper, count in reproduced()[document].get(place, {}).items():
            counts[paper] = counts.get(paper, 0) + count
    found += [f"`psbench reproduce {paper}` ({count} numbers)" for paper, count in counts.items()]
    found += [described(each) for each in row.get("where", ()) if each != "command reproduce" or not counts]
    return list(dict.fromkeys(found))


def described(where: str) -> str:
    """Return an entry of `where` as Markdown.

    Raises
    ------
    ValueError
        If psbench has none of that name.
    """
    kind, _, name = where.partition(" ")
    if kind == "notebook":
        (path,) = NOTEBOOKS.glob(f"{name}_*.ipynb")
        return f"[notebook {name}](tutorials/{path.stem}.ipynb)"
    if kind == "chart" and name in TITLES:
        return f'`run.chart("{name}")`'
    if kind == "strategy" and name in CATALOGUE:
        return f"[{name}](strategies/{name}.md)"
    if kind == "command" and name in commands():
        return f"`psbench {name}`"
    if kind == "part" and name.split()[1] in REGISTRY[name.split()[0]]:
        return "{} `{}`".format(*name.split())
    if kind == "setting" and _is_setting(name):
        return f"`{name}`"
    raise ValueError(f"documents.yaml: psbench has no {where!r}")


@cache
def commands() -> set[str]:
    """Return the names of psbench's commands, with those of the package of papers."""
    return {str(each.name) for each in app.registered_commands} | entry_points(group=GROUP).names


def _is_setting(name: str) -> bool:
    first, _, rest = name.partition(".")
    fields = Recovery.model_fields if first == "recovery" and rest else Experiment.model_fields
    return (rest or first) in fields


def page() -> str:
    """Return the page: a table for each document."""
    lines = [
        "# The founding documents",
        "",
        "psbench is founded on five documents. The tables list their contents, and for each the place in psbench: parts and "
        "strategies that cite it, commands that reproduce its numbers, charts and tutorials. Omissions are listed with their "
        "reasons.",
    ]
    for document, each in documents().items():
        lines += ["", f"## {each['title']}", "", "| place | content | in psbench |", "|---|---|---|"]
        for row in each["rows"]:
            out = row.get("left_out")
            here = f"*Left out*: {out}" if out else "; ".join(entries_of(document, row))
            lines.append(f"| {', '.join(row['at'])} | {row['what']} | {here} |")
    return "\n".join(lines) + "\n"
