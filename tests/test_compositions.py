"""Compositions made by chance, with failures and joins: they never stall, lose nothing, and repeat.

Every registered part gets its share, what is added later too.
"""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
import yaml
from draws import SHARDINGS, draw_experiment, draw_strategy, kinds
from toybox import at_night, take_out

from psbench import strategies
from psbench.core.compatibility import doubts
from psbench.core.log import Kind
from psbench.core.strategy import DOMAINS, Strategy
from psbench.errors import DoubtfulComposition
from psbench.experiment import Experiment
from psbench.metrics import conservation
from psbench.runs.execution import run
from psbench.runs.replaying import replay
from psbench.strategies import CATALOGUE
from psbench.strategies.catalogue.composition import Published
from psbench.strategies.codecs import Plain
from psbench.strategies.consistency import ASP
from psbench.testing import random_cluster, toy_experiment
from psbench.testing.invariants import Invariants
from psbench.testing.random_cluster import fitting_sizes

pytestmark = pytest.mark.filterwarnings("ignore::psbench.errors.DoubtfulComposition")

PARTS = kinds(*DOMAINS, "codec", "switching")
EVENTS = 80
SIZE = 15  # entries of the toy model


def streams_of(kind, number):
    return np.random.default_rng([number, *kind.domain.encode(), *kind.name.encode()])


def in_words(kind):
    return f"{kind.domain}-{kind.name}"


# -------------------------------------------------------------------- decisions alone


def follow(strategy, seed):
    """Run briefly and check after every event: conservation, single answers, what parts declare."""
    most = max(6, *fitting_sizes(strategy)[:1])  # some need many, such as to tell wrong pushes from others
    cluster = random_cluster(strategy, seed, max_workers=most)
    invariants = Invariants(f"{strategy.spec()} on random cluster {seed}", cluster.engine)
    for _ in range(EVENTS):
        if cluster.done:
            break
        cluster.step()  # raises Deadlock if nobody can ever go on
        invariants.look()
    return cluster


def resumed(cluster, cut):
    """An engine that was told everything up to `cut`, its state then gone through JSON; and where it is."""
    engine = cluster.new_engine()
    engine.begin(cluster.starters)
    for now, event, _ in cluster.history[1:cut]:
        engine.handle(event, now)
    while engine.measuring and cut < len(cluster.history):  # then no state can be written
        now, event, _ = cluster.history[cut]
        engine.handle(event, now)
        cut += 1
    if engine.measuring:
        return engine, cut
    again = cluster.new_engine()
    again.load_state_dict(json.loads(json.dumps(engine.state_dict())))
    return again, cut


@pytest.mark.by_day(20)
@pytest.mark.slow
@pytest.mark.parametrize("kind", PARTS, ids=in_words)
def test_compositions_with_each_part_on_random_clusters(kind):
    rng = streams_of(kind, 0)
    strategy, seed = draw_strategy(rng, kind), int(rng.integers(10_000))
    cluster = follow(strategy, seed)
    view, kept = cluster.engine.view, conservation(cluster.log)
    assert kept["committed"] + kept["discarded"] + kept["buffered"] == view.pushes
    assert cluster.log.digest() == follow(strategy, seed).log.digest()
    engine, cut = resumed(cluster, int(rng.integers(1, len(cluster.history) + 1)))
    for now, event, expected in cluster.history[cut:]:
        assert engine.handle(event, now) == expected


# -------------------------------------------------------------------- real gradients in virtual time


def draw(rng, kind):
    """An experiment that tries that part."""
    while kind not in tried_by(experiment := draw_experiment(rng, kind)):
        pass
    return experiment


def tried_by(experiment):
    """Parts, rule, sharding, and the codec of the beginning where it leaves something out."""
    compositions = experiment.strategy.compositions
    found = [getattr(composition, domain) for composition in compositions for domain in DOMAINS]
    found += [experiment.sharding, getattr(experiment.strategy, "rule", None)]
    codec = compositions[0].communication.codec
    if type(codec) is Plain or codec.num_bytes(SIZE) < 4 * SIZE:
        found.append(codec)
    return {type(part) for part in found}


