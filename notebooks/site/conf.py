"""Configuration of the documentation site: `make docs` builds it into build/site, with no internet."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import catalogue_pages  # noqa: E402
from docutils import nodes  # noqa: E402
from latex2mathml.converter import convert  # noqa: E402

import psbench  # noqa: E402

project, author = "psbench", "The psbench authors"
release = version = psbench.__version__
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",  # and not numpydoc, which knows no sections of one's own
    "myst_nb",
]
exclude_patterns = ["_build", "**/.ipynb_checkpoints", "slides.md"]
html_theme = "pydata_sphinx_theme"
html_title = f"psbench {release}"
html_theme_options = {
    "navbar_end": ["theme-switcher"],
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
}
html_show_sourcelink = False
html_static_path, html_css_files = ["static"], ["site.css"]
# pages without others below them have nothing to list at their side
_ALONE = "teaching simulator gallery measurements design glossary code_map references contributing changelog"
html_sidebars = {page: [] for page in _ALONE.split()}
# the notebooks are stored with their outputs and are tested elsewhere
nb_execution_mode = "off"
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
html_math_renderer = "mathml"
autosummary_generate = True
autodoc_typehints = "none"  # the sections of the docstrings name the types
napoleon_google_docstring = False
napoleon_custom_sections = ["Source", "Shapes"]
# "myst.header": cells of a notebook may begin with any level
suppress_warnings = ["mystnb.unknown_mime_type", "config.cache", "myst.header"]

# as in JupyterLab, so that links between notebooks hold in both
myst_heading_slug_func = "catalogue_pages.heading_anchor"


#: the objects with a page in the reference
_DOCUMENTED = set((HERE / "reference.rst").read_text().split())


def link_glossary(_app, _what, name, _object, _options, lines):
    """Link the glossary below the docstring of each object in the reference."""
    if name in _DOCUMENTED:
        lines += ["", ".. seealso:: The terms are defined in the :doc:`glossary </glossary>`.", ""]


def write_mathml(page, formula):
    """Write a formula as MathML, which browsers draw by themselves: no page loads a script for it."""
    display = "block" if isinstance(formula, nodes.math_block) else "inline"
    page.body.append(convert(formula.astext(), display=display))
    raise nodes.SkipNode


def setup(app):
    """Write the generated pages before they are read, draw formulas, and link the glossary from docstrings."""
    app.add_html_math_renderer("mathml", (write_mathml, None), (write_mathml, None))
    app.connect("builder-inited", lambda app: catalogue_pages.write(Path(app.srcdir)))
    # after napoleon, which would take the lines for a part of the docstring's last section
    app.connect("autodoc-process-docstring", link_glossary, priority=900)
