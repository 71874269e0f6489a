"""A known cluster, runs on it in the place of live ones, and what live ones would have beside them."""

import psbench as ps
from psbench.backends.stamps import ANSWER_COLUMNS, PUSH_COLUMNS, WORKER_COLUMNS
from psbench.core.log import Kind
from psbench.twin.links import MeasuredLinks, Way

#: as a live cluster is: messages with latencies that vary, and a server that takes time
TRUTH = {
    **{"workers": 4, "speed": [1, 1, 0.8, 0.5], "seconds_per_sample": 2e-4, "seconds_per_step": 5e-3},
    "step_time": {"name": "lognormal", "sigma": 0.2, "correlation": 0.5, "shift": 0.3},
    **{"latency_s": 1e-3, "link_time": {"name": "lognormal", "sigma": 0.3}, "bandwidth_mbit_s": 1e6},
    **{"server_bandwidth_mbit_s": 1e6, "service": {"message_s": 1e-4, "decision_s": 1e-4}},
}

PLAIN = ps.Experiment(
    strategy="bsp", cluster=TRUTH, batch_size=128, stop={"updates": 300}, data="digits", timing_only=True
)

ASP = PLAIN.but(strategy="asp", batch_size=64, stop={"updates": 1200})


def steady(workers, speed, updates=20):
    """Return a run whose steps and messages do not vary."""
    cluster = TRUTH | {"step_time": "constant", "link_time": "constant", "service": {}}
    cluster |= {"workers": workers, "speed": list(speed)}
    return ps.run(PLAIN.but(cluster=cluster, batch_size=32 * workers, stop={"updates": updates}))


def alike(latency_s, mbit_s, workers=4, seconds=()):
    """Return timed links between workers and a server that are all alike."""
    machines = range(workers + 1)
    ways = [Way(a, b, latency_s, mbit_s, tuple(seconds)) for a in machines for b in machines if a != b]
    return MeasuredLinks(workers, tuple(range(workers)), tuple(ways))


def stamped(run, alone_s, behind_s=0.0):
    """Return a simulated run with the stamps that a live one would have, its steps of so much CPU time."""
    pushes, workers, arrivals = run.log.of_kind(Kind.PUSH), {}, []
    columns = (pushes[name].tolist() for name in ("worker", "time_s", "compute_s", "send_s"))
    for worker, arrived, compute, send in zip(*columns, strict=True):
        clocks = [(0.0, 1e-4), (behind_s, 1e-4)]
        own = workers.setdefault(f"worker {worker}", {"rows": [], "clocks": clocks})["rows"]
        begun, sent = arrived - send - compute, arrived - send
        arrivals.append((worker, len(own), *[0.0] * 5, len(arrivals)))
        cpu = alone_s * (1 + 1e-6 * len(arrivals))  # so that each is known again
        own.append((len(own), 1, begun, begun, sent, sent, cpu, compute, 0.0))
    names = {"push": PUSH_COLUMNS, "answer": ANSWER_COLUMNS, "worker": WORKER_COLUMNS}
    run.meta["stamps"] = {"columns": names, "pushes": arrivals, "answers": [], "workers": workers}
    return run


def times(**seconds):
    """Return as stamps have them so many equal stays of each name."""
    return {name: [[each]] * 40 for name, each in seconds.items()}
