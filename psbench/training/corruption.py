"""What a faulty worker pushes in the place of what it has computed; see `clusters.faults.Corruption`."""

from __future__ import annotations

import torch
from torch import Tensor

from psbench.clusters.faults import Corruption
from psbench.clusters.profile import Profile
from psbench.seeds import Streams


class Corruptions:
    """The faults of a cluster's workers that send wrong vectors.

    Noise is drawn from a stream named by worker and push, so that it is the same in virtual time and live.
    """

    def __init__(self, profile: Profile, streams: Streams) -> None:
        self._streams = streams
        self._by_worker: dict[int, list[Corruption]] = {}
        for corruption in profile.corruptions:
            self._by_worker.setdefault(corruption.worker, []).append(corruption)

    @classmethod
    def of_profile(cls, profile: Profile, streams: Streams) -> Corruptions | None:
        """Return the faults of a cluster, or None if all its workers push what they have computed."""
        return cls(profile, streams) if profile.corruptions else None

    def of(self, worker: int, ticket: int, vector: Tensor) -> Tensor:
        """Return what the worker sends in the place of a vector: that itself if it is sound.

        Parameters
        ----------
        ticket : int
            Of the push: how often the worker was released.
        """
        for corruption in self._by_worker.get(worker, ()):
            if ticket > corruption.after:
                vector = self._corrupted(corruption, ticket, vector)
        return vector

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
