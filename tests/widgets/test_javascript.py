"""The page's half: its own tests in Node.js, and that the bundle was made from the sources that are here."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from oracles.moment import told

from psbench.core.log import EventLog, Kind
from psbench.experiment import Experiment
from psbench.metrics.recording_reader import recording
from psbench.results.run import Run
from psbench.runs.execution import run
from psbench.runs.fork import Fork, fork
from psbench_widgets.frontend import STATIC
from psbench_widgets.playback import bounds_of, film

HERE = Path(__file__).parent
SOURCES = STATIC.parent / "js"
TESTS = sorted(HERE.glob("*.test.mjs"))


def test_the_bundle_was_made_from_these_sources() -> None:
    digest = hashlib.sha256()
    for file in sorted(SOURCES.iterdir()):
        if re.search(r"\.(js|mjs|css)$|^package.*json$", file.name):
            digest.update(file.read_bytes())
    first = (STATIC / "engine.js").read_text().partition("\n")[0]
    assert digest.hexdigest() in first, "run `npm ci && npm run build` in widgets/psbench_widgets/js"


def test_no_line_is_too_long() -> None:
    files = [*SOURCES.glob("*.js"), *SOURCES.glob("*.mjs"), *TESTS]
    lines = [(file.name, line) for file in files for line in file.read_text().splitlines()]
    assert [each for each in lines if len(each[1]) > 110] == []


def test_tooltips_define_terms_as_the_glossary_does() -> None:
    terms = re.findall(r'^  "(.+)": "(.+)",$', (SOURCES / "terms.js").read_text(), re.MULTILINE)
    glossary = (HERE.parents[1] / "notebooks/site/glossary.md").read_text()
    assert len(terms) > 5
    assert [each for each in terms if "| **{}** | {} |".format(*each) not in glossary] == []


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.name.partition(".")[0])
def test_what_the_page_computes(file: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node found: install Node.js 20 or newer to test the page's half")
    done = subprocess.run([node, "--test", file], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


#: prints the sentences of the moments of a film, which are read from the standard input
SENTENCES = """
import { Recording } from "./recording.js"; import { sentence } from "./sentence.js";
let text = ""; for await (const piece of process.stdin) text += piece;
const { film, times } = JSON.parse(text); const recording = new Recording(film);
const how = { chosen: null, ended: false, running: false, end: recording.whole, shown: (t) => t.toFixed(4) };
console.log(JSON.stringify(times.map((t) => sentence(recording.at(t), how).join(" "))));
"""


CLUSTER = {"workers": 4, "speed": [1, 1, 1, 0.4]}


def experiment(strategy: str) -> Experiment:
    return Experiment(strategy=strategy, cluster=CLUSTER, stop={"updates": 60}, timing_only=True)


def sentences(done: Run, times: list[float]) -> list[str]:
    """Return what the page says of moments of a run."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node found: install Node.js 20 or newer to test the page's half")
    asked = json.dumps({"film": film(done.experiment, done.log, "run", "run"), "times": times})
    command = [node, "--input-type=module", "-e", SENTENCES]
    said = subprocess.run(command, input=asked, cwd=SOURCES, capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
    found: list[str] = json.loads(said.stdout)
    recorded = recording(done.log, bounds_of(done.experiment))
    assert found == [told(recorded, at, recorded.end_s) for at in times]
    return found


@pytest.mark.parametrize("strategy", ["bsp", "ssp", "k_bsp", "all_reduce", "d_psgd"])
def test_sentences_of_sixty_moments_are_true_of_the_log(strategy: str) -> None:
    """Who waits, for whom, why, and which push of whom ends the wait."""
    done = run(experiment(strategy))
    times = np.random.default_rng(7).uniform(0, recording(done.log).end_s, 60).tolist()
    said = sentences(done, times)
    assert len(ends_of_waits(done, times, said)) >= 4
    then = {"k_bsp": " and ends the wait.", "all_reduce": "the exchange begins."}
    assert any(each.endswith(then.get(strategy, "; then all 3 go on.")) for each in said)


def ends_of_waits(done: Run, times: list[float], all_said: list[str]) -> list[str]:
    """Return the workers whose push is said to end a wait, each at the time at which that push did."""
    workers = []
    for at, said in zip(times, all_said, strict=True):
        for worker, step, left, unit in ENDING.findall(said):
            left_s = float(left) * {"s": 1, "ms": 1e-3, "µs": 1e-6}[unit]  # of three digits
            assert pushed(done.log, int(worker), int(step)) - at == pytest.approx(left_s, rel=0.01)
            workers.append(worker)
    return workers


def test_a_push_that_ends_a_switch_has_the_number_that_it_had_before() -> None:
    """The switch makes all clocks equal at the instant at which the last push arrives."""
    before = run(experiment("ssp"))
    at_s = recording(before.log, [3]).next("wait", -1.0)
    assert at_s is not None
    done = run(fork(before, Fork(at_s, strategy="asp")))
    assert ends_of_waits(done, [at_s + 1e-6], sentences(done, [at_s + 1e-6])) == ["3"]


ENDING = re.compile(r"Worker (\d+)(?:'s| ends its) step (\d+)(?: arrives)? in ([\d.]+) (s|ms|µs)")


def pushed(log: EventLog, worker: int, step: int) -> float:
    """Return when a worker's push of that number arrived or, if it completed a ring, was ready to be sent."""
    rows = log.rows()
    own = rows[(rows["kind"] == Kind.PUSH) & (rows["worker"] == worker)][step - 1]
    return float(own["time_s"] - own["send_s"] * ("collective" in log.text(int(own["text"]))))
