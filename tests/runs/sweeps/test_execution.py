"""Cells side by side: the same runs as one by one, errors and deaths of their own, and going on later."""

from __future__ import annotations

import importlib
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import cloudpickle
import distributed
import psutil
import pytest
from torch import nn
from torch.nn import functional

import psbench as ps
from psbench.errors import ParameterError, SpecError
from psbench.runs.sweeps import worker
from psbench.runs.sweeps.cells import Cell
from psbench.runs.sweeps.execution import _Watch, run_cells
from psbench.runs.sweeps.grid import cells_of
from psbench.runs.sweeps.pool import _Worker, in_processes
from psbench.system import child, fork_server
from psbench.testing import toy_experiment

TOY = toy_experiment(stop={"updates": 3})
GRID = {"strategy": ["bsp", "asp"]}
#: a rate at which no toy survives
DIVERGES = 1e38


@pytest.fixture
def ran(monkeypatch):
    """The experiments that are run in this process, in their order."""
    seen, usual = [], worker.run

    def run(experiment, **options):
        seen.append(experiment)
        if experiment.batch_size == 24:
            raise RuntimeError("a model\nof my own failed")
        return usual(experiment, **options)

    monkeypatch.setattr(worker, "run", run)
    return seen


def half(outputs, targets):
    return functional.cross_entropy(outputs, targets) / 2


def digests(outcomes):
    return [(each.run.log.digest(), each.run.meta["params_digest"]) for each in outcomes]


# ------------------------------------------------------------------ one by one


def test_a_sweep_is_its_runs():
    found = ps.sweep(TOY, GRID, seeds=2, processes=1)
    wanted = [ps.run(TOY.but(strategy=name, seed=seed)) for name in ("bsp", "asp") for seed in (0, 1)]
    assert digests(found.outcomes) == [(r.log.digest(), r.meta["params_digest"]) for r in wanted]


def test_a_cell_that_fails_ends_no_other(ran):
    found = ps.sweep(TOY, {"batch_size": [12, 24, 36]}, processes=1)
    assert [outcome.status for outcome in found.outcomes] == ["finished", "failed", "finished"]
    (failed,) = found.failed
    assert failed.error == "RuntimeError: a model of my own failed"
    assert "in run\n" in failed.traceback
    with pytest.raises(SpecError, match="batch_size=24, seed 0 has no run: RuntimeError"):
        _ = failed.run
    assert "failed: batch_size=24, seed 0: RuntimeError: a model of my own failed" in found.text(100)


def test_a_second_call_runs_what_is_missing_or_failed(ran, tmp_path):
    first = ps.sweep(TOY, {"batch_size": [12, 24]}, processes=1, folder=tmp_path)
    ran.clear()
    again = ps.sweep(TOY, {"batch_size": [12, 24, 36]}, processes=1, folder=tmp_path)
    assert [one.batch_size for one in ran] == [24, 36]
    assert digests(again.outcomes[:1]) == digests(first.outcomes[:1])
    assert again.frame()["updates"].isna().tolist() == [False, True, False]


def test_a_cell_s_folder_is_that_of_a_run_with_its_own_experiment(tmp_path):
    (outcome,) = ps.sweep(TOY, {"optimizer.lr": [0.2]}, processes=1, folder=tmp_path).outcomes
    own = tmp_path / outcome.cell.folder_name
    assert ps.Run.load(own).summary() == outcome.summary == outcome.run.summary()
    assert outcome.run.experiment is outcome.cell.experiment


@pytest.mark.parametrize("damage", ["run.json", "log.parquet"])
def test_half_a_cell_is_run_again(damage, ran, tmp_path):
    (outcome,) = ps.sweep(TOY, {"optimizer.lr": [0.2]}, processes=1, folder=tmp_path).outcomes
    (tmp_path / outcome.cell.folder_name / damage).unlink()
    ps.sweep(TOY, {"optimizer.lr": [0.2]}, processes=1, folder=tmp_path)
    assert len(ran) == 2


