"""Submission of a run to a Dask cluster."""

from __future__ import annotations

import functools
import logging
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from psbench.backends.dask import Link, check_objects, usable
from psbench.detached.detached_run import DetachedRun
from psbench.detached.directing import direct_run
from psbench.errors import ParameterError, PsbenchError
from psbench.experiment import Experiment
from psbench.system.by_value import dumps_by_value

logger = logging.getLogger(__name__)

#: names of runs, as a shell and a URL take them
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


def submit(
    experiment: Experiment,
    *,
    client: Any,
    name: str | None = None,
    folder: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
) -> DetachedRun:
    """Start a run on a Dask cluster that needs this process no more, once the experiment is accepted there.

    Parameters
    ----------
    experiment : Experiment
        With backend "dask". Python objects are sent with it, and the scheduler keeps them until the run is
        forgotten; files are read on the cluster.
    client : dask.distributed.Client
        Of the cluster. Only the scheduler's port need be reachable.
    name : str or None
        How the run is found (`psbench.attach`); the experiment's title, with a number if that is taken.
    folder : path or None
        On the cluster's shared file system: for the checkpoints, and for the run when it has ended. Without
        one the run is lost with the Dask worker of its director.
    overwrite : bool
        Whether another run in that folder, and an ended run of that name, are replaced.
    resume : bool
        Whether the run in that folder goes on, if there is one.

    Returns
    -------
    DetachedRun
        Whose `wait` follows the run and returns the `Run`.

    Raises
    ------
    SpecError, DataError, BackendError
        If the run cannot begin; the cluster has forgotten it then.
    """
    usable(client)
    if experiment.backend != "dask":
        raise ParameterError(f"backend: {experiment.backend!r} has no detached runs; set backend: dask")
    if name is not None and not _NAME.fullmatch(name):
        raise ParameterError(f"name: {name!r} must have at most 64 letters, digits, '.', '_' or '-'")
    if resume and folder is None:
        raise ParameterError("resume: continues the run in a folder; give one")
    check_objects(experiment)
    title = _NOT_IN_NAMES.sub("-", experiment.title).strip("-.")[:60] or "run"
    place = "" if folder is None else str(Path(folder).absolute())
    packed = dumps_by_value(experiment)
    options: dict[str, Any] = {"folder": place, "overwrite": overwrite, "resume": resume}
    link = Link.submit(
        client,
        name or title,
        functools.partial(direct_run, packed=packed, **options),
        experiment.connection,
        folder=place,
        numbered=name is None,
        replace=overwrite,
    )
    submitted = DetachedRun(client, link, experiment)
    try:
        _await_acceptance(submitted, experiment.connection.answer_within_s)
    except PsbenchError:
        with suppress(PsbenchError):  # it has failed, or the scheduler is gone
            link.forget()
        raise
    return submitted


def _await_acceptance(submitted: DetachedRun, within_s: float) -> None:
    """Wait until a director has accepted the experiment, or raise its error."""
    until = time.monotonic() + within_s
    while not submitted.facts:
        if not submitted.read():
            submitted.wait()  # raises why the run failed, if it did
            return
        if time.monotonic() > until and not submitted.listed.at:
            logger.warning(
                "no Dask worker has begun run %r after %g s: all are busy, or there is none; it waits",
                submitted.name,
                within_s,
            )
            return
