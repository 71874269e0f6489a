"""Live chaos: `python -m tests.chaos --minutes 20 --seed 0`.

Runs of all placements go on, one after another, on a local cluster of processes, while signals reach a role
at random every few seconds: SIGKILL, SIGTERM, or SIGSTOP with SIGCONT a moment later. With `--one` it is one
run that trains for so long (asynchronous, on two servers), and the signals do not become rarer. Each run
must finish as well as an undisturbed one, or end with an error of psbench's own, within its bound; and
nothing of it may be left: no task on the scheduler, no process, no port, no unfinished file. Everything
stays on loopback.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
import psutil
from distributed import Client, LocalCluster

from psbench.backends.control import Control
from psbench.backends.dask.local_cluster import local_cluster
from psbench.errors import PsbenchError
from psbench.experiment import Experiment
from psbench.results.run import Run
from psbench.runs.execution import run

PROCESSES = 8
#: seconds that a run may take under chaos; undisturbed they take a few, in which some signals fall
BOUND_S = 180.0
EPOCHS = 60
TWO_SERVERS = {"name": "parameter_server", "servers": 2}
STRATEGIES: list[Any] = [
    "asp",
    "bsp",
    "ssp",
    "all_reduce",
    {"name": "asp", "placement": TWO_SERVERS},
    {"name": "local_sgd", "codec": "top_k", "placement": TWO_SERVERS},
    {"name": "strategy_switch", "rule": {"name": "after", "fraction": 0.5}},
    "selsync",
]
#: what trains for long: a larger model, as the log of so many small steps would be all that is tested
LONG: Any = {"name": "asp", "placement": TWO_SERVERS}
LARGE = {"model": {"name": "mlp", "hidden": [512, 256]}, "evaluate_every": 4, "checkpoint_every": 4}
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)


def experiment(strategy: Any, seed: int, **changes: Any) -> Experiment:
    """Return an experiment of a few seconds that survives what can be survived."""
    settings: dict[str, Any] = {
        "strategy": strategy,
        "cluster": {"workers": 3, "step_time": "constant"},
        "batch_size": 48,
        "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.5},
        "stop": {"epochs": EPOCHS},
        "checkpoint_every": 0.5,
        "recovery": {"max_restarts": 100, "replace_workers": True, "wait_for_workers": 60, "keep": 3},
        "seed": seed,
    }
    return Experiment(**settings | changes)


class Chaos(threading.Thread):
    """Sends a signal to the process of a random task every few seconds.

    Whoever is asked to end (SIGTERM) leaves that to its nanny, or is gone for good: the cluster is then asked
    for another, as its manager does.
    """

    def __init__(
        self, cluster: LocalCluster, client: Client, rng: random.Random, calms_down: bool = True
    ) -> None:
        super().__init__(daemon=True)
        self._cluster, self._client, self._rng, self.over = cluster, client, rng, threading.Event()
        self._calms_down = calms_down
        self.sent: list[str] = []

    def run(self) -> None:
        """Go on until it is over."""
        while not self.over.wait(self._pause_s()):
            with suppress(OSError, KeyError, ValueError, RuntimeError, TimeoutError):
                self._strike()
                self._cluster.scale(PROCESSES)

    def _pause_s(self) -> float:
        """Return the seconds until the next signal: a short run that can never begin would show nothing."""
        if self._calms_down:
            return self._rng.uniform(0.5, 4.0) * (1 + len(self.sent) / 4)
        return self._rng.uniform(5.0, 20.0)

    def _strike(self) -> None:
        tasks = {str(key): place for place, keys in self._client.processing().items() for key in keys}
        roles = sorted(key for key in tasks if "warm" not in key)
        if not roles:
            return
        role, number = self._rng.choice(roles), self._rng.choice(SIGNALS)
        pid = self._client.run(os.getpid, workers=[tasks[role]])[tasks[role]]
        os.kill(pid, number)
        self.sent.append(f"{number.name} {'-'.join(role.split('-')[-2:])}")
        if number == signal.SIGSTOP:
            time.sleep(self._rng.uniform(0.1, 3.0))
            os.kill(pid, signal.SIGCONT)


def played(
    spec: Experiment, bound_s: float, chaos: Chaos, client: Client
) -> tuple[str, Run | None, list[str]]:
    """Return how a run ended under chaos, in words that begin with "ok" if that is as it should be."""
    control, done, late = Control(), None, threading.Event()
    timer = threading.Timer(bound_s, lambda: (late.set(), control.stop()))
    timer.start()
    chaos.start()
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = run(spec, client=client, control=control, folder=folder)
            how = f"ok: {done.meta['status']}"
        except PsbenchError as error:
            how = f"ok: said {type(error).__name__}: {str(error).splitlines()[0]}"
        except Exception as error:
            how = f"raised {type(error).__name__}: {error}"
        finally:
            chaos.over.set()
            timer.cancel()
            chaos.join(10)
        if late.is_set():
            how = f"took more than {bound_s:g} s: {how}"
        if left := [path.name for path in Path(folder).rglob("*.part")]:
            how = f"left {left}"
    return how, done, chaos.sent


def ports() -> list[int]:
    """Return the ports that this process listens on."""
    found = psutil.Process().net_connections("tcp")
    return [each.laddr.port for each in found if each.status == psutil.CONN_LISTEN]


def await_quiet(cluster: LocalCluster, client: Client) -> str:
    """Wait until the cluster is whole again; say what is left of the run."""
    until = time.monotonic() + 60
    while len(client.nthreads()) < PROCESSES and time.monotonic() < until:
        cluster.scale(PROCESSES)
        time.sleep(0.5)
    until = time.monotonic() + 10
    while (left := _left(client)) and time.monotonic() < until:
        time.sleep(0.2)
    return f"; left {left}" if left else ""


def _left(client: Client) -> list[str]:
    """Return tasks on the scheduler, and ports of Dask workers that are not their own."""
    tasks = [str(key) for keys in client.processing().values() for key in keys]
    known = client.scheduler_info(n_workers=-1)["workers"]
    found = client.run(ports, workers=list(known), on_error="ignore")
    own = {a: {int(a.rpartition(":")[2]), *each["services"].values()} for a, each in known.items()}
    return [*tasks, *(f"port {port}" for a, there in found.items() for port in {*there} - own[a])]


def main() -> int:
    """Run for so many minutes; exit code 1 if something was not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", action="store_true", help="one run that trains for so long")
    arguments = parser.parse_args()
    logging.getLogger("psbench").setLevel(logging.ERROR)
    rng, before, faults, finished = random.Random(arguments.seed), set(psutil.Process().children(True)), 0, 0
    seconds = 60 * arguments.minutes
    strategies, large = ([LONG], LARGE) if arguments.one else (STRATEGIES, {})
    long: dict[str, Any] = {"stop": {"seconds": seconds}} if arguments.one else {}
    calm = {str(s): run(experiment(s, 0, **large | {"recovery": {}})) for s in strategies}
    until, number = time.monotonic() + seconds, 0
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1s"}),
        local_cluster(PROCESSES) as cluster,
        Client(cluster.scheduler_address, set_as_default=False) as client,
    ):
        while time.monotonic() < until:
            strategy = strategies[number % len(strategies)]
            began = time.monotonic()
            spec = experiment(strategy, 0, backend="dask", **large, **long)
            chaos = Chaos(cluster, client, rng, calms_down=not arguments.one)
            how, done, sent = played(spec, BOUND_S + 2 * seconds * arguments.one, chaos, client)
            how += await_quiet(cluster, client)
            if done is not None and done.meta["status"] == "finished":
                finished += 1
                reached, wanted = (
                    each.summary()["best_val_accuracy"] for each in (done, calm[str(strategy)])
                )
                how += f", accuracy {reached:.3f} ({wanted:.3f} undisturbed)"
                if reached < wanted - 0.05:
                    how = f"is worse: {how}"
            faults += not how.startswith("ok") or "left" in how
            number += 1
            print(f"{number}: {strategy}: {how}; {time.monotonic() - began:.0f} s; {sent}", flush=True)
            if arguments.one:
                break
    own = [child for child in psutil.Process().children(True) if child not in before]
    helpers = ("forkserver", "resource_tracker")
    left = [child for child in own if not any(name in " ".join(child.cmdline()) for name in helpers)]
    print(f"{number} runs, {finished} finished, {faults} faults, {len(left)} processes left")
    return 1 if faults or left else 0


if __name__ == "__main__":
    sys.exit(main())
