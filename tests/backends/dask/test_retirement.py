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


def places_of(client: Client, role: str) -> set[str]:
    """Return the Dask workers that have a role."""
    ending = role.replace(" ", "-")
    tasks = client.processing().items()
    return {str(address) for address, keys in tasks if any(str(key).endswith(ending) for key in keys)}


class Retirer:
    """An observer that retires the Dask workers of some roles one after another, then stops the run.

    After each, the run must have gone on for so many pushes; after the last one elsewhere.
    """

    def __init__(self, client: Client, roles: list[str], pushes: int = 50) -> None:
        self.client, self.roles, self.pushes, self.last = client, roles, pushes, roles[-1]
        self.control, self.next, self.retired = Control(), pushes, ""

    def __call__(self, log: EventLog) -> None:
        pushes = len(log.of_kind(Kind.PUSH)["row"])
        if not self.roles and not places_of(self.client, self.last) - {self.retired}:
            self.next = pushes + self.pushes
        if pushes < self.next:
            return
        if not self.roles:
            self.control.stop()
            return
        if not (places := places_of(self.client, self.roles[0])):
            return  # it has yet to begin
        (self.retired,) = places
        self.roles.pop(0)
        self.next = pushes + self.pushes
        self.client.retire_workers([self.retired], close_workers=True)
        assert self.retired not in self.client.nthreads()


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
    assert re.match("the Dask worker of server 1 is being retired; no update since .* is lost", moved)
    assert done.meta["lost_workers"] == []  # placed anew with the others
    made = done.log.of_kind(Kind.APPLY)["version"].tolist()
    assert made == list(range(1, len(made) + 1))
    replay(done)


def test_an_adaptive_cluster_takes_away_who_is_free_and_no_run() -> None:
    """Of six workers four stay, who are coordinator, two workers and evaluator."""
    left, control = list[int](), Control()
    with (
        LocalCluster(n_workers=6, threads_per_worker=1, processes=False, **HERE) as cluster,
        Client(cluster.scheduler_address, set_as_default=False) as client,
    ):

        def observer(log: EventLog) -> None:
            if not left:
                cluster.adapt(minimum=0, maximum=6, interval="100ms", wait_count=1)
            left.append(len(client.nthreads()))
            if left[-10:] == [4] * 10:
                control.stop()

        done = run(
            experiment("asp", None, 2, stop=FOREVER), client=client, observer=observer, control=control
        )
    assert done.meta["status"] == "stopped"
    assert done.meta["incidents"] == []
    assert left[0] == 6


def test_an_adaptive_cluster_without_workers_grows_for_a_run_that_waits() -> None:
    """To what the run needs beside other work, and no further; to its limit if that is less."""
    with (
        LocalCluster(n_workers=0, threads_per_worker=1, processes=False, **HERE) as cluster,
        Client(cluster.scheduler_address, set_as_default=False) as client,
    ):
        never = 10**6  # is it without need for so long that it shrinks
        cluster.adapt(minimum=0, maximum=3, interval="100ms", wait_count=never)
        spec, said = experiment("asp", None, 2, recovery={"wait_for_workers": 2}), ""
        while "has 3 workers" not in said:  # which a busy machine may not have started by then
            with pytest.raises(BackendError, match=r"has .* after 2 s .* needs 4 \(") as refused:
                run(spec, client=client)
            said = str(refused.value)
        cluster.adapt(minimum=0, maximum=8, interval="100ms", wait_count=never)
        patient = spec.but(recovery={"wait_for_workers": 300})
        assert run(patient, client=client).meta["status"] == "finished"
        assert len(client.nthreads()) == 4
        assert not client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.unrunnable))
