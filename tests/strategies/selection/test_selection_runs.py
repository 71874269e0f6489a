"""Selections in runs: simulated, live, replayed, resumed, forked, swept and switched; what choosing costs."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from pydantic import PrivateAttr
from threaded_run import ThreadedRun

from psbench.backends.dask.coordinator import run_state
from psbench.backends.dask.coordinator.run_state import EvaluationState
from psbench.checkpoints.file import Checkpoint
from psbench.core import (
    ByNeighbourhood,
    Kind,
    Neighbourhoods,
    SampleGroups,
    Selection,
    Strategy,
    reported,
    reported_of_groups,
)
from psbench.core.events import Push
from psbench.core.selection import SUMS
from psbench.errors import DoubtfulComposition, ParameterError, UnknownName
from psbench.runs.execution import run
from psbench.runs.fork import Fork, fork
from psbench.runs.replaying import replay
from psbench.runs.sweeps.sweep import sweep
from psbench.strategies import bsp, make_strategy
from psbench.testing import check_strategy, toy_experiment
from psbench.testing.invariants import BrokenContract
from psbench.training.build import Workload
from psbench.training.trainer import Trainer

HOW_TO = Path(__file__).parents[3] / "notebooks/site/howto/choose_the_next_samples.md"


@pytest.fixture(autouse=True)
def one_torch_thread():
    """Live workers are threads here, and torch of one thread gives the bits of a simulated run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


#: each with what its memory has: losses, predictions, norms, a state of its own, orders of the deciding half
RULES = [
    "with_replacement",
    {"name": "online_batch", "refresh": 1.0},
    {"name": "recency_bias", "warm_up": 0.5, "window": 3},
    {"name": "instance_hardness", "warm_up": 0.5},
    {"name": "importance", "candidates": 0},
    {"name": "curriculum", "share": 0.3, "every": 4, "warm_up": 0.5},
    {"name": "data_aware", "weights": "unbiased"},
    {"name": "data_aware", "neighbourhoods": {"name": "k_means", "clusters": 3}, "by": "error"},
]
IDS = [rule if isinstance(rule, str) else "-".join(map(str, rule.values())) for rule in RULES]


def of_the_how_to(name):
    """Return a class as the page *Choose the next samples* writes it."""
    texts = re.findall(r"^```python\n(.*?)^```", HOW_TO.read_text(), re.MULTILINE | re.DOTALL)
    kept = [
        each
        for each in ast.parse("\n".join(texts)).body
        if isinstance(each, (ast.Import, ast.ImportFrom)) or getattr(each, "name", "") == name
    ]
    space = {"__name__": __name__}
    exec(compile(ast.Module(kept, []), str(HOW_TO), "exec"), space)
    return space[name]


class DrawnOnce(of_the_how_to("NeverTwice")):
    """The page's rule, and reports of its own."""

    name = "drawn_once"
    remembers = ("loss",)

    def report(self, memory):
        """Report the mean loss that is known."""
        return {"known": float(np.isfinite(memory.loss).sum())}

    def on_push(self, push, view):
        """Read what workers report."""
        assert reported(push).get("known", 1.0) > 0
        return []


class ByReports(ByNeighbourhood):
    """Half of each mini-batch from the class that was predicted wrong most often, by what pushes report."""

    name = "by_reports"
    remembers = ("loss", "predicted")
    _sums: dict[str, dict[str, float]] = PrivateAttr(default_factory=lambda: {name: {} for name in SUMS})

    def choose(self, size, rng, memory, orders):
        """Draw half of the samples from the ordered class, if the shard has it."""
        own = np.flatnonzero(memory.neighbourhood == orders.get("worst", -1))
        half = size // 2 if len(own) else 0
        return np.append(memory.uniform(size - half, rng), memory.uniform(half, rng, own))

    def on_push(self, push, view):
        """Add the push's sums."""
        for name, sums in self._sums.items():
            for h, value in reported_of_groups(push, name).items():
                sums[str(h)] = sums.get(str(h), 0.0) + value
        return []

    def on_release(self, worker, view):
        """Order the class with the largest share of errors, and with the largest loss of equal ones."""
        samples, loss, errors = (self._sums[name] for name in SUMS)  # a checkpoint sorts keys
        shares = {h: (errors[h] / samples[h], loss[h] / samples[h]) for h in samples}
        return {"worst": int(max(shares, key=shares.get))} if shares else {}


def experiment(rule, strategy="bsp", **changes):
    return toy_experiment({"name": strategy, "selection": rule}, **{"evaluate_every": 0.5} | changes)


