"""What a replica and a checkpoint every epoch cost a live run, and what a killed server costs under each.

Two workers on digits, momentum SGD, on one cluster of this machine. Time and CPU are those of an update: the
clock's between the logged updates, the CPU's of all its processes. A run's three ways are measured in turns.
Bytes are what is sent to the replica, or written to disk. Lost is what the client had in its log.
"""

from __future__ import annotations

import os
import re
import signal
import statistics
import tempfile
import threading
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from distributed import Client

from psbench.backends.dask.local_cluster import start_cluster
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.messages import KeepState
from psbench.backends.dask.server.replica import Replica
from psbench.checkpoints.file import Checkpoint
from psbench.core.log import EventLog, Kind
from psbench.experiment import Experiment
from psbench.runs.execution import run as run_experiment
from tests.benchmarks.measure import Row, Rows
from tests.threaded_run import ThreadedRun

TURNS, KILLS, UPDATES, WARM_UP = 3, 5, 600, 0.2
SMALL, LARGE = [64], [1024, 512]
CASES = (("asp", SMALL), ("bsp", SMALL), ("asp", LARGE), ("bsp", LARGE))
REPLICA: dict[str, Any] = {"recovery": {"replicas": 1}}
EPOCHS: dict[str, Any] = {"checkpoint_every": 1}
WAYS: tuple[dict[str, Any], ...] = ({}, REPLICA, EPOCHS)


class Cost(NamedTuple):
    """Of an update: milliseconds by the clock, milliseconds of CPU, bytes written to checkpoints."""

    clock: float
    cpu: float
    written: float


def run() -> Rows:
    """Return a row for each strategy and model, and one for each way to recover."""
    with start_cluster(6) as cluster, Client(cluster, set_as_default=False) as client:
        rows: Rows = [row for case in CASES for row in _overhead(client, *case)]
        rows.append(_pause(client))
        return [*rows, *(_lost(client, name, how) for name, how in (("replica", REPLICA), ("epoch", EPOCHS)))]


def _experiment(strategy: Any, hidden: list[int], **changes: Any) -> Experiment:
    settings: dict[str, Any] = {
        **{"data": "digits", "model": {"name": "mlp", "hidden": hidden}, "strategy": strategy},
        **{"backend": "dask", "batch_size": 64, "cluster": {"name": "homogeneous", "workers": 2}},
        **{"stop": {"updates": UPDATES}, "evaluate_every": 1e9},
        "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9},
    }
    return Experiment(**settings | changes)


def _overhead(client: Client, strategy: str, hidden: list[int]) -> Rows:
    turns = [[_cost(client, _experiment(strategy, hidden, **way)) for way in WAYS] for _ in range(TURNS + 1)]
    plain, replica, epoch = zip(*turns[1:], strict=True)
    sent, entries = _sent(strategy, hidden)
    what = f"live {strategy.upper()}, {entries / 1e3:,.0f} thousand parameters, an update"
    return [
        _row(f"{what}: replica / none", replica, plain, f"{sent / 1e3:,.0f} kB sent"),
        _row(
            f"{what}: checkpoint an epoch / none", epoch, plain, f"{_median(epoch, 2) / 1e3:,.0f} kB written"
        ),
    ]


def _row(what: str, ours: tuple[Cost, ...], plain: tuple[Cost, ...], moved: str) -> Row:
    words = [f"{_median(side, 0):.2f} ms, {_median(side, 1):.2f} ms of CPU" for side in (ours, plain)]
    cpu = statistics.median(a.cpu / b.cpu for a, b in zip(ours, plain, strict=True))
    clock = statistics.median(a.clock / b.clock for a, b in zip(ours, plain, strict=True))
    return Row(what, f"{words[0]}, {moved}", f"{words[1]} ({cpu:.2f} x the CPU)", clock)


def _median(side: tuple[Cost, ...], column: int) -> float:
    return statistics.median(cost[column] for cost in side)


