"""Checkpoints, profiles, traces, scheduler files and records of papers: with faults, refused by name or used.

Their commands read them as `psbench resume`, `predict`, `diagnose` and `verify` do. A small sample runs with
the other tests; the long one at night.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import yaml
from hostile import changed, faulty

from psbench import PsbenchError, resume
from psbench.clusters.connection import ConnectionSettings
from psbench.clusters.scheduler import address_of
from psbench.runs.execution import run
from psbench.testing import toy_experiment
from psbench.twin import Calibration, blame, read_meetings
from psbench_papers.library import stored
from psbench_papers.records import read_records

#: bytes of memory that reading a file may take more than the reading before it
MEMORY = 300_000_000
SECONDS = 10  #: of CPU


def in_npz(content: bytes, path: Path, rng: np.random.Generator) -> None:
    """Put a fault into the JSON of a checkpoint, or into one of its arrays."""
    path.write_bytes(content)
    with np.load(path) as file:
        arrays = dict(file)
    name = "state" if rng.integers(3) else list(arrays)[rng.integers(len(arrays))]
    if arrays[name].dtype.kind == "U":
        arrays[name] = np.array(json.dumps(faulty(json.loads(str(arrays[name])), rng)))
    else:
        others = [arrays[name][:1], arrays[name].astype(np.float16), np.zeros((3, 0)), arrays[name] * 0 + 2]
        arrays[name] = others[rng.integers(len(others))]
    np.savez(path, **arrays)


def in_json(content: bytes, path: Path, rng: np.random.Generator) -> None:
    path.write_text(json.dumps(faulty(yaml.safe_load(content), rng)))  # which is YAML, too


def in_bytes(content: bytes, path: Path, rng: np.random.Generator) -> None:
    path.write_bytes(changed(content, rng))


def resumed(path: Path) -> None:
    done = resume(path.parent.parent, {"stop.updates": 14})
    json.dumps(done.summary(), allow_nan=False)


def predicted(path: Path) -> None:
    Calibration.read(path).experiment_of("asp")


def blamed(path: Path) -> None:
    blame(read_meetings([path]))


def addressed(path: Path) -> None:
    address_of(None, ConnectionSettings(scheduler_file=str(path)))


def recorded(path: Path) -> None:
    for record in read_records(path):
        json.dumps(record.experiment)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    """Return a sound file of each kind."""
    home = tmp_path_factory.mktemp("sound")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(toy_experiment("ssp", stop={"updates": 12}, checkpoint_every=0.5), folder=home / "run")
        steady = {"cluster": {"workers": 3}, "stop": {"updates": 40}, "timing_only": True}
        probes = [run(toy_experiment(name, **steady)) for name in ("bsp", "asp")]
        for each in probes:  # what the coordinator of a live run reports
            each.meta["coordinator"] = {"pushes": 40, "serving_s": 8e-3, "handled_s": 0.012}
        Calibration.of(probes).to_yaml(home / "profile.yaml")
    rows = [f"{worker},{step},{step + worker / 10},{step + 0.9}" for step in range(9) for worker in range(3)]
    (home / "trace.csv").write_text("worker,step,begin,end\n" + "\n".join(rows))
    (home / "scheduler.json").write_text(json.dumps({"type": "Scheduler", "address": "tcp://127.0.0.1:1"}))
    return {
        "checkpoint": sorted((home / "run" / "checkpoints").iterdir())[-1],
        "profile": home / "profile.yaml",
        "trace": home / "trace.csv",
        "scheduler": home / "scheduler.json",
        "records": stored("adacomm"),
    }


#: by name: which file, what is done to it, and what reads it
FAULTS = {
    "checkpoint": ("checkpoint", in_npz, resumed),
    "checkpoint bytes": ("checkpoint", in_bytes, resumed),
    "profile": ("profile", in_json, predicted),
    "profile bytes": ("profile", in_bytes, predicted),
    "trace bytes": ("trace", in_bytes, blamed),
    "scheduler file": ("scheduler", in_json, addressed),
    "scheduler file bytes": ("scheduler", in_bytes, addressed),
    "records bytes": ("records", in_bytes, recorded),
}


def try_files(fault: str, files: dict[str, Path], home: Path, seed: int, count: int) -> int:
    """Read files with a fault; return the number refused. A file with any other error is left there."""
    kind, put_in, read = FAULTS[fault]
    sound, rng = files[kind], np.random.default_rng([seed, *fault.encode()])
    read(home_of(sound, home / "whole"))
    refused = 0
    for number in range(count):
        path = home_of(sound, home / str(number))
        put_in(sound.read_bytes(), path, rng)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read(path)
        except PsbenchError as error:
            message = str(error)
            assert "\n" not in message, message
            assert str(path.parent) in message, message
            refused += 1
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert more * 1024 < MEMORY, f"{path} takes {more / 1024} MB"
        shutil.rmtree(home / str(number))
    return refused


def home_of(sound: Path, folder: Path) -> Path:
    """Return where a copy of a file is: a checkpoint in a run's folder that has nothing else."""
    path = folder / "checkpoints" / sound.name if sound.suffix == ".npz" else folder / sound.name
    path.parent.mkdir(parents=True)
    shutil.copy(sound, path)
    return path


@pytest.mark.by_day(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_file_is_refused_by_name_or_used(files, tmp_path, fault):
    assert try_files(fault, files, tmp_path, 0, 12) > 0


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in other units")
@pytest.mark.parametrize("fault", FAULTS)
def test_many_damaged_files(files, tmp_path, fault):
    seed = int(os.environ.get("PSBENCH_FUZZ_SEED", "1"))
    assert try_files(fault, files, tmp_path, seed, int(os.environ.get("PSBENCH_FUZZ_FILES", "1000"))) > 0
