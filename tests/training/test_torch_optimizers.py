"""Optimizers by torch's classes, schedules and clipping, against torch itself."""

from __future__ import annotations

import functools
import math
import re

import pytest
import torch

import psbench as ps
from psbench.core.arithmetic import Pushed
from psbench.core.part import REGISTRY
from psbench.errors import DoubtfulComposition, ParameterError, SpecError, UnknownName
from psbench.experiment import Experiment
from psbench.optimization.clip import Clip
from psbench.optimization.optimizer import SGD
from psbench.optimization.schedule import Cosine, LinearDecay, OneCycle
from psbench.optimization.torch_optimizer import BY_NAME, TorchOptimizer, as_optimizer
from psbench.testing import toy_experiment
from psbench.training.build import Workload

#: those of torch that step each entry by its own gradient
ENTRYWISE = ("SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop")


def _rates(schedule, optimizer_schedule, epochs):
    """Our factors and torch's at each epoch; torch's scheduler steps once an epoch."""
    parameter = torch.zeros(1)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    theirs = optimizer_schedule(optimizer)
    found = []
    for _ in range(epochs):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    return [schedule.factor(epoch) for epoch in range(epochs)], found


@pytest.mark.parametrize(
    ("schedule", "of_torch"),
    [
        (
            Cosine(epochs=20, floor=0.1),
            lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=20, eta_min=0.1),
        ),
        (
            LinearDecay(epochs=20, floor=0.25),
            lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.25, total_iters=20),
        ),
        (
            OneCycle(epochs=19, rise=0.3),
            # torch's last step is number total_steps - 1, and its rise ends one step early
            lambda o: torch.optim.lr_scheduler.OneCycleLR(
                o, 1.0, total_steps=20, pct_start=(0.3 * 19 + 1) / 20
            ),
        ),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_schedules_are_those_of_torch(schedule, of_torch):
    ours, theirs = _rates(schedule, of_torch, 20)
    assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-9)
    assert schedule.factor(100) == pytest.approx(schedule.factor(20), abs=1e-6)


def test_a_warm_up_rises_in_a_line_and_meets_the_decay():
    schedule = Cosine(epochs=12, warmup=4)
    rise = [schedule.factor(epoch) for epoch in (0, 1, 2, 3, 4)]
    assert rise == pytest.approx([0.01, 0.2575, 0.505, 0.7525, 1.0])
    assert schedule.factor(8) == pytest.approx(0.5)
    assert SGD(lr=0.2, milestones=(6,), schedule=schedule).rate(8) == pytest.approx(0.2 * 0.1 * 0.5)


@pytest.mark.parametrize(
    ("clip", "of_torch"),
    [
        ({"norm": 0.5}, lambda p: torch.nn.utils.clip_grad_norm_(p, 0.5)),
        ({"norm": 1e6}, lambda p: torch.nn.utils.clip_grad_norm_(p, 1e6)),
        ({"value": 0.1}, lambda p: torch.nn.utils.clip_grad_value_(p, 0.1)),
    ],
    ids=("norm", "norm that is not reached", "value"),
)
def test_a_run_is_torch_s_plain_loop_with_optimizer_schedule_and_clip(clip, of_torch):
    """One worker, AdamW, a cosine by step, clipped gradients of all of the model."""
    steps = 12
    experiment = toy_experiment(
        "bsp",
        cluster={"workers": 1},
        stop={"updates": steps},
        optimizer={
            "name": "torch",
            "type": "AdamW",
            "lr": 0.05,
            "weight_decay": 0.1,
            "arguments": {"betas": [0.8, 0.9]},
            "schedule": {"name": "cosine", "epochs": 2},
            "clip": clip,
        },
    )
    workload = Workload.build(experiment)
    trainer, module = workload.trainer(), workload.model.module
    parameters = list(module.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.1, betas=(0.8, 0.9))
    samples = len(workload.data.train_y)
    for step in range(steps):
        where = torch.from_numpy(trainer.start(0, experiment.batch_size).indices)
        epoch = step * experiment.batch_size / samples
        optimizer.param_groups[0]["lr"] = 0.05 * (1 + math.cos(math.pi * min(1.0, epoch / 2))) / 2
        optimizer.zero_grad()
        outputs = module(workload.data.train_x[where])
        torch.nn.functional.cross_entropy(outputs, workload.data.train_y[where]).backward()
        of_torch(parameters)
        optimizer.step()
    expected = torch.cat([each.detach().flatten() for each in parameters])
    found = torch.cat([each.detach().flatten() for each in ps.run(experiment).model().parameters()])
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("strategy", ["bsp", "asp", "local_sgd", {"name": "bsp", "servers": 3}], ids=str)
def test_sgd_by_its_class_is_sgd(strategy):
    by_class = {"name": "torch", "type": "SGD", "lr": 0.1, "arguments": {"momentum": 0.9}}
    ours, theirs = (
        ps.run(toy_experiment(strategy, optimizer=optimizer, stop={"updates": 9})).summary()["params_digest"]
        for optimizer in ({"name": "sgd", "lr": 0.1, "momentum": 0.9}, by_class)
    )
    assert ours == theirs


