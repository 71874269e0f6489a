"""The pages of the site that are made from the catalogue: one for each strategy, and lists of parts.

Each page has what `psbench list strategies NAME` prints, and a figure: who waits for whom in the first steps of three
workers, one of which has half the speed.
"""

import base64
import json
import re
import shutil
from pathlib import Path

from sphinx.ext.napoleon import Config, NumpyDocstring

import documents_page
import psbench as ps
from psbench.charts.figures import sequence_figure
from psbench.cli.catalogue import KINDS, entries, entry_of
from psbench.core.log import Kind
from psbench_papers.cells import experiment_of
from psbench_papers.library import NAMES, load
from psbench_papers.session import stored_reproduction
from psbench_papers.text import sentence, verdict_words
from psbench.strategies import CATALOGUE

ROOT = Path(__file__).parents[2]
#: pushes of the slow worker that a figure shows
SHOWN = 4
#: width of a figure, in pixels
WIDTH = 560
#: what a list of parts is headed
TITLES = {
    "parts": "Parts of a strategy",
    "sharding": "Sharding",
    "rules": "Switch rules",
    "datasets": "Data sets",
    "models": "Models",
    "clusters": "Clusters",
    "optimizers": "Optimizers",
    "losses": "Losses",
    "metrics": "Metrics",
}

#: tutorials that show strategies of the catalogue
TUTORIALS = {
    "02_consistency": "bsp asp ssp k_bsp k_batch_bsp k_asp k_batch_asp",
    "03_strategy_switch": "all_reduce strategy_switch sync_switch",
    "08_local_updates": "local_sgd adacomm selsync",
    "09_edge": "hermes",
    "10_batch_sizes": "dbs_sgd lb_bsp flex_rr",
    "11_compression": "double_squeeze partial_reduce hogwild",
    "12_mapreduce_vs_ps": "map_reduce",
    "13_late_gradients": "backup_workers dssp elastic_bsp n_softsync con_sgd dyn_sgd bounded_step osp early_epoch_stop drop_stragglers",
    "16_low_communication": "diloco streaming_diloco eager_diloco decoupled_diloco async_local_sgd halos fsdp",
    "19_how_fast_could_it_be": "ringmaster",
}


def write(folder: Path) -> None:
    """Write all generated pages below `folder`, in the place of those that are there."""
    for name in ("strategies", "catalogue", "tutorials"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
    found, claims = entries("strategies"), claims_by_strategy()
    for entry in found:
        name = entry["name"]
        (folder / "strategies" / f"{name}.md").write_text(strategy_page(name, folder, claims.get(name, [])))
    (folder / "strategies" / "index.md").write_text(strategies_index(found))
    for kind in KINDS:
        if kind != "strategies":
            (folder / "catalogue" / f"{kind}.md").write_text(list_page(kind))
    (folder / "catalogue" / "index.md").write_text(catalogue_index())
    copy_documents(folder)
    (folder / "gallery.md").write_text(gallery(found, folder))
    (folder / "documents.md").write_text(documents_page.page())


def claims_by_strategy() -> dict:
    """Return the claims of papers that were tried, with their verdicts, by the strategy that they are about."""
    found: dict[str, list[str]] = {}
    for paper in map(load, NAMES):
        rows, own = {row.row: row for row in paper.rows}, {}
        for claim in stored_reproduction(paper.name).claims:
            if claim.claim.kind not in ("claim", "conditional"):
                continue
            for strategy in {about(paper, rows[name]) for name in claim.claim.rows} - {""}:
                line = f"- {sentence(claim)} **{verdict_words(claim).capitalize()}.**"
                own.setdefault(strategy, []).append(line)
        for strategy, lines in own.items():
            found.setdefault(strategy, []).append("\n".join([f"{paper.source}:\n", *lines]))
    return found


def about(paper, row) -> str:
    """Return the strategy that a published number is about; nothing if both sides of it have the same one."""
    names = [experiment_of(paper, each, "quick", 0).strategy.name for each in (row.experiment, row.baseline) if each]
    if not names or names[0] in names[1:]:
        return ""
    # one with other parameters, as hermes_16, has the name of its own in front
    return next((name for name in CATALOGUE if names[0] == name or re.fullmatch(rf"{name}_\d+", names[0])), "")


def copy_documents(folder: Path) -> None:
    """Copy notebooks and documents from elsewhere in the project; adapt the links between them."""
    notebooks = sorted((ROOT / "notebooks").glob("*.ipynb"))
    for notebook in notebooks:
        shutil.copy(notebook, folder / "tutorials" / notebook.name)
    shutil.copytree(ROOT / "notebooks" / "pictures", folder / "tutorials" / "pictures", dirs_exist_ok=True)
    listed = "\n".join(notebook.stem for notebook in notebooks)
    text = (
        "# Tutorials\n\nEach can be opened in JupyterLab with `psbench lab`.\n\n"
        f"```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n"
    )
    (folder / "tutorials" / "index.md").write_text(text)
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "DESIGN.md", "psbench/REFERENCES.md"):
        if (ROOT / name).exists():
            text = (ROOT / name).read_text().replace("](notebooks/site/", "](").replace("](CONTRIBUTING.md)", "](contributing.md)")
            (folder / Path(name).name.lower()).write_text(text)


