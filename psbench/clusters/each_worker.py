"""Numbers that a specification gives once for all workers, or one for each."""

from __future__ import annotations

from numbers import Real
from typing import Annotated, Any

from pydantic import AllowInfNan

from psbench.errors import ParameterError, in_short

# the error of whoever reads them says which worker's number is NaN or infinity
_Number = Annotated[float, AllowInfNan(True)]
#: one number for all workers, or one each
OfEachWorker = _Number | tuple[_Number, ...]


def per_worker(value: Any, what: str, each: str = "worker") -> OfEachWorker:
    """Return a number, or a tuple from a list with one number per worker or other machine.

    Raises
    ------
    ParameterError
    """
    items = value if isinstance(value, (list, tuple)) else [value]
    if any(isinstance(item, bool) or not isinstance(item, Real) for item in items):
        raise ParameterError(
            f"{what}: expected a number, or a list with one for each {each}, got {in_short(value)}"
        )
    return tuple(map(float, items)) if isinstance(value, (list, tuple)) else float(value)


def spread(value: OfEachWorker, num_workers: int) -> tuple[float, ...]:
    """Return one number per worker."""
    return value if isinstance(value, tuple) else (value,) * num_workers
