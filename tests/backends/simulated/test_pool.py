"""A simulated cluster on several processes: the same bits, and nothing is left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

import psbench as ps
from psbench.backends.control import Control
from psbench.backends.simulated import steps
from psbench.backends.simulated.pool import Pool
from psbench.core.log import Kind
from psbench.errors import ParameterError
from psbench.results.run import Run
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster
from psbench.training.trainer import Trainer

SWITCH = {"name": "strategy_switch", "rule": {"name": "after", "fraction": 0.5}}
COMPOSITIONS: dict[str, Any] = {
    "asp": "asp",
    "bsp": "bsp",
    "k_bsp, which cancels steps": {"name": "k_bsp", "k": 2},
    "a switch": SWITCH,
    "local steps": {"name": "local_sgd", "local_steps": 3},
    "overlap": "osp",
    "votes": "selsync",
    "chunks and test losses": "hermes",
    "a codec": {"name": "asp", "codec": "top_k", "codec_down": "top_k"},
}


#: processes of other tests, such as a cluster that tests share
_others: set[int] = set()


@pytest.fixture(autouse=True)
def others() -> None:
    """Know apart what was there before the test."""
    _others.clear()
    _others.update(each.pid for each in multiprocessing.active_children() if each.pid is not None)


def children() -> list[int]:
    """Return the processes of pools."""
    found = (each.pid for each in multiprocessing.active_children())
    return [pid for pid in found if pid is not None and pid not in _others]


def both(experiment: ps.Experiment) -> tuple[Run, Run]:
    """Run on one process and on two."""
    return tuple(ps.run(experiment.but(processes=n)) for n in (1, 2))  # type: ignore[return-value]


def assert_equal(one: Run, other: Run) -> None:
    assert one.log.digest() == other.log.digest()
    assert torch.equal(one.parameters, other.parameters)
    assert torch.equal(one.buffers, other.buffers)


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_the_same_bits_whatever_the_number_of_processes(name: str) -> None:
    """With workers that leave and come back while a step of theirs is computed somewhere."""
    cluster = toy_cluster([1.0, 0.5, 0.25], failures=[{"worker": 1, "at_s": 0.05, "rejoin_s": 0.1}])
    experiment = toy_experiment(COMPOSITIONS[name], cluster=cluster, stop={"epochs": 2}, evaluate_every=0.5)
    assert_equal(*both(experiment))
    assert not children()


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[None]:
    """Return a list that gets an entry whenever a method is called."""
    calls: list[None] = []
    method = getattr(owner, name)

    def counted(*given: Any) -> Any:
        calls.append(None)
        return method(*given)

    monkeypatch.setattr(owner, name, counted)
    return calls


def test_the_process_of_the_simulation_computes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it would wait for otherwise; the other one has the step that is needed first."""
    here = count_calls(monkeypatch, Trainer, "result")
    done = ps.run(toy_experiment("asp", stop={"epochs": 1}, processes=2))
    assert 0 < len(here) < len(done.log.of_kind(Kind.PUSH)["row"])


class Own(nn.Module):
    """With running statistics, dropout, and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(64, 16), nn.BatchNorm1d(16)
        self.last = nn.Linear(16, 10)
        self.first.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.dropout(torch.relu(self.norm(self.first(x.flatten(1)))), 0.1, self.training))


def test_a_model_and_a_loss_of_ones_own() -> None:
    """Though they are defined where no other process could import them."""

    class Here(Own):
        pass

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.2)

    experiment = ps.Experiment(
        model=Here, loss=loss, data="digits", strategy="asp", batch_size=64, stop={"updates": 30}
    )
    assert_equal(*both(experiment))


def test_a_checkpoint_of_one_is_continued_by_several(tmp_path: Path) -> None:
    experiment = toy_experiment("bsp", stop={"epochs": 2}, checkpoint_every=0.5)
    whole = ps.run(experiment.but(processes=1))
    ps.run(experiment.but(processes=2, stop={"epochs": 1}), folder=tmp_path)
    rest = ps.resume(tmp_path, {"stop.epochs": 2, "processes": 1})
    assert_equal(whole, rest)


class Broken(nn.Module):
    """Fails after some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += float(self.training)
        if self.steps > 4:
            raise ArithmeticError("a bug of the model")
        out: torch.Tensor = self.layer(x.flatten(1))
        return out


@pytest.mark.parametrize("processes", [1, 2])
def test_errors_are_those_of_one_process(processes: int) -> None:
    experiment = ps.Experiment(
        model=Broken, data="digits", strategy="asp", batch_size=64, stop={"updates": 100}, processes=processes
    )
    with pytest.raises(ArithmeticError, match="a bug of the model"):
        ps.run(experiment)
    assert not children()


def test_a_process_that_is_killed_is_done_without() -> None:
    experiment = toy_experiment("asp", stop={"epochs": 3}, evaluate_every=0.5)
    expected, killed = ps.run(experiment.but(processes=1)), list[int]()

    def kill(log: Any) -> None:
        if len(log) > 30 and len(killed) < 2:
            killed.extend(children())
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    assert_equal(ps.run(experiment.but(processes=3), observer=kill), expected)
    assert len(killed) == 2
    assert not children()


def test_a_run_that_is_stopped_leaves_nothing_behind() -> None:
    control, seen = Control(), list[int]()

    def stop(log: Any) -> None:
        seen.extend(children())
        control.stop()

    done = ps.run(toy_experiment("asp", stop={"epochs": 100}, processes=2), control=control, observer=stop)
    assert done.meta["status"] == "stopped"
    assert seen
    assert not any(map(psutil.pid_exists, seen))


def test_a_run_grows_when_it_has_shown_that_it_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of steps that were begun before."""
    for name in ("_WORTH_SERVER_S", "_WORTH_PROCESSES_S", "_WORTH_STEP_S"):
        monkeypatch.setattr(steps, name, 1e-9)
    monkeypatch.setattr(steps, "cores", lambda: 2)
    began = []
    monkeypatch.setattr(
        Pool, "begin", lambda pool, *given, _of=Pool.begin: (began.append(1), _of(pool, *given))[1]
    )
    experiment = toy_experiment("asp", stop={"epochs": 2})
    grown = ps.run(experiment)
    assert began
    assert_equal(grown, ps.run(experiment.but(processes=1)))


def test_what_cannot_be_sent_is_said_in_one_line() -> None:
    import threading

    class Locked(Own):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    experiment = ps.Experiment(
        model=Locked, data="digits", strategy="asp", batch_size=64, stop={"updates": 3}, processes=2
    )
    with pytest.raises(ParameterError, match=r"processes: .*cannot be sent.*processes: 1"):
        ps.run(experiment)
    assert not children()


def test_processes_are_of_simulated_runs() -> None:
    with pytest.raises(ParameterError, match="processes: on dask every worker has its own"):
        toy_experiment("asp", backend="dask", processes=2)
