"""Requirements of a part on the other parts of a strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

#: codecs that send floats, which a ring adds up on their way
FLOAT_CODECS = frozenset({"none", "fp16"})


class Need(NamedTuple):
    """A property that the part of some domain must have.

    Parameters
    ----------
    domain : str
        Domain of the part that must have it; a part may need something of itself, too.
    is_met : callable
        Whether a part of that domain has it.
    why : str
        The reason, with `{part}` and `{other}` for the names of the part in need and of the other.
    remedy : str
        Advice to the user; by default the registered parts that meet the need.
    when : callable
        Whether a part has this need; by default always.

    Examples
    --------
    >>> from psbench.strategies.consistency import ASP, BSP
    >>> barrier = Need("consistency", lambda c: c.barrier, "{part} averages over all workers")
    >>> barrier.is_met(BSP()), barrier.is_met(ASP())
    (True, False)
    """

    domain: str
    is_met: Callable[[Any], bool]
    why: str
    remedy: str = ""
    when: Callable[[Any], bool] = lambda part: True


#: of a part whose update stands for one round of all workers
NEEDS_BARRIER = Need(
    "consistency",
    lambda c: c.barrier,
    "{part} treats a commit as the work of all workers since the last one, but {other} has no barrier",
)
#: of a part that compares a push with its own state
NEEDS_SINGLE_PUSHES = Need(
    "consistency",
    lambda c: c.singly,
    "{part} weights one push against its own state, but {other} commits several together",
)
#: of a part that gives workers batches of other sizes
NEEDS_BARRIER_TO_RECUT = Need(
    "consistency", lambda c: c.barrier, "{part} changes batch sizes at barriers, but {other} has none"
)
