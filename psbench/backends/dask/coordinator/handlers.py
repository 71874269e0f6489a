"""What the peers' letters mean to the conductor: events for the engine, answers, requests, and news."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from psbench.backends.dask.protocol.roles import worker_number
from psbench.backends.dask.protocol.transport import Message, unpack
from psbench.core import events as ev
from psbench.errors import BackendError

if TYPE_CHECKING:
    from psbench.backends.dask.coordinator.coordinator import Coordinator


class PeerFailed(BackendError):
    """A task raised; the message is its traceback."""

    def __init__(self, name: str, traceback: str) -> None:
        self.name, self.traceback = name, traceback
        super().__init__(f"{name} failed:\n{traceback}")

    def __reduce__(self) -> tuple[type[PeerFailed], tuple[str, str]]:
        return PeerFailed, (self.name, self.traceback)


class Handlers:
    """Reads the letters that are not pushes, and gives what they tell to whom it concerns.

    Parameters
    ----------
    conductor : Conductor
    """

    def __init__(self, conductor: Coordinator) -> None:
        self._run = conductor
        self.usage: dict[str, dict[str, float]] = {}  #: what each worker has used, by its name
        self.client_has_all = False

    def read(self, letter: Message) -> None:
        """Take a letter.

        Raises
        ------
        PeerFailed
            If it tells that its sender has.
        """
        plain = letter.plain
        _READERS[plain["do"]](self, letter.sender, plain, letter)

    def _on_vote(self, sender: str, plain: dict[str, Any], letter: Message) -> None:
        told = plain["ticket"], plain["value"], plain["samples"], plain["compute_s"]
        self._run.events.append(ev.Vote(_worker(sender), *told))

    def _on_report(self, sender: str, plain: dict[str, Any], letter: Message) -> None:
        self._run.events.append(ev.Report(_worker(sender), plain["ticket"], plain["stats"]))

    def _on_model(self, sender: str, plain: dict[str, Any], letter: Message) -> None:
        model = unpack(plain["shapes"], letter.payload)
        self._run.lookout.drift.answer(_worker(sender), plain["tag"], model)

    def _on_record(self, sender: str, plain: dict[str, Any], letter: Message) -> None:
        tensors = unpack(plain["shapes"], letter.payload)
        self._run.recorder.told(_worker(sender), plain["tag"], tensors, plain["was"])

    def _on_measured(self, sender: str, plain: dict[str, Any], letter: Message) -> None:
        self._run.meter.take(plain["name"], plain["number"])

    def _on_ready(self, sender: str, plain: dict[str, Any], letter: Message) -> None:
        self._run.roll.ready[sender] = plain

    def _on_clock(self, sender: str, plain: dict[str, Any], letter: Message) -> None:
        self._run.hub.tell(sender, {"do": "clock", "time_s": time.monotonic()})

    def _on_failed(self, sender: str, plain: dict[str, Any], letter: Message) -> None:
        raise PeerFailed(sender, plain["traceback"])

    def _on_keeper(self, sender: str, plain: dict[str, Any], letter: Message) -> None:
        self._run.keeper.answer(sender, plain, letter.payload)

    def _on_evaluated(self, sender: str, plain: dict[str, Any], letter: Message) -> None:
        event = self._run.lookout.evaluated(plain)
        if event is not None:
            self._run.events.append(event)

    def _on_stop(self, sender: str, plain: dict[str, Any], letter: Message) -> None:
        self._run.end("stopped", "stopped by hand")

    def _on_switch(self, sender: str, plain: dict[str, Any], letter: Message) -> None:
        self._run.events.append(ev.SwitchRequested(plain["to"]))

    def _on_usage(self, sender: str, plain: dict[str, Any], letter: Message) -> None:
        self.usage[sender] = plain["facts"]

    def _on_received(self, sender: str, plain: dict[str, Any], letter: Message) -> None:
        self.client_has_all = True


def _worker(sender: str) -> int:
    worker = worker_number(sender)
    assert worker is not None
    return worker


_READERS: dict[str, Callable[[Handlers, str, dict[str, Any], Message], None]] = {
    "ready": Handlers._on_ready,
    "clock": Handlers._on_clock,
    "failed": Handlers._on_failed,
    "keeper": Handlers._on_keeper,
    "vote": Handlers._on_vote,
    "report": Handlers._on_report,
    "model": Handlers._on_model,
    "record": Handlers._on_record,
    "measured": Handlers._on_measured,
    "evaluated": Handlers._on_evaluated,
    "stop": Handlers._on_stop,
    "switch": Handlers._on_switch,
    "usage": Handlers._on_usage,
    "received": Handlers._on_received,
}
