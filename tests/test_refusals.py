"""What is refused, and why: a test of its name lifts each refusal, and shows what then goes wrong."""

from __future__ import annotations

import itertools

import pytest
import test_refusals_of_placements
import test_refusals_of_pushes
import test_refusals_of_vectors
from draws import kinds
from refusals import GRADIENTS, OF_PUSHES, ROWS, BareModels, Stateless, refused, unchecked
from strategies.aggregation.own_arithmetic import Elastic

from psbench.core.actions import Release
from psbench.core.compatibility import misfits
from psbench.core.log import Kind
from psbench.core.part import make_part
from psbench.core.strategy import DOMAINS
from psbench.testing import ScriptedCluster


@pytest.mark.slow
def test_every_reason_is_in_the_list_and_all_of_the_list_occur():
    known = {domain: [kind() for kind in kinds(domain)] for domain in DOMAINS}
    known["aggregation"] += [make_part("aggregation", GRADIENTS), BareModels(), Elastic()]
    known["placement"].append(Stateless())
    known["communication"] += [
        make_part("communication", {"name": name, "codec": "top_k", "codec_down": "top_k"})
        for name in ("every_step", "local_sgd", "gradient_differences")
    ]
    reasons = set()
    plain = {domain: parts[0] for domain, parts in known.items()}
    composition = unchecked(**plain)
    # a reason is of two parts: one needs a property of the other
    for (one, ones), (other, others) in itertools.combinations(known.items(), 2):
        for pair in itertools.product(ones, others):
            vars(composition).update(plain | {one: pair[0], other: pair[1]})  # to make them would be slow
            reasons.update(misfits(composition))
    for parts in OF_PUSHES.values():
        reasons.update(misfits(unchecked(**parts)))
    rows = [[row for row, text in ROWS.items() if text in reason] for reason in reasons]
    assert [found for found in rows if len(found) != 1] == []
    assert {row for (row,) in rows} == set(ROWS)


def test_every_row_has_a_test():
    own = {*globals(), *vars(test_refusals_of_placements), *vars(test_refusals_of_pushes)}
    assert {f"test_{row}" for row in ROWS} <= own | {*vars(test_refusals_of_vectors)}


# -------------------------------------------------------------------- who pushes when


class SteadyAndLucky(ScriptedCluster):
    """Worker 0's test loss always falls; that of the others never does, so that they never push."""

    def _statistics(self, worker):
        stats = super()._statistics(worker)
        stats["test_loss"] = 1 / (1 + self._taken[0]) if worker == 0 else 1.0
        return stats


HERMES = {"name": "hermes_gup", "alpha": -0.9, "beta": 0.0}


@pytest.mark.slow
@pytest.mark.parametrize("waiting", ["bsp", {"name": "ssp", "staleness_bound": 2}, {"name": "k_asp", "k": 2}])
def test_who_may_never_push(waiting):
    """Worker 0 waits for the others for ever, who compute on and have nothing to say."""
    stalled = refused(
        "who_may_never_push", consistency=waiting, communication=HERMES, aggregation="model_average"
    )
    cluster = SteadyAndLucky(stalled, [1, 1, 1])
    cluster.run(until=20)
    early = cluster.engine.view.version, cluster.engine.view.pushes
    cluster.run(until=500)
    view = cluster.engine.view
    assert (view.version, view.pushes) == early
    assert view.workers[0].hold_reason
    assert view.computing == [1, 2]
    fits = SteadyAndLucky(
        unchecked(consistency="asp", communication=HERMES, aggregation="loss_weighted"), [1, 1, 1]
    )
    fits.run(until=500)
    assert fits.engine.view.version > 100


def first_loads(cluster):
    """The version that each worker takes over with its second step-release, by worker."""
    loads = {}
    for _, event, actions in cluster.history:
        for release in actions if event is not None else ():
            if isinstance(release, Release) and release.then == "step" and release.send:
                loads.setdefault(release.worker, release.load)
    return loads


def test_all_push_together():
    """They synchronise to be at one model, and would go on from three."""
    together = {"communication": {"name": "selsync", "delta": 0.0}, "aggregation": "exchange"}
    apart = ScriptedCluster(refused("all_push_together", consistency="asp", **together), [1, 1, 1])
    apart.run(until=1.5)
    assert first_loads(apart) == {0: 1, 1: 2, 2: 3}
    fits = ScriptedCluster(unchecked(**together), [1, 1, 1])
    fits.run(until=1.5)
    assert first_loads(fits) == {0: 1, 1: 1, 2: 1}


# -------------------------------------------------------------------- how much work


def test_chunks_unknown():
    """Orders for a chunk of several steps would be given, and every push be of one."""
    ordered = refused("chunks_unknown", stragglers={"name": "dual_binary_search", "chunk_batch": 2})
    cluster = ScriptedCluster(ordered, [1, 1])
    cluster.run(until=5)
    orders = [a.orders for _, _, actions in cluster.history for a in actions if isinstance(a, Release)]
    assert all(o["passes"] * o["samples"] > o["batch_size"] for o in orders)
    assert set(cluster.log.of_kind(Kind.PUSH)["steps"].tolist()) == {1}


def test_progress_not_reported():
    """Nothing would ever be re-assigned, however slow a worker is."""
    blind = ScriptedCluster(refused("progress_not_reported", stragglers="flex_rr"), [1, 1, 9], samples=8)
    blind.run(until=60)
    assert not len(blind.log.of_kind(Kind.TELL)["row"])
    informed = ScriptedCluster(
        unchecked(stragglers="flex_rr", communication="micro_steps"), [1, 1, 9], samples=8
    )
    informed.run(until=60)
    assert len(informed.log.of_kind(Kind.TELL)["row"])


def test_recut_without_a_barrier():
    """Shares of different cuts would be at work together, and not make one global batch."""
    cluster = ScriptedCluster(
        refused("recut_without_a_barrier", consistency="asp", stragglers="lb_bsp"), [1, 2, 5]
    )
    together = set()
    while cluster.now < 30:
        cluster.step()
        together.add(sum(worker.batch_size for worker in cluster.engine.view.workers.values()))
    assert together != {cluster.engine.view.global_batch}