def test_what_is_found_is_not_checked_again(tmp_path, monkeypatch):
    ps.sweep(TOY, GRID, processes=1, folder=tmp_path)
    monkeypatch.setattr("psbench.training.build.Workload.build", lambda _: pytest.fail("loads the data"))
    assert len(ps.sweep(TOY, GRID, folder=tmp_path).runs) == 2


def test_a_run_that_diverged_is_a_result_and_is_not_repeated(ran, tmp_path):
    longer = TOY.but(stop={"updates": 30})
    for _ in range(2):
        found = ps.sweep(longer, {"optimizer.lr": [DIVERGES]}, processes=1, folder=tmp_path)
        assert [outcome.status for outcome in found.outcomes] == ["diverged"]
    assert len(ran) == 1


def test_ctrl_c_keeps_what_is_done_and_half_a_run_is_none(monkeypatch, tmp_path):
    usual = worker.run

    def run(experiment, control, **options):
        if experiment.seed == 1:
            control.stop()  # as the first Ctrl-C does
        return usual(experiment, control=control, **options)

    monkeypatch.setattr(worker, "run", run)
    found = ps.sweep(TOY, GRID, seeds=3, processes=1, folder=tmp_path)
    assert [outcome.status for outcome in found.outcomes] == ["finished", *["not run"] * 5]
    assert found.interrupted
    assert "stopped: 5 of 6 runs were not executed" in found.remarks
    monkeypatch.setattr(worker, "run", usual)
    assert {
        outcome.status for outcome in ps.sweep(TOY, GRID, seeds=3, folder=tmp_path, processes=1).outcomes
    } == {"finished"}


def test_live_runs_wait_for_the_others_and_go_one_after_another(ran, monkeypatch):
    monkeypatch.setattr(worker.Workload, "build", lambda _: None)
    monkeypatch.setattr(worker, "run", lambda experiment, **_: ran.append(experiment) or ps.run(TOY))
    live = [Cell(TOY.but(backend="dask", seed=seed)) for seed in (1, 2)]
    run_cells([live[0], Cell(TOY), live[1]], processes=1)
    assert [(one.backend, one.seed) for one in ran] == [("simulated", 0), ("dask", 1), ("dask", 2)]


def test_progress_counts_runs_and_shares_of_them():
    seen = []
    run_cells(cells_of(TOY, GRID, 2), processes=1, on_progress=seen.append)
    assert [each.done for each in seen] == [0, 0, 1, 1, 2, 2, 3, 3, 4]
    assert seen[-2].running == ("strategy=asp, seed 1",)
    assert (seen[-2].fraction, seen[-1].fraction) == (0.75, 1.0)


def test_runs_under_way_count_for_what_is_done_of_them():
    """Of four cells one was there before: three are what the sweep has to do."""
    cells, seen = cells_of(TOY, GRID, 2), []
    done = run_cells(cells[:1], processes=1)[0]
    outcomes = [done, *[None] * (len(cells) - 1)]
    watch = _Watch(cells, outcomes, range(1, len(cells)), seen.append)
    watch.moved(1, 0.5)
    watch.moved(2, 0.25)
    watch.ended(1, done)
    count = len(cells) - 1
    assert [each.fraction for each in seen] == pytest.approx([0.5 / count, 0.75 / count, 1.25 / count])
    assert [each.done for each in seen] == [1, 1, 2]
    assert seen[1].running == (cells[1].label, cells[2].label)
    _Watch(cells[:1], [done], [], seen.append).show()
    assert seen[-1].fraction == 1.0


