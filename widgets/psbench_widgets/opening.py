"""Opening of a panel without a run: a recorded run that plays slowly, with comments.

`python -m psbench_widgets.opening` records it again; a test compares it with what the simulator does today.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from psbench.charts.growing import tables_of
from psbench.core.log import Kind
from psbench.experiment import Experiment
from psbench_widgets.assets import STATIC
from psbench_widgets.playback import film

FILE = STATIC / "opening.json"

#: a bound that is reached again and again, and a slow worker whom all wait for
EXPERIMENT = Experiment(
    strategy={"name": "ssp", "staleness_bound": 3},
    cluster={"workers": 4, "speed": [1.0, 1.0, 1.0, 0.4], "step_time": "lognormal"},
    model={"name": "mlp", "hidden": [8]},
    batch_size=128,
    stop={"updates": 160},
    evaluate_every=1.0,
)

SENTENCES = (
    "Four workers train one network together. A bar is a step: a worker computes a gradient, sends it to the "
    "parameter server, and continues with the newest model. Worker 3 is the slow one.",
    "Stale synchronous parallel (SSP): no worker starts a step while it is more than 3 steps ahead of the "
    "slowest. Orange: a fast worker is too far ahead, and waits for worker 3.",
    "A small bound costs time. With a large one, or none (ASP), gradients are stale: computed on old models, "
    "they help less. Press Run for your own, with another bound, strategy or machines.",
)


@cache
def opening() -> dict[str, Any]:
    """Return the recording and the sentences as the page reads them."""
    return {**json.loads(FILE.read_text(encoding="utf-8")), "sentences": list(SENTENCES)}


def recorded() -> dict[str, Any]:
    """Return the recording, and the cost and benefit of other bounds, computed now."""
    from psbench import run
    from psbench_widgets.figures import with_sweep
    from psbench_widgets.sweep import machines_of, sweep

    done = run(EXPERIMENT)
    own = tables_of(done, "").totals("trade")
    gradients = int((done.log.rows()["kind"] == Kind.APPLY).sum())
    shown = film(EXPERIMENT, done.log, "a recorded run", "opening", at_s=0.0)
    return {"film": shown, "trade": with_sweep(own, sweep(machines_of(EXPERIMENT), gradients))}


if __name__ == "__main__":
    FILE.write_text(json.dumps(recorded(), separators=(",", ":")) + "\n", encoding="utf-8")
