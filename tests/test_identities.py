"""What equals what: identities between strategies, as exactly as the arithmetic allows.

Plain SGD, constant step times, equal batches, no BatchNorm: the conditions of that section. "Exact" means the
same bits; "rounding", that sums of floats were taken in another order.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from psbench import strategies
from psbench.core.log import Kind
from psbench.core.strategy import Strategy
from psbench.errors import ParameterError
from psbench.runs.execution import run
from psbench.testing import ScriptedCluster, toy_experiment
from psbench.testing.toys import toy_cluster

SPEEDS = [1, 1.3, 2.1, 4]
N = len(SPEEDS)
SLOW_NETWORK = toy_cluster([1.0, 0.5, 0.25], latency_s=0.001, bandwidth_mbit_s=1.0)


def trained(strategy, **changes):
    """Return the model after two epochs on three workers of speed 1, 1/2 and 1/4."""
    return run(toy_experiment(strategy, **changes))


def scripted(strategy, speeds=SPEEDS, until=60.0):
    cluster = ScriptedCluster(strategy, speeds, epochs=1000)
    cluster.run(until=until)
    return cluster


def same_parameters(left, right):
    return torch.equal(left.parameters, right.parameters)


def close(left, right):
    assert not torch.equal(left.parameters, torch.zeros_like(left.parameters))
    torch.testing.assert_close(left.parameters, right.parameters, rtol=1e-5, atol=1e-6)


def releases(cluster):
    rows = cluster.log.of_kind(Kind.RELEASE)
    return {(t, w) for t, w in zip(rows["time_s"].tolist(), rows["worker"].tolist(), strict=True)}


def decisions(log, *kinds):
    """Return the rows of these kinds, without a hold's reason and a push's loss."""
    rows = log.rows()
    rows = rows[np.isin(rows["kind"], kinds)].copy()
    rows["text"] = 0
    rows["loss"][rows["kind"] == Kind.PUSH] = 0
    return rows.tolist()


WORK = (Kind.PUSH, Kind.APPLY, Kind.RELEASE)


# -------------------------------------------------------------------- the same log, event by event


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (strategies.ssp(staleness_bound=10**6), strategies.asp()),
        (strategies.k_asp(k=1, lr_scaling="by_share"), strategies.asp()),
        (strategies.k_batch_asp(k=1, lr_scaling="by_share"), strategies.asp()),
        (strategies.all_reduce(placement="parameter_server"), strategies.bsp()),
    ],
    ids=[
        "ssp(inf) = asp",
        "k_asp(1) = asp at rate lr/n",
        "k_batch_asp(1) = asp at rate lr/n",
        "all_reduce = bsp but for the placement",
    ],
)
def test_equal_logs(left, right):
    assert scripted(left).log.digest() == scripted(right).log.digest()
    assert same_parameters(trained(left), trained(right))


def test_an_all_reduce_in_groups_is_one_ring_but_for_the_time():
    """In virtual time both add up in worker order; `auto` takes the one that costs less, and says so."""
    hosts = {"workers": 4, "workers_per_host": 2, "step_time": "constant", "latency_s": 0.1}
    runs = {
        algorithm: trained(strategies.all_reduce(algorithm=algorithm), cluster=hosts)
        for algorithm in ("ring", "hierarchical", "auto")
    }
    ring, hierarchical, auto = runs.values()
    assert same_parameters(ring, hierarchical)
    assert auto.log.digest() == hierarchical.log.digest()
    assert hierarchical.log.rows()["time_s"][-1] < ring.log.rows()["time_s"][-1]
    assert ring.summary()["incidents"] == []
    (said,) = auto.summary()["incidents"]
    assert said.startswith("All-Reduce in 2 groups of 2 workers, then between them: about 200 ms a sum, in")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (strategies.k_bsp(k=N), strategies.bsp()),
        (strategies.k_bsp(k=N, cancel="on_arrival"), strategies.bsp()),
        (strategies.k_asp(k=N), strategies.bsp()),
    ],
    ids=["k_bsp(n) = bsp", "k_bsp(n), on arrival = bsp", "k_asp(n) = bsp"],
)
def test_equal_decisions_but_for_the_reasons(left, right):
    assert decisions(scripted(left).log, *Kind) == decisions(scripted(right).log, *Kind)


@pytest.mark.parametrize("name", ["k_bsp", "k_asp"])
def test_k_n_trains_bsps_model_exactly(name):
    assert same_parameters(trained({"name": name, "k": 3}), trained("bsp"))


def test_k_batch_bsp_with_k_n_is_bsp_only_with_equal_speeds():
    strategy = strategies.k_batch_bsp(k=N)
    equal = [2, 2, 2, 2]
    assert decisions(scripted(strategy, equal).log, Kind.APPLY) == decisions(
        scripted("bsp", equal).log, Kind.APPLY
    )
    assert decisions(scripted(strategy).log, Kind.APPLY) != decisions(scripted("bsp").log, Kind.APPLY)


@pytest.mark.parametrize("name", ["k_bsp", "k_batch_bsp", "k_asp", "k_batch_asp"])
def test_the_k_variants_share_one_rate(name):
    """lr/k times the sum of k gradients: two had lr/n, so comparing them compared rates."""
    from psbench.core.actions import Apply

    cluster = scripted({"name": name, "k": 2})
    applies = [a for _, _, actions in cluster.history for a in actions if isinstance(a, Apply)]
    assert {(a.lr_scale, *a.weights) for a in applies} == {(1.0, 0.5, 0.5)}


def test_k_bsp_with_k_1_is_not_asp():
    assert decisions(scripted(strategies.k_bsp(k=1)).log, *WORK) != decisions(scripted("asp").log, *WORK)


def test_the_equalities_above_could_fail():
    """Neighbours of what is equal are not."""
    for left, right in [
        (strategies.ssp(staleness_bound=3), "asp"),
        (strategies.k_asp(k=2), "asp"),
        (strategies.k_bsp(k=N - 1), "bsp"),
    ]:
        assert decisions(scripted(left).log, *WORK) != decisions(scripted(right).log, *WORK)


# -------------------------------------------------------------------- SSP(0) and BSP


def test_ssp_0_releases_when_bsp_does_and_gives_its_model_to_rounding():
    ssp = strategies.ssp(staleness_bound=0)
    assert releases(scripted(ssp)) == releases(scripted("bsp"))
    close(trained(ssp, stop={"updates": 24}), trained("bsp", stop={"updates": 8}))


def test_ssp_0_has_stale_pushes_although_nobody_leads():
    cluster = scripted(strategies.ssp(staleness_bound=0))
    pushes, applied = (cluster.log.of_kind(kind) for kind in (Kind.PUSH, Kind.APPLY))
    stale = applied["version"] - 1 - pushes["version"]
    assert set(stale.tolist()) == set(range(N))


# -------------------------------------------------------------------- placement and aggregation


def test_all_reduce_trains_bsps_model_and_sends_other_bytes():
    bsp, ring = trained("bsp", cluster=SLOW_NETWORK), trained("all_reduce", cluster=SLOW_NETWORK)
    assert same_parameters(bsp, ring)
    assert bsp.summary()["bytes"] != ring.summary()["bytes"]


def test_the_number_of_servers_changes_times_not_the_model():
    one, four = (
        trained(
            strategies.bsp(placement={"name": "parameter_server", "servers": servers}), cluster=SLOW_NETWORK
        )
        for servers in (1, 4)
    )
    assert same_parameters(one, four)


def test_a_sum_with_lr_over_n_is_the_mean_with_lr():
    by_sum = trained(strategies.bsp(aggregation="sum"), optimizer={"name": "sgd", "lr": 0.1 / 3})
    close(by_sum, trained("bsp", optimizer={"name": "sgd", "lr": 0.1}))


def test_rates_are_shared_as_eqs_2_1_to_2_3_say():
    """B = 128, lr = 0.10, n = 4 gives b = 32 and a rate of 0.025 (thesis, Example 2.1)."""
    from psbench.core.actions import Apply

    scale = {}
    for name in ("bsp", "asp", "ssp"):
        cluster = scripted(name)
        scale[name] = {
            a.lr_scale for _, _, actions in cluster.history for a in actions if isinstance(a, Apply)
        }
    assert scale == {"bsp": {1.0}, "asp": {0.25}, "ssp": {0.25}}
    assert ScriptedCluster("asp", [1] * 4, samples=32).engine.view.workers[0].batch_size == 32


# -------------------------------------------------------------------- switching


def switch(first, second, fraction, **options):
    rule = {"name": "after", "fraction": fraction}
    return strategies.strategy_switch(first=first, second=second, rule=rule, **options)


@pytest.mark.parametrize("first", ["all_reduce", "bsp", "asp", {"name": "ssp"}, {"name": "k_bsp"}])
def test_a_switch_that_never_comes_changes_nothing(first):
    never, plain = trained(switch(first, "asp", 1.0)), trained(first)
    assert never.log.digest() == plain.log.digest()
    assert same_parameters(never, plain)


@pytest.mark.parametrize("second", ["asp", "bsp", {"name": "k_asp"}])
def test_a_switch_before_the_first_step_is_the_second_strategy(second):
    at_once, plain = trained(switch("all_reduce", second, 0.0)), trained(second)
    assert decisions(at_once.log, *WORK) == decisions(plain.log, *WORK)
    assert same_parameters(at_once, plain)


MOMENTUM = {"name": "sgd", "lr": 0.1, "momentum": 0.9}


def test_a_free_switch_from_bsp_to_bsp_at_a_barrier_changes_nothing():
    carried = trained(switch("bsp", "bsp", 0.5, momentum="keep"), optimizer=MOMENTUM, cluster=SLOW_NETWORK)
    plain = trained("bsp", optimizer=MOMENTUM, cluster=SLOW_NETWORK)
    assert len(carried.log.of_kind(Kind.HANDOVER)["row"]) == 1
    assert decisions(carried.log, *WORK) == decisions(plain.log, *WORK)
    assert same_parameters(carried, plain)


def test_momentum_is_forgotten_unless_carried():
    plain = trained("bsp", optimizer=MOMENTUM)
    forgotten = trained(switch("bsp", "bsp", 0.5), optimizer=MOMENTUM)
    assert decisions(forgotten.log, *WORK) == decisions(plain.log, *WORK)
    assert not same_parameters(forgotten, plain)


def test_without_momentum_there_is_nothing_to_forget():
    assert same_parameters(trained(switch("bsp", "bsp", 0.5)), trained("bsp"))


# -------------------------------------------------------------------- one worker


ALONE = {"cluster": toy_cluster([1.0]), "batch_size": 8}
ONE_WORKER = [
    *("bsp", "asp", "ssp", "all_reduce", {"name": "ssp", "staleness_bound": 0}),
    *({"name": name, "k": 1} for name in ("k_bsp", "k_batch_bsp", "k_asp", "k_batch_asp")),
    strategies.strategy_switch(rule={"name": "after", "fraction": 0.5}, momentum="keep"),
]


@pytest.mark.parametrize("strategy", ONE_WORKER, ids=str)
def test_with_one_worker_every_strategy_trains_the_same_model(strategy):
    """Which `test_oracles` compares with a plain loop of torch."""
    assert same_parameters(
        trained(strategy, optimizer=MOMENTUM, **ALONE), trained("asp", optimizer=MOMENTUM, **ALONE)
    )


@pytest.mark.slow
def test_all_of_the_catalogue_with_one_worker():
    """Also what is added later, where one worker suffices and it pushes every step."""
    reference = trained("asp", optimizer=MOMENTUM, **ALONE)
    tried = 0
    for entry in strategies.CATALOGUE.values():
        options = {name: 1 for name in ("k", "total") if name in entry.parameters}
        made = entry(**options)
        plain = isinstance(made, Strategy) and (
            *(made.communication.name, made.stragglers.name),
            *(made.communication.codec.name, made.communication.codec_down.name),
        ) == ("every_step", "fixed", "none", "none")
        try:
            made.check(1, 8)
        except ParameterError:
            continue
        own_steps = entry.name == "one_bit_adam"  # Adam's, whatever the optimizer
        if plain and made.aggregation.payload == "gradient" and not own_steps:
            tried += 1
            assert same_parameters(trained(made, optimizer=MOMENTUM, **ALONE), reference), entry.name
    assert tried >= 8