def test_a_run_tells_how_far_it_has_come(monkeypatch):
    monkeypatch.setattr(worker, "REPORT_S", 0.0)
    told = []
    worker.run_packed(worker.packed(Cell(TOY), None), told.append)
    assert told == sorted(told)
    assert 0 <= told[0] < told[-1] == 1
    told.clear()
    monkeypatch.setattr(worker, "REPORT_S", 1e9)
    worker.run_packed(worker.packed(Cell(TOY), None), told.append)
    assert told == []  # what is soon over tells nothing on its way


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"processes": 0}, "processes: expected a number of at least 1, got 0"),
        ({"processes": "all"}, "processes: expected"),
        ({"client": "tcp://127.0.0.1:1"}, "expected a distributed.Client"),
        ({"client": ThreadPoolExecutor(1)}, "expected a distributed.Client"),  # it takes tasks, too
        ({"target": 95}, "from 0 to 1, .* got 95"),
        ({"folder": "/proc/psbench"}, "choose another output folder"),
    ],
)
def test_options_that_cannot_be(options, says, ran):
    with pytest.raises(SpecError, match=says):
        ps.sweep(TOY, GRID, **options)
    assert ran == []


def test_an_object_that_cannot_travel_is_said_before_any_run():
    locked = toy_experiment()
    object.__setattr__(locked, "__dict__", vars(locked) | {"lock": threading.Lock()})
    cell = Cell(locked)
    with pytest.raises(SpecError, match=r"cannot be sent to another process \(.*use processes=1"):
        run_cells([cell, Cell(toy_experiment("asp"))], processes=2)


# ------------------------------------------------------------------ in processes


class Ends:
    """Ends the process that unpacks it."""

    def __init__(self, how):
        self.how = how

    def __reduce__(self):
        return self.how


@pytest.fixture
def no_children_left():
    """Whether no process that runs cells is left; Python's fork server and its helper stay."""
    before = set(psutil.Process().children(recursive=True))  # a cluster that tests share

    def found_none():
        found = [each for each in psutil.Process().children(recursive=True) if each not in before]
        return not psutil.wait_procs([each for each in found if not _is_helper(each)], timeout=60)[1]

    return found_none


def _is_helper(process: psutil.Process) -> bool:
    """A fork has the command line of the fork server, but another parent."""
    with suppress(psutil.Error):
        line = " ".join(process.cmdline())
        return process.ppid() == os.getpid() and ("forkserver" in line or "resource_tracker" in line)
    return True  # it is gone


def test_side_by_side_is_the_same_as_one_by_one_and_leaves_no_process(no_children_left):
    found = ps.sweep(TOY, GRID, seeds=2, processes=2)
    assert digests(found.outcomes) == digests(ps.sweep(TOY, GRID, seeds=2, processes=1).outcomes)
    assert no_children_left()


