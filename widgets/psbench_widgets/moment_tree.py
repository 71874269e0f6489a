"""The piece of a run's computation tree that ends at the moment which the panel shows."""

from __future__ import annotations

from typing import Any

import numpy as np

from psbench.core.log import EventLog
from psbench.core.switching_strategy import AnyStrategy
from psbench.errors import ParameterError
from psbench.metrics import computation_tree

#: gradients that are drawn
NODES = 12
#: rows of a log beyond which no tree is drawn: it is computed anew for every moment
LONGEST = 50_000
_DRAWN = ("node", "worker", "base", "step", "distance", "version")


def tree_at(log: EventLog, strategy: AnyStrategy, at_s: float | None) -> dict[str, Any]:
    """Return the last gradients applied up to a moment (None: the end), for the page.

    Returns
    -------
    dict
        `gradients`, the columns of `ComputationTree.gradients` that are drawn, one list each; `radius`, R of
        the whole run; `applied`, the gradients up to the moment; `why`, the reason why none is drawn, or "".

    Examples
    --------
    >>> from psbench import run
    >>> from psbench.testing import toy_experiment
    >>> done = run(toy_experiment("bsp", cluster={"workers": 3}))
    >>> found = tree_at(done.log, done.experiment.strategy, None)
    >>> found["radius"], found["gradients"]["distance"][-3:]
    (2, [0, 1, 2])
    """
    found: dict[str, Any] = {"gradients": {}, "radius": 0, "applied": 0, "why": ""}
    if len(log) > LONGEST:
        return found | {"why": f"the run has more than {LONGEST:,} events"}
    try:
        tree = computation_tree(log, strategy)
    except ParameterError as error:
        return found | {"why": str(error).rpartition("has no computation tree: ")[2]}
    rows = tree.gradients
    last = len(rows) if at_s is None else int(np.searchsorted(rows["applied_s"], at_s, side="right"))
    piece = rows.iloc[max(0, last - NODES) : last]
    drawn = {name: piece[name].tolist() for name in _DRAWN}
    return found | {"gradients": drawn, "radius": tree.radius, "applied": last}
