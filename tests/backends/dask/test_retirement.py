"""Dask workers that are retired, or that an adaptive cluster could take away, in mid-run."""

from __future__ import annotations

import re
from typing import Any

import pytest
from distributed import Client, LocalCluster
from test_dask_runs import FOREVER, experiment

from psbench import replay
from psbench.backends.control import Control
from psbench.backends.dask.local_cluster import local_cluster
from psbench.core.log import EventLog, Kind
from psbench.errors import BackendError
from psbench.runs.execution import run

pytestmark = [pytest.mark.dask, pytest.mark.slow]

#: without an address for its page a scheduler tries port 8787, and warns if it is taken
HERE: dict[str, Any] = {
    **{"host": "127.0.0.1", "protocol": "tcp://", "dashboard_address": None},
    "scheduler_kwargs": {"dashboard": False, "dashboard_address": "127.0.0.1:0"},
}

TWO_SERVERS = {"name": "asp", "placement": {"name": "parameter_server", "servers": 2}}


def address_of(client: Client, role: str) -> str:
    """Return the Dask worker that a role runs on."""
    for address, keys in client.processing().items():
        if any(str(key).endswith(role.replace(" ", "-")) for key in keys):
            return str(address)
    raise AssertionError(f"no task of {role} is running")


class Retirer:
    """An observer that retires the Dask workers of some roles one after another, then stops the run.

    After each, the run must have gone on for so many pushes.
    """

    def __init__(self, client: Client, roles: list[str], pushes: int = 150) -> None:
        self.client, self.roles, self.pushes = client, roles, pushes
        self.control, self.next = Control(), pushes

    def __call__(self, log: EventLog) -> None:
        if len(log.of_kind(Kind.PUSH)["row"]) < self.next:
            return
        self.next += self.pushes
        if not self.roles:
            self.control.stop()
            return
        retired = address_of(self.client, self.roles.pop(0))
        if not self.roles:  # the run moves: a stop must not come before it trains again
            self.next += 6000
        self.client.retire_workers([retired], close_workers=True)
        assert retired not in self.client.nthreads()


def test_who_is_retired_says_so_and_the_run_goes_on() -> None:
    with local_cluster(8) as cluster, Client(cluster.scheduler_address, set_as_default=False) as client:
        retirer = Retirer(client, ["evaluator", "worker 1", "server 1"])
        spec = experiment(TWO_SERVERS, None, 2, stop=FOREVER, recovery={"max_restarts": 0})
        done = run(spec, client=client, observer=retirer, control=retirer.control)
    assert done.meta["status"] == "stopped"
    *told, moved = done.meta["incidents"]
    joined = [each for each in told if each.startswith("evaluator has joined on another Dask worker")]
    assert len(joined) <= 1  # another evaluator may start after the run has moved
    left, worker = sorted({*told} - {*joined})
    assert left.startswith("evaluator left, as its Dask worker is being retired, at ")
    assert worker.startswith("worker 1 left, as its Dask worker is being retired, at ")
    assert re.match("the Dask worker of server 1 is being retired; 0 updates and .* s .* are lost", moved)
    assert done.meta["lost_workers"] == []  # placed anew with the others
    made = done.log.of_kind(Kind.APPLY)["version"].tolist()
    assert made == list(range(1, len(made) + 1))
    replay(done)


def test_an_adaptive_cluster_takes_away_who_is_free_and_no_run() -> None:
    left: list[int] = []
    with (
        LocalCluster(n_workers=6, threads_per_worker=1, processes=False, **HERE) as cluster,
        Client(cluster.scheduler_address, set_as_default=False) as client,
    ):

        def observer(log: EventLog) -> None:
            if not left:
                cluster.adapt(minimum=0, maximum=6, interval="100ms", wait_count=1)
            if log.rows()["time_s"][-1] < 2.5:  # at the end roles are done, and their workers free
                left.append(len(client.nthreads()))

        done = run(experiment("asp", None, 2, stop={"seconds": 3.0}), client=client, observer=observer)
    assert done.meta["status"] == "finished"
    assert done.meta["incidents"] == []
    assert left[0] == 6
    assert left[-1] == 4  # coordinator, two workers, evaluator


def test_an_adaptive_cluster_without_workers_grows_for_a_run_that_waits() -> None:
    """To what the run needs beside other work, and no further; to its limit if that is less."""
    with (
        LocalCluster(n_workers=0, threads_per_worker=1, processes=False, **HERE) as cluster,
        Client(cluster.scheduler_address, set_as_default=False) as client,
    ):
        cluster.adapt(minimum=0, maximum=3, interval="100ms", wait_count=100)
        spec = experiment("asp", None, 2, recovery={"wait_for_workers": 3})
        with pytest.raises(BackendError, match=r"has 3 workers .* after 3 s .* needs 4 \("):
            run(spec, client=client)
        cluster.adapt(minimum=0, maximum=8, interval="100ms", wait_count=100)
        assert run(spec, client=client).meta["status"] == "finished"
        assert len(client.nthreads()) == 4
        assert not client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.unrunnable))
