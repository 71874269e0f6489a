"""A profile is written, and read again."""

import json
import re

import pytest

import psbench as ps
from psbench.cli import main
from psbench.twin.calibration import Calibration


def test_a_profile_is_a_page_that_is_read_again(measured, tmp_path):
    file = tmp_path / "profile.yaml"
    measured.to_yaml(file)
    text = file.read_text()
    again = Calibration.read(file)
    assert again.cluster == json.loads(json.dumps(measured.cluster))
    assert (again.samples, again.workers) == ((16, 32), 4)
    assert len(text.splitlines()) < 180
    for change, problem in {
        text.replace("psbench_profile: 1", "psbench_profile: 7"): "version 7",
        text.replace("psbench_profile: 1\n", ""): "is not a profile",
        text[: text.index("experiment:")]: "experiment: is required",
        text.replace("value: ", "valu: ", 1): "fitted.*value: is required",
        text.replace("fitted:\n", "fitted: 3\nthose:\n", 1): "fitted: must be a mapping, got 3",
        text.replace("workers: 4", "workers: 5", 1): "must have the 5 workers",
        text.replace("  link_time:", "  links:", 1): "cluster.link_time: is required",
        text.replace("[16, 32]", "[16, many]", 1): "samples_of_a_worker.1: must be a whole number",
        text[: text.index("experiment:")] + "experiment: x\n": "experiment: must be a mapping, got 'x'",
        text[: text.index("experiment:")] + "experiment: {batch_size: many}\n": "batch_size",
        text.replace("speed: [", "speed: [fast, ", 1): "cluster.speed.0: must be a number, got 'fast'",
        text.replace("between_runs: 0.0", "between_runs: -1.0", 1): "between_runs: must be greater",
    }.items():
        assert change != text, problem
        file.write_text(change)
        with pytest.raises(ps.PsbenchError, match=f"{re.escape(str(file))}: .*{problem}"):
            Calibration.read(file)


def test_a_profile_is_written_where_a_text_says(measured, tmp_path, monkeypatch):
    """As `to_yaml` of an experiment does; the path was tried with minutes of measuring behind it."""
    monkeypatch.chdir(tmp_path)
    assert measured.to_yaml("x.yaml") == measured.to_yaml() == (tmp_path / "x.yaml").read_text()


def test_a_profile_that_cannot_be_written_is_printed(measured, tmp_path, monkeypatch, capsys):
    """The disk may be full after minutes of measuring, though it was not before."""
    out = tmp_path / "there" / "profile.yaml"
    out.parent.mkdir()

    def measure(*_, **__):
        out.mkdir()
        return measured

    monkeypatch.setattr("psbench.twin.probe.calibrate", measure)
    assert main(["calibrate", "--out", str(out)]) == 2
    said = capsys.readouterr()
    (tmp_path / "printed.yaml").write_text(said.out)
    assert Calibration.read(tmp_path / "printed.yaml").workers == measured.workers
    assert "is not a regular file" in said.err
