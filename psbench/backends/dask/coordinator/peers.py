"""The members of a live run: processes, roles without a process, and log streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import asdict

from psbench.backends.dask.protocol.instructions import Outbox
from psbench.backends.dask.protocol.messages import (
    Incident,
    LogRows,
    Ready,
    RoleLost,
    ServedReport,
    StampsReport,
    UsageReport,
)
from psbench.backends.dask.protocol.roles import (
    CLIENT,
    EVALUATOR,
    REPLICA,
    Address,
    worker_name,
    worker_number,
)
from psbench.core.log import EventLog
from psbench.errors import BackendError
from psbench.experiment import Experiment

#: losses that only the evaluator computes
_MEASURED_BY_EVALUATOR = {"train_loss", "model_loss", "candidate_loss"}
#: factor by which the number of strangers grows between two reports
_FACTOR = 10


class Peers:
    """The processes that take part in a run.

    Parameters
    ----------
    expected : sequence of str
        The names of all.
    """

    def __init__(self, expected: Sequence[str]) -> None:
        #: roles that the run counts with: it begins when each is ready; in order, with no values
        self._expected = dict.fromkeys(expected)
        #: expected roles that are not ready: counted after every message of a start
        self._awaited = dict.fromkeys(expected)
        #: all roles that have taken part; a role is never removed
        self.known = set(expected)
        #: what each role sent when it was ready; before training, without the roles that were lost since
        self._ready: dict[str, Ready] = {}
        #: roles with an open connection
        self._connected: set[str] = set()
        #: workers that were sent the end of the run: they report, and may then be dead without loss
        self._dismissed: set[str] = set()
        #: dismissed workers whose report of usage is awaited: looked at after every message of the end
        self._unreported: dict[str, None] = {}
        #: roles whose processes are dead or were refused; a new process of a lost worker stays in until ready
        self.gone: set[str] = set()
        #: reports at the end of the run, by the role: resources of workers; times of their messages, and of
        #: the servers' service, if these were requested
        self.usage = dict[str, dict[str, Any]]()
        self.stamps = dict[str, dict[str, Any]]()
        self.served = dict[str, dict[str, Any]]()
        self._reports = {UsageReport: self.usage, StampsReport: self.stamps, ServedReport: self.served}

    def connect(self, name: str) -> None:
        """Add a connection; a worker's new process counts as absent until it is ready."""
        self._connected.add(name)
        if worker_number(name) is None:
            self.gone.discard(name)

    def admit(self, name: str, ready: Ready) -> None:
        """Admit a ready peer."""
        self._ready[name] = ready
        self._awaited.pop(name, None)
        self.gone.discard(name)
        self._expected.setdefault(name)
        self.known.add(name)

    def expect_again(self, name: str) -> None:
        """Expect another process for a role whose process is gone."""
        self._ready.pop(name, None)
        if name in self._expected:
            self._awaited.setdefault(name)

    def do_without(self, name: str) -> None:
        """Stop expecting a role."""
        self._expected.pop(name, None)
        self._awaited.pop(name, None)

    def has_connected(self, name: str) -> bool:
        """Return whether a peer has connected, so that the connection reports its end."""
        return name in self._connected

    def report(self, name: str, report: UsageReport | StampsReport | ServedReport) -> None:
        """Store the final report of a worker or a server."""
        self._reports[type(report)][name] = asdict(report)
        if isinstance(report, UsageReport):
            self._unreported.pop(name, None)

    @property
    def present(self) -> list[str]:
        """Names of the connected peers."""
        return sorted(self._connected - self.gone)

    @property
    def to_look_at(self) -> tuple[str, ...]:
        """Names of the peers whose death would be a loss; dismissed workers may end."""
        return tuple(name for name in self.present if name not in self._dismissed)

    @property
    def num_expected(self) -> int:
        """Number of peers, ready or not."""
        return len(self._expected)

    @property
    def are_ready(self) -> bool:
        """Return True if all expected peers are ready."""
        return not self._awaited

    @property
    def missing(self) -> list[str]:
        """Names of the peers that are not ready yet."""
        return [name for name in self._expected if name in self._awaited]

    def workers(self) -> list[int]:
        """Return the training workers that are not lost."""
        numbers = (worker_number(name) for name in self._expected if name not in self.gone)
        return sorted(number for number in numbers if number is not None)

    @property
    def lost_workers(self) -> set[int]:
        """Workers whose processes are gone."""
        return {worker for name in self.gone if (worker := worker_number(name)) is not None}

    def address_of(self, worker: int) -> Address | None:
        """Return the address at which a worker receives messages of others; None without a process."""
        name = worker_name(worker)
        ready = None if name in self.gone else self._ready.get(name)
        return None if ready is None else ready.ring

    @property
    def without_usage(self) -> list[str]:
        """Names of the dismissed workers that have not reported their usage."""
        return [*self._unreported]

    @property
    def have_reported(self) -> bool:
        """Return True if all dismissed workers have reported their usage, or are lost."""
        return not self._unreported

    def dismiss(self, name: str) -> None:
        """Stop monitoring a worker that was sent the end of the run."""
        self._dismissed.add(name)
        if name not in self.usage:
            self._unreported.setdefault(name)

    def lose(self, name: str) -> None:
        """Remove a peer."""
        self.gone.add(name)
        self._connected.discard(name)
        self._unreported.pop(name, None)


