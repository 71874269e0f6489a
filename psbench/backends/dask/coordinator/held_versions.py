"""The versions that servers keep because workers or pending pushes started from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.framing import StateDict
from psbench.core.view import ClusterView

#: prefix of the names of held versions among the tensors of a store
HELD = "held/"


def versions_in(state: StateDict | None) -> list[int]:
    """Return the versions that a store's initial state holds.

    >>> from torch import zeros
    >>> versions_in({"parameters": zeros(1), "held/5": zeros(1)}), versions_in(None)
    ([5], [])
    """
    names = () if state is None else state
    return [int(name.removeprefix(HELD)) for name in names if name.startswith(HELD)]


class HeldVersions:
    """Orders servers to keep a version once, and to drop it when nothing starts from it any more.

    It counts the workers of each version, so that a release looks at no other worker, and an order names what
    is dropped instead of all that is kept.

    Parameters
    ----------
    view : ClusterView
        The engine's.
    held : iterable of int
        The versions that the servers have already, of a checkpoint.
    """

    def __init__(self, view: ClusterView, held: Iterable[int] = ()) -> None:
        self._view, self._held = view, set(held)
        self._starts = {worker.id: worker.base_version for worker in view.workers.values()}
        self._users = Counter(self._starts.values())
        #: held versions from which no worker started; a pending push may have
        self._unused = {version for version in self._held if not self._users[version]}

    def release(self, worker: int, load: int, bases: Collection[int]) -> msg.HoldVersion | None:
        """Return the order that a release from version `load` needs; None without a change.

        `bases` are the versions that the pushes of the current answer's updates started from.
        """
        before = self._starts.get(worker, -1)
        self._starts[worker] = load
        self._users[load] += 1
        self._users[before] -= 1
        if before in self._held and not self._users[before]:
            self._unused.add(before)
        self._unused.discard(load)
        dropped = self._unused.difference(bases)
        if dropped:
            dropped -= {push.base_version for push in self._view.pending.values()}
        is_new = load not in self._held
        self._held.add(load)
        self._held -= dropped
        self._unused -= dropped
        return msg.HoldVersion(load, sorted(dropped)) if is_new or dropped else None
