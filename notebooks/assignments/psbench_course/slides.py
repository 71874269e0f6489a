"""Slides from a Markdown source, whose code makes the figures: reveal.js, in one file that loads nothing."""

from __future__ import annotations

import ast
import re
from base64 import b64encode
from pathlib import Path
from typing import Any

from markupsafe import Markup

from psbench.errors import SpecError
from psbench.system.files import write_text
from psbench_course.editions import notebook_of

_HERE = Path(__file__).parent
#: code, which has no formulas, or a formula: of its own line, or within one
_FORMULA = re.compile(r"(`+).*?\1|\$\$(.+?)\$\$|\$(?=\S)([^$\n]+?)(?<=\S)\$(?!\d)", re.DOTALL)


def slides(source: str) -> list[Markup]:
    """Return the slides as HTML: every heading begins one, and code, which is run, leaves its figure alone.

    Parameters
    ----------
    source : str
        Markdown. The last line of a block of Python is what is shown.
    """
    found: list[Markup] = []
    space: dict[str, Any] = {}
    for cell in notebook_of(source)["cells"]:
        if cell["cell_type"] == "code":
            parts = [_shown(cell["source"], space)]
            begins = False
        else:
            texts = re.split(r"^(?=## )", cell["source"], flags=re.MULTILINE)
            parts = [_as_html(text) for text in texts if text.strip()]
            begins = cell["source"].startswith("## ")
        for number, part in enumerate(parts):
            if number or begins or not found:
                found.append(part)
            else:
                found[-1] += part
    return found


def _as_html(text: str) -> Markup:
    """Return Markdown as HTML, with formulas as MathML, which browsers draw by themselves."""
    from markdown_it import MarkdownIt

    return Markup(MarkdownIt("commonmark").enable("table").render(_FORMULA.sub(_formula, text)))


def _formula(found: re.Match[str]) -> str:
    block, inline = found[2], found[3]
    if block is None and inline is None:
        return found[0]
    try:
        from latex2mathml.converter import convert
    except ImportError as error:
        raise SpecError(
            f"slides: {found[0]!r} is a formula, which latex2mathml converts: pip install latex2mathml"
        ) from error
    text: str = convert(block or inline, display="block" if block else "inline")
    return text


def _shown(code: str, space: dict[str, Any]) -> Markup:
    """Run code, and return its last expression as a picture, or as text."""
    tree = ast.parse(code)
    last = tree.body.pop()
    if not isinstance(last, ast.Expr):
        raise SpecError(
            f"slides: a block must end with the figure to show; this block ends with {ast.unparse(last)!r}"
        )
    exec(compile(tree, "slides", "exec"), space)
    value = eval(compile(ast.Expression(last.value), "slides", "eval"), space)
    data = value.still()[0] if hasattr(value, "still") else {"text/plain": str(value)}
    if "image/png" not in data:
        return Markup("<pre>{}</pre>").format(data["text/plain"])
    picture = b64encode(data["image/png"]).decode()
    return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(data["text/plain"], picture)


def write_slides(source: Path, path: Path) -> None:
    """Write slides as one HTML file, which needs no internet: reveal.js is in it."""
    from jinja2 import Environment

    found = slides(source.read_text(encoding="utf-8"))
    page = Environment(autoescape=True).from_string((_HERE / "slides.html").read_text(encoding="utf-8"))
    style, script = (
        Markup((_HERE / "reveal" / name).read_text(encoding="utf-8")) for name in ("reveal.css", "reveal.js")
    )
    title = re.sub(r"<[^>]*>", "", str(found[0]).split("\n", 1)[0])
    text = page.render(title=Markup(title), slides=found, style=style, script=script)
    write_text(path, text)
