"""Drive an engine event by event, and whole runs in virtual time."""

from itertools import count

import psbench as ps
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.engine import Engine
from psbench.core.log import Kind
from psbench.core.view import ClusterView
from psbench.strategies import make_strategy

#: nothing but computing takes time, so that the numbers in a test are round
FREE_NETWORK = {
    "bandwidth_mbit_s": 1e12,
    "server_bandwidth_mbit_s": 1e12,
    "latency_s": 0,
    "server_latency_s": 0,
}


class Script:
    """An engine whose pushes come from a test; every answer is told as short tuples."""

    def __init__(self, strategy, workers, **sizes):
        self.engine = Engine(make_strategy(strategy), ClusterView(num_workers=workers, **sizes))
        self.view = self.engine.view
        self.ids = count()
        self.flights = {}
        self.begun = self._tell(self.engine.begin(range(workers)))

    def push(self, worker, at, **facts):
        """Let a worker push what it was released for."""
        ticket, version = self.flights.pop(worker)
        samples = self.view.workers[worker].batch_size
        return self.handle(ev.Push(next(self.ids), worker, ticket, version, samples, **facts), at)

    def leave(self, worker, at):
        self.flights.pop(worker, None)
        return self.handle(ev.Leave(worker), at)

    def join(self, worker, at):
        return self.handle(ev.Join(worker), at)

    def handle(self, event, at):
        return self._tell(self.engine.handle(event, at))

    def _tell(self, actions):
        return [word for action in actions if (word := self._word(action))]

    def _word(self, action):
        match action:
            case act.Release(worker=worker, load=load, ticket=ticket):
                self.flights[worker] = ticket, load
                return "release", worker
            case act.Hold(worker=worker, reason=reason):
                return "hold", worker, reason
            case act.Apply(pushes=pushes):
                return "apply", [push.worker for push in pushes]
            case act.Cancel(worker=worker):
                self.flights.pop(worker)
                return "cancel", worker
            case act.Discard(push=push, reason=reason):
                return "discard", push.worker, reason
        return None


def experiment(strategy, speeds, *, step_time="constant", updates=None, seed=0, cluster=None, **values):
    """Return a small experiment on workers of these speeds."""
    machines = {"workers": len(speeds), "speed": list(speeds), "step_time": step_time, **FREE_NETWORK}
    stop = {"updates": updates} if updates else {"epochs": 2}
    given = {"batch_size": 16 * len(speeds), "stop": stop, "data": {"name": "digits"}, "model": "logistic"}
    given |= {"optimizer": {"name": "sgd", "lr": 0.1}, "evaluate_every": 100.0}
    return ps.Experiment(strategy=strategy, cluster=machines | (cluster or {}), seed=seed, **given | values)


def run(strategy, speeds=(1.0, 0.7, 0.45, 0.3), **values):
    """Run a strategy in virtual time."""
    return ps.run(experiment(strategy, speeds, **values))


def decisions(done):
    """Return a run's log without the words of its holds, row by row."""
    rows = done.log.rows().copy()
    rows["text"] = 0
    return rows.tolist()


def staleness(done):
    """Return the staleness of every committed push, in the order of the commits."""
    rows = done.log.rows()
    base = {r["id"]: r["version"] for r in rows[rows["kind"] == Kind.PUSH]}
    return [int(r["version"] - 1 - base[r["id"]]) for r in rows[rows["kind"] == Kind.APPLY]]
