"""Checkpoints: one file of plain tensors and plain data, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from psbench.arrays import Array
from psbench.errors import DataError, SpecError
from psbench.system.files import atomic_write
from psbench.system.limits import check_memory

if TYPE_CHECKING:
    from torch import Tensor

    from psbench.training.server import Server


@dataclass
class Checkpoint:
    """A model with the complete state to resume from.

    `state` is plain data: the engine's state, the time, the specification. `tensors` holds `parameters`,
    `buffers`, the states under `optimizer/...` and `aggregation/<part>/...`, and what a backend needs to go
    on (`backends.checkpointing`). Equal tensors, such as the models that workers hold, are stored once.
    `origin` names the file that it was read from, for messages.
    """

    tensors: dict[str, Tensor]
    state: dict[str, Any]
    origin: str = "the checkpoint"

    @classmethod
    def of(cls, server: Server, state: dict[str, Any]) -> Checkpoint:
        return cls({name: value.detach().clone() for name, value in server.tensors().items()}, state)

    def save(self, path: Path) -> Path:
        """Write to `path` (`.npz`), whole or not at all.

        Raises
        ------
        SpecError
            If the folder cannot be written.
        """
        arrays, same = _each_once({name: tensor.numpy() for name, tensor in self.tensors.items()})
        arrays[_SAME] = np.array(json.dumps(same, sort_keys=True))
        arrays["state"] = np.array(json.dumps(self.state, sort_keys=True))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpecError(f"{path.parent}: cannot be created: {error.strerror}") from None
        with atomic_write(path) as file:
            np.savez(file, **arrays)  # pyrefly: ignore[bad-argument-type]
        return path

    @classmethod
    def load(cls, path: str | Path) -> Checkpoint:
        """Read a checkpoint; no code in the file is executed.

        Raises
        ------
        DataError
            If the file is missing, cut short, or no checkpoint.
        """
        import torch

        with _content(Path(path)) as content:
            _check_size(Path(path), content)
            arrays = {name: content[name] for name in content.files}
            state = _plain_state(arrays.pop("state"))
            same = json.loads(str(arrays.pop(_SAME, "{}")))
            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            return cls(tensors | {name: tensors[first] for name, first in same.items()}, state, str(path))

    @staticmethod
    def state_of(path: Path) -> dict[str, Any]:
        """Read the plain data of a checkpoint alone.

        Raises
        ------
        DataError
            If the file is missing, cut short, or no checkpoint.
        """
        with _content(path) as content:
            return _plain_state(content["state"])

    @classmethod
    def run_id_of(cls, path: Path) -> str | None:
        """Return the identity of a checkpoint's run; None if it has none."""
        found: str | None = cls.state_of(path).get("run_id")
        return found


#: names of tensors that are equal to another, by that one's name
_SAME = "same"
#: what reading a file raises that is cut short, damaged, or something else
_UNREADABLE = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, BadZipFile, zlib.error),
    *(MemoryError, RecursionError, NotImplementedError, OverflowError),
)


@contextmanager
def _content(path: Path) -> Iterator[Any]:
    """Open a checkpoint; errors while reading it are raised as `DataError`."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            yield content
    except _UNREADABLE as error:
        raise DataError(f"{path}: is not a checkpoint that can be read ({error})") from None


def _plain_state(array: Array) -> dict[str, Any]:
    state = json.loads(str(array))
    if not isinstance(state, dict):
        raise ValueError(f"its state is a {type(state).__name__}")
    return state


def _check_size(path: Path, content: Any) -> None:
    """Raise if a file claims more content than fits into memory: a compressed one may claim anything."""
    needed = sum(entry.file_size for entry in content.zip.infolist())
    check_memory(needed, f"{path}: its tensors", "is it a checkpoint?")


def _each_once(arrays: dict[str, Array]) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the distinct arrays, and for every duplicate the name of its original."""
    first: dict[tuple[str, tuple[int, ...], bytes], str] = {}
    same = {}
    for name, array in arrays.items():
        digest = hashlib.blake2b(np.ascontiguousarray(array).data).digest()
        original = first.setdefault((array.dtype.str, array.shape, digest), name)
        if original != name:
            same[name] = original
    return {name: array for name, array in arrays.items() if name not in same}, same
