"""Strategies that reach the optimal time complexity of parallel stochastic gradient descent.

Two more of them are in the catalogue under older names: Rennala SGD is `k_batch_bsp` that discards late work
on arrival, and m-synchronous SGD is `k_bsp`.
"""

from __future__ import annotations

from psbench.strategies import aggregation, consistency
from psbench.strategies.catalogue.composition import Published

ringmaster = Published(
    "ringmaster",
    "asp that discards gradients whose delay reaches a threshold",
    "Maranjyan, Tyurin, Richtarik 2025 (Ringmaster)",
    [consistency.Ringmaster],
)

malenia = Published(
    "malenia",
    "fast workers push several gradients of one version; update once every worker has pushed enough",
    "Tyurin and Richtarik 2023",
    [consistency.Malenia, aggregation.WorkerMeans],
)
