"""Every strategy of the catalogue on three clusters does what it did; so do a saved run's files.

Pinned is what no CPU's arithmetic changes: of the log all but losses, of the model two sums to four digits.
Step times are constant and links cost exact amounts, so that times are the same everywhere.
PSBENCH_WRITE_GOLDEN=1 writes the file anew; `CHANGELOG.md` says what changed, and why.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import yaml

from psbench import strategies
from psbench.core.checked_log import check_log
from psbench.core.log import FIELDS, Kind
from psbench.errors import SpecError
from psbench.metrics.recording_reader import recording
from psbench.runs.execution import run
from psbench.testing import toy_experiment

PINS = Path(__file__).parent / "golden" / "pins.json"
NAMES = sorted(strategies.CATALOGUE)

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
    if os.environ.get("PSBENCH_WRITE_GOLDEN"):
        found = {name: {cluster: pin(name, cluster) for cluster in CLUSTERS} for name in NAMES}
        found |= {"files": saved_run(tmp_path_factory.mktemp("pinned") / "run")}
        PINS.write_text(json.dumps(found, indent=1) + "\n")
    return json.loads(PINS.read_text())


@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_does_what_it_did(name, pins):
    for cluster, pinned in pins[name].items():
        found = pin(name, cluster)
        model, before = found.pop("model", None), pinned.pop("model", None)
        assert found == pinned, cluster
        if before is not None:
            np.testing.assert_allclose(model, before, rtol=2e-3, err_msg=cluster)


def test_every_strategy_is_pinned_on_every_cluster(pins):
    assert sorted({*pins} - {"files"}) == NAMES
    assert {tuple(found) for name, found in pins.items() if name != "files"} == {tuple(CLUSTERS)}


def test_a_saved_run_has_the_files_that_it_had(pins, tmp_path):
    assert saved_run(tmp_path / "run") == pins["files"]
