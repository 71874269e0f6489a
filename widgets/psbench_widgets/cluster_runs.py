"""The detached runs of the cluster that a panel is connected to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from psbench.errors import PsbenchError
from psbench.experiment import Experiment
from psbench_widgets.latest_task import LatestTask

if TYPE_CHECKING:
    from psbench.detached import DetachedRun


class ClusterRuns:
    """Lists a cluster's detached runs and finds one by its name, in a thread of its own.

    Parameters
    ----------
    publish : callable
        Called with the list, or with the reason why there is none.
    on_error : callable
        Called with the traceback of a failure.
    """

    def __init__(self, publish: Callable[[dict[str, Any]], None], on_error: Callable[[str], None]) -> None:
        self._publish = publish
        self._task = LatestTask("psbench-cluster", on_error)
        self._own = ExitStack()
        self._clients: dict[tuple[str | None, str], Any] = {}
        #: the caller's own client, for a panel whose experiment names no scheduler
        self.given: Any = None

    def ask(self, experiment: Experiment) -> None:
        """List the runs of the cluster soon."""
        self._begin(lambda: self._list(experiment))

    def find(self, name: str, experiment: Experiment, follow: Callable[[DetachedRun], object]) -> None:
        """Find a run of the cluster soon, and pass it to `follow` once its experiment is known."""

        def find() -> None:
            follow(found(name, self._client(experiment)))
            self._list(experiment)

        self._begin(find)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until what was asked is answered."""
        self._task.wait(timeout_s)

    def close(self) -> None:
        """End the thread, and close the clients that it opened."""
        self._task.close()
        self._own.close()

    def _begin(self, work: Callable[[], None]) -> None:
        def answered() -> None:
            try:
                work()
            except PsbenchError as error:
                self._publish({"error": str(error)})

        self._publish({"words": "asking the scheduler"})
        self._task.ask(answered)

    def _list(self, experiment: Experiment) -> None:
        from psbench.detached import listed  # with it Dask is loaded

        client = self._client(experiment)
        runs = [
            {"name": each.name, "state": each.state, "words": each.words, "folder": each.folder}
            for each in listed(client)
        ]
        self._publish({"at": client.scheduler.address, "runs": runs})

    def _client(self, experiment: Experiment) -> Any:
        """Return the client of the experiment's cluster, which stays open for the runs that are followed."""
        from psbench.detached import cluster_client

        connection = experiment.connection
        if self.given is not None and experiment.scheduler is None and connection.scheduler_file is None:
            return self.given
        place = experiment.scheduler, repr(connection)
        client = self._clients.get(place)
        if client is None or client.status != "running":
            client = self._clients[place] = self._own.enter_context(cluster_client(experiment))
        return client


def found(name: str, client: Any) -> DetachedRun:
    """Return a detached run of a cluster once its experiment is known.

    Raises
    ------
    PsbenchError
        If the cluster lists no such run, or the run failed before its experiment was accepted.
    """
    from psbench.detached import attach

    run = attach(name, client=client)
    while run.experiment is None and run.read():
        pass
    if run.experiment is None:
        run.experiment = run.wait().experiment
    return run