def figure_of(name: str, path: Path) -> None:
    """Draw who waits for whom under a strategy, as an SVG file."""
    experiment = ps.Experiment(
        strategy=name,
        cluster={"workers": 3, "speed": [1, 1, 0.5]},
        data="digits",
        batch_size=96,
        stop={"epochs": 2},
    )
    run = ps.run(experiment)
    pushed = run.log.of_kind(Kind.PUSH)
    times = pushed["time_s"][pushed["worker"] == 2]
    shown_s = float(times[:SHOWN][-1]) * 1.02 if len(times) else None  # under some rules it never pushes
    sequence_figure(run, stop_s=shown_s).chart.properties(width=WIDTH).save(str(path))


def rendered(docstring: str) -> str:
    """Return a docstring as reStructuredText."""
    escaped = re.sub(r"\|(?=\w)", r"\\|", docstring)  # |w| is a norm and no substitution
    return str(NumpyDocstring(escaped, Config(napoleon_custom_sections=["Source", "Shapes"])))


def tutorials() -> dict:
    """Return the tutorial that shows each strategy, where there is one."""
    return {name: tutorial for tutorial, names in TUTORIALS.items() for name in names.split()}


def strategy_page(name: str, folder: Path, claims: list) -> str:
    """Return the page of one strategy, with the claims about it that were tried."""
    entry = entry_of("strategies", name)
    figure_of(name, folder / "strategies" / f"{name}.svg")
    parts = "\n\n".join(
        f"## {part['domain'].capitalize()}: `{part['name']}`\n\n```{{eval-rst}}\n{rendered(part['text'])}\n```"
        for part in entry["parts"]
    )
    cited = "\n".join(f"- {reference}" for reference in entry["references"])
    notebook = tutorials().get(name, "")
    shown = f" Shown in [tutorial {int(notebook[:2])}](../tutorials/{notebook}.ipynb)." if notebook else ""
    judged = "\n\n".join(claims)
    tried = (
        "\n\n## What was claimed\n\nVerdicts of the runs that come with psbench, at scale `quick`: see "
        f"[measurements](../measurements.md).\n\n{judged}"
    )
    return (
        f"# {name}\n\n{entry['summary'][0].upper()}{entry['summary'][1:]}.\n\n*Source: {entry['source']}.*{shown}\n\n"
        f"![Who waits for whom under {name}: three workers, the last of half the speed]({name}.svg)\n\n"
        f"```yaml\nstrategy: {name}\n```\n\n"
        f"## Parameters\n\n{parameter_table(entry['parameters'])}\n\n{parts}{tried if claims else ''}\n\n## References\n\n{cited}\n"
    )


