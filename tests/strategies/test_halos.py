"""HALoS: servers in two levels. What equals what, the order of what happens between servers, refusals."""

import pytest
import torch
from threaded_run import ThreadedRun
from vectors import how, pushed

import psbench as ps
from psbench.core.actions import Apply, Note
from psbench.core.events import Push
from psbench.core.log import Kind
from psbench.core.view import ClusterView
from psbench.errors import ParameterError
from psbench.optimization.optimizer import SGD
from psbench.strategies.aggregation import TwoLevels
from psbench.testing import check_strategy, toy_experiment
from psbench.training.server import Server

NONE = torch.zeros(0)
#: a global model that is the region's own
ONE_LEVEL = {"pushes_per_exchange": 1, "merging": 0.0, "global_lr": 1.0, "global_momentum": 0.0}


def run(strategy, **changes):
    spec = {"stop": {"updates": 24}, "seed": 3, "model": "mlp"}
    cluster = {"workers": 4, "speed": [1.0, 0.7, 0.5, 0.4], "step_time": "constant"}
    return ps.run(toy_experiment(strategy, **spec | {"cluster": cluster} | changes))


def halos(**values):
    return {"name": "halos", "local_steps": 4} | values


def decided(part, pushes, links=()):
    """Return the numbers of the commits of pushes (time, worker)."""
    view = ClusterView(4, 1, 1)
    view.layout = [("a", 125_000)]  # half a megabyte: 4 Mbit
    found = []
    for number, (now, worker) in enumerate(pushes):
        view.now = now
        *notes, apply = part.on_commit([Push(number, worker, 1, 0, samples=8)], view)
        assert isinstance(apply, Apply)
        assert all(isinstance(note, Note) for note in notes)
        found.append([(key.split()[1], int(value)) for key, value in apply.numbers.items()])
    return found


# -------------------------------------------------------------------- what happens between servers


def test_an_update_takes_its_way_and_pushes_go_on_meanwhile():
    part = TwoLevels(region_size=2, pushes_per_exchange=2, region_links_mbit_s=(4.0, 1.0))
    pushes = [(0.0, 0), (0.5, 1), (1.0, 0), (1.6, 2), (2.6, 0), (3.0, 1), (5.0, 3), (99.0, 0)]
    assert decided(part, pushes) == [
        [("push", 0)],
        [("push", 0), ("send", 0)],  # a second there, and one back
        [("push", 0)],
        [("global", 0), ("push", 1)],
        [("merge", 0), ("push", 0)],  # and counts anew
        [("push", 0), ("send", 0)],
        [("global", 0), ("merge", 0), ("push", 1), ("send", 1)],  # four seconds each way
        [("global", 1), ("merge", 1), ("push", 0)],
    ]


def test_both_levels_step_as_the_simulator_of_the_authors_has_it():
    """By hand: region lr .5, beta .5, N 2; global lr 1, beta 0; K 2; alpha .25."""
    part = TwoLevels(
        **{"region_lr": 0.5, "region_momentum": 0.5, "region_every": 2, "pushes_per_exchange": 2},
        **{"global_lr": 1.0, "global_momentum": 0.0, "merging": 0.25},
    )
    own, answers = Server(torch.tensor([10.0]), NONE, SGD(lr=9.0), 8, part), []

    def push(value, *happens):
        numbers = {f"{i} {kind}": float(region) for i, (kind, region) in enumerate(happens)}
        own.apply(pushed([torch.tensor([value])]), how(numbers=numbers))
        answers.append(own.aggregate.item())

    push(2.0, ("push", 0))  # 10 - 1
    push(4.0, ("push", 0), ("send", 0))  # 9 - 2, m = 3, - 2 (.5) .5 (3) = 5.5; sends 4.5
    push(2.0, ("push", 0))  # 5.5 - 1
    assert own.parameters.item() == 10.0
    push(8.0, ("push", 1))  # another region's model
    push(0.0, ("global", 0), ("merge", 0), ("push", 1))
    assert own.parameters.item() == pytest.approx(10 - 4.5)
    assert answers == pytest.approx([9, 5.5, 4.5, 6, 6 - 2 * 0.5 * 0.5 * 4])
    push(0.0, ("push", 0))  # .25 (4.5) + .75 (5.5) = 5.25, then m = .5 (3) + 1
    assert answers[-1] == pytest.approx(5.25 - 0.5 * 2.5)


# -------------------------------------------------------------------- what equals what


def test_one_region_that_exchanges_at_once_is_async_local_sgd():
    rates = {"region_lr": 0.175, "region_momentum": 0.5, "region_every": 4}
    one = run(halos(region_size=4, global_every=1, **rates | ONE_LEVEL))
    other = run(
        {
            "name": "async_local_sgd",
            "local_steps": 4,
            "outer_lr": 0.7,
            "outer_momentum": 0.5,
            "momentum_every": 4,
        }
    )
    torch.testing.assert_close(one.parameters, other.parameters, rtol=1e-4, atol=1e-5)
    assert one.summary()["time_s"] == other.summary()["time_s"]


def test_regions_that_never_exchange_leave_the_global_model_where_it_is():
    alone = run(halos(pushes_per_exchange=1000))
    start = run(halos(), stop={"updates": 1})
    torch.testing.assert_close(alone.parameters, start.parameters)
    assert not torch.equal(run(halos(pushes_per_exchange=2)).parameters, start.parameters)


def test_slow_links_between_regions_delay_the_global_model_and_no_worker():
    near, far = (
        run(halos(pushes_per_exchange=2, **links)) for links in ({}, {"region_links_mbit_s": [1e6, 0.01]})
    )
    assert near.summary()["time_s"] == far.summary()["time_s"]
    assert not torch.equal(near.parameters, far.parameters)
    (said,) = {text for text in far.log.texts if text.startswith("region 1")}
    assert "s each way" in said
    assert far.log.of_kind(Kind.NOTE)["id"].size
    ps.replay(far)


def test_bits_are_those_of_one_server_on_three_and_live():
    one, three = (run(halos(pushes_per_exchange=2, servers=count)) for count in (1, 3))
    assert one.meta["params_digest"] == three.meta["params_digest"]
    alone = run(halos(region_size=1, pushes_per_exchange=1), cluster={"workers": 1, "step_time": "constant"})
    live = ThreadedRun(alone.experiment.model_copy(update={"backend": "dask"})).run()
    assert torch.equal(live.parameters, alone.parameters)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"consistency": "bsp"}, "weighs one push against its own state"),
        ({"communication": "local_sgd"}, "use communication 'regional_sgd'"),
        ({"aggregation": "delayed_nesterov"}, "use aggregation 'two_levels'"),
        ({"placement": "all_reduce"}, "added up on their way"),
    ],
)
def test_what_has_no_meaning_is_refused(values, says):
    with pytest.raises(ParameterError, match=says):
        ps.strategies.halos(**values)


def test_there_is_a_link_for_each_region():
    with pytest.raises(ParameterError, match="4 workers in regions of 2 need 2"):
        run(halos(region_links_mbit_s=[1.0]))


@pytest.mark.slow
def test_it_keeps_the_contract():
    check_strategy(ps.strategies.halos(pushes_per_exchange=2), clusters=1)