def train(experiment):
    done, again = run(experiment), run(experiment)
    specification = experiment.to_yaml()
    assert done.meta["status"] == "finished", specification
    assert done.log.digest() == again.log.digest(), specification
    assert torch.equal(done.parameters, again.parameters), specification
    assert replay(done) == len(done.log), specification
    assert (np.diff(done.log.columns()["time_s"]) >= 0).all(), specification
    kept = conservation(done.log)
    pushes = len(done.log.of_kind(Kind.PUSH)["row"])
    assert kept["committed"] + kept["discarded"] + kept["buffered"] == pushes, specification
    assert len(set(done.log.of_kind(Kind.APPLY)["id"].tolist())) == kept["committed"], specification


@pytest.mark.slow
@pytest.mark.parametrize("left", [70, *at_night(0)])
def test_compositions_with_every_part_train_in_virtual_time(left):
    """In few experiments, each with several of the parts that are still missing; by day some are left."""
    missing = [*PARTS, *SHARDINGS]
    while len(missing) > left:
        experiment = draw(streams_of(missing[0], 1000), missing[0])
        train(experiment)
        tried = tried_by(experiment)
        missing = [kind for kind in missing if kind not in tried]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [*PARTS, *SHARDINGS], ids=in_words)
def test_several_compositions_with_each_part_train_in_virtual_time(kind):
    for number in range(1001, 1004):
        train(draw(streams_of(kind, number), kind))


# -------------------------------------------------------------------- what is allowed, and probably not meant


class TestBatchesOfDifferentSizesThatCountAlike:
    DOUBTFUL = {"consistency": "bsp", "aggregation": "sum", "stragglers": "lb_bsp"}

    def test_one_is_warned_once_and_told_what_to_do(self):
        with pytest.warns(DoubtfulComposition) as warned:
            toy_experiment(self.DOUBTFUL)
        (only,) = warned
        assert str(only.message) == (
            "strategy 'custom': lb_bsp gives workers batches of different sizes, and sum weighs them "
            "equally: the update is no longer the gradient of the global batch; use aggregation 'mean'"
        )

    def test_the_warning_names_the_line_that_composes(self):
        with pytest.warns(DoubtfulComposition) as warned:
            Strategy(**self.DOUBTFUL)
        assert warned[0].filename == __file__

    def test_nobody_is_warned_again_by_a_run_or_under_a_switch(self):
        with pytest.warns(DoubtfulComposition):
            doubtful = Strategy(**self.DOUBTFUL)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            switch = strategies.strategy_switch(first=doubtful, rule={"name": "after", "fraction": 0.5})
            run(toy_experiment(switch))

    @pytest.mark.parametrize(
        "change",
        [{"aggregation": "mean"}, {"stragglers": "fixed"}, {"consistency": "asp", "stragglers": "dbs_sgd"}],
        ids=["by samples", "equal batches", "one push a commit"],
    )
    def test_nobody_is_warned_without_need(self, change):
        assert [*doubts(Strategy(**self.DOUBTFUL | change))] == []

    @pytest.mark.slow
    def test_why(self):
        """The sum of mean gradients, at lr/n, is the gradient of the union for equal batches only."""
        cluster = {"workers": 3, "speed": [1.0, 1.0, 0.1], "step_time": "constant"}
        options = {"cluster": cluster, "stop": {"updates": 2}}
        by_sum = toy_experiment(self.DOUBTFUL, optimizer={"name": "sgd", "lr": 0.1 / 3}, **options)
        by_samples = toy_experiment("lb_bsp", **options)
        doubtful, right = run(by_sum), run(by_samples)
        np.testing.assert_array_equal(  # the batches are the same, and were equal for the first update
            doubtful.log.of_kind(Kind.PUSH)["samples"], right.log.of_kind(Kind.PUSH)["samples"]
        )
        assert len(set(doubtful.log.of_kind(Kind.PUSH)["samples"][3:].tolist())) > 1
        assert not torch.allclose(doubtful.parameters, right.parameters, rtol=1e-3)
        once = {"stop": {"updates": 1}}
        torch.testing.assert_close(run(by_sum.but(**once)).parameters, run(by_samples.but(**once)).parameters)


