"""Tokens of a Markov chain with known entropy, and so a known distance of a model from the best one."""

from __future__ import annotations

from bisect import bisect_right
from typing import ClassVar

import numpy as np

from psbench.arrays import Doubles, Integers
from psbench.core.specification import parameter
from psbench.data.base import Dataset, DataSource
from psbench.errors import ParameterError
from psbench.seeds import Streams
from psbench.system.limits import check_memory


class Markov(DataSource):
    """Tokens of a Markov chain: a sample is `context` tokens, its target the same shifted by one.

    The probabilities after each token are drawn from a Dirichlet distribution. No model predicts better than
    those, so the cross entropy of the best is the chain's entropy rate H = -sum_i pi_i sum_j P_ij ln P_ij,
    with pi = pi P. A validation loss less `entropy_rate` is the distance to the optimum, but for the noise of
    a finite validation set: about its standard deviation over the root of the number of tokens.

    Parameters
    ----------
    seed : int, >= 0
        Of the chain and the draw: all runs have the same data, so that the entropy is one number.

    Source
    ------
    Shannon (1948), sec. 7: the entropy of a Markov source.

    Examples
    --------
    >>> source = Markov(vocabulary_size=8, num_tokens=4000)
    >>> round(source.entropy_rate, 3), round(float(np.log(8)), 3)
    (1.039, 2.079)
    """

    name: ClassVar[str] = "markov"
    source: ClassVar[str] = "Shannon 1948"

    vocabulary_size: int = parameter(32, "number of different tokens", unit="tokens", ge=2, le=4096)
    num_tokens: int = parameter(
        200_000, "length of the text, training and validation together", unit="tokens", ge=2
    )
    context: int = parameter(32, "length of a sample", unit="tokens", ge=1, le=65_536)
    concentration: float = parameter(
        0.2, "concentration of the transition probabilities: a smaller value is more predictable", gt=0
    )
    val_fraction: float = parameter(0.1, "share of the text, at its end, for validation", ge=0, lt=1)
    seed: int = parameter(0, "seed of the chain and of the draw", ge=0)

    @property
    def transitions(self) -> Doubles:
        """The probabilities P_ij of token j after token i, (vocabulary_size, vocabulary_size)."""
        rng = Streams(self.seed).generator("data", 1)
        drawn = rng.standard_gamma(self.concentration, (self.vocabulary_size,) * 2) + 1e-12
        return np.asarray(drawn / drawn.sum(axis=1, keepdims=True))

    @property
    def entropy_rate(self) -> float:
        """The chain's entropy in nats a token: the cross entropy of the best model."""
        p = self.transitions
        size = len(p)
        # pi P = pi and sum pi = 1, as one system that has a solution
        system = np.vstack([p.T - np.eye(size), np.ones(size)])
        pi = np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0]
        return float(-(pi[:, None] * p * np.log(p)).sum())

    def load(self, streams: Streams) -> Dataset:
        """Return the draw, which is the same in every run."""
        import torch

        count = (self.num_tokens - 1) // self.context
        train = count - round(count * self.val_fraction)
        if train < 1:
            raise ParameterError(
                f"data 'markov': num_tokens = {self.num_tokens}, but a sample takes {self.context} tokens "
                "and the next one; raise num_tokens or lower context"
            )
        check_memory(24 * self.num_tokens, f"data 'markov': num_tokens = {self.num_tokens}", "lower it")
        tokens = torch.from_numpy(self._drawn())
        x = tokens[: count * self.context].view(count, self.context)
        y = tokens[1 : count * self.context + 1].view(count, self.context)
        names = tuple(map(str, range(self.vocabulary_size)))
        return Dataset(self.name, x[:train], y[:train], x[train:], y[train:], names)

    def _drawn(self) -> Integers:
        """Return the text: the first token is uniform, each other drawn by the previous token's row."""
        rng = Streams(self.seed).generator("data", 2)
        rows = [row.tolist() for row in np.cumsum(self.transitions, axis=1)]
        last, found = self.vocabulary_size - 1, np.empty(self.num_tokens, dtype=np.int64)
        token = int(rng.integers(self.vocabulary_size))
        for place, draw in enumerate(rng.random(self.num_tokens).tolist()):
            found[place] = token
            token = min(bisect_right(rows[token], draw), last)
        return found
