"""Try a sample of mutants of some parts of the package against the tests of these parts."""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import pytest

from tests.mutation.mutants import mutants_of
from tests.mutation.runner import Mutations, Trial

HERE = Path(__file__).parent
ORACLES = "tests/oracles"
#: by name: files, and the tests that look at them beside the examples in docstrings
TARGETS: dict[str, tuple[str, list[str]]] = {
    "metrics": (
        "psbench/metrics",
        [f"{ORACLES}/test_{name}.py" for name in ("summary", "charts", "recording", "gossip")]
        + [f"tests/metrics/test_{name}.py" for name in ("exact_numbers", "independence", "moment")]
        + [
            f"tests/metrics/test_{name}.py"
            for name in ("table_of_chunks", "warnings", "against_engine", "growing_totals")
        ]
        + ["tests/strategies/test_gossip_runs.py"],
    ),
    "charts": (
        "psbench/charts",
        [f"{ORACLES}/test_{name}.py" for name in ("charts", "report", "recording")]
        + [
            f"tests/charts/test_{name}.py"
            for name in ("charts", "display", "growing", "pareto", "servers", "ticks")
        ],
    ),
    "results": (
        "psbench/results",
        [
            f"{ORACLES}/test_comparison.py",
            f"{ORACLES}/test_report.py",
            "tests/charts/test_report.py",
            "tests/test_frames.py",
            "tests/results",
            "tests/core/test_saved_states.py",
            "tests/test_saved_runs.py",
            "tests/test_run_files.py",
            "tests/test_bad_input.py",
        ],
    ),
    "sweeps": (
        "psbench/runs/sweeps",
        [f"{ORACLES}/test_comparison.py"]
        + [f"tests/runs/sweeps/test_{name}.py" for name in ("tables", "grid", "execution", "search")]
        + ["tests/strategies/communication/test_adacomm.py"],
    ),
    "papers": ("notebooks/reproduce/psbench_papers", [f"{ORACLES}/test_measures.py", "tests/papers"]),
    "checkpoints": ("psbench/checkpoints", ["tests/test_checkpoint_folder.py", "tests/test_resume.py"]),
    "coordinator": (
        "psbench/backends/dask/coordinator",
        ["tests/testing/test_live_transcripts.py", "tests/testing/test_live_runs.py"]
        + [
            f"tests/testing/test_live_runs_{name}.py"
            for name in ("begin", "members", "answers", "rings", "checkpoints", "models")
        ]
        + [f"tests/backends/dask/test_{name}.py" for name in ("replacements", "pushes", "coordinator")],
    ),
}
#: share of the mutants of which no reason is known that tests must kill
LEAST = 0.8
#: marks of tests that need a cluster, a browser, or long
_NOT = "not (dask or browser or nightly or gpu or slow)"


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    asked.add_argument(
        "targets", nargs="*", default=[], help=f"of {', '.join(TARGETS)}; all if none is named"
    )
    asked.add_argument("--sample", type=int, default=60, help="mutants of each target")
    asked.add_argument("--seed", type=int, default=0, help="of the sample")
    asked.add_argument("--seconds", type=float, default=math.inf, help="of CPU of the tests for each mutant")
    asked.add_argument("--without", default="", help="tests to leave out, by the beginning of their path")
    options = asked.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: its threads do not survive a fork
    names = options.targets or [*TARGETS]
    if options.without != ORACLES and any(ORACLES in TARGETS[name][1][0] for name in names):
        _make_runs()
    return 0 if all([_in_fork(name, options) for name in names]) else 1  # noqa: C419 - all of them are tried


def _in_fork(name: str, options: argparse.Namespace) -> bool:
    """Try a target where nothing of another's tests is left, and all is imported."""
    process = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(not _try(name, options)))
    process.start()
    process.join()
    return process.exitcode == 0


def _try(name: str, options: argparse.Namespace) -> bool:
    folder, tests = TARGETS[name]
    began, without = time.monotonic(), options.without
    mutants = [mutant for path in sorted(Path(folder).glob("*.py")) for mutant in mutants_of(path)]
    count = min(options.sample, len(mutants))
    chosen = random.Random(f"{name} {options.seed}").sample(mutants, count)
    reasons = tomllib.loads((HERE / "reasons.toml").read_text()).get(name, {})
    trials: list[Trial] = []

    def done(trial: Trial) -> None:
        trials.append(trial)
        why = reasons.get(trial.mutant.key) or ("survives" if trial.is_run else "no test executes it")
        print(f"  {trial.mutant}: {f'killed by {trial.killed_by}' if trial.killed_by else why}", flush=True)

    plugin = Mutations(chosen, done, options.seconds)
    paths = [each for each in (*tests, folder) if not (without and each.startswith(without))]
    without_output = ["-p", "no:terminal", "-o", "addopts=--import-mode=importlib --doctest-modules"]
    others = ["-p", "no:nbval", "-p", "no:cacheprovider", "-n", "0", "-m", _NOT]
    pytest.main([*without_output, *others, *paths], plugins=[plugin])
    if plugin.failed_before or not trials:
        print(f"{name}: the tests fail without a fault: {plugin.failed_before}")
        return False
    killed = sum(bool(trial.killed_by) for trial in trials)
    known = sum(not trial.killed_by and trial.mutant.key in reasons for trial in trials)
    share = killed / max(len(trials) - known, 1)
    print(
        f"{name}: {killed} of {len(trials)} mutants killed, {known} with a reason; {len(mutants)} there are; "
        f"{time.monotonic() - began:.0f} s"
    )
    return share >= LEAST


def _make_runs() -> None:
    """Make the oracles' runs once: they are read, and what is tried has no part in making them."""
    sys.path.insert(0, str(HERE.parent))  # as the tests, which import it by that name
    from oracles import small_runs

    made = small_runs.make(Path(tempfile.mkdtemp()))
    small_runs.make = lambda folder: made


if __name__ == "__main__":
    sys.exit(main())
