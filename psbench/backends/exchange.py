"""Exchange between a worker and servers, ring or peers, the same in virtual time and live."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from psbench.core.events import Push


class Exchange(Protocol):
    """The content of a release, and the destination of a push: servers, a ring, or neighbours.

    What both backends decide alike (`local_steps`) calls these methods and no other. A live exchange is one
    worker's, in its process (`dask/worker/exchange.py`): its methods name no worker. A simulated one is that
    of all workers (`simulated/exchange.py`), since what is encoded once goes to all of them; where its other
    methods do what live ones do, they have the same names, and the worker comes first.
    """

    def model(self, release: Any) -> tuple[Tensor, Tensor] | tuple[()]:
        """Return the parameters and buffers that a release brings; nothing if the worker's own stay."""

    def aggregate(self, release: Any) -> Tensor:
        """Return the aggregate that a release brings."""

    def push(self, push: Push, payload: Tensor, buffers: Tensor) -> Callable[[], Tensor | None]:
        """Send the payload of a push on its way.

        What is returned gives it as its receivers decode it; None if it does not travel.
        """