class Replacements:
    """The roles without a process, for which the client seeks another Dask worker.

    The run continues without each of them, for a while or for good.

    Parameters
    ----------
    experiment : Experiment
    out : Outbox
    expected : iterable of str
        The roles that there is a Dask worker for at the beginning.
    """

    def __init__(self, experiment: Experiment, out: Outbox, expected: Iterable[str]) -> None:
        self._out = out
        self._of_workers = experiment.recovery.lets_workers_join
        self._needs_evaluator = _evaluator_is_needed(experiment)
        names = map(worker_name, range(experiment.num_workers))
        #: roles without a process, until another Dask worker has taken them
        self._missing = set(names).difference(expected) if self._of_workers else set[str]()
        #: missing roles that may be taken soon: for the others the client has found no place so far
        self._awaited = set(self._missing)

    def _tell(self, text: str) -> None:
        self._out.send(CLIENT, Incident(text))

    def lose(self, name: str, now: float, how: str, is_replaced: bool = False) -> None:
        """Seek another Dask worker for the evaluator or the replica, or for a worker if requested.

        It is not sought if the role `is_replaced` already.
        """
        meanwhile = ": until it is replaced, a lost server costs updates" if name == REPLICA else ""
        self._tell(f"{name} {how} at {now:.1f} s{meanwhile}")
        if self.seeks(name):
            self._missing.add(name)
            self._awaited.add(name)
            if not is_replaced:
                self._out.send(CLIENT, RoleLost(name))

    def seeks(self, name: str) -> bool:
        """Return whether another Dask worker is sought for a lost role."""
        return name in (EVALUATOR, REPLICA) or self._of_workers

    def is_missing(self, name: str) -> bool:
        """Return whether a role has no Dask worker, from the beginning or since a loss."""
        return name in self._missing

    def find(self, name: str, now: float) -> None:
        """Remove a role that has a process; notify the client if one was sought."""
        if name not in self._missing:
            return
        self._missing.discard(name)
        self._awaited.discard(name)
        self._tell(f"{name} has joined on another Dask worker at {now:.1f} s")

    def give_up(self, name: str) -> None:
        """Stop waiting for a role; the client continues to seek a Dask worker.

        Raises
        ------
        BackendError
            If it is the evaluator, and a rule reads what it evaluates.
        """
        self._awaited.discard(name)
        if name == EVALUATOR and self._needs_evaluator:
            raise BackendError(
                f"the evaluator was lost and {self._needs_evaluator} needs it, but no Dask worker is free "
                "for a new one (recovery.wait_for_workers)"
            )

    @property
    def awaits_worker(self) -> bool:
        """Return True if a training worker may join soon."""
        return any(worker_number(name) is not None for name in self._awaited)


def _evaluator_is_needed(experiment: Experiment) -> str:
    """Return the name of the strategy or setting that needs the evaluator; empty without one."""
    for composition in experiment.strategy.compositions:
        if _MEASURED_BY_EVALUATOR.intersection(composition.measures):
            return f"strategy {composition.name!r}"
    return experiment.reads_validation or ("optimizer.schedule" if experiment.plateau else "")


class Strangers:
    """Connections to the processes of a run without its key.

    Parameters
    ----------
    out : Outbox
    """

    def __init__(self, out: Outbox) -> None:
        self._out = out
        #: number of connections that each process has closed
        self._closed: dict[str, int] = {}
        #: the total that the client was sent last
        self._reported = 0

    @property
    def total(self) -> int:
        """Number of connections that all processes of the run have closed."""
        return sum(self._closed.values())

    def count(self, name: str, closed: int) -> None:
        """Store a process's count of closed connections; report the first one, and large numbers."""
        if closed:
            self._closed[name] = closed
        if self.total > self._reported and self.total >= self._reported * _FACTOR:
            self.report()

    def report(self) -> None:
        """Send the client the numbers that it does not have yet."""
        if self.total == self._reported:
            return
        self._reported = self.total
        what = "1 unknown connection was" if self.total == 1 else f"{self.total} unknown connections were"
        where = ", ".join(f"{name}: {closed}" for name, closed in sorted(self._closed.items()))
        self._out.send(CLIENT, Incident(f"{what} closed for lack of the run's key ({where})"))


class LogStream:
    """Sends a peer the rows and texts that it does not have.

    Parameters
    ----------
    out : Outbox
    log : EventLog
    to : str
        The peer.

    Attributes
    ----------
    held : bool
        Whether nothing is sent, as the last rows lead to a state that the replica does not have yet.
    """

    def __init__(self, out: Outbox, log: EventLog, to: str = CLIENT) -> None:
        self._out, self._log, self._to = out, log, to
        #: rows of the log before those of this process, which the peer has; of texts the log has all
        self._rows_before = 0
        #: rows of this process, and all texts, that were sent
        self._sent_rows = self._sent_texts = 0
        self.held = False

    def resume(self, rows: int, texts: Sequence[str]) -> None:
        """Continue a log that the client has; its rows are not sent again."""
        for text in texts:
            self._log.number(text)
        self._rows_before, self._sent_texts = rows, len(texts)

    @property
    def logged(self) -> tuple[int, int]:
        """Rows and texts of the log so far."""
        return self._rows_before + len(self._log), len(self._log.texts)

    @property
    def sent(self) -> tuple[int, int]:
        """Rows and texts that the peer has."""
        return self._rows_before + self._sent_rows, self._sent_texts

    def begin_where(self, other: LogStream) -> None:
        """Start at the position of another stream."""
        self._rows_before = other._rows_before
        self._sent_rows, self._sent_texts = other._sent_rows, other._sent_texts

    def send(self) -> None:
        """Send the new rows and texts of the log."""
        if self.held:
            return
        rows, texts = self._log.rows(self._sent_rows), self._log.texts[self._sent_texts :]
        if not len(rows):
            return
        self._sent_rows += len(rows)
        self._sent_texts += len(texts)
        self._out.send(self._to, LogRows(list(texts), rows.tobytes()))
