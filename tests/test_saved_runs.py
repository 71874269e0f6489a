"""Runs saved by an earlier version still open, replay and resume."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from psbench import Run, replay, resume
from psbench.backends.checkpointing import with_current_names
from psbench.checkpoints.file import Checkpoint
from psbench.core.log import Kind

SAVED = Path(__file__).parent / "golden" / "saved"
#: the log's digest as the version that saved it printed it
DIGESTS = {
    "ssp_top_k": "9545fa2f50ef63b9e3c44530c95f0a4339f377105bcb52cdc174909bd219b7c6",
    "osp": "70197336211f491da9a038b32f21f1439baf19c6f8ee4fc767698c2ed0052b51",
    "live_ssp": "1544fa200ba0e69cbfe0b221ac7fab1d63375a554303bfcedcd9b671cd136970",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_a_saved_run_opens_and_replays(name):
    saved = Run.load(SAVED / name)
    assert saved.log.digest() == DIGESTS[name]
    assert replay(saved) == len(saved.log)


@pytest.mark.parametrize("name", DIGESTS)
def test_a_saved_run_resumes_from_its_first_checkpoint(name, tmp_path):
    """Also the live one, which is resumed in virtual time: both backends write the same files."""
    folder = Path(shutil.copytree(SAVED / name, tmp_path / name))
    saved = Run.load(folder)
    first = min((folder / "checkpoints").glob("*.npz"), key=lambda p: Checkpoint.state_of(p)["time_s"])
    state = Checkpoint.state_of(first)
    resumed = resume(first, {"backend": "simulated"}, folder=tmp_path / "resumed")
    rows = state["log"]["rows"]
    assert 0 < rows < len(saved.log)
    assert resumed.log.rows(0, rows).tobytes() == saved.log.rows(0, rows).tobytes()
    assert resumed.meta["reason"] == saved.meta["reason"]
    versions = resumed.log.of_kind(Kind.APPLY)["version"]
    assert sorted(set(versions.tolist())) == list(range(1, versions.max() + 1))
    assert resumed.log.evaluations()[-1]["val_loss"] < resumed.log.evaluations()[0]["val_loss"]
    replay(resumed)
    again = Run.load(tmp_path / "resumed")
    assert torch.equal(again.parameters, resumed.parameters)
    assert torch.equal(again.buffers, resumed.buffers)


def test_residuals_of_earlier_files_are_read_under_their_present_name():
    first = Checkpoint.load(next((SAVED / "ssp_top_k" / "checkpoints").glob("epoch-1*.npz")))
    assert not any(name.endswith("residual") for name in first.tensors)
    named = with_current_names(first)
    assert {"codecs", "events", "stop_rules"} <= set(named.state)
    assert not any("unsaid" in name or name.startswith("wire/") for name in named.tensors)
    residuals = [tensor for name, tensor in named.tensors.items() if name.endswith("/residual")]
    assert residuals
    assert all(residual.abs().max() > 0 for residual in residuals)