# -------------------------------------------------------------------- the same wherever it runs


@pytest.mark.by_day(4)
@pytest.mark.parametrize("rule", [*RULES, DrawnOnce(), ByReports()], ids=[*IDS, "drawn_once", "by_reports"])
def test_simulated_live_and_replayed(rule, monkeypatch):
    """Under a barrier a live run computes the model of the simulated one, and both are decided again.

    The live run waits for its evaluations, which some rules read: otherwise they come when they are done.
    """
    monkeypatch.setattr(run_state, "EvaluationState", lambda size, *_: EvaluationState(size, awaits_all=True))
    spec = experiment(rule)
    virtual = run(spec)
    live = ThreadedRun(spec.but(backend="dask")).run()
    assert live.error is None
    assert torch.equal(live.parameters, virtual.parameters)
    assert replay(virtual) == len(virtual.log)
    replay(replace(virtual, log=live.log))


def test_the_rule_that_the_how_to_writes_runs_everywhere(monkeypatch):
    """Simulated, live and replayed; no worker takes a class twice, also from one mini-batch to the next."""
    spec = experiment(of_the_how_to("NeverTwice")(), stop={"updates": 6})
    drawn, learn = defaultdict(list), Trainer.learn

    def noted(self, job, result):
        drawn[job.worker].extend(self.data.train_y[job.indices].tolist())
        return learn(self, job, result)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "learn", noted)
        virtual = run(spec)
    assert len(drawn) == 3
    for labels in drawn.values():
        assert len(labels) > 8
        assert all(first != second for first, second in pairwise(labels))
    live = ThreadedRun(spec.but(backend="dask")).run()
    assert live.error is None
    assert torch.equal(live.parameters, virtual.parameters)
    assert replay(virtual) == len(virtual.log)
    replay(replace(virtual, log=live.log))


@pytest.mark.by_day(3)
@pytest.mark.parametrize("rule", [*RULES, ByReports()], ids=[*IDS, "by_reports"])
@pytest.mark.parametrize("strategy", ["bsp", "asp"])
def test_a_resumed_run_chooses_what_it_would_have_chosen(rule, strategy, tmp_path):
    spec = experiment(rule, strategy, stop={"epochs": 4}, checkpoint_every=1.0)
    whole = run(spec, folder=tmp_path / "whole")
    start = sorted((tmp_path / "whole" / "checkpoints").glob("*.npz"))[1]
    again = run(spec, start=start, folder=tmp_path / "again")
    if strategy == "bsp":
        assert again.log.digest() == whole.log.digest()
    assert torch.equal(again.parameters, run(spec, start=start).parameters)
    kept = {name for name in Checkpoint.load(start).tensors if "/selection/" in name}
    assert {f"worker/{worker}/selection/taken_at" for worker in range(3)} <= kept


def test_void_work_counts_as_seen_by_the_worker(tmp_path):
    """A step that is cancelled has used up its batch: the next one has a number, and a stream, of its own."""
    spec = experiment({"name": "online_batch"}, "k_bsp", stop={"epochs": 3})
    done = run(spec)
    assert len(done.log.of_kind(Kind.CANCEL)["worker"])
    replay(done)


def test_a_fork_and_a_sweep():
    origin = run(experiment({"name": "online_batch"}, "asp", stop={"epochs": 3}))
    other = run(fork(origin, Fork(0.1, strategy="bsp")))
    assert [each.selection.name for each in other.experiment.strategy.compositions] == ["online_batch"] * 2
    found = sweep(
        toy_experiment("bsp"), {"strategy.selection": ["reshuffle", "with_replacement", "online_batch"]}
    )
    assert len({each.log.digest() for each in found.runs}) == 3


def test_other_processes_find_the_same():
    spec = experiment({"name": "data_aware", "neighbourhoods": "classes"}, stop={"updates": 12})
    alone = run(spec.but(processes=1))
    several = run(spec.but(processes=2))
    assert several.log.digest() == alone.log.digest()
    hard = experiment({"name": "recency_bias", "warm_up": 0.0}, stop={"updates": 12})
    assert run(hard.but(processes=2)).log.digest() == run(hard.but(processes=1)).log.digest()


# -------------------------------------------------------------------- switches


def switching(first, second):
    return {
        "name": "strategy_switch",
        "first": first,
        "second": second,
        "rule": {"name": "after", "fraction": 0.5},
    }


