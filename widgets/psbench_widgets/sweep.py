"""Cost and benefit of each staleness bound on a run's cluster: many short runs without gradients."""

from __future__ import annotations

import json
from functools import lru_cache

from psbench.charts.growing import Columns, GrowingTables
from psbench.errors import PsbenchError
from psbench.experiment import Experiment
from psbench.runs.execution import run

#: SSP's bounds; without any it is ASP
BOUNDS = (0, 1, 2, 3, 5, 8, 13, None)
#: gradients of each worker, and of all at least and at most: enough for a mean, and done in a moment
OF_EACH, LEAST, MOST = 20, 120, 2000
# a short run under a large bound is over before its fast workers have reached the bound, and looks as fast as
# one without: so the runs are as long as the run beside them, up to MOST


def machines_of(experiment: Experiment) -> str:
    """Return the specification on which the runs of all bounds depend; empty if they cannot be simulated.

    That is for live runs, whose seconds are of another clock, for more workers than take part in it in a
    moment, and for settings that only runs with gradients have.
    """
    if experiment.backend != "simulated" or OF_EACH * experiment.num_workers > MOST:
        return ""
    try:
        same = Experiment(
            strategy="asp",
            cluster=experiment.cluster,
            data=experiment.data,
            model=experiment.model,
            batch_size=experiment.batch_size,
            seed=experiment.seed,
            timing_only=True,
            stop={"updates": max(LEAST, OF_EACH * experiment.num_workers)},
        )
        return json.dumps(same.spec())  # YAML takes ten times as long
    except PsbenchError:
        return ""


@lru_cache(maxsize=32)
def sweep(machines: str, gradients: int) -> Columns:
    """Return the columns of `charts.trade_chart` for SSP with each bound.

    Parameters
    ----------
    machines : str
        `machines_of` the run beside them.
    gradients : int
        How many gradients it applied: the runs have as many, within limits.
    """
    if not machines:
        return {}
    base = Experiment.from_spec(json.loads(machines))
    base = base.but(stop={"updates": min(MOST, max(gradients, base.stop.updates or 0))})
    found: Columns = {"label": [], "per_100_s": [], "staleness": [], "order": []}
    for order, bound in enumerate(BOUNDS):
        strategy = "asp" if bound is None else {"name": "ssp", "staleness_bound": bound}
        try:
            done = run(base.but(strategy=strategy))
        except PsbenchError:
            continue  # such as a cluster that loses all its workers under a bound
        tables = GrowingTables("", done.meta)
        tables.read(done.log, 0, len(done.log))
        point = tables.totals("trade")
        label = "ASP" if bound is None else f"bound {bound}"
        for name, value in {**point, "label": [label], "order": [order]}.items():
            found[name] += value
    return found
