"""The rate of each step that a worker takes by itself: as torch's schedulers, stepped after every step."""

from __future__ import annotations

import copy
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from local_runs import Watched, close
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, MultiStepLR, SequentialLR

from psbench.core.log import Kind
from psbench.core.peer_to_peer import WaitsForNeighbours
from psbench.runs.execution import resume, run
from psbench.strategies import make_strategy
from psbench.strategies.catalogue.make import CATALOGUE
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster
from psbench.training import local_model
from psbench.training.batches import Batches
from psbench.training.build import Workload

# runs shorter than their schedules are what this is about
pytestmark = pytest.mark.filterwarnings("ignore::psbench.errors.DoubtfulComposition")

EPOCH = 8  # steps of every worker: 96 samples in batches of 12
COSINE = {"schedule": {"name": "cosine", "epochs": 5}}
WARM = {"schedule": {"name": "linear", "epochs": 5, "warmup": 2}}
DROPS = {"milestones": [0.25, 1.125, 3], "gamma": 0.5}
SCHEDULES = {"cosine": COSINE, "linear with a warm-up": WARM, "milestones": DROPS}
WORKERS = 3


def sgd(schedule, **values):
    return {"name": "sgd", "lr": 0.3, **schedule, **values}


def scheduler_of(optimizer, schedule):
    """Return torch's own scheduler for one of the schedules, in steps."""
    if schedule is COSINE:
        return CosineAnnealingLR(optimizer, 5 * EPOCH)
    if schedule is DROPS:
        return MultiStepLR(optimizer, [round(epoch * EPOCH) for epoch in DROPS["milestones"]], gamma=0.5)
    rising = LinearLR(optimizer, 0.01, 1.0, 2 * EPOCH)
    falling = LinearLR(optimizer, 1.0, 0.0, 3 * EPOCH)
    return SequentialLR(optimizer, [rising, falling], [2 * EPOCH])


def torch_rates(schedule, steps):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    scheduler, found = scheduler_of(optimizer, schedule), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


class InTorch:
    """The workers of a toy experiment: modules, their optimizers, schedulers and batches, all of torch."""

    def __init__(self, experiment, schedule, **options):
        workload = Workload.build(experiment)
        self.x, self.y = workload.data.train_x, workload.data.train_y
        self.centre = experiment.model.build(
            tuple(self.x.shape[1:]), len(workload.data.classes), workload.streams
        )
        self.workers = []
        for number in range(experiment.num_workers):
            module = copy.deepcopy(self.centre)
            optimizer = torch.optim.SGD(module.parameters(), lr=0.3, **options)
            batches = Batches(workload.shards[number], workload.streams, number)
            size = workload.batch_sizes[number]
            scheduler = scheduler_of(optimizer, schedule)
            self.workers.append(SimpleNamespace(**locals()))

    def gradient(self, worker):
        where = torch.from_numpy(worker.batches.take(worker.size))
        worker.optimizer.zero_grad()
        functional.cross_entropy(worker.module(self.x[where]), self.y[where]).backward()

    def step(self, worker):
        self.gradient(worker)
        worker.optimizer.step()
        worker.scheduler.step()

    def flat(self, module):
        return torch.cat([p.detach().reshape(-1) for p in module.parameters()])

    def models(self):
        return [self.flat(worker.module) for worker in self.workers]

    def load(self, vector):
        for worker in self.workers:
            torch.nn.utils.vector_to_parameters(vector.clone(), worker.module.parameters())
            worker.optimizer.state.clear()


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("steps", [1, 7, 20])
def test_local_sgd_is_torch_with_a_scheduler_for_each_worker(schedule, steps):
    rounds = 40 // steps
    experiment = toy_experiment(
        {"name": "local_sgd", "local_steps": steps}, optimizer=sgd(schedule), stop={"updates": rounds}
    )
    torchs = InTorch(experiment, schedule)
    for _ in range(rounds):
        for worker in torchs.workers:
            for _ in range(steps):
                torchs.step(worker)
        torchs.load(sum(torchs.models()) / WORKERS)
    close(run(experiment).parameters, torchs.models()[0])


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_diloco_is_torch_with_an_inner_scheduler(schedule):
    experiment = toy_experiment(
        {"name": "diloco", "local_steps": 10}, inner_optimizer=sgd(schedule), stop={"updates": 3}
    )
    torchs = InTorch(experiment, schedule)
    centre = torchs.flat(torchs.centre).requires_grad_()
    part = experiment.strategy.aggregation
    outer = torch.optim.SGD([centre], lr=part.outer_lr, momentum=part.outer_momentum, nesterov=True)
    for _ in range(3):
        for worker in torchs.workers:
            for _ in range(10):
                torchs.step(worker)
        centre.grad = centre.detach() - sum(torchs.models()) / WORKERS
        outer.step()
        torchs.load(centre.detach().clone())
    close(run(experiment).parameters, centre.detach())


@pytest.mark.parametrize("aggregate", ["parameters", "gradient"])
def test_selsync_that_always_synchronises_is_torch_on_the_global_batch(aggregate):
    strategy = {"name": "selsync", "delta": 0.0, "aggregate": aggregate}
    experiment = toy_experiment(strategy, optimizer=sgd(WARM), stop={"updates": 20})
    torchs = InTorch(experiment, WARM)
    for _ in range(20):
        for worker in torchs.workers:
            torchs.step(worker)
        torchs.load(sum(torchs.models()) / WORKERS)
    done = run(experiment)
    close(done.parameters, torchs.models()[0])
    # what workers go on from is that model, too, and not one of another rate
    close(torch.tensor(done.summary()["final"]["train_loss"]), _loss(torchs))


