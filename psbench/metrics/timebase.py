"""The time base of a run, and the results that a repetition of its specification reproduces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_CLOCKS = {"simulated": "virtual", "dask": "wall"}
_REPEATS = {
    "simulated": "The same specification, seed and library versions give the same digest of the log and the "
    "same parameters, bit for bit, on machines with the same CPU arithmetic.",
    "dask": "A live run repeats the specification, the data, the shards and the first model, but not the "
    "timing: the order of pushes differs, and so do log, digest and parameters. Its recorded decisions can "
    "be replayed: the same events lead to the same decisions (psbench replay).",
}


def clock_of(meta: Mapping[str, Any]) -> str:
    """Return the clock of a run's seconds: "virtual", "wall", or "" without a backend.

    Examples
    --------
    >>> clock_of({"backend": "dask"})
    'wall'
    """
    return _CLOCKS.get(str(meta.get("backend")), "")


def repeatability(backend: str) -> str:
    """Return a sentence about the results that a repetition on this backend reproduces."""
    unknown = f"What a repetition reproduces depends on the package that adds the backend {backend!r}."
    return _REPEATS.get(backend, unknown)
