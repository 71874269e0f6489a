"""Which samples mini-batches take: a scripted cluster has none, so that only orders could differ."""

from __future__ import annotations

from psbench_fuzz.model.rule import Rule, rule

for _name in (
    *("reshuffle", "with_replacement", "curriculum", "online_batch", "recency_bias"),
    # orders follow evaluations by neighbourhood, which scripted clusters do not make
    *("instance_hardness", "importance", "data_aware"),
):
    rule("selection", _name)(Rule)
