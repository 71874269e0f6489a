"""A parameter without a gradient is left alone, as torch leaves it: momentum, decay and count of steps."""

from __future__ import annotations

import pytest
import torch
from models.networks import Branching, flat, plain_parallel, start
from torch import nn

from psbench.errors import ParameterError
from psbench.optimization.absent import absent_entries, absent_in_all, mark
from psbench.optimization.optimizer import Optimizer
from psbench.optimization.piecewise import PiecewiseSteps, of_one_form
from psbench.optimization.torch_optimizer import as_optimizer
from psbench.runs.execution import resume, run
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster
from psbench.training.build import Workload

SHAPES = ((3, 4), (5,), (2, 3))
#: which tensors have a gradient in each step
THERE = ((1, 1, 0), (1, 0, 0), (0, 1, 0), (1, 1, 1), (0, 0, 0), (1, 0, 1))
SPECS = {
    "momentum": ({"name": "sgd", "momentum": 0.9, "weight_decay": 0.1}, torch.optim.SGD),
    "nesterov": ({"name": "sgd", "momentum": 0.9, "nesterov": True}, torch.optim.SGD),
    "decay": ({"name": "sgd", "weight_decay": 0.1}, torch.optim.SGD),
    "adam": ({"name": "adam", "weight_decay": 0.1}, torch.optim.Adam),
    "AdamW": ({"name": "torch", "type": "AdamW", "weight_decay": 0.1}, torch.optim.AdamW),
    "RMSprop": ({"name": "torch", "type": "RMSprop", "arguments": {"momentum": 0.5}}, torch.optim.RMSprop),
    "NAdam": ({"name": "torch", "type": "NAdam"}, torch.optim.NAdam),
    "Adagrad": ({"name": "torch", "type": "Adagrad"}, torch.optim.Adagrad),
}


def theirs(kind, spec: Optimizer, parameters):
    names = ("momentum", "nesterov", "weight_decay")
    options = {name: getattr(spec, name) for name in names if getattr(spec, name, None)}
    return kind(parameters, lr=0.05, **options | getattr(spec, "arguments", {}))


def gradients(step: int):
    draw = torch.Generator().manual_seed(step)
    return [
        torch.randn(shape, generator=draw) if there else None
        for shape, there in zip(SHAPES, THERE[step], strict=True)
    ]


def as_vector(parts) -> torch.Tensor:
    found = [torch.zeros(shape) if part is None else part for part, shape in zip(parts, SHAPES, strict=True)]
    for part, there in zip(found, parts, strict=True):
        if there is None:
            mark(part)
    return torch.cat([part.reshape(-1) for part in found])


def cut(vector: torch.Tensor, at: int) -> list[torch.Tensor]:
    return [vector[:at], vector[at:]]


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("at", [8, 14])
def test_any_optimizer_leaves_alone_what_torch_does(name: str, at: int) -> None:
    """On one vector, and on two slices that cut tensors, which halfway go on from their state."""
    values, kind = SPECS[name]
    spec = as_optimizer(values)
    tensors = [
        torch.linspace(-1, 1, 1 + k)
        .repeat(20)[: torch.Size(shape).numel()]
        .view(shape)
        .clone()
        .requires_grad_()
        for k, shape in enumerate(SHAPES)
    ]
    oracle, ours = theirs(kind, spec, tensors), torch.cat([t.detach().reshape(-1) for t in tensors])
    slices = cut(ours, at)
    updates = [PiecewiseSteps(spec, own) for own in slices]
    for step in range(len(THERE)):
        for tensor, gradient in zip(tensors, gradients(step), strict=True):
            tensor.grad = gradient
        oracle.step()
        for update, gradient in zip(updates, cut(as_vector(gradients(step)), at), strict=True):
            update.step(gradient, 0.05, absent_entries(gradient))
        torch.testing.assert_close(ours, flat_of(tensors), rtol=2e-7, atol=1e-9)
        states = of_one_form([update.state() for update in updates], [len(own) for own in slices])
        updates = [PiecewiseSteps(spec, own) for own in slices]
        for update, state in zip(updates, states, strict=True):
            update.load_state({n: t.clone() for n, t in state.items()})


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
@pytest.mark.parametrize("order", [SHAPES, (SHAPES[1], SHAPES[0], SHAPES[2])], ids=["late", "between"])
def test_muon_leaves_alone_what_torchs_muon_and_adamw_do(order) -> None:
    """Each tensor in turn has no gradient, also before its first step; state is saved after each step."""
    spec = as_optimizer({"name": "muon", "weight_decay": 0.1}).of_tensors(order)
    tensors = [torch.linspace(-1, 1, torch.Size(s).numel()).reshape(s).requires_grad_() for s in order]
    matrices, others = ([t for t in tensors if (t.dim() == 2) == is_one] for is_one in (True, False))
    oracles = (
        torch.optim.Muon(matrices, lr=0.05, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=0.05, weight_decay=0.1),
    )
    ours = flat_of(tensors).clone()
    update = PiecewiseSteps(spec, ours)
    for step, there in enumerate(THERE):
        draw = torch.Generator().manual_seed(step)
        for tensor, has in zip(tensors, there, strict=True):
            tensor.grad = torch.randn(tensor.shape, generator=draw) if has else None
        found = [torch.zeros(t.shape) if t.grad is None else t.grad.clone() for t in tensors]
        for tensor, gradient in zip(tensors, found, strict=True):
            if tensor.grad is None:
                mark(gradient)
        vector = torch.cat([gradient.reshape(-1) for gradient in found])
        for oracle in oracles:
            oracle.step()
        update.step(vector, 0.05, absent_entries(vector))
        torch.testing.assert_close(ours, flat_of(tensors), rtol=1e-5, atol=1e-7)
        state = {name: value.clone() for name, value in update.state().items()}
        update = PiecewiseSteps(spec, ours)
        update.load_state(state)