def _cost(client: Client, experiment: Experiment) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        before = _cpu_s(client)
        done = run_experiment(experiment, client=client, folder=Path(folder))
        used = _cpu_s(client) - before
        written = sum(path.stat().st_size for path in Path(folder).rglob("*.npz"))
    times = done.log.of_kind(Kind.APPLY)["time_s"]
    times = times[int(len(times) * WARM_UP) :]
    return Cost(
        *(1e3 * (times[-1] - times[0]) / (UPDATES * (1 - WARM_UP)), 1e3 * used / UPDATES, written / UPDATES)
    )


def _cpu_s(client: Client) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in client.run(os.getpid).values())


def _sent(strategy: str, hidden: list[int]) -> tuple[float, int]:
    """Return the bytes that the replica is sent of an update, and the model's parameters."""
    sizes: list[int] = []

    class Weighing(Replica):
        def _take(self, message: Message) -> None:
            if isinstance(message, KeepState):
                body, payload = message.encode()
                sizes.append(len(body) + (0 if payload is None else payload.numel() * payload.element_size()))
            super()._take(message)

    weighed = ThreadedRun(_experiment(strategy, hidden, stop={"updates": 20}, **REPLICA))
    weighed.replica_class = Weighing
    weighed.run()
    return statistics.median(sizes), len(weighed.parameters)


def _pause(client: Client) -> Row:
    """Return how long the update after a checkpoint takes beside others, of SSP on two servers."""
    strategy = {"name": "ssp", "placement": {"name": "parameter_server", "servers": 2}}
    after, others = list[float](), list[float]()
    for _ in range(TURNS):
        with tempfile.TemporaryDirectory() as folder:
            experiment = _experiment(strategy, LARGE, **EPOCHS)
            times = run_experiment(experiment, client=client, folder=Path(folder)).log.of_kind(Kind.APPLY)[
                "time_s"
            ]
            paths = [*Path(folder).rglob("checkpoints/*.npz")]
            saved = {Checkpoint.state_of(path)["engine"]["view"]["version"] for path in paths}
        gaps = {version: 1e3 * (times[version] - times[version - 1]) for version in range(1, len(times))}
        after += [gap for version, gap in gaps.items() if version in saved]
        others += [gap for version, gap in gaps.items() if version not in saved]
    slow, usual = (statistics.quantiles(side, n=10) for side in (after, others))
    return Row(
        "live SSP on 2 servers, to the next update after a checkpoint / elsewhere",
        f"{slow[4]:.2f} ms, one in ten over {slow[8]:.2f} ms",
        f"{usual[4]:.2f} ms, one in ten over {usual[8]:.2f} ms",
        slow[4] / usual[4],
    )


# -------------------------------------------------------------------- a server that is killed


class _Killer:
    """An observer that kills the first server's process so many seconds after so many pushes."""

    def __init__(self, client: Client, after: int, wait_s: float) -> None:
        self.client, self.after, self.wait_s = client, after, wait_s

    def __call__(self, log: EventLog) -> None:
        if self.after and len(log.of_kind(Kind.PUSH)["row"]) > self.after:
            self.after = 0
            for address, keys in self.client.processing().items():
                if any(str(key).endswith("coordinator") for key in keys):
                    pid = self.client.run(os.getpid, workers=[address])[address]
                    # not now: the log has come with a checkpoint, perhaps
                    threading.Timer(self.wait_s, os.kill, (pid, signal.SIGKILL)).start()


def _lost(client: Client, name: str, how: dict[str, Any]) -> Row:
    """Return what is lost with a server, of ASP, as the median of some kills at different updates."""
    lost = []
    for kill in range(KILLS):
        client.wait_for_workers(6, timeout=60)
        experiment = _experiment("asp", LARGE, stop={"updates": UPDATES}, **how)
        done = run_experiment(experiment, client=client, observer=_Killer(client, 60, 0.13 * kill))
        found = re.search(r"; (\d+) updates and ([\d.]+) s", done.meta["incidents"][0])
        assert found is not None
        lost.append((int(found[1]), float(found[2])))
    updates = [each[0] for each in lost]
    words = f"{min(updates)} to {max(updates)} updates, up to {max(each[1] for each in lost):.1f} s"
    what = "a replica" if name == "replica" else "a checkpoint an epoch"
    return Row(
        f"lost with a killed server under {what}", words, "", statistics.median(updates), unit="updates"
    )
