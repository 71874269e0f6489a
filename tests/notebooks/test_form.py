"""The form of the notebooks; that they run is tested by `make notebooks`."""

from __future__ import annotations

import ast
import io
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import altair as alt
import nbformat
import pytest
import vl_convert
from fresh_notebooks import differences, source_digest
from PIL import Image
from smoke_sizes import UNDRAWN, small
from vega import JUPYTERLAB, OWN, marks, with_rows

from psbench import charts
from psbench.charts.display import LIVE

FOLDER = Path(__file__).parents[2] / "notebooks"
NAMES = [
    "01_first_run",
    "02_consistency",
    "03_strategy_switch",
    "04_data_sharding",
    "05_dask_cluster",
    "06_write_a_strategy",
    "07_lab",
    "08_local_updates",
    "09_edge",
    "10_batch_sizes",
    "11_compression",
    "12_mapreduce_vs_ps",
    "13_late_gradients",
    "14_bring_your_own",
    "15_reproduce",
    "16_low_communication",
    "17_twin",
    "18_which_samples",
    "19_how_fast_could_it_be",
    "20_why",
]
CHECK = "# NBVAL_CHECK_OUTPUT"
PANEL = "application/vnd.jupyter.widget-view+json"
#: notebooks whose cells were edited after their outputs were stored; `make notebooks-fresh` empties it
OUTDATED: set[str] = set()
#: what a live run reports when a notebook kills one of its workers
KILLS = re.compile(r"worker \d+ was lost at [\d.]+ s\n")
#: what a notebook may weigh in a clone
LARGEST = 430_000


@pytest.fixture(params=NAMES)
def notebook(request: pytest.FixtureRequest) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / f"{request.param}.ipynb", as_version=4)


def code(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_the_first_one_installs_in_colab_and_nowhere_else(monkeypatch):
    """The cell is left out of the sizes' test, and runs with all others."""
    first = nbformat.read(FOLDER / "01_first_run.ipynb", as_version=4)
    (cell,) = [cell for cell in code(first) if cell.metadata.get("colab") == "install"]
    assert code(first)[0] is cell
    asked = []
    shell = SimpleNamespace(run_line_magic=lambda *words: asked.append(words))
    exec(cell.source, {"get_ipython": lambda: shell})
    assert not asked
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    exec(cell.source, {"get_ipython": lambda: shell})
    assert asked == [("pip", "install -q psbench[lab]")]


def test_every_notebook_is_listed():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES


def test_it_begins_with_what_will_be_seen_and_how_long_it_takes(notebook):
    first = notebook.cells[0]
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
    assert "**You will see**" in first.source
    assert "**Expected time:**" in first.source


def test_it_asks_before_it_tries_and_ends_with_an_exercise(notebook):
    headings = [
        line
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        for line in cell.source.splitlines()
        if line.startswith("## ")
    ]
    assert headings[0] == "## The question"
    assert headings[-1] == "## Exercise"


def numbers(text: str) -> list[str]:
    return re.findall(r"^(\d+)\. ", text, re.MULTILINE)


def test_every_exercise_has_an_answer_folded_below_it(notebook):
    text = notebook.cells[-1].source.split("## Exercise")[1]
    exercises, *_ = text.split("<details>")
    # without the empty lines JupyterLab shows Markdown as it is written
    fold = r"<details><summary>(Answers?)(?: (\d+))?</summary>\n\n(.+?)\n\n</details>"
    answers = re.findall(fold, text, re.DOTALL)
    assert len(answers) == text.count("<details>")
    answered = [
        found
        for word, number, body in answers
        for found in (numbers(body) if word == "Answers" else [number])
    ]
    assert answered == (numbers(exercises) or [""])


def test_python_in_answers_is_python(notebook):
    for block in re.findall(r"^```python\n(.+?)^```", notebook.cells[-1].source, re.DOTALL | re.MULTILINE):
        ast.parse(block)


def test_the_first_one_shows_the_way_to_all_others():
    text = nbformat.writes(nbformat.read(FOLDER / "01_first_run.ipynb", as_version=4))
    named = {name for name, _ in re.findall(r"\]\((\w+)\.ipynb(#[\w-]+)?\)", text)}
    assert named == set(NAMES) - {"01_first_run"}


def test_sizes_come_from_one_cell_and_the_small_ones_are_hidden(notebook):
    first, *others = [cell for cell in code(notebook) if "colab" not in cell.metadata]
    sizes = first.metadata["smoke"]
    assert sizes
    for name, value in sizes.items():
        assert f"\n{name} = {value}\n" not in f"\n{first.source}\n"
        assert f"\n{name} = {value}\n" in f"\n{small(first.source, sizes)}\n"
    assert not [cell for cell in others if "smoke" in cell.metadata]
    assert "SMOKE" not in nbformat.writes(notebook)


def test_a_size_that_the_cell_does_not_set_is_an_error():
    with pytest.raises(ValueError, match="ROUNDS"):
        small("EPOCHS = 12", {"ROUNDS": "2"})


def test_it_has_no_helper_functions(notebook):
    for cell in code(notebook):
        for statement in ast.parse(cell.source).body:
            assert not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)), cell.source
            assert not isinstance(getattr(statement, "value", None), ast.Lambda), cell.source


