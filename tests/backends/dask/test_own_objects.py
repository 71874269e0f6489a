"""Networks, losses and metrics of one's own on real Dask workers: as in virtual time, or one clear line."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path

import pytest
import torch
from models.networks import Encoder, Net, Recurrent, Words
from strategies.aggregation import own_arithmetic
from torch import nn
from torch.nn import functional
from toybox import at_night, put_in, take_out

from psbench.errors import ParameterError, SpecError
from psbench.runs.execution import resume, run
from psbench.runs.fork import Fork, fork
from psbench.runs.replaying import replay
from psbench.testing import check_strategy, toy_experiment

pytestmark = pytest.mark.dask


def local_class():
    class Local(nn.Module):
        """A class that no other process can import."""

        def __init__(self) -> None:
            super().__init__()
            self.layer, self.drop = nn.Linear(4, 3), nn.Dropout(0.25)

        def forward(self, x):
            return self.drop(self.layer(x)), x

    return Local


def own_loss(outputs, targets):
    return functional.cross_entropy(outputs[0], targets)


def both(scheduler, model, strategy="bsp", **changes):
    """Return a live run and the simulated one."""
    settings = {
        "cluster": {"workers": 2, "step_time": "constant"},
        "batch_size": 8,
        "stop": {"updates": 4},
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
    }
    experiment = toy_experiment(strategy, model=model, **settings | changes)
    return run(experiment.but(backend="dask", scheduler=scheduler)), run(experiment)


FORMS = {
    "module": (Net, {}),
    "class": (lambda: Net, {}),
    "function": (lambda: lambda: Net(5), {}),
    "import": (lambda: {"name": "import", "target": "models.networks:Net", "arguments": {"width": 6}}, {}),
    "recurrent": (lambda: Recurrent, {"data": Words()}),
    "dropout": (lambda: lambda: Encoder(0.3), {"data": Words()}),
    "loss and metric": (
        local_class,
        {"loss": own_loss, "metrics": {"norm": lambda outputs, targets: outputs[1].norm()}},
    ),
}


@pytest.mark.by_day(4)
@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_trained_live_as_in_virtual_time(form: str, scheduler: str) -> None:
    make, changes = FORMS[form]
    live, simulated = both(scheduler, make(), **changes)
    assert live.meta["params_digest"] == simulated.meta["params_digest"]
    assert live.log.evaluations()[-1].keys() == simulated.log.evaluations()[-1].keys()
    if form == "loss and metric":
        assert live.metrics["val_norm"].tolist() == simulated.metrics["val_norm"].tolist()


def test_jobs_take_networks_of_ones_own(scheduler: str) -> None:
    live, simulated = both(scheduler, local_class(), loss=own_loss, strategy="map_reduce")
    assert torch.equal(live.parameters, simulated.parameters)


@pytest.mark.nightly
def test_other_machines_need_not_have_the_file(scheduler: str, tmp_path, monkeypatch) -> None:
    """The cluster's processes have begun without this folder in their paths."""
    (tmp_path / "only_here.py").write_text(
        "from torch import nn\n\n\nclass Block(nn.Linear):\n    pass\n\n\n"
        "def make():\n    return nn.Sequential(Block(4, 5), nn.Tanh(), Block(5, 3))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    make = importlib.import_module("only_here").make
    for model in (make, make()):
        live, simulated = both(scheduler, model)
        assert torch.equal(live.parameters, simulated.parameters)


#: cell of `own_arithmetic`: what it composes, and whether its order depends on no clock
LOCAL = {"name": "local_sgd", "local_steps": 3}
DRAWN = {"name": "cell_elastic_steps", "local_steps": 3}
CELLS = {
    "median": ({"consistency": "bsp", "aggregation": "cell_median"}, True),
    "dc_asgd": ({"consistency": "asp", "aggregation": "cell_dc_asgd"}, False),
    "diloco": ({"consistency": "bsp", "aggregation": "cell_diloco", "communication": LOCAL}, True),
    "easgd": ({"consistency": "asp", "aggregation": "cell_elastic", "communication": DRAWN}, False),
}


@pytest.mark.by_day(1)
@pytest.mark.parametrize("name", ["diloco", "easgd", *at_night("median", "dc_asgd")])
def test_a_strategy_that_computes_is_a_cell_of_a_notebook(
    name: str, scheduler, tmp_path, monkeypatch
) -> None:
    """At most 40 lines that no other process can import; checked, and in all that a run can go through."""
    source = Path(own_arithmetic.__file__).read_text().replace('"own_', '"cell_')
    imports, *texts = source.split("# %% ")
    imports = "".join(line for line in imports.splitlines(keepends=True) if " psbench" in line)
    monkeypatch.syspath_prepend(str(tmp_path))  # the cluster's processes have begun without it
    cells = dict(text.split("\n", 1) for text in texts)
    parts, settled = CELLS[name]
    cell = imports + cells[name]
    assert len(cell.strip().splitlines()) <= 40
    (tmp_path / f"cell_with_{name}.py").write_text(cell)
    importlib.import_module(f"cell_with_{name}")
    put_in(own := take_out("cell_"))
    check_strategy(own[-1], clusters=1, events=40)
    strategy = parts | {"placement": {"name": "parameter_server", "servers": 2}}
    settings = {"model": {"name": "mlp", "hidden": [4]}, "stop": {"updates": 6}, "checkpoint_every": 0.05}
    settings |= {"cluster": {"workers": 2, "step_time": "constant"}, "batch_size": 8}
    simulated = run(toy_experiment(strategy, **settings))
    live = run(simulated.experiment.but(backend="dask", scheduler=scheduler))
    run(simulated.experiment.but(stop={"updates": 4}), folder=tmp_path / name)
    again = resume(tmp_path / name, {"stop": {"updates": 6}})
    for done in (live, again):
        assert done.summary()["updates"] == 6
        assert not settled or torch.equal(done.parameters, simulated.parameters)
    slowed = run(fork(simulated, Fork(at_s=simulated.meta["time_s"] / 2, worker=1, speed=0.5)))
    for done in (live, again, simulated, slowed):
        assert replay(done) == len(done.log)
    take_out("cell_")


def test_a_live_run_goes_on_from_a_checkpoint(scheduler: str, tmp_path) -> None:
    """With a loss and a network that no other process can import, to the bits of the whole run."""
    model, whole = local_class(), {"loss": own_loss, "stop": {"updates": 12}}
    live, simulated = both(scheduler, model, **whole, checkpoint_every=0.05)
    experiment = live.experiment.but(stop={"updates": 6})
    run(experiment, folder=tmp_path)
    with pytest.raises(SpecError, match=r"pass it: psbench.resume\(folder, model="):
        resume(tmp_path, {"stop": {"updates": 12}})
    again = resume(tmp_path, {"stop": {"updates": 12}}, model=model, loss=own_loss)
    assert torch.equal(again.parameters, live.parameters)
    assert torch.equal(again.parameters, simulated.parameters)


def test_what_cannot_be_sent_is_one_line_before_anything_starts() -> None:
    lock = threading.Lock()
    experiment = toy_experiment(model=lambda: Net(8 if lock else 9), backend="dask")
    with pytest.raises(ParameterError, match=r"model: .* cannot be sent to Dask.*; remove open files"):
        run(experiment)