def test_a_selection_outlasts_a_switch_unless_another_is_named():
    kept = make_strategy(switching({"name": "asp", "selection": "online_batch"}, "bsp"))
    ended = make_strategy(
        switching({"name": "asp", "selection": "online_batch"}, {"name": "bsp", "selection": "reshuffle"})
    )
    assert [each.selection.name for each in kept.compositions] == ["online_batch", "online_batch"]
    assert [each.selection.name for each in ended.compositions] == ["online_batch", "reshuffle"]
    for strategy in (kept, ended):
        assert make_strategy(strategy.spec()) == strategy
    done = run(toy_experiment(kept, stop={"epochs": 4}))
    other = run(toy_experiment(ended, stop={"epochs": 4}))
    assert done.log.digest() != other.log.digest()
    replay(done)


def test_the_deciding_half_keeps_what_it_has_seen_at_a_switch():
    strategy = switching({"name": "asp", "selection": {"name": "data_aware", "smoothing": 0.9}}, "bsp")
    spec = toy_experiment(strategy, stop={"epochs": 4}, evaluate_every=0.5)
    engine = Workload.build(spec).engine(None)
    before = engine.composition.selection
    before._weakness = [1.0, 2.0, 3.0]
    engine._install(1)
    assert engine.composition.selection is before
    assert engine.composition.consistency.name == "bsp"


def test_a_strategy_that_names_no_selection_is_written_without():
    assert "selection" not in bsp().spec()
    assert bsp(selection="reshuffle").spec()["selection"] == {"name": "reshuffle"}
    assert Strategy(**bsp(selection="with_replacement").spec()).selection.name == "with_replacement"


# -------------------------------------------------------------------- what choosing costs


def test_looking_costs_the_time_of_a_forward_pass():
    """A worker that looks at its whole shard once is that much later once: a third of what training takes."""
    spec = experiment({"name": "online_batch", "refresh": 1.0}, stop={"epochs": 2})
    done, profile = run(spec), spec.cluster.profile()
    pushes = done.log.of_kind(Kind.PUSH)
    for worker, shard in enumerate(Workload.build(spec).shards):
        seconds = pushes["compute_s"][pushes["worker"] == worker]
        expected = len(shard) * profile.seconds_per_sample / 3 / profile.speed[worker]
        assert seconds.max() - seconds.min() == pytest.approx(expected)
        assert (seconds > seconds.min() + 1e-9).sum() == 1


def test_a_live_worker_is_paced_for_what_it_looks_at():
    """Paced by the profile, a live push takes at least as long as the simulated one, looking included."""
    cluster = {"workers": 2, "step_time": "constant", "seconds_per_sample": 0.002, "paces_live_runs": True}
    spec = experiment({"name": "online_batch", "refresh": 0.25}, cluster=cluster, stop={"updates": 6})
    live = ThreadedRun(spec.but(backend="dask")).run()
    assert live.error is None
    virtual = run(spec)
    for worker in range(2):
        own = [each.of_kind(Kind.PUSH) for each in (live.log, virtual.log)]
        seconds = [rows["compute_s"][rows["worker"] == worker] for rows in own]
        assert (seconds[0] >= 0.999 * seconds[1]).all()


# -------------------------------------------------------------------- what is refused, and what is said


class OfAnotherShard(Selection):
    """Returns numbers of the training set, as a stranger may."""

    name = "of_another_shard"

    def choose(self, size, rng, memory, orders):
        """Return the numbers of samples instead of their positions."""
        return memory.samples[-size:]


class Forgets(Selection):
    """Keeps its state on itself."""

    name = "forgets"
    calls: ClassVar[list[int]] = [0]

    def choose(self, size, rng, memory, orders):
        """Return the next samples."""
        self.calls[0] += size
        return np.arange(self.calls[0], self.calls[0] + size) % len(memory)


class Fails(Selection):
    """Divides by zero."""

    name = "fails"

    def choose(self, size, rng, memory, orders):
        """Fail."""
        return size / 0


def test_a_selection_that_cannot_choose_is_refused_before_the_run():
    with pytest.raises(
        ParameterError, match=r"selection 'of_another_shard': choose\(\) of worker \d returns \d+"
    ):
        Workload.build(experiment(OfAnotherShard()))
    with pytest.raises(ParameterError, match=r"'fails': worker 0 cannot choose .*division by zero"):
        Workload.build(experiment(Fails()))


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (OfAnotherShard, "is not a sample of its shard"),
        (Forgets, "keeps state on itself"),
        (Fails, "raised ZeroDivisionError"),
    ],
)
def test_check_strategy_finds_a_selection_that_breaks_the_contract(part, said):
    with pytest.raises(BrokenContract, match=said):
        check_strategy(part, clusters=1)


