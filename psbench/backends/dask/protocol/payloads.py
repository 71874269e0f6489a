"""The tensors that messages carry: their types by number, and the memory that they are received into."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from psbench.backends.dask.protocol.decoder import MessageRefused

#: types that a payload may have, by their number in a message's head, of tensors and of arrays
TYPES = (torch.float32, torch.float16, torch.uint8)
_ARRAYS: tuple[np.dtype[Any], ...] = np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.uint8)
#: from this size on a payload is sent from where it lies; below, copying it is cheaper
ZERO_COPY_BYTES = 1 << 16
#: from this size on, in bytes, the memory of a payload is used again, and how many blocks are kept for that
_LARGE, _MOST_BLOCKS = 1 << 20, 4
#: bytes of the largest payload that is received; a head that announces more is no message
LARGEST_PAYLOAD = 1 << 36


def new_payload(type_number: int, entries: int) -> npt.NDArray[Any]:
    """Return memory for a payload of that type and size; as an array, whose bytes cost no call of torch.

    Raises
    ------
    MessageRefused
        If there is no such type, or no such memory.
    """
    if type_number >= len(_ARRAYS):
        raise MessageRefused(f"unknown payload type {type_number}")
    kind = _ARRAYS[type_number]
    size = entries * kind.itemsize
    if size > LARGEST_PAYLOAD:
        raise MessageRefused(f"its payload would have {size:,} bytes")
    try:
        return np.empty(entries, dtype=kind) if size < _LARGE else _LARGE_BLOCKS.take(size).view(kind)
    except MemoryError:
        raise MessageRefused(f"there is not enough memory for its payload of {size:,} bytes") from None


def largest_message(model_bytes: int, num_workers: int) -> int:
    """Return the maximum bytes of a run's messages: a server's part of a checkpoint is the largest.

    That is the model, an optimizer's and a codec's vectors, and at most two for each worker: a push that
    waits, and a version that it started from; the texts beside are small.
    """
    return (1 << 20) + model_bytes * (16 + 4 * num_workers)


class _Blocks:
    """Memory of large payloads, reused when a payload is released.

    The system clears the pages of new memory one by one, which takes as long as to receive as many bytes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: list[npt.NDArray[np.uint8]] = []

    def take(self, size: int) -> npt.NDArray[np.uint8]:
        """Return an array of `size` bytes."""
        with self._lock:
            for place in range(len(self._blocks)):
                # referred to by this list and the argument, and by each array and tensor that lies in it
                if len(self._blocks[place]) == size and sys.getrefcount(self._blocks[place]) == 2:
                    return self._blocks[place]
            block: npt.NDArray[np.uint8] = np.empty(size, dtype=np.uint8)
            self._blocks = [*self._blocks[1 - _MOST_BLOCKS :], block]
        return block


_LARGE_BLOCKS = _Blocks()


def bytes_of(payload: Tensor) -> memoryview:
    array: Any = payload.numpy()
    return memoryview(array).cast("B")