@pytest.mark.parametrize("name", ENTRYWISE)
def test_slices_of_a_vector_step_as_the_whole(name):
    from psbench.training.server import Server

    spec = TorchOptimizer(type=name, lr=0.02)
    start, none = torch.linspace(-1, 1, 7), torch.zeros(0)
    whole = Server(start, none, spec, 1)
    slices = [Server(start[part], none, spec, 1) for part in (slice(2), slice(2, 7))]
    for number in range(5):
        gradient = torch.linspace(-2, 3, 7) * (-1) ** number
        whole.apply([Pushed(gradient.clone(), 1, 1.0)])
        for server, part in zip(slices, (slice(2), slice(2, 7)), strict=True):
            server.apply([Pushed(gradient[part].clone(), 1, 1.0)])
    assert torch.equal(whole.parameters, torch.cat([server.parameters for server in slices]))
    assert not torch.equal(whole.parameters, start)


@pytest.mark.parametrize(
    ("optimizer", "kind", "said"),
    [
        ({"name": "torch", "type": "adamww"}, ParameterError, "did you mean 'AdamW'"),
        ({"name": "torch", "type": "LBFGS"}, ParameterError, "cannot step on a flat vector"),
        ({"name": "torch", "type": "Muon"}, ParameterError, "does not take one flat vector|has no 'Muon'"),
        ({"name": "torch", "type": "Adafactor"}, ParameterError, "depends on the whole vector"),
        ({"name": "torch", "arguments": {"lr": 1}}, ParameterError, "arguments: lr is a field"),
        ({"name": "torch", "type": "Rprop", "weight_decay": 0.1}, ParameterError, "has no weight_decay"),
        ({"name": "torch", "type": "no.such:Lion"}, ParameterError, "'no.such' cannot be imported"),
        ({"name": "sgd", "schedule": "cosin"}, UnknownName, "did you mean 'cosine'"),
        (
            {"name": "sgd", "schedule": {"name": "linear", "epochs": 2, "warmup": 2}},
            ParameterError,
            "leaves no epochs",
        ),
        ({"name": "sgd", "clip": {}}, ParameterError, "either norm or value"),
        ({"name": "sgd", "clip": {"norm": 1, "value": 1}}, ParameterError, "either norm or value"),
        (lambda parameters: torch.optim.SGD(parameters), ParameterError, "is a function; give a class"),
    ],
)
def test_what_cannot_train_is_refused_when_the_experiment_is_made(optimizer, kind, said):
    with pytest.raises(kind, match=said):
        Experiment(optimizer=optimizer)


def test_a_class_or_a_partial_of_one_is_taken_with_its_own_defaults():
    plain = Experiment(optimizer=torch.optim.AdamW).optimizer
    assert (plain.type, plain.lr, plain.weight_decay) == ("AdamW", 0.001, 0.01)
    made = Experiment(optimizer=functools.partial(torch.optim.RMSprop, lr=0.02, alpha=0.9)).optimizer
    assert (made.type, made.lr, made.arguments) == ("RMSprop", 0.02, {"alpha": 0.9})


def test_a_run_that_ends_in_the_middle_of_its_schedule_is_a_warning():
    with pytest.warns(
        DoubtfulComposition, match=r"optimizer.schedule: .cosine. ends at epoch 30, .* 15, .* is 0.5 "
    ):
        Experiment(optimizer={"name": "sgd", "schedule": "cosine"}, stop={"epochs": 15})
    Experiment(optimizer={"name": "sgd", "schedule": "cosine"}, stop={"epochs": 30})  # errors in tests


def test_a_specification_keeps_them_and_one_without_is_as_it_was(tmp_path):
    plain = Experiment(optimizer={"name": "sgd"}).spec()["optimizer"]
    assert not {"schedule", "clip"} & set(plain)
    given = {"name": "sgd", "schedule": {"name": "cosine", "epochs": 5}, "clip": {"value": 2}}
    again = Experiment.from_spec(Experiment(optimizer=given).spec()).optimizer
    assert (again.schedule, again.clip) == (Cosine(epochs=5), Clip(value=2))