def test_a_process_answers_cell_by_cell_until_nothing_comes(monkeypatch):
    """Here in this process: what a run says on its way is looked at above."""
    asked, said = [worker.packed(Cell(TOY.but(seed=seed)), None) for seed in (1, 2)], []

    class Connection:
        def recv_bytes(self):
            if not asked:
                raise EOFError
            return asked.pop(0)

        def send_bytes(self, content):
            said.append(cloudpickle.loads(content))

    monkeypatch.setattr(worker, "REPORT_S", 1e9)
    monkeypatch.setattr(worker, "end_with_parent", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    worker.serve(Connection())
    assert [kind for kind, _ in said] == ["done", "done"]
    outcomes = [worker.outcome_of(Cell(TOY), found) for _, found in said]
    wanted = [ps.run(TOY.but(seed=seed)) for seed in (1, 2)]
    assert digests(outcomes) == [(each.log.digest(), each.meta["params_digest"]) for each in wanted]


@pytest.mark.skipif(not fork_server.is_available(), reason="there is no fork server")
def test_processes_are_forks_where_that_is_possible():
    assert child._context().get_start_method() == "forkserver"


def test_a_process_that_dies_costs_its_own_cell_only(no_children_left):
    fine = worker.packed(Cell(TOY), None)
    dies = [
        cloudpickle.dumps((Ends(how), None))
        for how in ((os._exit, (0,)), (signal.raise_signal, (signal.SIGKILL,)))
    ]
    with closing(in_processes([dies[0], fine, dies[1], fine], 2)) as answers:
        heard = list(answers)
    first = dict(reversed(heard))
    assert first == dict.fromkeys(range(4), ("progress", 0.0))
    found = {place: content for place, (kind, content) in heard if kind == "done"}
    assert found[0] == {"error": "the process of this run ended with code 0"}
    assert "was killed by signal 9 (memory may be full" in found[2]["error"]
    assert found[1]["run"]["rows"] == found[3]["run"]["rows"]
    assert no_children_left()


def test_ctrl_c_while_processes_are_at_work_keeps_what_is_done(no_children_left):
    def interrupt(progress):
        if progress.done == 2:
            raise KeyboardInterrupt

    endless = TOY.but(stop={"epochs": 1e9}, evaluate_every=1e9)
    cells = [*cells_of(TOY, GRID, 1), *cells_of(endless, GRID, 1)]
    outcomes = run_cells(cells, processes=2, on_progress=interrupt)
    assert [outcome.status for outcome in outcomes] == ["finished", "finished", "not run", "not run"]
    assert no_children_left()


# ------------------------------------------------------------------ as tasks


class Client(ThreadPoolExecutor):
    """The part of Dask's client that is used."""

    def __init__(self):
        super().__init__(1)
        self.cancelled = []

    def submit(self, function, content, *, key, pure):
        return super().submit(function, content)

    def cancel(self, futures):
        self.cancelled += futures


def test_as_tasks_the_same_runs_come_back_and_are_saved_here(tmp_path):
    client = Client()
    found = ps.sweep(TOY, GRID, client=client, folder=tmp_path)
    assert digests(found.outcomes) == digests(ps.sweep(TOY, GRID, processes=1).outcomes)
    assert len(list(tmp_path.glob("*/run.json"))) == len(client.cancelled) == 2


@pytest.mark.dask
def test_tasks_of_a_cluster_take_networks_of_ones_own(scheduler, tmp_path, monkeypatch):
    """The cluster's processes cannot import this module, and each takes one run at a time."""
    (tmp_path / "swept_network.py").write_text(
        "from torch import nn\n\n\nclass Block(nn.Linear):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    block = importlib.import_module("swept_network").Block
    experiment = TOY.but(model=nn.Sequential(block(4, 6), nn.Tanh(), block(6, 3)), loss=half)
    with distributed.Client(scheduler) as client:
        found = ps.sweep(experiment, GRID, seeds=2, client=client, folder=tmp_path)
        again = ps.sweep(experiment, GRID, seeds=2, client=client, folder=tmp_path)
    assert digests(found.outcomes) == digests(ps.sweep(experiment, GRID, seeds=2, processes=1).outcomes)
    assert digests(again.outcomes) == digests(found.outcomes)


def test_a_task_that_is_lost_is_an_error_of_its_own(monkeypatch):
    monkeypatch.setattr("psbench.runs.sweeps.tasks.run_packed", lambda content: 1 / 0)
    found = ps.sweep(TOY, GRID, client=Client())
    assert {outcome.error for outcome in found.outcomes} == {"ZeroDivisionError: division by zero"}


@pytest.mark.parametrize(
    ("options", "change", "says"),
    [
        ({"processes": 2}, {}, "processes or a client, not both"),
        ({}, {"backend": "dask"}, "a live run needs Dask workers"),
    ],
)
def test_what_a_client_cannot_do(options, change, says):
    with pytest.raises(ParameterError, match=says):
        run_cells([Cell(TOY.but(**change))], client=Client(), **options)


def test_a_process_in_mid_run_is_ended_at_once(monkeypatch):
    asked = []
    monkeypatch.setattr(child.Child, "end", lambda self, at_once: asked.append(at_once))
    worker = object.__new__(_Worker)
    for worker.place in (None, 3):
        worker.end()
    assert asked == [False, True]
