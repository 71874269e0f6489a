"""What a sharding did, in numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psbench.sharding.base import Indices


def label_counts(shards: Sequence[Indices], labels: Indices, num_classes: int) -> Indices:
    """Count the samples of each class that each worker owns.

    Returns
    -------
    ndarray of int64, (num_workers, num_classes)

    Examples
    --------
    >>> label_counts([np.array([0, 1]), np.array([2])], np.array([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    rows = [np.bincount(np.asarray(labels)[shard], minlength=num_classes) for shard in shards]
    return np.array(rows, dtype=np.int64).reshape(len(rows), num_classes)