def test_a_function_of_the_epoch_is_a_schedule_passed_again_to_resume(tmp_path):
    optimizer = {"name": "sgd", "lr": 0.1, "schedule": lambda epoch: 0.5**epoch}
    experiment = toy_experiment("bsp", optimizer=optimizer, stop={"epochs": 2}, checkpoint_every=1)
    run = ps.run(experiment, folder=tmp_path / "run")
    assert run.experiment.optimizer.rate(2) == pytest.approx(0.025)
    with pytest.raises(SpecError, match="optimizer="):
        ps.resume(tmp_path / "run", {"stop.epochs": 4})
    longer = ps.resume(tmp_path / "run", {"stop.epochs": 4}, optimizer=optimizer)
    whole = ps.run(experiment.but(stop={"epochs": 4}))
    assert longer.summary()["params_digest"] == whole.summary()["params_digest"]
    with pytest.raises(ParameterError, match="factor of the rate, 0 or more"):
        ps.run(experiment.but(optimizer={"name": "sgd", "schedule": lambda epoch: -1}))


# ------------------------------------------------------------------ decay of some tensors; two optimizers

DECAYING = {
    "sgd": ({"momentum": 0.9}, lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9)),
    "adam": ({}, lambda groups: torch.optim.Adam(groups, lr=0.05)),
    "torch": ({"type": "AdamW"}, lambda groups: torch.optim.AdamW(groups, lr=0.05)),
}


def decaying(name, **more):
    return {"name": name, "lr": 0.05, "weight_decay": 0.3, "decay": "matrices", **DECAYING[name][0], **more}


@pytest.mark.parametrize("name", DECAYING)
def test_biases_do_not_decay_where_matrices_alone_do(name):
    """Torch's own groups are the oracle; two slices, cut within a tensor and resumed, are the whole."""
    experiment = toy_experiment("bsp", optimizer=decaying(name), model={"name": "mlp", "hidden": [3]})
    workload = Workload.build(experiment)
    modules = [values.detach().clone() for values in workload.model.module.parameters()]
    rest = [values for values in modules if values.dim() < 2]
    groups = [
        {"params": [values for values in modules if values.dim() > 1], "weight_decay": 0.3},
        {"params": rest, "weight_decay": 0.0},
    ]
    theirs, whole = DECAYING[name][1](groups), workload.optimizers[0]
    start = workload.parameters
    cut = 5
    ours, parts = start.clone(), [start[:cut].clone(), start[cut:].clone()]
    update = whole.update(ours)
    own = [whole.of_entries(each) for each in (whole.entries[:cut], whole.entries[cut:])]
    updates = [optimizer.update(part) for optimizer, part in zip(own, parts, strict=True)]
    for step in range(6):
        gradient = torch.sin(torch.arange(len(start)) * (step + 1.0))
        for values, each in zip(modules, torch.split(gradient, [v.numel() for v in modules]), strict=True):
            values.grad = each.view_as(values)
        theirs.step()
        update.step(gradient, 0.05)
        for place, each in enumerate((gradient[:cut], gradient[cut:])):
            updates[place].step(each, 0.05)
        if step == 2:
            state = updates[1].state()
            updates[1] = own[1].update(parts[1])
            updates[1].load_state({name: tensor.clone() for name, tensor in state.items()})
    expected = torch.cat([values.flatten() for values in modules])
    assert torch.equal(ours, expected)
    assert torch.equal(torch.cat(parts), expected)
    assert not torch.equal(expected, start)


def test_workers_may_step_by_another_optimizer_than_the_servers():
    """Under local SGD the servers average only, so the workers' optimizer alone is what matters."""
    local, adam = {"name": "local_sgd", "local_steps": 3}, decaying("torch", clip={"norm": 0.5})
    one = ps.run(toy_experiment(local, optimizer="sgd", inner_optimizer=adam))
    two = ps.run(toy_experiment(local, optimizer=adam))
    assert torch.equal(one.parameters, two.parameters)
    assert "lr = 0.05 for each worker's own steps" in one.summary()["lr_convention"]
    assert ps.Experiment.from_spec(one.experiment.spec()) == one.experiment
    with pytest.raises(ParameterError, match="workers of strategy 'bsp' take no local steps"):
        toy_experiment("bsp", inner_optimizer="adam")