def test_it_was_run_from_top_to_bottom_without_error_or_warning(notebook):
    assert [cell.execution_count for cell in code(notebook)] == list(range(1, len(code(notebook)) + 1))
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    warned = "".join(output.text for output in outputs if output.get("name") == "stderr")
    assert KILLS.sub("", warned) == ""


def test_outputs_are_those_of_the_cells():
    """A cell that is edited without `make notebooks-fresh` has another digest."""
    notebooks = {name: nbformat.read(FOLDER / f"{name}.ipynb", as_version=4) for name in NAMES}
    digests = {name: {"source": source_digest(each)} for name, each in notebooks.items()}
    assert {name for name in NAMES if notebooks[name].metadata.get("psbench") != digests[name]} == OUTDATED


def test_other_text_of_an_output_is_a_difference_and_an_address_is_none(notebook):
    """The comparison of `python -m tests.fresh_notebooks --check`."""
    other = nbformat.from_dict(notebook)
    assert not [*differences(notebook, other)]
    cell = next(cell for cell in code(other) if cell.source.startswith(CHECK))
    cell.outputs.append(nbformat.v4.new_output("stream", text="<object at 0x7f00>"))
    (found,) = differences(notebook, other)
    assert "<object at 0x>" in found


def test_checked_cells_have_the_output_to_check_against(notebook):
    checked = [cell for cell in code(notebook) if cell.source.startswith(CHECK)]
    assert checked
    for cell in checked:
        assert cell.outputs, cell.source
        assert not any(PANEL in output.get("data", {}) for output in cell.outputs), cell.source


def test_charts_have_a_picture_for_whoever_cannot_draw_them(notebook):
    for cell in code(notebook):
        for output in cell.outputs:
            data = output.get("data", {})
            assert ("image/png" in data) == any(kind.startswith("application/vnd.vegalite") for kind in data)


@pytest.mark.by_day(3)
def test_jupyterlab_draws_every_mark_of_its_charts(notebook):
    for output in (output for cell in code(notebook) for output in cell.outputs):
        if LIVE in output.get("data", {}):
            sheet = output.data[LIVE]
            for chart in sheet["vconcat"]:
                alone = sheet | {"vconcat": [chart]}
                drawn = marks(alone, JUPYTERLAB)
                assert drawn, chart["title"]
                assert len(drawn) == len(marks(with_rows(alone), OWN)), chart["title"]


def test_no_state_of_widgets_is_kept(notebook):
    # a view without its state is drawn as an error, and the state is large
    assert set(notebook.metadata) - {"psbench"} == {"kernelspec", "language_info"}
    assert not any(PANEL in output.get("data", {}) for cell in code(notebook) for output in cell.outputs)


def test_it_is_small_and_names_no_place_on_somebody_s_machine(notebook):
    text = nbformat.writes(notebook)
    assert len(text) < LARGEST
    assert not [word for word in ("home", "tmp", "root", "Users") if f"/{word}/" in text]


def test_a_chart_that_is_not_drawn_is_still_shown(monkeypatch):
    monkeypatch.setattr(vl_convert, "vegalite_to_png", vl_convert.vegalite_to_png)  # to be put back
    exec(UNDRAWN, {})
    bundle, _ = charts.stack([alt.Chart().mark_point()]).still()
    assert Image.open(io.BytesIO(bundle["image/png"])).size == (1, 1)
