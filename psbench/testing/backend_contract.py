"""Checks the contract of drivers, for authors of backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from psbench.core import EventLog
from psbench.errors import PsbenchError
from psbench.testing.invariants import BrokenContract
from psbench.testing.witness import Witness

if TYPE_CHECKING:
    from psbench.testing.scenes import Scene
    from psbench.testing.watched import WatchedWorkload


def check_backend(
    run: Callable[[WatchedWorkload, EventLog], Any],
    *,
    sees_model: bool = True,
) -> None:
    """Check that a backend keeps the contract of drivers (`psbench.core.driver`).

    It plays short runs of scripted strategies: pushes that are committed, held and discarded, rounds of
    several steps, work that is cancelled, votes, orders to workers that compute, workers that fail, are
    dropped and come back, numbers that are measured, timers, All-Reduce, gossip, a switch. In
    each it compares what the backend performs with what the engine answers: a release reaches its worker,
    which computes from the version that it is to load; each version is made of the payloads of the pushes
    that its `Apply` names, and of no other, before the next event; a hand-over is performed once; timers and
    measured numbers come when they were asked for; and no push counts of a worker that has left.

    No scene has a `Reassign`. Which server holds an entry changes no version and no event, only times, bytes
    and where a vector is cut, and each backend cuts vectors in its own way: compare the entries of your
    servers before and after, as psbench's tests do for its own.

    Parameters
    ----------
    run : callable
        `run(workload, log)` runs the experiment of `workload` to its end, with the engine of
        `workload.engine(log)`. Model and workers are watched if they are of `workload.server()` and
        `workload.trainer()`, in this process; a backend that has them elsewhere reports to
        `workload.witness`: `computed` when a push is to be handed over, `made`, and `handed_over`.
    sees_model : bool
        False if it does neither, as it computes nothing: events alone are compared.

    Raises
    ------
    BrokenContract
        Names the scene, the moment and the first difference.

    Examples
    --------
    >>> from psbench.backend import backend_of
    >>> from psbench.backends.control import Control
    >>> run = backend_of("simulated").run
    >>> check_backend(lambda workload, log: run(workload, log, Control(), None, None, None))
    """
    from psbench.testing.scenes import SCENES  # which defines a part: it is known only where it is used

    for scene in SCENES:
        _play(run, scene, sees_model)


def _play(run: Callable[[WatchedWorkload, EventLog], Any], scene: Scene, sees_model: bool) -> None:
    from psbench.testing.watched import WatchedWorkload
    from psbench.training.build import Workload

    leaves = None if scene.leaves is None else (*scene.leaves, scene.back_s)
    witness = Witness(scene.name, leaves, sees_model)
    workload = WatchedWorkload.of(Workload.build(scene.experiment()), witness)
    try:
        run(workload, EventLog())
    except BrokenContract:
        raise
    except PsbenchError as error:
        witness.check_patience(0)  # names what is missing, if that is why
        raise BrokenContract(f"{scene.name}, at {witness.now:g} s: {error}") from error
    witness.end()
