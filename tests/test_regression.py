"""Targets that are numbers: the loss, the solutions of others, and everything that reads an accuracy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression

from psbench.data import Dataset, SyntheticTable
from psbench.errors import DataError, ParameterError
from psbench.experiment import Experiment
from psbench.optimization.losses import MSE
from psbench.results.report import write_report
from psbench.runs.comparing import compare
from psbench.runs.execution import run
from psbench.runs.sweeps.search import find_fraction
from psbench.seeds import Streams
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster
from psbench.training.build import Workload

YEARS = {"name": "synthetic_table", "layout": "year_prediction_msd", "samples": 3000}
HIGGS = {"name": "synthetic_table", "layout": "higgs", "samples": 3000}
PERCEPTRON = {"name": "mlp", "hidden": [15, 15]}
FOUR = toy_cluster([1.0, 0.5, 0.25, 1.0])
TRAIN = 2400  # of 3000


def descent(strategy="bsp", data=YEARS, model="linear", **changes):
    """Gradient descent: a mini-batch is the data set, and every worker's part of it is its shard."""
    defaults = {
        "cluster": FOUR,
        "batch_size": TRAIN,
        "sharding": {"name": "stratified", "rotate": True},
        "evaluate_every": 1e9,
        "optimizer": {"name": "sgd", "lr": 0.05},
        "stop": {"updates": 20},
    }
    return toy_experiment(strategy, data=data, model=model, **defaults | changes)


def training_data(experiment):
    data = Workload.build(experiment).data
    return data.train_x.double().numpy(), data.train_y.double().numpy()


# ------------------------------------------------------------------ against others


def test_one_update_is_that_of_torch():
    done = run(descent(stop={"updates": 1}))
    workload = Workload.build(done.experiment)
    layer = workload.model.module
    loss = torch.nn.functional.mse_loss(layer(workload.data.train_x).squeeze(1), workload.data.train_y)
    assert workload.loss.mean(layer(workload.data.train_x), workload.data.train_y) == loss
    expected = workload.parameters - 0.05 * workload.model.gradient(loss)
    torch.testing.assert_close(done.parameters, expected, rtol=1e-5, atol=1e-7)


def test_the_loss_is_twice_that_of_mllib():
    outputs, targets = torch.tensor([[3.0], [0.0]]), torch.tensor([1.0, 1.0])
    assert float(MSE().total(outputs, targets).loss) == 2**2 + 1**2
    assert float(MSE().mean(outputs, targets)) == 2 * np.mean([0.5 * 2**2, 0.5 * 1**2])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["map_reduce", "bsp", "all_reduce"])
def test_it_converges_to_the_least_squares_of_numpy_and_scikit_learn(strategy):
    done = run(descent(strategy, stop={"tolerance": 1e-6, "updates": 5000}))
    assert done.meta["reason"] == "an update moved the model by less than 1e-06"
    x, y = training_data(done.experiment)
    solution, *_ = np.linalg.lstsq(np.hstack([x, np.ones((TRAIN, 1))]), y, rcond=None)
    np.testing.assert_allclose(done.parameters, solution, atol=1e-3)
    theirs = LinearRegression().fit(x, y)
    np.testing.assert_allclose(done.parameters, [*theirs.coef_, theirs.intercept_], atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "model"), [(YEARS, "linear"), (YEARS, PERCEPTRON), (HIGGS, "logistic"), (HIGGS, PERCEPTRON)]
)
def test_map_reduce_and_a_parameter_server_need_equally_many_mini_batches(data, model):
    """Thesis, Tables 2.5 and 2.6: 317, 3104 and 72 under gradient descent, whichever system."""
    rule = {"tolerance": 3e-3, "updates": 400}
    jobs, server = (run(descent(name, data, model, stop=rule)) for name in ("map_reduce", "bsp"))
    assert torch.equal(jobs.parameters, server.parameters)
    counts = [each.summary()["mini_batches"] for each in (jobs, server)]
    assert counts[0] == counts[1] == server.summary()["updates"] < 400
    assert jobs.meta["reason"] == server.meta["reason"] == "an update moved the model by less than 0.003"


