"""A saved run with faults is refused with the name of its file, or read, in bounded time and memory.

Faults are in a file's bytes, or in what its valid JSON, YAML, Parquet or npz holds. A run that is accepted
goes through everything that reads one: summary, tables, the panel's recording, replay, and now and then a
report. A small sample runs with the other tests; the long one, at night, in processes of their own.
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
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hostile import WRONG, changed, faulty, nodes, replaced

from psbench import PsbenchError, Run, compare, replay
from psbench.checkpoints.file import Checkpoint
from psbench.cli import main
from psbench.clusters.connection import ConnectionSettings
from psbench.clusters.scheduler import address_of
from psbench.core.log import ROW, EventLog, Kind
from psbench.errors import DamagedFile, DataError, ParameterError, ReplayMismatch, SpecError
from psbench.metrics.recording_reader import recording
from psbench.results.frames import TABLES
from psbench.results.record_file import read_facts, read_summary
from psbench.results.storage import write_log
from psbench.runs.execution import run
from psbench.runs.sweeps.cells import Cell
from psbench.testing import toy_experiment

#: bytes of memory that reading one run may take more than the reading before it
MEMORY = 300_000_000
SECONDS = 10  #: of CPU, in which a report takes the most
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
    path.write_text(json.dumps(faulty(yaml.safe_load(path.read_text()), rng)))  # which is YAML, too


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
        whole = None if values.dtype.kind == "f" else np.iinfo(values.dtype)
        limits = (
            (np.nan, np.inf, -1.0, 1e300) if whole is None else (whole.min, whole.max, 1, 30_000 % whole.max)
        )
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
        message = str(error)
        assert "\n" not in message
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
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                refused += use(folder, with_report=bool(seconds) and number % 10 == 0)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert more * 1024 < MEMORY, f"{folder} takes {more / 1024} MB"
        shutil.rmtree(folder)
    return refused


@pytest.mark.by_day(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_run_is_refused_or_read(saved, tmp_path, fault):
    assert try_runs(fault, saved, tmp_path / "tried", 0, 8) > 0


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in other units")
@pytest.mark.parametrize("fault", FAULTS)
def test_many_damaged_runs(saved, tmp_path, fault):
    """A process of its own dies of a crash or of the timer, and its last run is there to be looked at."""
    seed = int(os.environ.get("PSBENCH_FUZZ_SEED", "1"))
    count = int(os.environ.get("PSBENCH_FUZZ_FILES", "1000"))
    process = get_context("spawn").Process(
        target=try_runs, args=(fault, saved, tmp_path / "tried", seed, count, SECONDS)
    )
    process.start()
    process.join()
    assert process.exitcode == 0, f"seed {seed}: {list((tmp_path / 'tried').iterdir())}"


# ---------------------------------------------------------------- one case each


def column(folder: Path, name: str, place: int, value: Any) -> None:
    """Change one number of a JSON log; `place` is the one of its push rows."""
    path = folder / "log.json"
    content = json.loads(path.read_text())
    rows = [row for row, kind in enumerate(content["columns"]["kind"]) if kind == "push"]
    content["columns"][name][rows[place]] = value
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("id", 300_000_000, "has a push whose number is not from 0 to"),
        ("id", 1, "has a duplicate push number"),
        ("id", 33, "has the use of a push that has not arrived"),
        ("worker", 2**63, "must be less than or equal to 65535, got 9223372036854775808"),
        ("worker", 3, "has a worker beyond 2"),
        ("time_s", -1.0, "has a time that is negative"),
        ("samples", 10**40, "columns.samples"),
        ("text", 999, "has a reference to a missing text"),
    ],
)
@pytest.mark.parametrize("command", ["report", "replay"])
def test_no_number_of_a_log_decides_on_memory(saved, tmp_path, capsys, name, value, words, command):
    folder = Path(shutil.copytree(saved["bsp-json"], tmp_path / "run"))
    column(folder, name, 0, value)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main([command, str(folder)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {folder / 'log.json'}: ")
    assert words in error
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_record_of_other_workers_is_refused(saved, tmp_path):
    folder = Path(shutil.copytree(saved["bsp"], tmp_path / "run"))
    record = json.loads((folder / "run.json").read_text())
    record["meta"] |= {"num_workers": 10**9, "capacity": [], "label_counts": None, "speeds": []}
    (folder / "run.json").write_text(json.dumps(record))
    with pytest.raises(
        DataError, match=r"run.json: meta.num_workers: is 1000000000, but experiment.yaml has 3"
    ):
        Run.load(folder)


def test_rows_that_a_file_says_it_has_are_checked_against_memory(saved, monkeypatch):
    monkeypatch.setattr("psbench.system.limits.available_memory", lambda: 1000)
    with pytest.raises(PsbenchError, match=r"log.parquet: its \d+ rows would need about"):
        Run.load(saved["bsp"])


@pytest.mark.parametrize("strategy", ["bsp", "hermes"])
def test_wrong_values_of_a_record_have_a_place(saved, tmp_path, strategy):
    whole = json.loads((saved[strategy] / "run.json").read_text())
    path, refused = tmp_path / "run.json", 0
    for place, node in enumerate(nodes(whole)):
        for wrong in WRONG[place % 9 :: 9]:
            path.write_text(json.dumps(replaced(whole, node, wrong)))
            for read in (read_facts, read_summary):
                try:
                    read(path)
                except DataError as error:
                    refused += 1
                    message = str(error)
                    assert message.startswith(f"{path}: ")
    assert refused > 100


def test_fields_that_the_record_needs_are_those_that_are_read(saved, tmp_path):
    whole = json.loads((saved["bsp"] / "run.json").read_text())
    for name in ("status", "num_workers", "dataset_size", "model_bytes", "num_parameters", "layout"):
        meta = {key: value for key, value in whole["meta"].items() if key != name}
        (tmp_path / "run.json").write_text(json.dumps({"meta": meta}))
        with pytest.raises(DataError, match=rf"run.json: meta.{name}: is required"):
            read_facts(tmp_path / "run.json")


def test_of_several_runs_the_damaged_one_is_named(saved, tmp_path, capsys):
    folder = Path(shutil.copytree(saved["bsp"], tmp_path / "bad"))
    in_bytes(folder / "log.parquet", np.random.default_rng(0))
    out = tmp_path / "report.html"
    assert main(["report", str(saved["selsync"]), str(folder), "--out", str(out)]) == 2
    assert str(folder / "log.parquet") in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.by_day(3)
@pytest.mark.parametrize("fault", [name for name, (ending, *_) in FAULTS.items() if not ending])
def test_a_damaged_cell_is_made_again_with_a_warning(tmp_path, fault):
    experiment = toy_experiment("bsp", stop={"updates": 4}, cluster={"workers": 2})
    cell = Cell(experiment)
    whole = run(experiment).save(tmp_path / cell.folder_name)
    assert cell.find(tmp_path) == whole
    _, name, put_in = FAULTS[fault]
    content = (whole / name).read_bytes()
    rng, made_again = np.random.default_rng(3), 0
    for _ in range(12):
        put_in(whole / name, rng)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if cell.find(tmp_path) is None and caught:
                made_again += 1
                assert {each.category for each in caught} == {DamagedFile}
                assert str(whole) in str(caught[0].message)
        (whole / name).write_bytes(content)
    assert made_again > 0
    assert cell.find(tmp_path) == whole


def test_a_scheduler_s_file_is_an_address_or_refused(tmp_path):
    path, rng = tmp_path / "scheduler.json", np.random.default_rng(0)
    whole = {
        "type": "Scheduler",
        "id": "Scheduler-1",
        "address": "tcp://10.0.0.1:8786",
        "services": {"d": 8787},
    }
    path.write_text(json.dumps(whole))
    settings = ConnectionSettings(scheduler_file=str(path))
    assert address_of(None, settings) == whole["address"]
    texts = [json.dumps(faulty(whole, rng)).encode() for _ in range(200)]
    texts += [changed(json.dumps(whole).encode(), rng) for _ in range(200)]
    refused = 0
    for text in texts:
        path.write_bytes(text)
        try:
            assert address_of(None, settings).startswith("tcp://")
        except ParameterError as error:
            refused += 1
            message = str(error)
            assert message.startswith(f"connection.scheduler_file: {path}: ")
            assert "\n" not in message
    assert refused > 50


def test_rows_of_a_log_of_millions_are_read_in_pieces(tmp_path, monkeypatch):
    """Compressed, they are a small file: no array has more than a piece's rows before they are known."""
    from psbench.results import storage

    log = EventLog()
    for number in range(3000):
        log.add(Kind.NOTE, float(number))
    write_log(log, tmp_path / "log.parquet", "abc")
    monkeypatch.setattr(storage, "_PIECE", 1000)
    found, run_id = storage.read_log(tmp_path / "log.parquet")
    assert (found.digest(), run_id) == (log.digest(), "abc")


