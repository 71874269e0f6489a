"""Networks of one's own: each form against plain torch, to the last bit in virtual time."""

from __future__ import annotations

import copy
import sys
from types import ModuleType

import pytest
import torch
from models import networks
from models.networks import Buffered, Encoder, Net, Normed, Recurrent, Words, plain, start
from safetensors.torch import load_file
from torch import nn

from psbench.core.user_object import is_module
from psbench.errors import SpecError
from psbench.models.user_model import as_model
from psbench.results.run import Run
from psbench.runs.execution import resume, run
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster
from psbench.training.build import Workload

SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9}


@pytest.fixture(autouse=True)
def _seeded():
    """Modules that a test makes draw from torch's global state."""
    torch.manual_seed(0)


def own(model, strategy="bsp", workers=4, updates=5, **changes):
    """An experiment on equal workers, whose mean gradient is exact."""
    settings = {
        "cluster": toy_cluster([1.0] * workers),
        "optimizer": SGD,
        "batch_size": 8,
        "stop": {"updates": updates},
    }
    return toy_experiment(strategy, model=model, **settings | changes)


FORMS = {
    "module": lambda: Net(),
    "class": lambda: Net,
    "function": lambda: lambda: Net(5),
    "import": lambda: {"name": "import", "target": "models.networks:Net", "arguments": {"width": 6}},
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_under_bsp_is_plain_torch_to_the_last_bit(form):
    experiment = own(FORMS[form]())
    before = torch.get_rng_state()
    done = run(experiment)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(done.parameters, networks.flat(plain(experiment, 5, start(experiment))))
    assert done.log.digest() == run(experiment).log.digest()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_transformer_under_bsp_is_plain_torch_to_the_last_bit(dropout):
    """With dropout too, whose numbers are drawn by worker and step."""
    experiment = own(lambda: Encoder(dropout), data=Words())
    expected = plain(experiment, 5, start(experiment), seeded=True)
    assert torch.equal(run(experiment).parameters, networks.flat(expected))


def test_a_name_is_no_module_while_another_thread_imports_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert not is_module("mlp")


def test_recurrent_layers_and_tied_weights():
    experiment = own(Recurrent, data=Words())
    module = start(experiment)
    assert torch.equal(run(experiment).parameters, networks.flat(plain(experiment, 5, module)))
    assert module.out.weight is module.embedding.weight


@pytest.mark.parametrize("momentum", [0.1, None], ids=["running mean", "cumulative mean"])
def test_batch_normalisation_of_one_worker_keeps_torchs_own_statistics(momentum):
    experiment = own(lambda: Normed(momentum), workers=1)
    expected = plain(experiment, 5, start(experiment))
    done = run(experiment)
    assert torch.equal(done.parameters, networks.flat(expected))
    assert torch.equal(
        done.buffers[:16], torch.cat([expected.layers[1].running_mean, expected.layers[1].running_var])
    )
    assert done.buffers[16:].tolist() == ([] if momentum else [5.0])


def test_buffers_of_every_type_are_those_of_plain_torch():
    experiment = own(Buffered(), workers=1, updates=3)
    expected = plain(experiment, 3, start(experiment))
    done = run(experiment)
    workload = Workload.build(experiment)
    workload.model.load(done.parameters, done.buffers)
    found = workload.model.module
    # what is 64 bits wide is rounded to 32 on its way
    torch.testing.assert_close(done.parameters, networks.flat(expected), rtol=1e-5, atol=1e-7)
    for name, values in expected.named_buffers():
        torch.testing.assert_close(getattr(found, name), values, rtol=1e-6, atol=1e-7)
        assert getattr(found, name).dtype == values.dtype
    assert expected.calls == 3


def test_the_weights_of_a_module_are_the_start_and_stay_as_they_are():
    module = Net()
    before = copy.deepcopy(module.state_dict())
    experiment = own(module)
    with torch.no_grad():
        module.layers[0].weight.zero_()  # the experiment has a copy
    done = run(experiment)
    built = start(experiment).state_dict()
    assert all(torch.equal(built[name], values) for name, values in before.items())
    assert not module.layers[0].weight.any()
    assert not torch.equal(done.parameters, networks.flat(start(experiment)))


def test_a_class_starts_from_the_seed():
    first, again, other = (networks.flat(start(own(Net, seed=seed))) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_function_bound_to_what_builds_a_model_is_part_of_its_identity():
    def bound(activation):
        return lambda: activation

    assert as_model(bound(torch.relu)).fingerprint != as_model(bound(torch.tanh)).fingerprint
    assert as_model(bound(nn.ReLU)).fingerprint != as_model(bound(nn.Tanh)).fingerprint
    assert as_model(bound(torch.relu)).fingerprint == as_model(bound(torch.relu)).fingerprint


def test_lazy_layers_take_their_shapes_from_the_data():
    def make():
        return nn.Sequential(nn.LazyLinear(6), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(3))

    experiment = own(make, workers=1)
    assert torch.equal(run(experiment).parameters, networks.flat(plain(experiment, 5, start(experiment))))
    begun = Workload.build(experiment)
    assert begun.model.num_parameters == 4 * 6 + 6 + 12 + 6 * 3 + 3
    assert begun.buffers.tolist() == [0.0] * 6 + [1.0] * 6


def test_frozen_parameters_stay_and_are_not_sent():
    module = Net()
    module.layers[0].requires_grad_(False)
    experiment = own(module, optimizer=SGD | {"weight_decay": 0.1})
    workload = Workload.build(experiment)
    assert workload.model.num_parameters == 8 + 8 + 8 * 3 + 3
    done = run(own(module))
    assert torch.equal(done.parameters, networks.flat(plain(own(module), 5, start(experiment))))
    run(experiment)
    assert torch.equal(workload.model.module.layers[0].weight, module.layers[0].weight)


def test_sparse_gradients_of_an_embedding():
    def make():
        return nn.Sequential(nn.EmbeddingBag(networks.VOCABULARY, 4, sparse=True), nn.Linear(4, 3))

    def dense():
        return nn.Sequential(nn.EmbeddingBag(networks.VOCABULARY, 4), nn.Linear(4, 3))

    settings = {"data": Words(), "workers": 2}
    torch.testing.assert_close(run(own(make, **settings)).parameters, run(own(dense, **settings)).parameters)


@pytest.mark.by_day(3)
@pytest.mark.parametrize("strategy", ["asp", "local_sgd", "adacomm", "osp", "all_reduce", "map_reduce"])
def test_dropout_gives_equal_runs_under_every_way_of_working(strategy):
    experiment = own(lambda: Encoder(0.3), strategy, data=Words(), stop={"epochs": 1})
    assert run(experiment).log.digest() == run(experiment).log.digest()


def dropping():
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.4), nn.Linear(8, 3))


