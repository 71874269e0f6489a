"""A run that goes on from a barrier takes the times of the whole run, whatever is busy, slow or drawn."""

from __future__ import annotations

from itertools import combinations

import pytest

import psbench as ps
from psbench.testing import toy_experiment

WORKERS = 3
BASE = {"workers": WORKERS, "step_time": "constant", "latency_s": 2e-3, "bandwidth_mbit_s": 0.08}
BASE |= {"server_bandwidth_mbit_s": 0.1, "server_latency_s": 1e-3}
#: what a cluster may have in addition; spells last from the middle of the first part into the second
OPTIONS = {
    "unequal machines": {"speed": [1.0, 0.5, 0.7], "latency_s": [1e-3, 4e-3, 2e-3]},
    "slower down": {"bandwidth_down_mbit_s": [0.04, 0.02, 0.05]},
    "equal shares": {"link_sharing": "equal"},
    "throttles": {"throttles": [{"worker": 1, "from_s": 0.1, "to_s": 2.0, "factor": 3}]},
    "slowdowns": {"slowdowns": [{"worker": 0, "from_s": 0.1, "to_s": 2.0, "factor": 3}]},
    "steps that vary": {"step_time": {"name": "lognormal", "sigma": 0.4}},
    "latencies that vary": {"link_time": {"name": "lognormal", "sigma": 0.4}},
    "busy servers": {"service": {"message_s": 5e-3, "byte_s": 1e-5, "decision_s": 1e-3}},
    "few cores": {"cores": 1.5},
    "a window": {"first_window_bytes": 16},
}
SERVERS = {"name": "parameter_server", "servers": 2}
STRATEGIES = {
    "bsp": "bsp",
    "entries move": {
        "name": "bsp",
        "placement": SERVERS | {"reassignment": {"name": "by_load", "every": 2, "threshold": 1.01}},
    },
    "all_reduce": "all_reduce",
    "map_reduce": {"name": "map_reduce", "job_s": 0.01},
    "summing servers": {"name": "bsp", "placement": {"name": "summing_servers", "servers": 2}},
    "local_sgd": {"name": "local_sgd", "local_steps": 2},
    "lb_bsp": "lb_bsp",
}


PAIRS = [(a, b) for a, b in combinations(OPTIONS, 2) if not OPTIONS[a].keys() & OPTIONS[b].keys()]
#: options with a state that a checkpoint has to keep, or to find again
STATES = {"equal shares", "throttles", "latencies that vary", "busy servers", "few cores"}


def cases():
    """Yield strategies and options; those that take long, or show little, run at night."""
    for name in STRATEGIES:
        for names in [(), *((each,) for each in OPTIONS), *PAIRS]:
            soon = len(names) == 1 and (name == "bsp" or names[0] in STATES)
            yield pytest.param(
                name, names, marks=[] if soon else pytest.mark.nightly, id=" + ".join((name, *names))
            )


@pytest.mark.by_day(7)
@pytest.mark.parametrize(("name", "names"), list(cases()))
def test_a_resumed_run_takes_the_times_of_the_whole_run(name, names, tmp_path):
    """No step is under way at a barrier, so that none is begun again."""
    cluster = BASE | {key: value for each in names for key, value in OPTIONS[each].items()}
    given = {"cluster": cluster, "stop": {"epochs": 2}, "checkpoint_every": 1, "timing_only": True}
    whole = ps.run(toy_experiment(STRATEGIES[name], **given), folder=tmp_path)
    resumed = ps.resume(whole.meta["checkpoints"][0])
    assert resumed.log.columns()["time_s"].tolist() == whole.log.columns()["time_s"].tolist()
    assert resumed.log.digest() == whole.log.digest()
