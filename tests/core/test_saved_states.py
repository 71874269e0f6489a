"""States: random numbers go on where they were, and what older versions wrote is still read."""

import json

import pytest

from psbench.core.engine import Engine
from psbench.core.log import EventLog, Kind
from psbench.core.view import ClusterView
from psbench.core.worker_loop import WorkerLoop
from psbench.errors import DataError
from psbench.results.storage import read_log, write_log
from psbench.strategies import make_strategy
from psbench.testing import random_cluster

#: new and old keys
OLD = {
    "overlapping": "goes_on",
    "migration": "move",
    "needs_full_model": "anew",
    "policy": "half",
    "_reported_s": "_told_s",
    "_push_ordered": "_told_to_push",
    "_waiting": "_waits",
}


def as_before(state):
    """Return a state with the keys of older versions, as JSON keeps it."""
    if isinstance(state, dict):
        return {OLD.get(key, key): as_before(value) for key, value in state.items()}
    return [as_before(each) for each in state] if isinstance(state, (list, tuple)) else state


def test_an_engine_goes_on_with_the_random_numbers_where_they_were():
    first, again = (Engine(make_strategy("selsync"), ClusterView(num_workers=3)) for _ in range(2))
    first.begin([0, 1, 2])
    first.view.rng.random(5)
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert again.view.rng.random(3).tolist() == first.view.rng.random(3).tolist()


@pytest.mark.parametrize("name", ["osp", "ssp"])
def test_an_engine_loads_a_state_with_the_old_keys(name):
    cluster = random_cluster(name, seed=5)
    cluster.run(events=60)
    state = cluster.engine.state_dict()
    old = json.loads(json.dumps(as_before(state)))
    assert json.dumps(old) != json.dumps(state)
    again = cluster.new_engine()
    again.load_state_dict(old)
    assert json.dumps(again.state_dict()) == json.dumps(state)


def test_a_worker_loop_loads_a_state_with_the_old_keys():
    loop = WorkerLoop(make_strategy("osp"), worker=0, batch_size=4)
    loop.release("step", 1, 0, {})
    loop.stepped(4, 0.5, 2.0, {})
    loop.on_orders({"push": True})
    state = loop.state_dict()
    again = WorkerLoop(make_strategy("osp"), worker=0, batch_size=4)
    again.load_state_dict(json.loads(json.dumps(as_before(state))))
    assert again.state_dict() == state
    assert state["_push_ordered"]


def test_a_log_with_the_old_names_of_kinds_is_read(tmp_path):
    log = EventLog()
    log.add(Kind.SWITCH_REQUESTED, 1.0, id=1)
    log.add(Kind.SET_TIMER, 2.0, text="key")
    path = tmp_path / "log.json"
    write_log(log, path)
    old = path.read_text().replace('"switch_requested"', '"asked"').replace('"set_timer"', '"wake"')
    assert '"asked", "wake"' in old
    path.write_text(old)
    assert read_log(path).log.digest() == log.digest()
    path.write_text(old.replace('"format": 1', '"format": 2'))
    with pytest.raises(DataError, match="format: must be less than or equal to 1, got 2"):
        read_log(path)
