"""Every strategy of the catalogue on three clusters does what it did; so do a saved run's files.

Pinned is what no CPU's arithmetic changes: of the log all but losses, of the model two sums to four digits.
Step times are constant and links cost exact amounts, so that times are the same everywhere.
PSBENCH_WRITE_GOLDEN=1 adds the pins that are missing; PSBENCH_WRITE_GOLDEN=all rewrites every pin, and
`CHANGELOG.md` lists what changed, and why.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import yaml
from golden_files import is_rewritten

from psbench import strategies
from psbench.core.checked_log import check_log
from psbench.core.log import FIELDS, Kind
from psbench.errors import SpecError
from psbench.metrics.recording_reader import recording
from psbench.runs.execution import run
from psbench.testing import toy_experiment

PINS = Path(__file__).parent / "golden" / "pins.json"
NAMES = sorted(strategies.CATALOGUE)

#: for the messages of failures
ADD = "add them with `PSBENCH_WRITE_GOLDEN=1 pytest tests/test_pinned_logs.py`, and commit the added lines"
REWRITE = "rewrite all with `PSBENCH_WRITE_GOLDEN=all pytest tests/test_pinned_logs.py`"
CHANGE = f"if this change is intended, {REWRITE}, and describe it in CHANGELOG.md"

CLUSTERS = {
    "two slow of nine": {"name": "c2", "step_time": "constant", "latency_s": 2**-10},
    "equal behind a slow shared link": {
        **{"workers": 4, "step_time": "constant", "latency_s": 2**-9, "bandwidth_mbit_s": 1.0},
        **{"server_bandwidth_mbit_s": 1.0, "link_sharing": "equal"},
    },
    "one slow that fails and comes back": {
        **{"workers": 4, "speed": [1, 1, 1, 0.4], "step_time": "constant"},
        "failures": [{"worker": 3, "at_s": 0.06, "rejoin_s": 0.11}],
    },
}
#: rows whose text has numbers that come of losses or gradients
MEASURED = (Kind.PUSH, Kind.VOTE, Kind.REPORT, Kind.MEASURED, Kind.EVALUATED)
DIGITS = re.compile(r"-?\d+\.\d+(e[+-]?\d+)?")


def pin(name, cluster):
    """Return the pinned facts of a run, or that the strategy refuses the cluster."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            experiment = toy_experiment(name, cluster=CLUSTERS[cluster], batch_size=36, stop={"epochs": 3})
        except SpecError:
            return {"refused": True}
        done = run(experiment)
    check_log(Path("log"), done.log, experiment.num_workers)
    return {
        "rows": len(done.log),
        "log": digest(events(done.log)),
        "panel": digest([*panel(done.log)]),
        "model": [float(f"{value:.4g}") for value in sums(done.parameters)],
    }


def events(log):
    rows = log.rows()
    for row in rows:
        shown = [row[field].item() for field, _ in FIELDS if field not in ("loss", "text")]
        text = "" if row["kind"] in MEASURED else DIGITS.sub("#", log.text(row["text"]))
        yield [*shown, text]


def panel(log):
    shown = recording(log)
    for name, table in shown.tables.items():
        yield [name, {column: values.tolist() for column, values in table.items()}]
    yield [shown.end_s, shown.workers, shown.whys]


def sums(parameters):
    values = parameters.double()
    return values.abs().sum().item(), values.square().sum().item()


def digest(content):
    return hashlib.sha256(json.dumps([*content]).encode()).hexdigest()[:16]


def files_of(folder):
    """Return the files of a saved run, each with the names of what is in it."""
    found = {}
    for path in sorted(folder.rglob("*.*")):
        if path.suffix == ".json":
            content = sorted(json.loads(path.read_text()))
        elif path.suffix == ".yaml":
            content = sorted(yaml.safe_load(path.read_text()))
        elif path.suffix == ".npz":
            content = sorted(np.load(path).files)
        else:
            content = [str(field) for field in pyarrow.parquet.read_schema(path).remove_metadata()]
        found[str(path.relative_to(folder))] = content
    return found


def saved_run(folder):
    run(toy_experiment("ssp", checkpoint_every=1), folder=folder)
    return files_of(folder)


@pytest.fixture(scope="module")
def pins(tmp_path_factory):
    return pinned(PINS, lambda: tmp_path_factory.mktemp("pinned") / "run")


def pinned(path, new_folder, names=NAMES):
    """Return the pins of a file, after writing those that the user asked for."""
    before = json.loads(path.read_text())
    found = {name: pins_of(name, before.get(name, {})) for name in names}
    kept = {} if is_rewritten(exists=True) else before  # with "all", names that have left the catalogue go
    found = kept | {name: pins for name, pins in found.items() if pins}
    if is_rewritten("files" in before):
        found["files"] = saved_run(new_folder())
    if found != before:
        files = {"files": found.pop("files")}
        path.write_text(json.dumps({name: found[name] for name in sorted(found)} | files, indent=1) + "\n")
    return json.loads(path.read_text())


def pins_of(name, before):
    """Return the pins of a strategy: a new one on each cluster where the user asked for it."""
    return {
        cluster: pin(name, cluster) if is_rewritten(cluster in before) else before[cluster]
        for cluster in CLUSTERS
        if cluster in before or is_rewritten(exists=False)
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_does_what_it_did(name, pins):
    assert name in pins, f"{name} has no pins yet: {ADD}"
    for cluster, expected in pins[name].items():
        found = pin(name, cluster)
        model, before = found.pop("model", None), expected.pop("model", None)
        assert found == expected, f"{name} on {cluster!r}: {CHANGE}"
        if before is not None:
            np.testing.assert_allclose(model, before, rtol=2e-3, err_msg=f"{name} on {cluster!r}: {CHANGE}")


def test_every_strategy_is_pinned_on_every_cluster(pins):
    assert sorted({*pins} - {"files"}) == NAMES, f"{ADD}; pins of removed names: {REWRITE}"
    assert {tuple(found) for name, found in pins.items() if name != "files"} == {tuple(CLUSTERS)}, ADD


def test_a_saved_run_has_the_files_that_it_had(pins, tmp_path):
    assert saved_run(tmp_path / "run") == pins["files"], CHANGE


def test_a_new_pin_leaves_the_others_as_they_are(tmp_path, monkeypatch):
    """A change of an old strategy would otherwise be written silently beside a new one."""
    path, wrong = tmp_path / "pins.json", {cluster: {"rows": 0} for cluster in CLUSTERS}
    before = {"bsp": wrong, "left": wrong, "files": {}}
    path.write_text(json.dumps(before))

    def names(asked):
        monkeypatch.setenv("PSBENCH_WRITE_GOLDEN", asked)
        return pinned(path, lambda: tmp_path / "run", ["asp", "bsp"])

    assert names("") == before
    added = names("1")
    assert [*added] == ["asp", "bsp", "left", "files"]
    assert {name: added[name] for name in before} == before
    rewritten = names("all")
    assert [*rewritten] == ["asp", "bsp", "files"]
    assert rewritten["asp"] == added["asp"]
    assert rewritten["bsp"] != wrong
