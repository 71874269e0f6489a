"""Early epoch stop: who has done its share waits, until enough have."""

import pytest
import torch
from script import Script, run

from psbench import strategies
from psbench.core.log import Kind
from psbench.testing import ScriptedCluster

HOLD = "end of the epoch"


def epochs(cluster):
    """Return the pushes of each worker in every epoch that is over, read from the releases of those held."""
    counts, found, held = {}, [], set()
    for _, event, actions in cluster.history[1:]:
        words = [(type(a).__name__, a.worker) for a in actions if type(a).__name__ in ("Hold", "Release")]
        counts[event.worker] = counts.get(event.worker, 0) + 1
        held |= {worker for what, worker in words if what == "Hold"}
        if any(what == "Release" and worker in held for what, worker in words):
            found.append(counts)
            counts, held = {}, set()
    return found


def test_the_last_quarter_of_the_workers_is_not_waited_for():
    # 160 samples on 4 workers of batch 4: a share is 10 pushes
    script = Script(strategies.early_epoch_stop(), 4, dataset_size=160, global_batch=16)
    for number in range(9):
        for worker in (0, 1, 2):
            assert script.push(worker, number) == [("apply", [worker]), ("release", worker)]
    assert script.push(0, 10.0) == [("apply", [0]), ("hold", 0, HOLD)]
    assert script.push(3, 11.0) == [("apply", [3]), ("release", 3)]
    assert script.push(2, 12.0) == [("apply", [2]), ("hold", 2, HOLD)]
    assert script.push(1, 13.0) == [("apply", [1]), ("release", 0), ("release", 1), ("release", 2)]
    # worker 3 is spared nine of its ten, and what it was at is its first of the next epoch
    assert script.push(3, 14.0) == [("apply", [3]), ("release", 3)]
    assert script.engine.composition.consistency.state_dict()["_samples"] == {"3": 4}


@pytest.mark.parametrize("workers", [1, 3, 4])
def test_with_fraction_1_everybody_does_its_share_and_no_more(workers):
    strategy = strategies.early_epoch_stop(fraction=1.0)
    cluster = ScriptedCluster(strategy, [1.0, 1.3, 2.9, 5.0][:workers])
    cluster.run(events=120)
    if workers == 1:
        assert not any(kind == Kind.HOLD for kind in cluster.log.columns()["kind"])
        return
    seen = epochs(cluster)
    assert len(seen) == 120 // (10 * workers)
    assert seen == [dict.fromkeys(range(workers), 10)] * len(seen)


@pytest.mark.parametrize(("fraction", "needed"), [(0.75, 3), (0.5, 2), (0.01, 1), (0.76, 4)])
def test_so_many_have_done_all_of_it_when_the_epoch_ends(fraction, needed):
    strategy = strategies.early_epoch_stop(fraction=fraction)
    cluster = ScriptedCluster(strategy, [1.0, 1.37, 2.9, 5.1])
    cluster.run(events=400)
    view = cluster.engine.view
    holds = cluster.log.of_kind(Kind.HOLD)
    if needed == 1:
        assert not len(holds["worker"])
    else:
        seen = epochs(cluster)
        assert len(seen) > 5
        # a step that was under way when the last epoch ended counts in this one
        assert all(sum(count >= 10 for count in found.values()) == needed for found in seen)
    assert view.discarded == 0


def test_within_an_epoch_it_is_asp():
    part, whole = (run(s, updates=30) for s in (strategies.early_epoch_stop(), "asp"))
    assert not len(part.log.of_kind(Kind.HOLD)["worker"])  # digits have 1437 samples: 22 steps a share
    assert torch.equal(part.parameters, whole.parameters)


def test_one_worker_is_sgd():
    part, whole = (run(s, speeds=[1.0]) for s in (strategies.early_epoch_stop(), "bsp"))
    assert torch.equal(part.parameters, whole.parameters)


def test_fewer_are_enough_when_one_has_gone():
    script = Script(strategies.early_epoch_stop(), 4, dataset_size=16, global_batch=16)
    assert script.push(0, 1.0) == [("apply", [0]), ("hold", 0, HOLD)]
    assert script.push(1, 2.0) == [("apply", [1]), ("hold", 1, HOLD)]
    assert script.leave(2, 3.0) == []  # three of three
    assert script.leave(3, 4.0) == [("release", 0), ("release", 1)]


def test_who_is_back_has_its_whole_share_before_it():
    script = Script(strategies.early_epoch_stop(fraction=1.0), 2, dataset_size=16, global_batch=8)
    script.push(0, 1.0)
    script.leave(0, 2.0)
    assert script.join(0, 3.0) == [("release", 0)]
    assert script.push(0, 4.0)[-1] == ("release", 0)
    assert script.push(0, 5.0)[-1] == ("hold", 0, HOLD)


def test_the_rest_of_a_share_is_what_a_straggler_saves():
    speeds = (1.0, 1.0, 1.0, 0.2)
    early, whole = (run(strategies.early_epoch_stop(fraction=f), speeds=speeds) for f in (0.75, 1.0))
    assert early.meta["time_s"] < 0.5 * whole.meta["time_s"]