class TestTheLearningRateOfAComposition:
    """Composed of the same parts, a strategy trains at the rate of the published one."""

    @pytest.mark.parametrize("name", [n for n, entry in CATALOGUE.items() if isinstance(entry, Published)])
    def test_it_is_that_of_the_published_strategy_of_these_parts(self, name):
        named = CATALOGUE[name]()
        composed = Strategy(**{domain: getattr(named, domain) for domain in DOMAINS})
        assert composed.lr_scaling == named.lr_scaling
        expected = "by_share" if name in self.BY_SHARE else "none"
        assert named.lr_scaling == expected, (
            f"{name} has lr_scaling {named.lr_scaling!r}: `BY_SHARE` in tests/test_compositions.py lists the "
            "strategies that commit each push alone and do not divide the learning rate themselves; add or "
            "remove the name, or correct the part's `singly` or `shares_rate`"
        )

    #: at lr/n for each push; all others take the rate as it is, or share it out themselves
    BY_SHARE = (
        "dc_asgd",
        *("asp", "ssp", "dssp", "elastic_bsp", "con_sgd", "bounded_step", "early_epoch_stop", "dbs_sgd"),
        *("psp", "ringmaster", "hogwild"),
    )

    @pytest.mark.parametrize(
        ("parts", "expected"),
        [
            ({"consistency": "asp", "aggregation": "sum"}, "by_share"),
            ({"consistency": "ssp", "aggregation": "dyn_sgd"}, "none"),
            ({"consistency": "ssp", "aggregation": "dyn_sgd_versioned"}, "none"),
            ({"consistency": "asp", "aggregation": "staleness_weighted"}, "none"),
            (
                {"consistency": "asp", "aggregation": {"name": "staleness_weighted", "rate": "fixed"}},
                "by_share",
            ),
            ({"consistency": "asp", "communication": "local_sgd", "aggregation": "model_average"}, "none"),
            ({"consistency": "asp", "communication": "osp", "aggregation": "accumulated"}, "by_share"),
            ({"name": "bsp", "consistency": "asp"}, "by_share"),
            ({"name": "asp", "consistency": "bsp"}, "none"),
        ],
        ids=str,
    )
    def test_the_parts_declare_it(self, parts, expected):
        assert strategies.make_strategy(parts).lr_scaling == expected

    def test_what_is_written_says_which_it_is(self):
        for value in ("asp", "bsp", {"consistency": "asp"}, "strategy_switch", {"consistency": "bsp"}):
            spec = strategies.make_strategy(value).spec()
            for composition in (spec,) if "consistency" in spec else (spec["first"], spec["second"]):
                assert composition["lr_scaling"] in ("none", "by_share")

    def test_a_file_that_says_none_keeps_its_meaning(self, tmp_path):
        path = tmp_path / "old.yaml"
        strategy = {"name": "custom", "consistency": "ssp", "lr_scaling": "none"}
        path.write_text(yaml.safe_dump({"strategy": strategy}))
        with pytest.warns(DoubtfulComposition, match="ssp commits each push separately, at the full"):
            read = Experiment.from_yaml(path)
        assert read.spec()["strategy"]["lr_scaling"] == "none"
        with pytest.warns(DoubtfulComposition):
            assert Experiment.from_spec(read.spec()) == read

    def test_a_rate_that_is_divided_twice_is_doubtful(self):
        with pytest.warns(
            DoubtfulComposition, match="dyn_sgd already divides the learning rate among pushes"
        ):
            Strategy(consistency="ssp", aggregation="dyn_sgd", lr_scaling="by_share")

    def test_a_part_that_does_not_declare_singly_is_found_by_its_run(self):
        class Undeclared(ASP):
            name = "toy_undeclared"
            singly = False

        take_out("toy_undeclared")
        for workers, expected in ((3, 1), (1, 0)):
            done = run(toy_experiment(Strategy(consistency=Undeclared()), cluster={"workers": workers}))
            found = [text for text in done.summary()["warnings"] if "at the full learning rate" in text]
            assert len(found) == expected
        for declared in ("asp", "bsp", "k_asp", "dyn_sgd", "hermes"):
            assert not [w for w in run(toy_experiment(declared)).summary()["warnings"] if "rate" in w]

    def test_a_switch_is_judged_composition_by_composition(self):
        whole = Strategy(name="whole", consistency="asp", lr_scaling="none")
        switch = strategies.strategy_switch(second=whole, rule={"name": "after", "fraction": 0.5})
        (found,) = [w for w in run(toy_experiment(switch)).summary()["warnings"] if "rate" in w]
        assert found.startswith("every update of whole has one push, at the full learning rate")