def parameter_table(parameters: list) -> str:
    """Return a table of parameters, or a sentence where there are none."""
    if not parameters:
        return "It has no parameters of its own."
    rows = [
        "| parameter | default | range | meaning |\n|---|---|---|---|",
        *(
            f"| `{each['name']}` | `{each['default']}` | {cell(' '.join([each['unit'], each['range']]))} "
            f"| {cell(each['summary'])} |"
            for each in parameters
        ),
    ]
    return "\n".join(rows)


def strategies_index(found: list) -> str:
    """Return a row for each strategy."""
    rows = "\n".join(
        f"| [`{entry['name']}`]({entry['name']}.md) | {cell(entry['summary'])} | {cell(entry['source'])} "
        f"| {tutorial_link(entry['name'])} |"
        for entry in found
    )
    names = "\n".join(entry["name"] for entry in found)
    return (
        "# Strategies\n\nThe published strategies in psbench. Each page shows who waits for whom, the parameters and the sources.\n\n"
        f"| name | rule | source | tutorial |\n|---|---|---|---|\n{rows}\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    )


def tutorial_link(name: str) -> str:
    """Return a link to the tutorial that shows a strategy, or a dash."""
    tutorial = tutorials().get(name)
    return f"[{int(tutorial[:2])}](../tutorials/{tutorial}.ipynb)" if tutorial else "–"


def gallery(found: list, folder: Path) -> str:
    """Return the gallery: the figure of each strategy, and the first chart of each tutorial that has one."""
    figures = [
        card(
            f"strategies/{entry['name']}.svg",
            f"strategies/{entry['name']}.md",
            f"`{entry['name']}`",
            entry["summary"],
        )
        for entry in found
    ]
    charts = [first_chart(notebook, folder) for notebook in sorted((ROOT / "notebooks").glob("*.ipynb"))]
    return (
        "# Gallery\n\n## Who waits for whom\n\nThree workers, the last of half the speed, under each strategy.\n\n"
        f"{grid(figures)}\n\n## Charts of the tutorials\n\nEach tutorial has more charts.\n\n{grid(filter(None, charts))}\n"
    )


def first_chart(notebook: Path, folder: Path) -> str:
    """Return a card with the first picture that a tutorial has drawn; nothing if it has none."""
    cells = json.loads(notebook.read_text())["cells"]
    title = "".join(cells[0]["source"]).splitlines()[0].removeprefix("# ")
    drawn = [
        output["data"]["image/png"]
        for each in cells
        for output in each.get("outputs", ())
        if "image/png" in output.get("data", {})
    ]
    if not drawn:
        return ""
    (folder / "tutorials" / f"{notebook.stem}.png").write_bytes(base64.b64decode("".join(drawn[0])))
    return card(f"tutorials/{notebook.stem}.png", f"tutorials/{notebook.name}", title, "")


def card(picture: str, page: str, title: str, text: str) -> str:
    """Return a picture with a title, which leads to a page."""
    words = f"[{title}]({page}){': ' if text else ''}{text}"
    return f":::{{container}} gallery-card\n[![{title.strip('`')}]({picture})]({page})\n\n{words}\n:::"


def grid(cards) -> str:
    """Return cards side by side."""
    return "::::{container} gallery\n" + "\n".join(cards) + "\n::::"


def list_page(kind: str) -> str:
    """Return the page of one kind of things."""
    found = entries(kind)
    rows = "\n".join(
        f"| {entry['domain']} | `{entry['name']}` | {cell(entry['summary'])} | {cell(entry['source'])} |"
        for entry in found
    )
    return f"# {TITLES[kind]}\n\n| kind | name | description | source |\n|---|---|---|---|\n{rows}\n"


def catalogue_index() -> str:
    """Return the page that leads to the lists."""
    names = "\n".join(kind for kind in KINDS if kind != "strategies")
    return f"# Catalogue\n\nWhat a specification can name.\n\n```{{toctree}}\n:maxdepth: 1\n\n{names}\n```\n"


def heading_anchor(title: str) -> str:
    """Return the name that JupyterLab gives a heading."""
    return title.replace(" ", "-")


def cell(text: str) -> str:
    """Return a text as a cell of a Markdown table."""
    return text.replace("|", "\\|")
