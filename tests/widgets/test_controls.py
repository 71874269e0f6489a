"""Controls come from metadata: every strategy and part appears by itself, with limits, unit and source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from psbench import strategies
from psbench.core.part import REGISTRY
from psbench.core.parts import Consistency
from psbench.core.specification import parameter
from psbench.core.strategy import DOMAINS
from psbench.experiment import Experiment
from psbench.strategies import CATALOGUE, Published
from psbench_widgets.check import as_python, as_values, check, place_of
from psbench_widgets.controls import control, form, read

NAMES = sorted(CATALOGUE)
#: whose groups of workers do not divide the default cluster
OF_GROUPS = {"moshpit_sgd", "hierarchical_sgd"}


@pytest.fixture(scope="module")
def offered() -> dict[str, Any]:
    return json.loads(json.dumps(form()))  # what the page gets


def named(items: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in items}


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_is_offered_with_all_its_parameters(offered: dict[str, Any], name: str) -> None:
    shown = named(offered["strategies"])[name]
    assert set(named(shown["fields"])) == set(CATALOGUE[name].parameters)
    assert shown["summary"]
    assert shown["source"]


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_part_is_offered(offered: dict[str, Any], domain: str) -> None:
    assert set(named(offered["domains"][domain])) == set(REGISTRY[domain])
    ours = {name for name, part in REGISTRY[domain].items() if part.__module__.startswith("psbench.")}
    options = [
        option for option in offered["domains"][domain] if option["name"] in ours
    ]  # not of other tests
    assert options
    assert all(option["summary"] and option["source"] for option in options)


def test_a_codec_is_a_part_within_a_part(offered: dict[str, Any]) -> None:
    assert set(named(offered["domains"]["codec"])) == set(REGISTRY["codec"])
    assert all(option["summary"] and option["source"] for option in offered["domains"]["codec"])
    for communication in offered["domains"]["communication"]:
        for name in ("codec", "codec_down"):
            found = named(communication["fields"])[name]
            assert (found["kind"], found["domain"]) == ("part", "codec")
            assert found["default"]["name"] in REGISTRY["codec"]
    ratio = named(named(offered["domains"]["codec"])["top_k"]["fields"])["ratio"]
    assert (ratio["kind"], ratio["above"], ratio["max"]) == ("number", 0, 1)
    squeeze = named(named(offered["strategies"])["double_squeeze"]["fields"])["codec_down"]
    assert squeeze["default"] == {
        "name": "one_bit",
        "bucket": 64,
        "error_feedback": True,
        "residual_decay": 1.0,
    }


def test_a_codec_picked_in_the_panel_is_the_codec_of_the_run() -> None:
    chosen = {"name": "top_k", "ratio": 0.2, "error_feedback": True, "residual_decay": 0.9}
    values = as_values(Experiment()) | {"strategy": {"name": "bsp", "codec": chosen}}
    experiment = check(values).experiment
    assert experiment is not None
    assert experiment.strategy.communication.codec.model_dump() == chosen
    scope: dict[str, Any] = {}
    exec(as_python(experiment).partition("run = ")[0], scope)
    assert scope["experiment"].spec() == experiment.spec()


def test_a_reassignment_is_a_part_within_a_placement(offered: dict[str, Any]) -> None:
    assert set(named(offered["domains"]["reassignment"])) == {"none", "by_load"}
    found = named(named(offered["domains"]["placement"])["parameter_server"]["fields"])["reassignment"]
    assert (found["kind"], found["domain"], found["default"]) == ("part", "reassignment", {"name": "none"})
    every = named(named(offered["domains"]["reassignment"])["by_load"]["fields"])["every"]
    assert (every["kind"], every["min"], every["unit"]) == ("integer", 1, "updates")
    chosen = {"name": "by_load", "every": 20, "threshold": 1.3}
    values = as_values(Experiment()) | {"strategy": {"name": "bsp", "servers": 2, "reassignment": chosen}}
    experiment = check(values).experiment
    assert experiment is not None
    assert experiment.strategy.placement.reassignment.model_dump() == chosen


def test_one_server_that_should_move_parameters_is_refused_in_the_panel() -> None:
    values = as_values(Experiment()) | {"strategy": {"name": "bsp", "reassignment": "by_load"}}
    assert "there is only one; give servers: 2" in check(values).errors["strategy"]


def test_a_control_says_kind_limits_unit_meaning_and_source() -> None:
    bound = control("staleness_bound", CATALOGUE["ssp"].parameters["staleness_bound"])
    assert bound["kind"] == "integer"
    assert (bound["min"], bound["default"], bound["unit"]) == (0, 3, "steps")
    assert "lead" in bound["description"]
    assert bound["source"] == "Ho et al. 2013"


def test_what_the_panel_does_not_know_is_typed_as_yaml(offered: dict[str, Any]) -> None:
    speed = named(named(offered["domains"]["cluster"])["custom"]["fields"])["speed"]
    assert speed["kind"] == "yaml"
    assert read({"cluster": {"speed": {"$yaml": "[1, 0.5]"}}}) == ({"cluster": {"speed": [1, 0.5]}}, {})


@pytest.fixture
def newcomer() -> Iterator[str]:
    class Lottery(Consistency):
        """Commit when a die says so."""

        name: ClassVar[str] = "lottery"
        source: ClassVar[str] = "nobody 2026"
        sides: int = parameter(6, "sides of the die", unit="sides", source="nobody 2026", ge=2)

    CATALOGUE["lottery"] = Published("lottery", "waits for luck", "unknown 2026", [Lottery])
    yield "lottery"
    del CATALOGUE["lottery"], REGISTRY["consistency"]["lottery"]


def test_a_strategy_added_to_the_catalogue_appears_by_itself(newcomer: str) -> None:
    found = form()
    sides = named(named(found["strategies"])[newcomer]["fields"])["sides"]
    assert (sides["kind"], sides["min"], sides["unit"]) == ("integer", 2, "")
    assert newcomer in named(found["domains"]["consistency"])
    assert check({"strategy": {"name": newcomer, "sides": 3}}).experiment is not None


def sized(name: str) -> dict[str, Any]:
    return {"cluster": {"workers": 4}} if name in OF_GROUPS else {}


@pytest.mark.by_day(20)
@pytest.mark.parametrize("name", NAMES)
def test_what_the_panel_shows_is_the_experiment_it_was_given(name: str) -> None:
    experiment = Experiment(strategy=name, stop={"epochs": 3}, seed=7, **sized(name))
    verdict = check(json.loads(json.dumps(as_values(experiment))))
    assert verdict.errors == {}
    assert verdict.experiment is not None
    assert verdict.experiment.spec() == experiment.spec()


@pytest.mark.parametrize(
    "experiment",
    [
        *(Experiment(strategy=name, **sized(name)) for name in NAMES),
        Experiment(strategy={"name": "ssp", "staleness_bound": 9}, optimizer={"name": "sgd", "lr": 0.3}),
        Experiment(strategy={"name": "mine", "consistency": "asp", "aggregation": "sum"}, seed=3),
        Experiment(
            cluster={"workers": 2, "speed": [1, 0.5]},
            batch_size=32,
            data={"name": "digits", "val_fraction": 0.3},
        ),
        Experiment(
            strategy=strategies.strategy_switch(first="bsp", second={"name": "ssp", "staleness_bound": 1})
        ),
    ],
    ids=lambda experiment: experiment.strategy.name,
)
def test_the_script_makes_the_same_experiment(experiment: Experiment) -> None:
    script = as_python(experiment).partition("run = ")[0]
    scope: dict[str, Any] = {}
    exec(script, scope)
    assert scope["experiment"].spec() == experiment.spec()


def test_the_script_leaves_out_what_is_default() -> None:
    text = as_python(Experiment(strategy="ssp"))
    assert "strategy='ssp'" in text
    assert "bandwidth" not in text


def test_further_lines_of_the_script_begin_below_the_first() -> None:
    failures = [{"worker": each, "at_s": 1.0, "rejoin_s": 2.0} for each in range(3)]
    lines = as_python(Experiment(strategy="ssp", cluster={"workers": 4, "failures": failures})).splitlines()
    (first,) = [place for place, line in enumerate(lines) if line.startswith("    cluster={")]
    column = lines[first].index("'")
    assert lines[first + 1][:column] == " " * column
    assert lines[first + 1][column] == "'"


@pytest.mark.parametrize(
    ("change", "section", "words"),
    [
        ({"strategy": {"name": "ssp", "staleness_bound": -1}}, "strategy", "staleness_bound"),
        ({"strategy": {"name": "spp"}}, "strategy", "did you mean 'ssp'"),
        ({"strategy": {"name": "k_bsp", "k": 10}}, "strategy", "between 1 and 9"),
        ({"data": {"name": "digits", "val_fraction": 3}}, "data", "val_fraction"),
        (
            {"cluster": {"name": "custom", "workers": 2, "speed": {"$yaml": "[1]"}}},
            "cluster",
            "speed has 1 values",
        ),
        ({"stop": {}}, "stop", "at least one"),
        ({"stop": {"epochs": -1}}, "stop", "epochs"),
        ({"rest": {"batch_size": 2}}, "rest", "give at least 9"),
        ({"rest": {"seeds": 0}}, "rest", "seeds"),
        ({"rest": {"seed": "?"}}, "rest", "seed"),
        ({"rest": {"scheduler": "tcp://x:1"}}, "rest", "backend: dask"),
        (
            {"cluster": {"name": "custom", "speed": {"$yaml": "[1"}}},
            "cluster",
            "speed: '[1' is incomplete; it has no closing ]",
        ),
        (
            {"strategy": {"name": "ssp", "switching": [{"$yaml": "{a"}]}},
            "strategy",
            "switching: '{a' is incomplete; it has no closing }",
        ),
    ],
)
def test_a_wrong_value_has_its_message_beside_its_control(
    change: dict[str, Any], section: str, words: str
) -> None:
    values = as_values(Experiment()) | change
    verdict = check(values)
    assert verdict.experiment is None
    assert words in verdict.errors[section]
    assert list(verdict.errors) == [section]


def test_what_cannot_work_is_disabled_with_the_reason() -> None:
    values = as_values(Experiment()) | {"strategy": {"name": "custom", "consistency": {"name": "asp"}}}
    disabled = check(values).disabled
    assert "needs all workers" in disabled["strategy.placement"]["all_reduce"]
    assert "asp" not in disabled["strategy.consistency"]


def test_a_strategy_too_large_for_the_cluster_is_disabled() -> None:
    values = as_values(Experiment()) | {"cluster": {"name": "homogeneous", "workers": 1}}
    assert "1" in check(values).disabled["strategy"]["k_bsp"]


def test_places() -> None:
    assert place_of("cluster 'c2': seconds_per_sample: no") == "cluster"
    assert place_of("switch rule 'after' needs stop.epochs") == "strategy"
    assert place_of("") == "rest"


def test_what_a_script_repeats_is_said_for_each_backend():
    simulated = check(as_values(Experiment(strategy="ssp"))).plain()
    live = check(as_values(Experiment(strategy="ssp", backend="dask"))).plain()
    assert simulated["repeats"] == "the same run, the same digest"
    assert "digest()" in simulated["python"]
    assert "digest differ" in live["repeats"]
    assert "digest()" not in live["python"]
    compile(live["python"], "script", "exec")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 200, "lists or mappings are nested more than 50 deep"),
        ("{workers: 2, workers: 3}", "workers"),
        ("9" * 400, "a number has more than 300 digits"),
        ("&a [*a]", "an alias refers to a value that contains it"),
        ("!!python/object:os.system x", "is incomplete"),
        ("a\0b", "is incomplete"),
    ],
)
def test_what_is_typed_is_read_as_files_are(text: str, words: str) -> None:
    values = as_values(Experiment()) | {"cluster": {"name": "custom", "speed": {"$yaml": text}}}
    found = check(values)
    assert found.experiment is None
    assert words in found.errors["cluster"] or "[" * 50 in found.errors["cluster"]


def test_numbers_that_are_typed_are_decimal() -> None:
    values = as_values(Experiment()) | {"cluster": {"name": "custom", "workers": {"$yaml": "010"}}}
    made = check(values).experiment
    assert made is not None
    assert made.num_workers == 10
