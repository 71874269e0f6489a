"""The specification: the YAML of the design as printed, and back again."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from psbench.clusters import make_cluster
from psbench.core.part import REGISTRY
from psbench.core.strategy import Strategy
from psbench.core.switching_strategy import SwitchingStrategy
from psbench.errors import ParameterError, SpecError, UnknownName
from psbench.experiment import Experiment
from psbench.runs.execution import run
from psbench.specfile import parse_setting, parse_yaml, read_yaml
from psbench.strategies import CATALOGUE, Published

NAMED = """
name: strategy-switch-on-c2
data: {name: digits}                 # digits | mnist | fashion_mnist | cifar10 | folder | mixture
model: {name: mlp}                       # mlp | cnn | lenet | alexnet | resnet20 | resnet32 | resnet56
cluster: {name: c2}                      # a published test bed, or {workers: 4, speed: [1, 1, 1, 0.5], ...}
sharding: {name: stratified}
strategy: {name: strategy_switch, rule: {name: empirical, window: 5, threshold: 0.01}}
optimizer: {name: sgd, lr: 0.1, momentum: 0.9}
batch_size: 128                          # global; per worker B/n
stop: {epochs: 20}                       # any of epochs, seconds, updates, target_accuracy, patience
seed: 0
backend: simulated
"""

COMPOSED = """
strategy:
  consistency: {name: ssp, staleness_bound: 3}
  aggregation: {name: mean}
  communication: {name: every_step}
  stragglers: {name: fixed}
  placement: {name: parameter_server, servers: 2, assignment: contiguous}
