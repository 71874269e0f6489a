"""Slides from a Markdown source, whose code makes the figures: reveal.js, by nbconvert."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from psbench.errors import SpecError
from psbench.system.files import write_text
from psbench_course.editions import notebook_of

#: where a browser finds reveal.js, unless another place is given
REVEAL = "https://unpkg.com/reveal.js@4.6.1"


def slides(source: str) -> dict[str, Any]:
    """Return a notebook that was run, in which every heading begins a slide and code leaves its figure alone.

    Parameters
    ----------
    source : str
        Markdown. The last line of a block of Python is what is shown.
    """
    notebook = notebook_of(re.sub(r"^(?=## )", "<!-- slide -->\n", source, flags=re.MULTILINE))
    space: dict[str, Any] = {}
    cells: list[dict[str, Any]] = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = [_shown(cell["source"], space)]
            cells.append(cell | {"metadata": {"slideshow": {"slide_type": "-"}}})
            continue
        for number, text in enumerate(cell["source"].split("<!-- slide -->\n")):
            if text.strip():
                begins = number or not cells
                kept = {"slideshow": {"slide_type": "slide" if begins else "-"}}
                cells.append(cell | {"id": f"slide-{len(cells)}", "source": text.strip(), "metadata": kept})
    return notebook | {"cells": cells}


def _shown(code: str, space: dict[str, Any]) -> dict[str, Any]:
    """Run code, and return its last expression as the content of a notebook output."""
    tree = ast.parse(code)
    last = tree.body.pop()
    if not isinstance(last, ast.Expr):
        raise SpecError(
            f"slides: a block must end with the figure to show; this block ends with {ast.unparse(last)!r}"
        )
    exec(compile(tree, "slides", "exec"), space)
    value = eval(compile(ast.Expression(last.value), "slides", "eval"), space)
    data, metadata = value.still() if hasattr(value, "still") else ({"text/plain": str(value)}, {})
    if "image/png" in data:
        data = data | {"image/png": _base64(data["image/png"])}
    return {"output_type": "display_data", "data": data, "metadata": metadata}


def _base64(picture: Any) -> Any:
    from base64 import b64encode

    return b64encode(picture).decode() if isinstance(picture, bytes) else picture


def write_slides(source: Path, path: Path, reveal: str = REVEAL) -> None:
    """Write slides as one HTML file.

    Parameters
    ----------
    source, path : path
    reveal : str
        The address, or a folder beside the file, with reveal.js; in a folder, `require.js` too.
    """
    import nbformat
    from nbconvert import SlidesExporter

    exporter: Any = SlidesExporter(reveal_url_prefix=reveal, exclude_input=True)
    if "://" not in reveal:
        exporter.require_js_url = f"{reveal}/require.js"
    node = nbformat.from_dict(slides(source.read_text(encoding="utf-8")))
    text, _ = exporter.from_notebook_node(node)
    write_text(path, text)
