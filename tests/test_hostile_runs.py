"""A saved run with faults is refused with the name of its file, or read: no other error, in bounded time and memory.

Faults are in a file's bytes, or in what its valid JSON, YAML, Parquet or npz holds. A run that is accepted goes
through everything that reads one: summary, tables, the panel's recording, replay, and now and then a report. A
small sample runs with the other tests; the long one, at night, in processes of their own.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import warnings
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hostile import changed, faulty

from psbench import PsbenchError, Run, compare, replay
from psbench.core.log import ROW
from psbench.errors import DataError, SpecError
from psbench.metrics.recording import recording
from psbench.results.frames import TABLES
from psbench.runs.execution import run
from psbench.testing import toy_experiment

#: bytes of memory that reading one run may take more than the reading before it
MEMORY = 300_000_000
SECONDS = 10
#: with texts of every kind in their logs
STRATEGIES = ("bsp", "selsync", "d_psgd", "hermes")


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> dict[str, Path]:
    return save_all(tmp_path_factory.mktemp("saved"))


def save_all(home: Path) -> dict[str, Path]:
    """Save a run of each strategy, with its log in both formats of which one is read."""
    found = {}
    for name in STRATEGIES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            done = run(toy_experiment(name, stop={"updates": 8}, cluster={"workers": 3}))
        found[name] = done.save(home / name)
        done.save(home / f"{name}-json", log="json")
        found[f"{name}-json"] = home / f"{name}-json"
    return found


def in_json(path: Path, rng: np.random.Generator) -> None:
    path.write_text(json.dumps(faulty(json.loads(path.read_text()), rng)))


def in_yaml(path: Path, rng: np.random.Generator) -> None:
    path.write_text(yaml.safe_dump(faulty(yaml.safe_load(path.read_text()), rng)))


def in_parquet(path: Path, rng: np.random.Generator) -> None:
    table = pq.read_table(path)
    about = dict(table.schema.metadata)
    fault, name = rng.integers(5), ROW.names[rng.integers(len(ROW.names))]
    place = table.column_names.index(name)
    if fault == 0:
        texts = faulty(json.loads(about[b"psbench.texts"]), rng)
        about[b"psbench.texts"] = json.dumps(texts).encode()
    elif fault == 1:
        key = list(about)[rng.integers(len(about))]
        about[key] = [b"", b"\xff\xfe", b"9" * 30, b"null"][rng.integers(4)]
    elif fault == 2:
        kind = [pa.string(), pa.float64(), pa.int64(), pa.list_(pa.int8())][rng.integers(4)]
        table = table.set_column(place, name, pa.nulls(len(table), kind))
    elif fault == 3:
        table = table.drop_columns([name])
    else:
        values = np.array(table[name].to_numpy(), copy=True)
        limits = (np.nan, np.inf, -1.0, 1e300) if values.dtype.kind == "f" else (
            np.iinfo(values.dtype).min, np.iinfo(values.dtype).max, 1, 30_000_000 % np.iinfo(values.dtype).max)  # fmt: skip
        values[rng.integers(len(values))] = limits[rng.integers(4)]
        table = table.set_column(place, name, pa.array(values))
    pq.write_table(table.replace_schema_metadata(about), path)


def in_text_of_log(path: Path, rng: np.random.Generator) -> None:
    """Put a fault into the JSON of a row's text."""
    table = pq.read_table(path)
    about = dict(table.schema.metadata)
    texts = json.loads(about[b"psbench.texts"])
    plain = [place for place, text in enumerate(texts) if text.startswith("{")]
    place = plain[rng.integers(len(plain))]
    texts[place] = json.dumps(faulty(json.loads(texts[place]), rng))
    pq.write_table(table.replace_schema_metadata(about | {b"psbench.texts": json.dumps(texts)}), path)