def test_an_asynchronous_update_is_the_part_of_a_mini_batch():
    done = run(descent("asp", batch_size=40, stop={"updates": 30}))
    summary = done.summary()
    assert (summary["updates"], summary["mini_batches"], summary["global_batch"]) == (30, 30 / 4, 40)


def test_the_perceptron_of_the_thesis():
    workload = Workload.build(descent(data=HIGGS, model=PERCEPTRON))
    assert [size for _, size in workload.model.layout] == [28 * 15, 15, 15 * 15, 15, 15 * 2, 2]
    assert workload.model.parameters.numel() == 707


@pytest.mark.by_day(2)
@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [TRAIN, 40])
@pytest.mark.parametrize(("data", "model"), [(YEARS, "linear"), (HIGGS, "logistic"), (HIGGS, PERCEPTRON)])
def test_descent_and_mini_batches_learn_on_all_three_models(data, model, batch_size):
    """What predicts the mean has a loss of 1 on years, and ln 2 = 0.693 on labels."""
    rate = {"name": "sgd", "lr": 0.2 if data == HIGGS else 0.05}
    changes = {"stop": {"updates": 600}, "optimizer": rate, "evaluate_every": 1}
    final = run(descent("ssp", data, model, batch_size=batch_size, **changes)).summary()["final"]
    assert final["val_loss"] < (0.75 if data == YEARS else 0.665)


# ------------------------------------------------------------------ the data set


def numbers(count=100):
    y = torch.arange(count, dtype=torch.float32)
    x = y.reshape(-1, 1).clone()
    return Dataset("numbers", x, y, x[:0], y[:0], ())


def test_a_data_set_of_numbers_has_no_classes_but_tenths():
    data = numbers()
    assert (data.task, data.num_classes, data.num_outputs, data.input_shape) == ("regression", 0, 1, (1,))
    groups, names = data.strata
    assert np.bincount(groups).tolist() == [10] * 10
    assert (names[0], names[-1], len(names)) == ("up to 9", "above 89", 10)
    assert groups[[0, 9, 10, 99]].tolist() == [0, 0, 1, 9]


def test_groups_are_called_by_the_numbers_of_the_file():
    y = torch.arange(100, dtype=torch.float32)
    data = Dataset("years", y.reshape(-1, 1), (y - 50) / 4, y[:0].reshape(0, 1), y[:0], (), None, (50.0, 4.0))
    assert data.strata[1][0] == "up to 9"


def test_equal_targets_are_in_one_group():
    y = torch.tensor([7.0] * 50)
    assert Dataset("same", y.reshape(-1, 1), y, y[:0].reshape(0, 1), y[:0], ()).strata[1] == ("all",)


@pytest.mark.parametrize(
    ("y", "classes", "message"),
    [
        (torch.tensor([0.5]), ("a",), "1 classes; give classes and int64, or no classes and float32"),
        (torch.tensor([0]), (), "0 classes; give classes and int64, or no classes and float32"),
        (torch.tensor([float("nan")]), (), "some training targets are not numbers"),
    ],
)
def test_targets_and_classes_go_together(y, classes, message):
    x = torch.zeros(1, 2)
    with pytest.raises(DataError, match=message):
        Dataset("odd", x, y, x[:0], y[:0], classes)


@pytest.mark.parametrize(
    "sharding",
    [
        "stratified",
        "random",
        "modular",
        "seldp",
        "dirichlet",
        "shard_per_class",
        "labels_per_worker",
        "quantity",
        "distribution_aware",
        "data_sensitive_hashing",
    ],
)
def test_every_sharding_takes_numbers(sharding):
    facts = Workload.build(descent(sharding=sharding)).facts()
    counts = np.array(facts["label_counts"])
    assert counts.shape == (4, len(facts["classes"]))
    assert facts["classes"][0].startswith("up to 19")
    assert facts["task"] == "regression"
    if sharding == "stratified":
        assert np.ptp(counts, axis=0).max() <= 1
    if sharding == "labels_per_worker":
        assert (counts > 0).sum() == len(facts["classes"])