cluster: {workers: 4, speed: [1, 1, 1, 0.5]}
"""


def read(text: str) -> Experiment:
    return Experiment.from_spec(parse_yaml(text, "text"))


def test_named_strategy_as_printed_in_the_design():
    experiment = read(NAMED)
    assert experiment.name == "strategy-switch-on-c2"
    assert (experiment.data.name, experiment.model.name) == ("digits", "mlp")
    strategy = experiment.strategy
    assert isinstance(strategy, SwitchingStrategy)
    assert (strategy.first.name, strategy.second.name) == ("all_reduce", "asp")
    assert (strategy.rule.name, strategy.rule.window, strategy.rule.threshold) == ("empirical", 5, 0.01)
    assert (experiment.optimizer.lr, experiment.optimizer.momentum) == (0.1, 0.9)
    assert (experiment.batch_size, experiment.stop.epochs, experiment.seed) == (128, 20, 0)
    assert (experiment.cluster.name, experiment.num_workers, experiment.backend) == ("c2", 9, "simulated")


@pytest.mark.slow
def test_the_default_is_the_named_example_with_a_rule_that_switches():
    """With the published 1 % it was All-Reduce under another name, in 20 epochs and in 60."""
    rule, longer = {"name": "noise_adaptive"}, {"epochs": 40}
    strategy = {"name": "strategy_switch", "rule": rule}
    default = Experiment(name="strategy-switch-on-c2")
    assert read(NAMED).but(strategy=strategy, stop=longer) == default
    summary = run(default).summary()
    (switch,) = summary["switches"]
    assert (switch["from"], switch["to"]) == ("all_reduce", "asp")
    assert 6 <= switch["epoch"] < 30
    assert not [warning for warning in summary["warnings"] if "never switched" in warning]


def test_composed_strategy_as_printed_in_the_design():
    experiment = read(COMPOSED)
    strategy = experiment.strategy
    assert isinstance(strategy, Strategy)
    assert [part.name for part in strategy.parts] == [
        "ssp",
        "mean",
        "every_step",
        "fixed",
        "parameter_server",
        "reshuffle",
    ]
    assert (strategy.consistency.staleness_bound, strategy.placement.servers) == (3, 2)
    assert experiment.cluster.profile().speed == (1, 1, 1, 0.5)
    assert experiment.title == "custom"


def test_a_catalogue_entry_is_refined_by_its_parameters_and_by_parts():
    refined = read(
        "strategy: {name: ssp, staleness_bound: 7, placement: {name: parameter_server, servers: 3}}"
    )
    assert refined.strategy.consistency.staleness_bound == 7
    assert refined.strategy.placement.servers == 3
    assert refined.strategy.lr_scaling == "by_share"


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_strategy_survives_yaml(name, tmp_path):
    cluster = {"workers": 8} if name == "moshpit_sgd" else "hermes"  # its groups make a grid
    experiment = Experiment(strategy=name, cluster=cluster)
    experiment.to_yaml(tmp_path / "spec.yaml")
    assert Experiment.from_yaml(tmp_path / "spec.yaml") == experiment


@pytest.mark.parametrize("name", [n for n, entry in CATALOGUE.items() if isinstance(entry, Published)])
def test_a_keyword_of_a_strategy_means_one_thing(name):
    """A name that two parts have is given to both, so it must say the same of both."""
    said = defaultdict(set)
    for part in CATALOGUE[name].part_classes.values():
        for keyword, field in part.model_fields.items():
            said[keyword].add((field.description, repr(field.get_default(call_default_factory=True))))
    assert [keyword for keyword, meanings in said.items() if len(meanings) > 1] == []


@pytest.mark.slow
@pytest.mark.parametrize("domain", ["data", "model", "cluster", "sharding", "optimizer"])
def test_every_part_survives_yaml(domain):
    without = set() if hasattr(torch.optim, "Muon") else {"muon"}  # of torch before 2.9
    for name in sorted(REGISTRY[domain].keys() - without):
        experiment = Experiment(**{domain: name}, strategy="bsp", batch_size=1000)
        assert read(experiment.to_yaml()) == experiment, name


positive = st.floats(1e-6, 1e6, allow_subnormal=False)


@pytest.mark.slow
@given(
    bound=st.integers(0, 10**6),
    servers=st.integers(1, 64),
    speeds=st.lists(st.floats(0.01, 100), min_size=1, max_size=6),
    lr=positive,
    seed=st.integers(0, 2**63),
    epochs=positive,
    slow=st.tuples(st.floats(0, 1e3), st.floats(1e-3, 1e3), positive),
    milestones=st.lists(positive, max_size=3),
    sharding=st.sampled_from(sorted(REGISTRY["sharding"])),
)
def test_any_experiment_survives_yaml(bound, servers, speeds, lr, seed, epochs, slow, milestones, sharding):
    begin, lasts, factor = slow
    experiment = Experiment(
        strategy={"name": "ssp", "staleness_bound": bound, "servers": servers},
        cluster={
            "workers": len(speeds),
            "speed": speeds,
            "slowdowns": [{"worker": 0, "from_s": begin, "to_s": begin + lasts, "factor": factor}],
        },
        optimizer={"name": "adam", "lr": lr, "milestones": milestones},
        seed=seed,
        stop={"epochs": epochs},
        sharding=sharding,
    )
    again = read(experiment.to_yaml())
    assert again == experiment
    assert again.to_yaml() == experiment.to_yaml()


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("strategy.staleness_bound=5", ("strategy.staleness_bound", 5)),
        ("optimizer.lr=1e-3", ("optimizer.lr", 0.001)),
        ("optimizer.lr=-2E+4", ("optimizer.lr", -20000.0)),
        ("optimizer.lr=1.5e-3", ("optimizer.lr", 0.0015)),
        ("cluster.speed=[1, 0.5]", ("cluster.speed", [1, 0.5])),
        ("stop={updates: 5}", ("stop", {"updates": 5})),
        ("name=a=b", ("name", "a=b")),
        ("scheduler=tcp://127.0.0.1:8786", ("scheduler", "tcp://127.0.0.1:8786")),
        ("name=2e", ("name", "2e")),
        ("checkpoint_every=", ("checkpoint_every", None)),
        ("seed=008", ("seed", 8)),
        ("seed=010", ("seed", 10)),
        ("seed=-010", ("seed", -10)),
        ("seed=0x1F", ("seed", 31)),
        ("optimizer.lr=08.50", ("optimizer.lr", 8.5)),
    ],
)
def test_values_that_are_set_are_yaml(setting, expected):
    found = parse_setting(setting)
    assert found == expected
    assert type(found[1]) is type(expected[1])


#: numbers to a version of YAML or to Python's int, but not to all who read them
UNCLEAR = [
    "1_000",
    "1:30",
    "1:30.5",
    "0o10",
    "0b11",
    "2026-01-02",
    "1_0.5",
    '"010"',
    "!!int 1:30",
    "!!int 0b1",
]


@pytest.mark.parametrize("key", ["seed", "batch_size", "stop.updates", "cluster.workers", "optimizer.lr"])
@pytest.mark.parametrize("value", UNCLEAR)
def test_what_is_a_number_to_some_only_is_refused(key, value):
    base = {"cluster": {"name": "homogeneous"}}
    with pytest.raises(SpecError) as refused:
        Experiment.from_spec(base, dict([parse_setting(f"{key}={value}")]))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["008", "010", "1e3", "1e-3", "08.5", "1.e3", "0x1F", "1:30", "no", "2026-01-02"]
)
def test_a_text_that_looks_like_a_number_stays_a_text(text):
    experiment = Experiment(data={"name": "csv", "path": text})
    assert read(experiment.to_yaml()) == experiment


def test_setting_below_a_name_makes_it_a_mapping():
    experiment = Experiment.from_spec({"strategy": "ssp"}, {"strategy.staleness_bound": 5})
    assert experiment == Experiment(strategy={"name": "ssp", "staleness_bound": 5})


def test_setting_below_what_is_not_given_changes_the_default():
    experiment = Experiment.from_spec({}, {"optimizer.lr": 0.5, "stop.updates": 3, "strategy.rule.window": 4})
    assert (experiment.optimizer.lr, experiment.optimizer.momentum) == (0.5, Experiment().optimizer.momentum)
    assert (experiment.stop.epochs, experiment.stop.updates) == (40, 3)
    assert (experiment.strategy.rule.window, experiment.strategy.rule.name) == (4, "noise_adaptive")


def test_a_name_replaces_the_default_and_what_is_below_it_comes_after():
    settings = {"cluster.workers": 3, "cluster.name": "homogeneous"}
    cluster = Experiment.from_spec({}, settings).cluster
    assert (cluster.name, cluster.workers) == ("homogeneous", 3)
    given = {"cluster": {"name": "homogeneous", "workers": 5}}
    assert Experiment.from_spec(given, {"cluster.name": "homogeneous"}).cluster.workers == 5


def test_settings_are_made_in_their_order():
    settings = {"strategy": "ssp", "strategy.staleness_bound": 9}
    assert Experiment.from_spec({}, settings).strategy.consistency.staleness_bound == 9


def test_setting_leaves_what_was_given_unchanged():
    given_spec = {"strategy": {"name": "ssp", "staleness_bound": 1}}
    Experiment.from_spec(given_spec, {"strategy.staleness_bound": 5})
    assert given_spec == {"strategy": {"name": "ssp", "staleness_bound": 1}}


def test_but_changes_a_field_and_checks_again():
    experiment = Experiment(strategy="asp", seed=1)
    assert experiment.but(seed=4).seed == 4
    assert experiment.but(seed=4).but(seed=1) == experiment
    with pytest.raises(ParameterError, match="batch_size"):
        experiment.but(batch_size=3)


def test_a_specification_says_everything_so_that_defaults_may_change():
    spec = yaml.safe_load(Experiment(strategy="ssp").to_yaml())
    assert spec["strategy"]["consistency"] == {"name": "ssp", "staleness_bound": 3}
    assert spec["optimizer"]["lr"] == 0.1
    assert spec["stop"] == {"epochs": 40}


def test_a_misspelt_name_is_told_before_a_value_that_is_wrong():
    with pytest.raises(UnknownName, match="unknown parameter of stop 'epoch'; did you mean 'epochs'"):
        Experiment(strategy="bsp", stop={"updates": -1, "epoch": 3})


def test_a_specification_that_cannot_be_written_leaves_the_file(tmp_path):
    (tmp_path / "file").write_text("seed: 1")
    for path in (tmp_path, tmp_path / "file" / "spec.yaml"):
        with pytest.raises(SpecError, match=re.escape(str(path))):
            Experiment().to_yaml(path)
    assert (tmp_path / "file").read_text() == "seed: 1"


def test_yaml_may_not_make_objects(tmp_path):
    (tmp_path / "spec.yaml").write_text("data: !!python/name:os.system")
    with pytest.raises(SpecError, match="not YAML"):
        read_yaml(tmp_path / "spec.yaml")


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:8786", "tls://host.example:8786", "tcp://[::1]:8786"])
def test_addresses_of_schedulers(address):
    assert Experiment(backend="dask", scheduler=address).scheduler == address


def test_workers_without_a_name_are_so_many_equal_ones():
    made = Experiment.from_spec({"strategy": "bsp"}, {"cluster.workers": 4, "cluster.latency_s": 0.5})
    assert made.cluster == make_cluster({"workers": 4, "latency_s": 0.5})
    assert (made.cluster.name, made.num_workers) == ("custom", 4)
    changed = Experiment.from_spec({"strategy": "bsp"}, {"cluster.latency_s": 0.5})
    assert changed.cluster.name == Experiment().cluster.name  # one field of the default's


@pytest.mark.parametrize("name", sorted(REGISTRY["cluster"]))
def test_workers_of_a_cluster_whose_number_is_fixed_are_refused(name):
    settings = {"cluster": name, "cluster.workers": 4}
    if "workers" in REGISTRY["cluster"][name].model_fields:
        assert Experiment.from_spec({"strategy": "bsp"}, settings).num_workers == 4
        return
    count = len(make_cluster(name).machines())
    with pytest.raises(ParameterError, match=f"'{name}': workers: it always has {count} workers.*'custom'"):
        Experiment.from_spec({"strategy": "bsp"}, settings)


@pytest.mark.parametrize(
    "path", ["stop.epochs", "optimizer.lr", "optimizer.momentum", "cluster.workers", "strategy.codec"]
)
def test_a_field_one_level_too_high_is_named_with_its_place(path):
    name = path.partition(".")[2]
    with pytest.raises(ParameterError, match=f"{name}: is a field of .*; give {path}"):
        Experiment.from_spec({}, {name: 2})
    with pytest.raises(
        ParameterError, match=rf"^{name}: is a field of \w+; give \w+=\{{\.\.\., '{name}': 2\}}"
    ):
        Experiment(**{name: 2})
