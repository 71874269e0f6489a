"""Saved states: an engine, its random numbers, a worker loop and a log are restored as they were."""

import json

import pytest

from psbench.core.engine import Engine
from psbench.core.events import Vote
from psbench.core.log import EventLog, Kind
from psbench.core.view import ClusterView
from psbench.core.worker_loop import WorkerLoop
from psbench.core.worker_policy import WorkerPolicy
from psbench.errors import DataError
from psbench.results.storage import read_log, write_log
from psbench.strategies import make_strategy
from psbench.testing import random_cluster


def test_an_engine_goes_on_with_the_random_numbers_where_they_were():
    first, again = (Engine(make_strategy("selsync"), ClusterView(num_workers=3)) for _ in range(2))
    first.begin([0, 1, 2])
    first.view.rng.random(5)
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert again.view.rng.random(3).tolist() == first.view.rng.random(3).tolist()


def test_an_engine_that_loads_again_expects_what_the_state_says():
    cluster = random_cluster("local_sgd", seed=5)
    cluster.run(events=20)
    again = cluster.new_engine()
    for _ in range(2):  # as the engine that is asked before a ring
        again.load_state_dict(cluster.engine.state_dict())
    first, other = (engine._processor.allowances for engine in (cluster.engine, again))
    assert (other.expected, other._sum) == (first.expected, first._sum)
    assert first._sum > 0


def test_a_vote_counts_until_it_is_answered_or_void():
    sizes = {"num_workers": 2, "dataset_size": 100, "global_batch": 8}
    first, again = (Engine(make_strategy("selsync"), ClusterView(**sizes)) for _ in range(2))
    first.begin([0, 1])
    first.handle(Vote(0, first.view.workers[0].ticket, 0.0, samples=4), 1.0)
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert again.view.voted_samples == 4
    again.resume()
    assert again.view.voted_samples == 0


@pytest.mark.parametrize("name", ["osp", "ssp"])
def test_an_engine_loads_its_state_from_json(name):
    cluster = random_cluster(name, seed=5)
    cluster.run(events=60)
    state = cluster.engine.state_dict()
    again = cluster.new_engine()
    again.load_state_dict(json.loads(json.dumps(state)))
    assert json.dumps(again.state_dict()) == json.dumps(state)


def test_a_worker_loop_loads_its_state_from_json():
    loop = WorkerLoop(make_strategy("osp"), worker=0, batch_size=4)
    loop.release("step", 1, 0, {})
    loop.stepped(4, 0.5, 2.0, {})
    loop.on_orders({"push": True})
    state = loop.state_dict()
    again = WorkerLoop(make_strategy("osp"), worker=0, batch_size=4)
    again.load_state_dict(json.loads(json.dumps(state)))
    assert again.state_dict() == state
    assert state["_push_ordered"]


class Remembering(WorkerPolicy):
    """Keeps all losses in one list."""

    losses: list[float] = []

    def after_step(self, stats):
        self.losses.append(stats["loss"])
        return "push"


def test_a_stored_worker_loop_stays_as_it_was():
    loop = WorkerLoop(make_strategy("asp"), worker=0, batch_size=4)
    loop._policy = Remembering()
    loop.release("step", 1, 0, {})
    loop.stepped(4, 0.5, 2.0, {"loss": 2.0})
    state = loop.state_dict()
    stored = json.dumps(state)
    loop.release("step", 2, 1, {})
    loop.stepped(4, 0.5, 3.0, {"loss": 3.0})
    assert json.dumps(state) == stored
    assert state["policy"] == {"losses": [2.0]}
    assert loop.state_dict()["policy"] == {"losses": [2.0, 3.0]}


def test_a_log_of_another_format_is_refused(tmp_path):
    log = EventLog()
    log.add(Kind.SWITCH_REQUESTED, 1.0, id=1)
    path = tmp_path / "log.json"
    write_log(log, path)
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(DataError, match="format: must be less than or equal to 1, got 2"):
        read_log(path)
