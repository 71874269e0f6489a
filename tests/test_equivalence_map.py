"""The equivalence map of the strategies on random clusters.

Conditions of that section: plain SGD, equal batches, no BatchNorm; for what reduces to ASP also the same
order of events, so messages take no time. `equal` means the same bits, and `close` that sums of floats were
taken in another order. `test_identities` has the same for worked examples, and shows that neighbours differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psbench import strategies
from psbench.core.log import Kind
from psbench.core.strategy import Strategy
from psbench.runs.execution import run
from psbench.testing import random_cluster, toy_experiment
from psbench.testing.toys import toy_cluster

BRIEF = settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
BATCH = 4  # of every worker
FAR = 10**4


@dataclass(frozen=True)
class World:
    """A cluster, and the seed of everything."""

    speeds: tuple[float, ...]
    step_time: str
    seed: int
    updates: int

    @property
    def n(self):
        return len(self.speeds)

    def train(self, strategy, **changes):
        at_once = {"bandwidth_mbit_s": 1e300, "server_bandwidth_mbit_s": 1e300}
        cluster = toy_cluster(list(self.speeds), step_time=self.step_time, **at_once)
        options = {"stop": {"updates": self.updates}, "seed": self.seed, "batch_size": BATCH * self.n}
        return run(toy_experiment(strategy, **options | {"cluster": cluster} | changes)).parameters


@st.composite
def worlds(draw, equal=False, smallest=2):
    n = draw(st.integers(smallest, 4))
    one = st.sampled_from([1.0, 0.5, 0.3])
    return World(
        speeds=(draw(one),) * n if equal else tuple(draw(st.lists(one, min_size=n, max_size=n))),
        step_time="constant" if equal else draw(st.sampled_from(["constant", "shifted_exponential"])),
        seed=draw(st.integers(0, 10_000)),
        updates=draw(st.integers(1, 20)),
    )


def close(left, right):
    torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


def equal(left, right):
    assert torch.equal(left, right)


def switch(entry, fraction, **options):
    return entry(rule={"name": "after", "fraction": fraction}, **options)


# -------------------------------------------------------------------- BSP

FULL_RANK = {"rank": 99, "start_iter": 0, "min_compression_rate": 1e-3}
#: what is BSP with n workers, however fast they are
LIKE_BSP: dict[str, tuple[Any, Any]] = {
    "all_reduce": (lambda n: "all_reduce", equal),
    "map_reduce": (lambda n: "map_reduce", equal),
    "power_sgd, not begun": (lambda n: "power_sgd", equal),
    "power_sgd at full rank": (lambda n: strategies.power_sgd(**FULL_RANK), close),
    "k_bsp(n)": (lambda n: strategies.k_bsp(k=n), equal),
    "k_asp(n)": (lambda n: strategies.k_asp(k=n), equal),
    "backup_workers(0)": (lambda n: strategies.backup_workers(spares=0), equal),
    "local_sgd(1)": (lambda n: strategies.local_sgd(local_steps=1), close),
    "adacomm(1)": (lambda n: strategies.adacomm(initial_steps=1), close),
    "selsync(0), gradients": (lambda n: strategies.selsync(delta=0.0, aggregate="gradient"), close),
    "selsync(0), parameters": (lambda n: strategies.selsync(delta=0.0), close),
    "flex_rr, one piece": (lambda n: strategies.flex_rr(pieces=1), equal),
    "drop_stragglers, nobody": (lambda n: strategies.drop_stragglers(most=0.0), equal),
}
#: what is BSP if all workers are equally fast; k_batch_bsp(n) is so too, but for batches of work that is void
LIKE_BSP_IF_EQUAL: dict[str, tuple[Any, Any]] = {
    "lb_bsp": (lambda n: strategies.lb_bsp(), equal),
    "flex_rr": (lambda n: strategies.flex_rr(pieces=2), close),
    "osp": (lambda n: strategies.osp(), close),
    "drop_stragglers": (lambda n: strategies.drop_stragglers(), equal),
    "epsp": (lambda n: strategies.epsp(), equal),
}


@pytest.mark.slow
@pytest.mark.parametrize(("make", "same"), LIKE_BSP.values(), ids=LIKE_BSP.keys())
@given(world=worlds())
@BRIEF
def test_what_is_bsp(make, same, world):
    same(world.train(make(world.n)), world.train("bsp"))


@pytest.mark.parametrize(("make", "same"), LIKE_BSP_IF_EQUAL.values(), ids=LIKE_BSP_IF_EQUAL.keys())
@given(world=worlds(equal=True))
@BRIEF
def test_what_is_bsp_among_equals(make, same, world):
    same(world.train(make(world.n)), world.train("bsp"))


@given(world=worlds())
@BRIEF
def test_ssp_0_is_bsp_whose_update_comes_in_n(world):
    close(
        world.train(strategies.ssp(staleness_bound=0), stop={"updates": world.updates * world.n}),
        world.train("bsp"),
    )


@pytest.mark.slow
@pytest.mark.parametrize("entry", [strategies.strategy_switch, strategies.sync_switch], ids=lambda e: e.name)
@given(world=worlds())
@BRIEF
def test_a_switch_that_never_comes_is_bsp(entry, world):
    stop = {"stop": {"epochs": 2}}
    equal(world.train(switch(entry, 1.0, first="bsp"), **stop), world.train("bsp", **stop))


# -------------------------------------------------------------------- ASP

LIKE_ASP: dict[str, Any] = {
    "k_asp(1)": lambda n: strategies.k_asp(k=1, lr_scaling="by_share"),
    "k_batch_asp(1)": lambda n: strategies.k_batch_asp(k=1, lr_scaling="by_share"),
    "n_softsync(n), fixed": lambda n: strategies.n_softsync(n=n, rate="fixed", lr_scaling="by_share"),
    "ssp(inf)": lambda n: strategies.ssp(staleness_bound=FAR),
    "dssp(inf)": lambda n: strategies.dssp(lower=FAR, upper=FAR),
    "con_sgd(inf)": lambda n: strategies.con_sgd(staleness_bound=FAR),
    "hogwild(0)": lambda n: strategies.hogwild(write_s=0),
    "dbs_sgd(A = inf)": lambda n: strategies.dbs_sgd(tolerance=FAR),
}


@pytest.mark.parametrize("make", LIKE_ASP.values(), ids=LIKE_ASP.keys())
@given(world=worlds())
@BRIEF
def test_what_is_asp(make, world):
    equal(world.train(make(world.n)), world.train("asp"))


@pytest.mark.parametrize("entry", [strategies.strategy_switch, strategies.sync_switch], ids=lambda e: e.name)
@given(world=worlds())
@BRIEF
def test_a_switch_before_the_first_step_is_asp(entry, world):
    stop = {"stop": {"epochs": 2}}
    equal(world.train(switch(entry, 0.0), **stop), world.train("asp", **stop))


@given(world=worlds(equal=True))
@BRIEF
def test_dbs_among_equals_is_asp(world):
    equal(world.train("dbs_sgd"), world.train("asp"))


# -------------------------------------------------------------------- the rest of the map


@given(world=worlds(), bound=st.integers(0, 3))
@BRIEF
def test_dssp_without_a_range_and_con_sgd_are_ssp(world, bound):
    ssp = world.train(strategies.ssp(staleness_bound=bound))
    equal(world.train(strategies.dssp(lower=bound, upper=bound)), ssp)
    equal(world.train(strategies.con_sgd(staleness_bound=bound)), ssp)


@given(world=worlds(), data=st.data())
@BRIEF
def test_n_softsync_without_weights_is_k_batch_asp(world, data):
    n = data.draw(st.integers(1, world.n))
    equal(
        world.train(strategies.n_softsync(n=n, rate="fixed")),
        world.train(strategies.k_batch_asp(k=world.n // n)),
    )


@pytest.mark.slow
@given(world=worlds(), steps=st.integers(1, 6))
@BRIEF
def test_adacomm_that_never_looks_is_local_sgd(world, steps):
    """With gamma = 1 and a constant loss the period stays; so it does if no interval ever ends."""
    adacomm = strategies.adacomm(initial_steps=steps, interval_s=1e6, gamma=1.0)
    close(world.train(adacomm), world.train(strategies.local_sgd(local_steps=steps)))


@given(world=worlds(), steps=st.integers(2, 6))
@BRIEF
def test_adacomm_on_a_constant_loss_is_local_sgd(world, steps):
    """So small a rate keeps the loss where it is; then gamma alone decides when the period falls."""
    still = {"optimizer": {"name": "sgd", "lr": 1e-30}, "stop": {"updates": 6}}
    adacomm = strategies.adacomm(initial_steps=steps, interval_s=0.01, gamma=1.0, loss="measured")
    experiment = toy_experiment(adacomm, cluster=toy_cluster(list(world.speeds)), seed=world.seed, **still)
    log = run(experiment).log
    assert len(log.of_kind(Kind.MEASURED)["row"]) > 2  # it did look
    assert set(log.of_kind(Kind.PUSH)["steps"].tolist()) == {steps}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("left", "right"),
    [
        (strategies.k_asp(k=1), "asp"),
        (strategies.k_batch_asp(k=1), "asp"),
        (strategies.ssp(staleness_bound=FAR), "asp"),
        (strategies.ssp(staleness_bound=2), strategies.dssp(lower=2, upper=2)),
        (strategies.con_sgd(staleness_bound=1), strategies.ssp(staleness_bound=1)),
    ],
    ids=["k_asp(1)", "k_batch_asp(1)", "ssp(inf)", "dssp(2, 2)", "con_sgd(1)"],
)
@given(seed=st.integers(0, 10_000))
@settings(BRIEF, max_examples=8)
def test_also_where_workers_fail_and_come_and_go(left, right, seed):
    clusters = [random_cluster(strategy, seed) for strategy in (left, right)]
    for cluster in clusters:
        cluster.run(events=80)
    assert clusters[0].log.digest() == clusters[1].log.digest()


# -------------------------------------------------------------------- one worker

ONE = World(speeds=(1.0,), step_time="constant", seed=0, updates=12)
#: parameters that a single worker needs, of whatever has them, and that have a server take its model as it is
SMALLEST = {
    **{"k": 1, "n": 1, "spares": 0, "total": 1},
    **{
        "outer_optimizer": "plain",
        "outer_lr": 1.0,
        "outer_momentum": 0.0,
        "block_momentum": 0.0,
        "mixing": 1.0,
    },
}
#: those whose steps are not the mini-batches of a single process
OTHER_BATCHES = {"hermes"}
#: those whose server has another model than the worker, on purpose
OTHER_MODELS = {"easgd", "streaming_diloco", "decoupled_diloco", "halos", "loscar"}
#: those that are for two workers or more
IN_PAIRS = {
    *("d_psgd", "d_psgd_step_first", "ad_psgd", "sgp", "moshpit_sgd", "hierarchical_sgd"),
    *("partial_reduce", "prague"),
}
#: those that lose something on the wire on purpose; without the codec it is bsp (tests/strategies/codecs)
LOSSY = {"double_squeeze", "sparse_loco", "ef21"}
#: those that take no step of the experiment's optimizer
OTHER_STEPS = {"one_bit_adam"}


def alone(entry):
    """The entry for one worker."""
    return entry(**{name: value for name, value in SMALLEST.items() if name in entry.parameters})


@pytest.mark.by_day(15)
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sorted(set(strategies.CATALOGUE) - OTHER_BATCHES - OTHER_MODELS - OTHER_STEPS - IN_PAIRS - LOSSY)
)
@given(seed=st.integers(0, 10_000))
@settings(BRIEF, max_examples=1)
def test_one_worker_is_plain_sgd_whatever_the_protocol(name, seed):
    made = alone(strategies.CATALOGUE[name])
    cluster = {"cluster": toy_cluster([1.0]), "batch_size": BATCH, "seed": seed}
    done = run(toy_experiment(made, stop={"epochs": 1}, **cluster))
    steps = round(done.summary()["epochs"] * done.meta["dataset_size"] / BATCH)
    assert steps >= 24
    close(done.parameters, run(toy_experiment("asp", stop={"updates": steps}, **cluster)).parameters)


def test_only_what_is_known_to_takes_other_batches():
    """Hermes cuts chunks of its own from a worker's shard; everything else in the catalogue was tried."""
    assert strategies.CATALOGUE.keys() >= OTHER_BATCHES
    for name in OTHER_BATCHES:
        made = strategies.CATALOGUE[name]()
        assert isinstance(made, Strategy)
        assert made.stragglers.sizes_chunks
