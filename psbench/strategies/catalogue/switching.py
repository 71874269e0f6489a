"""Strategies that change during a run."""

from __future__ import annotations

from psbench.strategies import switching
from psbench.strategies.catalogue.switch import PublishedSwitch

strategy_switch = PublishedSwitch(
    "strategy_switch",
    "All-Reduce until the validation loss settles, then ASP",
    "Provatas et al., Strategy-Switch, IEEE Access 2025",
    first="all_reduce",
    second="asp",
    rules=(switching.Empirical(), switching.After()),
)

#: Each worker has the same batch throughout (128 in the paper: B = 128 n), and `lr` is that of BSP: n eta,
#: for a rate eta of one worker (0.8 for 0.1 and 8 workers). ASP then uses lr/n = eta by its `by_share`.
sync_switch = PublishedSwitch(
    "sync_switch",
    "BSP for the first few percent of the mini-batches, then ASP; or ASP while a worker is slow",
    "Li et al., Sync-Switch, ICDCS 2021",
    first="bsp",
    second="asp",
    rules=(
        switching.After(fraction=0.0625, whole_epochs=False),
        switching.OnStragglers(fraction=0.0625),
    ),
    defaults={"momentum": "keep"},
)
