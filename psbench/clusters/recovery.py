"""Settings for a run whose cluster has lost or missing processes."""

from __future__ import annotations

from collections.abc import Sequence

from psbench.core import Specification, Strategy, parameter
from psbench.core.replicas import must_not_lag, unreplicable
from psbench.errors import ParameterError


class Recovery(Specification):
    """Settings for lost or missing processes of a live run; simulated runs use only `keep`.

    Parameters
    ----------
    max_restarts : int
        How often the run goes on by itself from its last checkpoint when a parameter server is lost, on
        Dask workers that are left or new. What it had done since is lost, and done again. Without a
        checkpoint (see `checkpoint_every`) the run ends.
    replicas : int
        With 1 another process holds the state of all servers, and no worker is answered before it has
        what the answer rests on: a lost server costs no update that any worker has heard of, and the run
        goes on from there as from a checkpoint. If that process is lost, another takes its place.
    replica_every : int
        With k above 1 the replica may lag: it is sent a state with every k-th update, and workers wait for
        that one alone. A lost server then costs at most the k - 1 updates since, which the run's warnings
        count. This is the bounded consistency of MLFabric (thesis 3.2.6), counted in updates.
    replace_workers : bool
        Whether a free Dask worker takes the place of a lost training worker, with its shard; the others
        go on meanwhile. Otherwise they go on without it.
    min_workers : int or None
        Training begins as soon as there is room for so many training workers, and the others join when
        there is room for them; None for all. Includes `replace_workers`.
    """

    max_restarts: int = parameter(2, "restarts from the last checkpoint when a server is lost", ge=0)
    replicas: int = parameter(0, "processes that hold the servers' state, to lose no update", ge=0, le=1)
    replica_every: int = parameter(
        1, "updates between two states sent to the replica", source="thesis 3.2.6", ge=1
    )
    replace_workers: bool = parameter(False, "whether a free Dask worker takes a lost worker's place")
    min_workers: int | None = parameter(None, "training workers to begin with; the others join later", ge=1)
    wait_for_workers: float = parameter(60.0, "longest wait for free Dask workers", unit="s", ge=0)
    keep: int | None = parameter(None, "checkpoints that are kept", ge=1)

    @property
    def lets_workers_join(self) -> bool:
        """Return True if missing training workers join as soon as there is room for them."""
        return self.replace_workers or self.min_workers is not None

    def check(self, num_workers: int, compositions: Sequence[Strategy]) -> None:
        """Raise if the cluster or the strategy does not allow these settings.

        Raises
        ------
        ParameterError
        """
        if self.min_workers is not None and self.min_workers > num_workers:
            raise ParameterError(
                f"recovery.min_workers: {self.min_workers}, but the cluster has {num_workers} workers"
            )
        if self.replica_every > 1 and not self.replicas:
            raise ParameterError(
                f"recovery.replica_every: {self.replica_every}, but there is no replica; set replicas to 1"
            )
        for composition in compositions if self.replicas else ():
            if why := unreplicable(composition):
                raise ParameterError(
                    f"recovery.replicas: {composition.name!r} cannot be replicated, as {why}; "
                    "use checkpoint_every, from which a run can be resumed too"
                )
            if self.replica_every > 1 and (why := must_not_lag(composition)):
                raise ParameterError(
                    f"recovery.replica_every: a replica of {composition.name!r} must not lag, as {why}; "
                    "set replica_every to 1"
                )
