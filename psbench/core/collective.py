"""Base classes of placements with one collective operation per commit."""

from __future__ import annotations

from psbench.core.needs import FLOAT_CODECS, Need
from psbench.core.own_steps import OwnSteps
from psbench.core.parts import Placement

_UNENCODED = "set both codecs to 'none', or use placement 'all_reduce'"


class Collective(Placement):
    """Pushes are added up on their way, and every pusher receives the sum."""

    collective = True
    needs = (
        Need(
            "aggregation",
            lambda a: (a.linear or a.exchanges) and "dot" not in a.measures,
            "{part} adds up pushes on their way, and {other} looks at each of them",
            "use placement 'parameter_server'",
        ),
        Need(
            "communication",
            lambda m: {m.codec.name, m.codec_down.name} <= FLOAT_CODECS,
            "{part} adds up vectors on their way, as floats, and {other} encodes them otherwise",
            "use codecs 'none' or 'fp16'",
        ),
        Need(
            "communication",
            lambda m: not (m.codec.has_memory or m.codec_down.has_memory),
            "{part} rounds sums on their way, which are no worker's residual for {other} to keep",
            "use codecs without error_feedback",
            lambda p: not p.stateless_workers,
        ),
        Need(
            "communication",
            lambda m: not m.pushes_sums,
            "{part} needs replicas of one model, and workers under {other} have moved on",
            "use placement 'parameter_server'",
        ),
        Need(
            "consistency",
            lambda c: c.barrier and not c.cancels,
            "{part} needs all workers in each operation, and {other} commits pushes of some",
        ),
    )


class Replicas(Collective):
    """Each worker keeps the model, or a share of it, between two operations."""


class Shares(Replicas):
    """Each worker holds a share of the model and its optimizer's state, and gathers the rest for a step."""

    needs = (
        Need(
            "communication",
            lambda m: not (isinstance(m, OwnSteps) or m.overlaps),
            "{part} has a worker hold a share of the model between steps, and {other} needs all of it",
            "use placement 'all_reduce'",
        ),
        Need(
            "aggregation",
            lambda a: not (a.exchanges or a.per_tensor),
            "{part} has a worker hold a share of the model, and {other} needs all of it",
            "use placement 'all_reduce'",
        ),
        Need(
            "stragglers",
            lambda s: not s.drops,
            "{part} has each share of the model with one worker alone, and {other} may drop that worker",
            "use placement 'all_reduce'",
        ),
        Need(
            "communication",
            lambda m: not m.is_encoded,
            "{part} gathers shares of the model as they are, and {other} encodes what is sent",
            _UNENCODED,
        ),
    )


class Jobs(Collective):
    """Each operation is a job of tasks without state."""

    stateless_workers = True
    needs = (
        Need(
            "communication",
            lambda m: not m.is_encoded,
            "{part} has tasks return 32-bit floats, and {other} encodes what is sent",
            _UNENCODED,
        ),
        Need(
            "communication",
            lambda m: not (isinstance(m, OwnSteps) or m.overlaps or m.accumulates),
            "{part} has tasks that keep nothing between steps, and workers under {other} do",
            "use placement 'all_reduce' or 'parameter_server'",
        ),
        Need(
            "aggregation",
            lambda a: a.payload == "gradient",
            "{part} has tasks that keep nothing between steps, and {other} needs models of workers",
            "use placement 'all_reduce' or 'parameter_server'",
        ),
    )
