"""The messages of a log, and a run that is played again with its own times."""

import pytest

import psbench as ps
from psbench.core.log import EventLog, Kind
from psbench.results.run import Run
from psbench.testing import toy_experiment
from psbench.twin.calibration import Calibration
from psbench.twin.exchanges import exchanges_of, last_version
from psbench.twin.measures import measures_of
from psbench.twin.recording import LEFT_OUT
from psbench.twin.replayed import played_again
from tests.twin.known import PLAIN, TRUTH


@pytest.mark.parametrize("strategy", ["bsp", "asp", "k_bsp", "all_reduce", LEFT_OUT["Strategy-Switch"]])
def test_a_run_with_its_own_times_takes_as_long(strategy):
    """Servers take none here, as their queues are in a run's own times.

    Pushes pass a slow link, and what workers of a ring say to the coordinator does not: after a switch from
    one to the other messages take what they took there, and not again what the run's first ones took.
    """
    slow = {"latency_s": 0.02, "bandwidth_mbit_s": 10, "server_bandwidth_mbit_s": 10, "link_sharing": "equal"}
    cluster = {**TRUTH, **slow, "service": {}}
    run = ps.run(PLAIN.but(strategy=strategy, cluster=cluster, stop={"epochs": 8, "updates": 80}))
    again, (updates, seconds) = played_again(run), last_version(run.log)
    assert last_version(again.log) == (updates, pytest.approx(seconds, rel=1e-3))


def test_the_samples_of_an_exchange_are_those_of_one_step():
    run = ps.run(toy_experiment({"name": "local_sgd", "local_steps": 3}, stop={"updates": 4}))
    found = exchanges_of(run.log)
    assert ({*found.samples}, {*found.steps}) == ({run.experiment.batch_size // 3}, {3})
    assert (found.samples * found.steps == run.log.of_kind(Kind.PUSH)["samples"]).all()


def test_clocks_that_differ_are_set_by_the_quickest_messages():
    """A worker whose clock is 20 ms ahead seems to send 20 ms faster, and to hear 20 ms later."""
    run = ps.run(PLAIN.but(strategy="asp", stop={"updates": 200}))
    straight, columns = exchanges_of(run.log), run.log.columns()
    ahead = (columns["worker"] == 1) & (columns["send_s"] > 0)
    columns["send_s"][ahead] += 0.02  # of the step, so that the sum stays
    columns["compute_s"][ahead] -= 0.0
    turned = exchanges_of(EventLog.from_columns(columns, run.log.texts))
    own = straight.worker == 1
    assert turned.up_s[own] == pytest.approx(straight.up_s[own], abs=5e-4)


def test_logs_that_cannot_be_measured_are_refused():
    run = ps.run(PLAIN.but(stop={"updates": 4}))
    columns = run.log.columns()
    columns["time_s"][5] = 9.0
    with pytest.raises(ps.DataError, match="goes back in time"):
        exchanges_of(EventLog.from_columns(columns, run.log.texts))
    with pytest.raises(ps.DataError, match="no push"):
        exchanges_of(EventLog())
    other = Run(run.experiment, run.log, run.meta | {"num_workers": 7})
    with pytest.raises(ps.SpecError, match="4 and 7 workers"):
        Calibration.of([run, other])


def test_an_epoch_takes_as_long_as_its_versions():
    """Under a barrier every version is of a whole batch; the last pushes of the one before counted, too."""
    run = ps.run(toy_experiment("bsp", stop={"updates": 5}, timing_only=True))
    found = measures_of(run)
    assert found.sample_s * run.experiment.batch_size == pytest.approx(found.update_s)