def test_check_strategy_takes_one_that_keeps_it():
    check_strategy(DrawnOnce, clusters=1)


def test_what_does_not_fit_is_refused_with_its_reason():
    with pytest.raises(ParameterError, match="map_reduce"):
        experiment("with_replacement", "map_reduce")
    with pytest.raises(ParameterError, match="sharding 'seldp' keeps a worker's samples in order"):
        experiment("with_replacement", sharding="seldp")
    with pytest.raises(ParameterError, match="timing_only: 'online_batch'"):
        experiment("online_batch", timing_only=True, stop={"updates": 3})
    with pytest.raises(UnknownName, match="column of data"):
        Workload.build(
            experiment({"name": "data_aware", "neighbourhoods": {"name": "column", "column": "no"}})
        )


class WithAnEmptyOne(Neighbourhoods):
    """Names a neighbourhood that no sample is in."""

    name = "with_an_empty_one"

    def groups(self, data, rng):
        """Return two halves, and nothing else."""
        half = [np.arange(len(y)) % 2 for y in (data.train_y, data.val_y)]
        return SampleGroups(*half, ("even", "odd", "neither"))


class Unseen(WithAnEmptyOne):
    """Has a neighbourhood whose samples are all to train on."""

    name = "unseen"

    def groups(self, data, rng):
        """Return two halves of the training set."""
        return SampleGroups(
            np.arange(len(data.train_y)) % 2, np.zeros(len(data.val_y), np.int64), ("even", "odd")
        )


def test_a_neighbourhood_without_samples_is_refused_by_its_name():
    for kind, said in (
        (WithAnEmptyOne, "'neither' has no training sample"),
        (Unseen, "'odd' has no validation"),
    ):
        with pytest.raises(ParameterError, match=said):
            Workload.build(experiment({"name": "data_aware", "neighbourhoods": kind()}))
    Workload.build(experiment({"name": "drawn_once", "neighbourhoods": Unseen()}))  # reads no evaluation


def test_a_worker_without_a_neighbourhood_draws_from_the_others():
    spec = experiment("data_aware", sharding="labels_per_worker")
    with pytest.warns(DoubtfulComposition, match="some neighbourhood has no sample on 3 of 3 workers"):
        workload = Workload.build(spec)
    trainer = workload.trainer()
    trainer.select(spec.strategy.selection, workload.known_of_data(spec.strategy.selection))
    memory = trainer._chooser(0).memory
    shares = spec.strategy.selection.shares(memory, {"focus": [0.2, 0.5, 0.3]})
    assert sorted(shares.tolist()) == [0.0, 0.0, 1.0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DoubtfulComposition)
        run(spec)


@pytest.mark.parametrize("strategy", ["asp", {"name": "local_sgd", "local_steps": 3}])
def test_a_push_reports_the_samples_that_it_was_computed_from(strategy, monkeypatch):
    """Sums by class over all mini-batches of a push, also of several local steps."""
    drawn = defaultdict(list)
    learn = Trainer.learn

    def noted(self, job, result):
        drawn[job.worker].append((job.indices, result.found["loss"], result.found["predicted"]))
        return learn(self, job, result)

    monkeypatch.setattr(Trainer, "learn", noted)
    strategy = {"name": strategy} if isinstance(strategy, str) else strategy
    spec = toy_experiment({**strategy, "selection": ByReports()}, stop={"updates": 6})
    done = run(spec)
    right = Workload.build(spec).data.train_y.numpy()
    pushes = done.log.of_kind(Kind.PUSH)
    for worker in range(3):
        texts = [json.loads(done.log.text(n)) for n in pushes["text"][pushes["worker"] == worker]]
        of_each = len(drawn[worker]) // len(texts)
        for number, text in enumerate(texts):
            steps = drawn[worker][number * of_each : (number + 1) * of_each]
            indices, loss, predicted = (np.concatenate(each) for each in zip(*steps, strict=True))
            for h in range(3):
                own = right[indices] == h
                found = [text.get(f"selection.{name}:{h}", 0.0) for name in SUMS]
                expected = own.sum(), loss[own].sum(), (predicted != right[indices])[own].sum()
                assert found == pytest.approx(expected)


def test_reports_are_the_statistics_under_a_prefix():
    assert reported(Push(0, 0, 0, 0, 8)) == {}
    done = run(experiment(DrawnOnce(), stop={"updates": 2}))
    texts = [done.log.text(number) for number in done.log.of_kind(Kind.PUSH)["text"]]
    assert all("selection.known" in text for text in texts)
