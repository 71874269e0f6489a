"""`psbench sweep`: what it prints, and how it ends."""

from __future__ import annotations

import json
import signal

import pytest
from test_cli import ok

from psbench.cli import main
from psbench.runs.execution import run

SWEPT = """
strategy: bsp
stop: {updates: 3}
cluster: {workers: 3}
sweep: {strategy: [bsp, asp], optimizer.lr: [0.05, 0.1]}
seeds: 2
"""


@pytest.fixture
def sweeping(tmp_path):
    """A sweep of eight small runs, to be saved."""
    (tmp_path / "sweep.yaml").write_text(SWEPT)
    return [str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / "out"), "--processes", "1"]


def test_sweep_prints_a_table_and_the_best_and_goes_on(sweeping, tmp_path, capsys, monkeypatch):
    out, err = ok(capsys, "sweep", *sweeping)
    assert [line.split()[:2] for line in out.splitlines()[1:5]] == [
        ["bsp", "0.05"],
        ["bsp", "0.1"],
        ["asp", "0.05"],
        ["asp", "0.1"],
    ]
    assert "the best setting of each strategy by val_accuracy" in out
    assert "speed-up against bsp" in out
    assert "sweep.csv" in err
    rows = (tmp_path / "out/sweep.csv").read_text().splitlines()
    assert rows[0].startswith("strategy,optimizer.lr,seed,status,error,val_accuracy")
    assert len(rows) == 9
    monkeypatch.setattr("psbench.runs.sweeps.worker.run", lambda *_, **__: pytest.fail("it was run again"))
    assert ok(capsys, "sweep", *sweeping)[0] == out


def test_sweep_as_json_with_options_before_the_file(sweeping, capsys):
    grid = ("--grid", "strategy=[ssp]", "--seeds", "1", "--set", "stop.updates=2", "--json")
    found = json.loads(ok(capsys, "sweep", *sweeping, *grid)[0])
    assert found["parameters"] == ["strategy", "optimizer.lr"]
    assert [(run["strategy"], run["updates"]) for run in found["runs"]] == [("ssp", 2), ("ssp", 2)]


def test_sweep_with_runs_that_diverge_is_exit_code_1(sweeping, capsys):
    grid = ("--grid", "optimizer.lr=[1e38]", "--set", "stop.updates=40", "--seeds", "1")
    assert main(["sweep", *sweeping, *grid]) == 1
    out, err = capsys.readouterr()
    assert "1, 1 diverged" in out
    assert "error: 2 of 2 runs failed or diverged" in err


@pytest.mark.parametrize(
    ("number", "name", "code"), [(signal.SIGINT, "Ctrl-C", 130), (signal.SIGTERM, "SIGTERM", 143)]
)
def test_sweep_after_a_signal_says_what_there_is(number, name, code, sweeping, capsys, monkeypatch):
    made = []

    def second_is_interrupted(experiment, **options):
        if made:
            signal.raise_signal(number)
        made.append(run(experiment, **options))
        return made[0]

    monkeypatch.setattr("psbench.runs.sweeps.worker.run", second_is_interrupted)
    assert main(["sweep", *sweeping]) == code
    out, err = capsys.readouterr()
    assert "stopped: 7 of 8 runs were not executed" in out
    assert f"stopped by {name}; the completed part is kept" in err
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
