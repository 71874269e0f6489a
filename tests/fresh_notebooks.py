"""Run the notebooks at full size and store their outputs, or compare new outputs with the stored ones.

`python -m tests.fresh_notebooks [NAME...]` writes the outputs (`make notebooks-fresh`). With `--check` it
prints the cells whose text differs, and changes nothing (`make nightly`). A notebook's metadata has the
digest of the cells that its outputs belong to; a test compares the digest with the cells, so that no cell is
edited without a new run. Live runs and measured times vary: their notebooks are run, and not compared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
#: notebooks with live runs, measured times or versions of libraries in their text
VARYING = ("05_dask_cluster", "07_lab", "12_mapreduce_vs_ps", "14_bring_your_own", "17_twin")
#: outputs that need a kernel, which a stored notebook has not
PANEL = "application/vnd.jupyter.widget-view+json"
ADDRESS = re.compile(r"0x[0-9a-f]+")


def code(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def source_digest(notebook: nbformat.NotebookNode) -> str:
    """Return the SHA-256 of the code cells' sources."""
    return hashlib.sha256(json.dumps([cell.source for cell in code(notebook)]).encode()).hexdigest()


def run(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return the notebook with new outputs; an error in a cell is raised."""
    fresh = nbformat.from_dict(notebook)
    options = {"timeout": None, "record_timing": False, "coalesce_streams": True}
    NotebookClient(fresh, resources={"metadata": {"path": str(FOLDER)}}, **options).execute()
    for cell in code(fresh):
        if any(PANEL in each.get("data", {}) for each in cell.outputs):  # and the picture below the panel
            cell.outputs = [each for each in cell.outputs if each.output_type == "stream"]
    fresh.metadata = {name: notebook.metadata[name] for name in ("kernelspec", "language_info")}
    fresh.metadata["psbench"] = {"source": source_digest(fresh)}
    return fresh


def text_of(cell: nbformat.NotebookNode) -> str:
    """Return the text that a cell prints or displays, without addresses in memory."""
    texts = (each.get("text") or each.get("data", {}).get("text/plain", "") for each in cell.outputs)
    return ADDRESS.sub("0x", "\n".join(texts))


def differences(stored: nbformat.NotebookNode, fresh: nbformat.NotebookNode) -> Iterator[str]:
    """Yield a description of each cell whose text differs from the stored one."""
    for number, (old, new) in enumerate(zip(code(stored), code(fresh), strict=True), 1):
        if text_of(old) != text_of(new):
            yield f"cell {number}\n  stored: {text_of(old)!r}\n  now:    {text_of(new)!r}"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fresh_notebooks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as 01_first_run; all by default")
    parser.add_argument("--check", action="store_true", help="compare the text of outputs, and write nothing")
    asked = parser.parse_args(words)
    failed = False
    for name in asked.names or sorted(path.stem for path in FOLDER.glob("*.ipynb")):
        path = FOLDER / f"{name}.ipynb"
        stored = nbformat.read(path, as_version=4)
        fresh = run(stored)
        found = [] if name in VARYING else [*differences(stored, fresh)]
        print(f"{name}: {len(found)} cells differ", *found, sep="\n", flush=True)
        failed |= bool(found)
        if not asked.check:
            nbformat.write(fresh, path)
    return int(failed and asked.check)


if __name__ == "__main__":
    sys.exit(main())