def _loss(torchs):
    with torch.no_grad():
        return functional.cross_entropy(torchs.workers[0].module(torchs.x), torchs.y)


@pytest.mark.parametrize("name", ["d_psgd", "d_psgd_step_first"])
def test_workers_without_a_server_step_at_torch_s_rates(name):
    changes = {"optimizer": sgd(WARM), "cluster": toy_cluster([1.0] * WORKERS), "stop": {"epochs": 3}}
    torchs = InTorch(toy_experiment(name, **changes), WARM)
    for _ in range(2 * EPOCH):
        before = torchs.models()
        for worker in torchs.workers:
            torchs.step(worker)
        own = torchs.models()
        for worker, model, start in zip(torchs.workers, own, before, strict=True):
            mixed = sum(before) / WORKERS + model - start if name == "d_psgd" else sum(own) / WORKERS
            torch.nn.utils.vector_to_parameters(mixed, worker.module.parameters())
    watched = Watched(name, **changes)
    found = watched.until(lambda view: [w.version for w in view.workers.values()] == [2 * EPOCH] * WORKERS)
    for model, expected in zip(found, torchs.models(), strict=True):
        close(model, expected)


@pytest.fixture
def rates(monkeypatch):
    """The rates of the steps of each worker's model, in the order in which they began to step."""
    found, models = defaultdict(list), {}
    stepped = local_model.LocalModel.stepped

    def watched(self, *arguments):
        stepped(self, *arguments)
        models[id(self)] = self  # kept, or another might have its id
        found[id(self)].append(self._own.lr)

    monkeypatch.setattr(local_model.LocalModel, "stepped", watched)
    return found


def _in_step(name):
    strategy = make_strategy(name)
    each = strategy.compositions[0]
    together = each.consistency.barrier or isinstance(each.consistency, WaitsForNeighbours)
    return len(strategy.compositions) == 1 and each.own_steps and together


IN_STEP = [
    name for name in CATALOGUE if _in_step(name) and name not in ("adacomm", "osp", "decoupled_diloco")
]


@pytest.mark.by_day(10)
@pytest.mark.parametrize("name", IN_STEP)
@pytest.mark.parametrize("speeds", [[1.0, 1.0, 1.0], [1.0, 0.5, 0.25]], ids=["alike", "unlike"])
def test_every_strategy_whose_workers_keep_step_has_torch_s_rates(name, speeds, rates):
    experiment = toy_experiment(
        name, cluster=toy_cluster(speeds), optimizer=sgd(WARM), batch_size=13, stop={"epochs": 5}
    )
    rates.clear()  # of what was tried when the strategy was made
    run(experiment)
    found = [own for own in rates.values() if len(own) > 5]
    assert len(found) == WORKERS
    for own in found:
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
        expected = []
        for step in range(len(own)):
            epoch = step * 13 / 96
            factor = 0.01 + 0.99 * epoch / 2 if epoch < 2 else max(0.0, 1 - (epoch - 2) / 3)
            expected.append(optimizer.defaults["lr"] * factor)
        assert own == pytest.approx(expected, abs=1e-7)


def test_without_a_barrier_a_round_begins_where_the_run_is(rates):
    strategy = {"name": "local_sgd", "local_steps": 6, "consistency": "asp"}
    experiment = toy_experiment(strategy, optimizer=sgd(COSINE), stop={"updates": 16})
    rates.clear()
    done = run(experiment)
    applied = done.log.of_kind(Kind.APPLY)
    begun = defaultdict(lambda: [0])
    for number, worker in enumerate(applied["worker"].tolist(), 1):
        begun[worker].append(24 * number)  # samples: its release follows its own version
    workers = [own for own in rates.values() if len(own) > 3]
    for worker, own in enumerate(workers):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
        table = CosineAnnealingLR(optimizer, 5 * 96)  # by samples
        by_sample = []
        for _ in range(5 * 96):
            by_sample.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            table.step()
        expected = [by_sample[start + 12 * step] for start in begun[worker] for step in range(6)]
        assert own == pytest.approx(expected[: len(own)], abs=1e-7)


def test_adacomm_that_defers_keeps_the_rate_within_a_round(rates):
    experiment = toy_experiment("adacomm", optimizer=sgd(COSINE), stop={"epochs": 2})
    rates.clear()
    run(experiment)
    assert {rate for own in rates.values() if len(own) > 3 for rate in own} == {0.3}


@pytest.mark.by_day(2)
@pytest.mark.parametrize("name", ["local_sgd", "diloco", "streaming_diloco", "d_psgd", "selsync"])
def test_a_resumed_run_has_the_rates_of_one_that_was_not_stopped(name, tmp_path):
    # d_psgd: some workers are in the middle of their steps
    changes = {"optimizer": sgd(WARM), "checkpoint_every": 0.1}
    half = 30 if name in ("d_psgd", "selsync") else 2
    if name == "streaming_diloco":
        name = {"name": name, "overlap": 0}
    whole = run(toy_experiment(name, **changes, stop={"updates": 2 * half}))
    run(toy_experiment(name, **changes, stop={"updates": half}), folder=tmp_path)
    close(resume(tmp_path, {"stop": {"updates": 2 * half}}).parameters, whole.parameters)