def joins_twice(columns, texts):
    columns["kind"][columns["kind"].index("release")] = "join"


def begins_later(columns, texts):
    columns["version"][columns["kind"].index("push")] = 9


def mixes_unsent(columns, texts):
    at = next(at for at, text in enumerate(texts) if '"steps_first"' in text)
    mixing = json.loads(texts[at])
    texts[at] = json.dumps(mixing | {"sent": True, "steps_first": not mixing["steps_first"]})


@pytest.mark.parametrize(
    ("strategy", "fault", "words"),
    [
        ("bsp", joins_twice, "a join of a worker that is already present"),
        ("bsp", begins_later, "the use of a push that began with a later version"),
        ("d_psgd", mixes_unsent, "a mixing of a model that was not sent"),
    ],
)
def test_rows_that_contradict_each_other_are_refused(saved, tmp_path, strategy, fault, words):
    folder = Path(shutil.copytree(saved[f"{strategy}-json"], tmp_path / "run"))
    content = json.loads((folder / "log.json").read_text())
    fault(content["columns"], content["texts"])
    (folder / "log.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=rf"log.json: row \d+ of its log has {words}"):
        Run.load(folder)


@pytest.mark.timeout(120)  # it would go on for ever
def test_a_log_that_begins_with_no_worker_is_not_replayed(saved, tmp_path):
    folder = Path(shutil.copytree(saved["bsp-json"], tmp_path / "run"))
    content = json.loads((folder / "log.json").read_text())
    content["columns"]["id"][0] = 1
    (folder / "log.json").write_text(json.dumps(content))
    with pytest.raises(ReplayMismatch, match=r"row 0: recorded evaluated .* decided now: nothing more"):
        replay(Run.load(folder))


def test_a_control_character_is_refused_in_one_line(saved, tmp_path):
    folder = Path(shutil.copytree(saved["bsp"], tmp_path / "run"))
    with (folder / "experiment.yaml").open("a") as file:
        file.write("\x7f")
    with pytest.raises(SpecError, match=r"experiment.yaml: is not YAML: unacceptable character") as refused:
        Run.load(folder)
    assert "\n" not in str(refused.value)


def test_the_identity_of_another_run_is_shown_in_one_line(saved, tmp_path):
    folder = Path(shutil.copytree(saved["bsp"], tmp_path / "run"))
    model = Checkpoint.load(folder / "model.npz")
    Checkpoint(model.tensors, {"run_id": "a\nb"}).save(folder / "model.npz")
    with pytest.raises(DataError, match=r"model.npz: belongs to a different run \('a\\nb'\)"):
        Run.load(folder)
