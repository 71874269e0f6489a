"""LARS and LAMB: against their formulas in plain loops over the tensors, and where they have no meaning."""

import pytest
import torch
from threaded_run import ThreadedRun

import psbench as ps
from psbench.errors import ParameterError
from psbench.optimization.layerwise import LAMB, LARS
from psbench.optimization.muon import Muon
from psbench.testing import toy_experiment

SIZES = [12, 3, 4]

#: torch has it from 2.9 on
NO_MUON = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")


def lars(w, g, kept, decays):
    """You et al. 2017, Alg. 1, with the rate outside of the momentum."""
    wd = 0.1 if decays else 0.0
    local = 0.02 * w.norm() / (g.norm() + wd * w.norm() + 1e-8) if w.norm() and g.norm() else 1.0
    kept["u"] = 0.9 * kept.get("u", 0.0) + local * (g + wd * w)
    return w - 0.5 * kept["u"]


def lamb(w, g, kept, decays):
    """You et al. 2020, Alg. 2, without correction of the bias."""
    kept["m"] = 0.9 * kept.get("m", 0.0) + 0.1 * g
    kept["v"] = 0.999 * kept.get("v", 0.0) + 0.001 * g**2
    u = kept["m"] / (kept["v"].sqrt() + 1e-6) + (0.1 * w if decays else 0.0)
    ratio = w.norm() / u.norm() if w.norm() and u.norm() else 1.0
    return w - 0.5 * ratio * u


@pytest.mark.parametrize("decay", [None, "matrices"])
@pytest.mark.parametrize(
    ("made", "formula"), [(LARS(weight_decay=0.1, trust=0.02), lars), (LAMB(weight_decay=0.1), lamb)]
)
def test_steps_are_those_of_the_formula_and_go_on_from_a_state(made, formula, decay):
    made = made.model_copy(update={"decay": decay})
    decays = torch.arange(19) < 12
    made = made.of_tensors([(3, 4), (3,), (4,)]).of_entries(decays)
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(19, generator=generator)
    vector[15:] = 0.0  # weights of zeros: the step of SGD, or of Adam
    tensors, kept = [part.clone() for part in vector.split(SIZES)], [{}, {}, {}]
    update = made.update(vector)
    for number in range(4):
        gradient = torch.randn(19, generator=generator)
        update.step(gradient, 0.5)
        state, update = update.state(), made.update(vector)
        update.load_state(state)
        for i, g in enumerate(gradient.split(SIZES)):
            tensors[i] = formula(tensors[i], g, kept[i], decay is None or i == 0)
        assert (number, len(state)) == (number, made.tensors)
        torch.testing.assert_close(vector, torch.cat(tensors), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@NO_MUON
def test_muon_is_torchs_on_matrices_and_adamw_elsewhere():
    shapes, generator = [(3, 4), (5,), (2, 3, 2)], torch.Generator().manual_seed(0)
    made = Muon(weight_decay=0.1, lr=0.02).of_tensors(shapes)
    vector = torch.randn(29, generator=generator)
    first, bias, kernel = (part.clone() for part in vector.split([12, 5, 12]))
    first, kernel = first.view(3, 4), kernel.view(2, 6)
    theirs = [
        torch.optim.Muon([first, kernel], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([bias], lr=0.02, weight_decay=0.1),
    ]
    update = made.update(vector)
    for _ in range(4):
        gradient = torch.randn(29, generator=generator)
        for values, part in zip([first, bias, kernel], gradient.split([12, 5, 12]), strict=True):
            values.grad = part.view(values.shape).clone()
        for optimizer in theirs:
            optimizer.step()
        update.step(gradient, 0.02)
        state, update = update.state(), made.update(vector)
        update.load_state(state)
        assert torch.equal(vector, torch.cat([first.reshape(-1), bias, kernel.reshape(-1)]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lars", "lamb", pytest.param("muon", marks=NO_MUON)])
def test_replicas_and_a_server_take_the_same_steps_and_slices_are_refused(name):
    toy = {"optimizer": {"name": name, "weight_decay": 0.01}, "stop": {"updates": 5}}
    ring, server = (ps.run(toy_experiment(each, **toy)) for each in ("all_reduce", "bsp"))
    assert torch.equal(ring.parameters, server.parameters)
    two = {"cluster": {"workers": 2, "step_time": "constant"}, "batch_size": 16, "model": "mlp"}
    inner = {"inner_optimizer": toy["optimizer"], "stop": {"updates": 3}}
    for values in ({"strategy": "all_reduce"} | toy, {"strategy": "diloco"} | inner):
        simulated = ps.run(toy_experiment(**values | two))
        live = ThreadedRun(toy_experiment(**values | two, backend="dask")).run()
        assert torch.equal(simulated.parameters, live.parameters)
        assert ps.replay(simulated) == len(simulated.log)
    with pytest.raises(
        ParameterError, match=r"each of the 2 servers of 'bsp' holds parts of tensors; use servers: 1"
    ):
        toy_experiment({"name": "bsp", "servers": 2}, **toy)