def flat_of(tensors) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_a_tensor_whose_step_is_scaled_is_left_alone_too(name: str) -> None:
    spec = as_optimizer({"name": name, "weight_decay": 0.1}).of_tensors(SHAPES)
    ours = torch.linspace(-1, 1, 23)
    update = PiecewiseSteps(spec, ours)
    gradient = as_vector(gradients(3))
    update.step(gradient, 0.1)
    before = ours.clone()
    second = as_vector(gradients(1))
    update.step(second, 0.1, absent_entries(second))
    assert torch.equal(ours[12:], before[12:])
    assert not torch.equal(ours[:12], before[:12])


def test_a_sum_is_absent_where_all_are() -> None:
    one, two = torch.tensor([-0.0, -0.0, 1.0, 0.0]), torch.tensor([-0.0, 2.0, -1.0, -0.0])
    assert absent_in_all([one, two]).tolist() == [True, False, False, False]
    assert absent_entries(one * 0.25 + two * 0.75).tolist() == [True, False, False, False]
    assert absent_entries(torch.tensor([0.0, 1.0])) is None


MOMENTUM = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}
TWO = {"consistency": "bsp", "placement": {"name": "parameter_server", "servers": 2}}


def branching(strategy, optimizer=MOMENTUM, **changes):
    settings = {"cluster": toy_cluster([1.0, 1.0]), "batch_size": 4, "stop": {"updates": 12}}
    return toy_experiment(strategy, model=Branching, optimizer=optimizer, **settings | changes)


@pytest.mark.parametrize("strategy", ["bsp", "all_reduce", "map_reduce", "fsdp", TWO], ids=str)
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_workers_together_are_distributed_data_parallel(strategy, kind: str) -> None:
    optimizer = MOMENTUM if kind == "sgd" else {"name": "adam", "lr": 0.01, "weight_decay": 0.05}
    experiment = branching(strategy, optimizer)
    module = start(experiment)
    plain = (
        torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.05)
        if kind == "sgd"
        else torch.optim.Adam(module.parameters(), lr=0.01, weight_decay=0.05)
    )
    expected, used = plain_parallel(experiment, 12, module, plain)
    assert {each[4] for each in used} == {True, False}, "the case has both"
    torch.testing.assert_close(run(experiment).parameters, flat(expected), rtol=1e-6, atol=1e-7)


UNMOVED = [
    *("asp", "ssp", "local_sgd", "diloco", "osp", "d_psgd"),
    {"consistency": "bsp", "aggregation": "median"},
    {"consistency": "bsp", "aggregation": "trimmed_mean"},
    {"consistency": "asp", "aggregation": "delay_compensated"},
    {"name": "selsync", "aggregate": "gradient"},
]


@pytest.mark.parametrize("strategy", UNMOVED, ids=str)
def test_no_strategy_moves_what_nobody_uses(strategy) -> None:
    experiment = branching(strategy)
    before = Workload.build(experiment).parameters
    after = run(experiment).parameters
    torch.testing.assert_close(after[:15], before[:15], rtol=1e-6, atol=0)  # averages round
    assert not torch.equal(after[15:], before[15:])


def test_a_run_goes_on_where_it_was(tmp_path) -> None:
    experiment = branching(TWO, {"name": "adam", "lr": 0.01}, checkpoint_every=0.3, stop={"epochs": 2})
    whole = run(experiment, folder=tmp_path / "whole")
    first = min((tmp_path / "whole" / "checkpoints").glob("*.npz"))
    again = resume(first, model=Branching, folder=tmp_path / "again")
    assert torch.equal(whole.parameters, again.parameters)


CODEC = {"consistency": "bsp", "communication": {"name": "every_step", "codec": "fp16"}}


@pytest.mark.parametrize(
    ("strategy", "who"),
    [
        (CODEC, "codec 'fp16'"),
        ("power_sgd", "aggregation 'power_sgd'"),
        ("one_bit_adam", "aggregation 'one_bit_adam'"),
    ],
    ids=str,
)
def test_what_cannot_tell_is_refused_before_the_run(strategy, who: str) -> None:
    changes = {"optimizer": {"name": "sgd", "lr": 0.01}} if strategy == "one_bit_adam" else {}
    with pytest.raises(ParameterError, match=f"'spare.weight' parameter.*{who}.*requires_grad"):
        Workload.build(branching(strategy, **changes))


class Late(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.always, self.first = nn.Linear(4, 3), nn.Linear(4, 3)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.step += self.training
        return self.always(x) + self.first(x) if self.step <= 3 else self.always(x)


def test_what_cannot_tell_is_refused_in_the_step_that_shows_it() -> None:
    with pytest.raises(ParameterError, match=r"does not depend on some parameter.*codec 'fp16'"):
        run(branching(CODEC).but(model=Late))
    run(
        branching(CODEC, {"name": "sgd", "lr": 0.1}).but(model=Late)
    )  # where zeros move nothing, it is told alike


def test_a_layer_that_is_no_longer_used_stays() -> None:
    ends = [run(branching("bsp").but(model=Late, stop={"updates": n})).parameters for n in (3, 9)]
    assert torch.equal(ends[0][15:], ends[1][15:])
    assert not torch.equal(ends[0][:15], ends[1][:15])
