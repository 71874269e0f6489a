"""The names of the charts, and their titles: one list for runs, comparisons, reports and the panel."""

from __future__ import annotations

#: name (as in `run.chart("idle")`) and title; a chart of one run may say more in its title
TITLES: dict[str, str] = {
    "val_accuracy": "Validation accuracy",
    "train_accuracy": "Training accuracy",
    "val_loss": "Validation loss",
    "train_loss": "Training loss",
    "train_gradient_norm_sq": "Squared norm of the training loss' gradient",
    "consensus_distance": "Consensus distance of the workers' models",
    "samples_per_s": "Throughput",
    "timeline": "What each worker does",
    "switch": "What each worker does: the switch",
    "time_use": "Where the time goes",
    "idle": "Waiting, by reason",
    "utilisation": "Workers at work, and cores in use",
    "traffic": "Network traffic",
    "steps": "Time of a mini-batch",
    "share": "Whose pushes were applied",
    "contributions": "What became of each gradient",
    "trained": "Which classes the model was trained on",
    "neighbourhoods": "Which neighbourhoods the model was trained on",
    "class_distance": "Distance of the classes trained on from the data",
    "staleness": "Staleness of the applied pushes",
    "trade": "What waiting buys, and what it costs",
    "lead": "Lead over the slowest worker when a step starts",
    "batch_size": "Batch size of each worker",
    "bytes": "Bytes sent",
    "pareto_bytes": "Bytes against loss",
    "pareto_silent_s": "Seconds without computing against loss",
    "pareto_joules": "Energy against loss",
    "pareto_cost": "Cost against loss",
    "rule": "Values of the switch rule",
    "servers": "What each server holds",
    "server_load": "How busy each server was",
    "gradient_spread": "Which gradients each worker's model lacks",
    "gradient_lag": "Gradients that other workers' models lack",
    "lost_updates": "Updates that others have written over",
    "labels": "Who trains on which labels",
    "optimal": "How fast it could be",
    "tree": "From which model each gradient was taken",
    "sequence": "Who sends what to whom",
}
#: what a worker does in each phase
DOING: dict[str, str] = {
    "compute": "computing",
    "pull": "receiving",
    "send": "sending",
    "wait": "waiting",
    "cancelled": "cancelled",
}
#: units with which names of fields end
UNITS = {"_mbit_s": "Mbit/s", "_gbit_s": "Gbit/s", "_ms": "ms", "_gb": "GB", "_s": "s"}


def words_of_field(path: str) -> str:
    """Return a field of an experiment as the title of an axis.

    >>> words_of_field("cluster.bandwidth_mbit_s"), words_of_field("strategy.staleness_bound")
    ('bandwidth (Mbit/s)', 'staleness bound')
    >>> words_of_field("cluster.speed.3"), words_of_field("lr")
    ('speed 3', 'lr')
    """
    *above, name = path.split(".")
    if name.isdigit() and above:
        return f"{words_of_field(above[-1])} {name}"
    ending = next((ending for ending in UNITS if name.endswith(ending)), "")
    words = name.removesuffix(ending).replace("_", " ")
    return f"{words} ({UNITS[ending]})" if ending else words
