"""Corrupted pushes of a faulty worker; see `clusters.faults.Corruption`."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import torch
from torch import Tensor

from psbench.clusters.faults import Corruption
from psbench.clusters.profile import Profile
from psbench.seeds import Streams


class Corruptions:
    """The faults of a cluster's workers that send wrong vectors.

    Noise is drawn from a stream named by worker and push, so that it is the same in virtual time and live.
    What a stale worker has computed is in checkpoints, and forgotten under another composition.
    """

    def __init__(self, profile: Profile, streams: Streams) -> None:
        self._streams = streams
        self._by_worker: dict[int, list[Corruption]] = {}
        #: what a stale worker has computed last, oldest first, by worker, corruption and fragment
        self._past: dict[str, deque[Tensor]] = {}
        for corruption in profile.corruptions:
            self._by_worker.setdefault(corruption.worker, []).append(corruption)

    @classmethod
    def of_profile(cls, profile: Profile, streams: Streams) -> Corruptions | None:
        """Return the corruptions of a cluster, or None if no worker has one."""
        return cls(profile, streams) if profile.corruptions else None

    def of(self, worker: int, ticket: int, vector: Tensor, fragment: int = -1) -> Tensor:
        """Return the worker's corrupted vector, or the vector itself if the worker is sound.

        Parameters
        ----------
        ticket : int
            Of the push: how often the worker was released.
        fragment : int
            The entries that the vector is of; -1: all.
        """
        for number, corruption in enumerate(self._by_worker.get(worker, ())):
            if corruption.how == "stale":
                past = self._past.setdefault(
                    f"{worker}/{number}/{fragment}", deque(maxlen=corruption.age + 1)
                )
                past.append(vector)
                vector = past[0] if ticket > corruption.after else vector
            elif ticket > corruption.after:
                vector = self._corrupted(corruption, ticket, vector)
        return vector

    def forget(self) -> None:
        """Discard the stored pushes of stale workers, which belong to another composition."""
        self._past.clear()

    def tensors(self, worker: int) -> dict[str, Tensor]:
        """Return by name the vectors for a worker's next pushes, without copying."""
        own = {name: past for name, past in self._past.items() if name.startswith(f"{worker}/")}
        return {f"past/{name}/{place}": v for name, past in own.items() for place, v in enumerate(past)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state that `tensors` returned; `tensors` may contain other entries of the worker."""
        for name, vector in tensors.items():
            kind, _, key = name.rpartition("/")[0].partition("/")
            if kind == "past":
                worker, number, _ = key.split("/")
                age = self._by_worker[int(worker)][int(number)].age
                self._past.setdefault(key, deque(maxlen=age + 1)).append(vector)

    def _corrupted(self, corruption: Corruption, ticket: int, vector: Tensor) -> Tensor:
        if corruption.how == "sign_flipped":
            return vector * -corruption.factor
        if corruption.how == "scaled":
            return vector * corruption.factor
        if corruption.how == "nan":
            return torch.full_like(vector, torch.nan)
        rng = self._streams.generator("corruption", corruption.worker, ticket)
        noise = torch.from_numpy(rng.standard_normal(len(vector), dtype="float32")).to(vector.device)
        return noise * (corruption.factor * float(vector.square().mean().sqrt()))