# ------------------------------------------------------------------ what reads an accuracy


def test_logistic_regression_is_for_classes():
    with pytest.raises(ParameterError, match=r"'logistic' is for classification.*use 'linear' or 'mlp'"):
        Workload.build(descent(model="logistic"))


def test_there_is_no_accuracy_to_reach():
    with pytest.raises(ParameterError, match=r"stop.target_accuracy: .* so there is no accuracy; use stop"):
        Workload.build(descent(stop={"target_accuracy": 0.5}))


def test_there_is_no_accuracy_to_search_by():
    with pytest.raises(
        DataError,
        match="compares accuracy of the validation set, but these runs evaluate train_loss, val_loss; choose",
    ):
        find_fraction(Experiment(data=YEARS, model="linear", strategy="sync_switch"))


@pytest.fixture(scope="module")
def runs():
    return [run(descent(name, stop={"epochs": 6}, evaluate_every=1)) for name in ("bsp", "asp")]


def test_an_evaluation_is_a_loss(runs):
    workload = Workload.build(runs[0].experiment)
    values = workload.evaluator().evaluate(workload.parameters, workload.buffers)
    x, y = workload.data.val_x, workload.data.val_y
    assert set(values) == {"train_loss", "val_loss"}
    with torch.inference_mode():
        expected = float(torch.mean((workload.model.module(x).squeeze(1) - y) ** 2))
    assert values["val_loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_summaries_tables_charts_and_reports_do_without(runs, tmp_path):
    summary = runs[0].summary()
    assert summary["final"]["val_accuracy"] is summary["best_val_accuracy"] is None
    assert 0 < summary["final"]["val_loss"] < 1.5
    comparison = compare(runs)
    headings, rows = comparison.cells()
    assert "val. accuracy" not in headings
    assert f"{summary['final']['val_loss']:.4g}" in rows[0][headings.index("val. loss")]
    assert comparison.target is None
    page = write_report(tmp_path / "report.html", comparison).read_text()
    assert "Validation loss" in page
    assert "Validation accuracy" not in page
    assert runs[0].chart("val_loss", "labels") is not None


def test_who_asks_for_an_accuracy_is_told(runs):
    assert any("no run has a validation accuracy" in text for text in compare(runs, target=0.9).warnings)


def test_classes_show_their_accuracy_and_no_loss():
    comparison = compare([run(descent(data=HIGGS, model="logistic", stop={"epochs": 2}, evaluate_every=1))])
    assert "val. accuracy" in comparison.cells()[0]
    assert "val. loss" not in comparison.cells()[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "cluster"), [("hermes", FOUR), ("adacomm", FOUR), ("early_epoch_stop", FOUR)]
)
def test_strategies_that_look_at_losses(strategy, cluster):
    done = run(descent(strategy, batch_size=40, cluster=cluster, stop={"epochs": 3}, evaluate_every=1))
    assert done.meta["status"] == "finished"


@pytest.mark.slow
@pytest.mark.dask
def test_live_it_is_the_same_model(scheduler):
    settings = {"cluster": toy_cluster([1.0, 1.0]), "stop": {"updates": 5}}
    live, virtual = run(descent(backend="dask", scheduler=scheduler, **settings)), run(descent(**settings))
    assert torch.equal(live.parameters, virtual.parameters)
    assert live.summary()["final"]["val_accuracy"] is None


def test_the_seed_makes_the_data():
    first, again, other = (SyntheticTable(samples=50).load(Streams(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.train_x, again.train_x)
    assert not torch.equal(first.train_x, other.train_x)