def in_npz(path: Path, rng: np.random.Generator) -> None:
    with np.load(path) as content:
        arrays = dict(content)
    name = list(arrays)[rng.integers(len(arrays))]
    if arrays[name].dtype.kind == "U":
        text = json.dumps(faulty(json.loads(str(arrays[name])), rng))
        arrays[name] = np.array(text) if "\\ud800" not in text else np.array("\ud800")
    else:
        array = arrays[name]
        others = [
            array[:1],
            array[None],
            array.astype(np.float16),
            array.astype("U3"),
            np.zeros((3, 0)),
            array * np.nan,
        ]
        arrays[name] = others[rng.integers(len(others))]
    np.savez(path, **arrays)


def in_bytes(path: Path, rng: np.random.Generator) -> None:
    path.write_bytes(changed(path.read_bytes(), rng))


#: by name: which of the saved runs, which file, what is done to it
FAULTS: dict[str, tuple[str, str, Callable[[Path, np.random.Generator], None]]] = {
    "record": ("", "run.json", in_json),
    "record bytes": ("", "run.json", in_bytes),
    "specification": ("", "experiment.yaml", in_yaml),
    "specification bytes": ("", "experiment.yaml", in_bytes),
    "log": ("", "log.parquet", in_parquet),
    "log texts": ("", "log.parquet", in_text_of_log),
    "log bytes": ("", "log.parquet", in_bytes),
    "json log": ("-json", "log.json", in_json),
    "json log bytes": ("-json", "log.json", in_bytes),
    "model": ("", "model.npz", in_npz),
    "model bytes": ("", "model.npz", in_bytes),
}


def use(folder: Path, with_report: bool) -> bool:
    """Read a run as commands and the panel do; return whether it is refused when it is loaded."""
    try:
        found = Run.load(folder)
    except (DataError, SpecError) as error:
        message = str(error)
        assert "\n" not in message, message
        assert str(folder) in message, message
        return True
    json.dumps(found.summary(), allow_nan=False)
    for table in TABLES:
        found.frame(table)
    recording(found.log)
    compare([found]).text(width=100)
    with_report = with_report and found.experiment.num_workers < 50
    if with_report:
        compare([found]).report(folder / "report.html")
    try:
        replay(found)
    except PsbenchError as error:
        assert "\n" not in str(error)
    return False


def try_runs(fault: str, runs: dict[str, Path], home: Path, seed: int, count: int, seconds: int = 0) -> int:
    """Use runs with a fault; return the number refused. A run with any other error is left there."""
    ending, name, put_in = FAULTS[fault]
    rng = np.random.default_rng([seed, *fault.encode()])
    home.mkdir()
    # what libraries take is taken now
    use(Path(shutil.copytree(runs["hermes"], home / "whole")), with_report=bool(seconds))
    refused = 0
    for number in range(count):
        source = runs[STRATEGIES[number % len(STRATEGIES)] + ending]
        folder = Path(shutil.copytree(source, home / str(number)))
        put_in(folder / name, rng)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        signal.alarm(seconds)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                refused += use(folder, with_report=bool(seconds) and number % 10 == 0)
        finally:
            signal.alarm(0)
        more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert more * 1024 < MEMORY, f"{folder} takes {more / 1024} MB"
        shutil.rmtree(folder)
    return refused


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_run_is_refused_or_read(saved, tmp_path, fault):
    assert try_runs(fault, saved, tmp_path / "tried", 0, 8) > 0


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in other units")
@pytest.mark.parametrize("fault", FAULTS)
def test_many_damaged_runs(saved, tmp_path, fault):
    """A process of its own dies of a crash or of the alarm, and its last run is there to be looked at."""
    seed = int(os.environ.get("PSBENCH_FUZZ_SEED", "1"))
    count = int(os.environ.get("PSBENCH_FUZZ_FILES", "1000"))
    process = get_context("spawn").Process(
        target=try_runs, args=(fault, saved, tmp_path / "tried", seed, count, SECONDS)
    )
    process.start()
    process.join()
    assert process.exitcode == 0, f"seed {seed}: {list((tmp_path / 'tried').iterdir())}"