def test_dropout_is_the_same_after_a_resume(tmp_path):
    experiment = own(dropping, checkpoint_every=0.5, updates=12)
    whole = run(experiment)
    run(experiment.but(stop={"updates": 7}), folder=tmp_path)
    later = resume(tmp_path, {"stop.updates": 12}, model=dropping)
    assert torch.equal(later.parameters, whole.parameters)
    assert not torch.equal(later.parameters, run(own(dropping, updates=12, seed=1)).parameters)


class TestSaved:
    """A run with a network of one's own opens without it, and goes on only with it."""

    def test_opens_and_gives_its_module_back(self, tmp_path):
        module = Net()
        done = run(own(module), folder=tmp_path / "run")
        opened = Run.load(tmp_path / "run")
        assert opened.experiment.spec() == done.experiment.spec()
        assert opened.summary() == done.summary()
        with pytest.raises(
            SpecError, match=r"'models.networks.Net' is a Python object.*resume\(folder, model="
        ):
            opened.model()
        found = opened.model(model=module)
        assert type(found) is Net
        assert torch.equal(networks.flat(found), done.parameters)
        assert not torch.equal(networks.flat(module), done.parameters)

    def test_a_module_of_another_shape_is_refused(self, tmp_path):
        done = run(own(Net), folder=tmp_path)
        with pytest.raises(
            SpecError, match=r"differs from the network of the run: 'layers.0.weight' has 12 e"
        ):
            done.model(model=Net(3))

    def test_goes_on_only_with_the_same_object(self, tmp_path):
        torch.manual_seed(0)
        module = Net()
        run(own(module, checkpoint_every=0.5, updates=7), folder=tmp_path)
        longer = {"stop.updates": 9}
        with pytest.raises(SpecError, match=r"resume\(folder, model="):
            resume(tmp_path, longer)
        with pytest.raises(SpecError, match=r"model: differs from that of the run: fingerprint was"):
            resume(tmp_path, longer, model=Net())
        later = resume(tmp_path, longer, model=module)
        assert torch.equal(later.parameters, run(own(module, updates=9)).parameters)

    @pytest.mark.parametrize("make", [Net, Recurrent, Buffered, "mlp"])
    def test_a_safetensors_file_loads_with_plain_torch(self, make, tmp_path):
        done = run(own(make, **({"data": Words()} if make is Recurrent else {})))
        path = done.save_model(tmp_path / "net.safetensors")
        module = done.model()
        fresh = start(done.experiment)
        fresh.load_state_dict(load_file(path))
        for name, values in fresh.state_dict().items():
            assert torch.equal(module.state_dict()[name], values), name
        assert torch.equal(networks.flat(module), done.parameters)

    def test_a_model_file_has_the_ending_that_says_so(self, tmp_path):
        with pytest.raises(SpecError, match=r"must end in \.safetensors"):
            run(own(Net)).save_model(tmp_path / "net.pt")