def test_what_cannot_be_sliced_says_so():
    moving = {"name": "parameter_server", "servers": 2, "reassignment": "by_load"}
    with pytest.raises(ParameterError, match="cannot be sliced over servers whose entries move"):
        toy_experiment({"name": "bsp", "placement": moving}, optimizer=decaying("sgd"))


def _in_torch():
    every = {n: c for n, c in vars(torch.optim).items() if isinstance(c, type)}
    return {n: c for n, c in every.items() if issubclass(c, torch.optim.Optimizer) and n != "Optimizer"}


@pytest.mark.parametrize("name", sorted(_in_torch()))
def test_a_class_of_torch_is_named_in_lower_case_with_its_own_defaults(name):
    given = _in_torch()[name]
    if name.lower() in REGISTRY["optimizer"]:
        assert as_optimizer(name.lower()).name == name.lower()  # ours wins
        return
    expected, refusal = None, ""
    try:
        expected = as_optimizer(given)
    except ParameterError as error:
        refusal = str(error)
    if expected is None:
        with pytest.raises(ParameterError, match=f"^{re.escape(refusal)}$"):
            as_optimizer(name.lower())
        assert name.lower() not in BY_NAME
        return
    assert as_optimizer(name.lower()) == expected
    typed = {"name": "torch", "type": name.lower(), "lr": expected.lr, "weight_decay": expected.weight_decay}
    assert as_optimizer(typed) == expected  # as in the field of the panel
    assert BY_NAME[name.lower()] == name  # what `psbench list` and a misspelt name mention
    weights, theirs = torch.linspace(-1, 1, 5), torch.linspace(-1, 1, 5).requires_grad_()
    ours, optimizer = expected.update(weights), given([theirs])
    for step in range(3):
        theirs.grad = torch.linspace(2, -1, 5) / (1 + step)
        ours.step(theirs.grad.clone(), optimizer.defaults["lr"])
        optimizer.step()
    assert torch.equal(weights, theirs.detach())


def test_arguments_stand_beside_a_name_and_our_fields_keep_their_meaning():
    given = {"name": "adamw", "lr": 0.1, "betas": [0.9, 0.95], "schedule": "cosine", "clip": 1.0}
    made = as_optimizer(given)
    assert (made.type, made.lr, made.weight_decay, made.arguments) == (
        *("AdamW", 0.1, torch.optim.AdamW([torch.zeros(1)]).defaults["weight_decay"]),
        {"betas": [0.9, 0.95]},
    )
    assert (made.schedule.name, made.clip) == ("cosine", Clip(norm=1.0))
    spec = Experiment(strategy="bsp", optimizer=given).spec()
    assert Experiment(**spec).optimizer == made
    dotted = Experiment.from_spec({"strategy": "bsp"}, {"optimizer": "adamw", "optimizer.betas": [0.9, 0.95]})
    assert dotted.optimizer.arguments == {"betas": [0.9, 0.95]}


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        ("adamww", "did you mean 'adamw'"),
        ({"name": "rmsprop", "momentm": 0.9}, "momentm"),
        ({"name": "adamw", "lr": "0.1"}, "lr: must be a number"),
        ({"name": "sgd", "nesterov": True}, "needs a momentum above 0"),
        ({"name": "sgd", "clip": "norm"}, "clip: give a number"),
        ({"name": "sgd", "clip": True}, "clip: give a number"),
        ({"name": "sgd", "clip": 0}, "clip.norm: must be greater than 0"),
    ],
)
def test_what_torch_refuses_or_nobody_knows_is_refused(optimizer, said):
    with pytest.raises(SpecError, match=said):
        as_optimizer(optimizer)


def test_nesterov_without_momentum_is_refused_as_by_torch():
    for momentum, refused in ((0.0, True), (0.9, False)):
        outcomes = []
        for make in (
            lambda m: torch.optim.SGD([torch.zeros(1)], lr=0.1, momentum=m, nesterov=True),
            lambda m: SGD(momentum=m, nesterov=True),
        ):
            try:
                make(momentum)
            except (ValueError, SpecError):
                outcomes.append(True)
            else:
                outcomes.append(False)
        assert outcomes == [refused, refused]


def test_a_number_is_the_norm_that_torch_clips_to():
    gradient = torch.tensor([3.0, 4.0])
    weights = torch.zeros(2, requires_grad=True)
    weights.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_([weights], 1.0)
    as_optimizer({"name": "sgd", "clip": 1.0}).clip.apply(gradient)
    assert torch.equal(gradient, weights.grad)
