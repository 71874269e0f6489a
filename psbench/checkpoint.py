"""Checkpoints: one file of plain tensors and plain data, written whole or not at all."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from psbench.errors import DataError, SpecError
from psbench.server_math import Server


@dataclass
class Checkpoint:
    """A model with all that is needed to go on from it.

    `state` is plain data: the engine's state, the time, the specification. `tensors` holds `parameters`,
    `buffers` and the optimizer's state under `optimizer/...`.
    """

    tensors: dict[str, Tensor]
    state: dict[str, Any]

    @classmethod
    def of(cls, server: Server, state: dict[str, Any]) -> Checkpoint:
        """Take a checkpoint of a server; its tensors are copied."""
        tensors = {"parameters": server.parameters, "buffers": server.buffers}
        tensors |= {f"optimizer/{name}": value for name, value in server.optimizer_state().items()}
        return cls({name: value.detach().clone() for name, value in tensors.items()}, state)

    def restore(self, server: Server) -> None:
        """Set a server to this checkpoint."""
        server.parameters.copy_(self.tensors["parameters"])
        server.buffers.copy_(self.tensors["buffers"])
        prefix = "optimizer/"
        server.load_optimizer_state(
            {n.removeprefix(prefix): t for n, t in self.tensors.items() if n.startswith(prefix)}
        )

    def save(self, path: Path) -> Path:
        """Write to `path` (`.npz`): to a neighbour first, then renamed, so no half file is left.

        Raises
        ------
        SpecError
            If the folder cannot be written.
        """
        arrays = {name: tensor.numpy() for name, tensor in self.tensors.items()}
        arrays["state"] = np.array(json.dumps(self.state, sort_keys=True))
        part = path.with_suffix(".part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
            os.replace(part, path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise SpecError(f"{path}: a checkpoint cannot be written there: {error.strerror}") from None
        return path

    @classmethod
    def load(cls, path: str | Path) -> Checkpoint:
        """Read a checkpoint; nothing in the file is executed.

        Raises
        ------
        DataError
            If the file is missing, cut short, or no checkpoint.
        """
        try:
            with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as content:
                arrays = {name: content[name] for name in content.files}
            state = json.loads(str(arrays.pop("state")))
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise DataError(f"{path}: is not a checkpoint that can be read ({error})") from None
        return cls({name: torch.from_numpy(array) for name, array in arrays.items()}, state)
