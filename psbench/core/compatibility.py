"""Which parts work together, decided from the properties that they declare."""

from __future__ import annotations

from typing import Literal, Protocol, get_args

from psbench.core.aggregation import Aggregation, PayloadKind, ReplyKind
from psbench.core.own_steps import OwnSteps
from psbench.core.parts import Communication, Consistency, Placement, Stragglers
from psbench.errors import UnknownName


class Composition(Protocol):
    """One part of each domain."""

    @property
    def consistency(self) -> Consistency: ...  # noqa: D102

    @property
    def aggregation(self) -> Aggregation: ...  # noqa: D102

    @property
    def communication(self) -> Communication: ...  # noqa: D102

    @property
    def stragglers(self) -> Stragglers: ...  # noqa: D102

    @property
    def placement(self) -> Placement: ...  # noqa: D102

    @property
    def lr_scaling(self) -> Literal["none", "by_share"]: ...  # noqa: D102


def usual_lr_scaling(consistency: Consistency, aggregation: Aggregation) -> Literal["none", "by_share"]:
    """Return how the rate is scaled where a composition does not say it: see `Strategy`."""
    singly = consistency.singly and aggregation.payload == "gradient"
    return "by_share" if singly and not aggregation.shares_rate else "none"


def misfits(strategy: Composition) -> list[str]:
    """Return why the parts cannot work together, from declared properties alone; empty if they can."""
    c, a, m = strategy.consistency, strategy.aggregation, strategy.communication
    s, p = strategy.stragglers, strategy.placement
    declared = (("payload", a.payload, get_args(PayloadKind)), ("reply", a.reply, get_args(ReplyKind)))
    for what, value, known in declared:
        if value not in known:
            raise UnknownName(f"{what} of aggregation {a.name!r}", str(value), known)
    checks = [
        (
            p.peer_to_peer and not a.mixes,
            f"{p.name}: no server makes a version of pushes, as {a.name} does; use aggregation "
            "'neighbour_average', 'push_sum' or 'pair_average'",
        ),
        (
            bool(a.mixes) and not p.peer_to_peer,
            f"{a.name}: mixes models of workers, and {p.name} has one for all; use placement 'gossip'",
        ),
        (
            a.mixes == "neighbours" and not c.by_neighbours,
            f"{a.name}: mixes what a worker's neighbours sent at the same exchange, for which {c.name} does "
            "not wait; use consistency 'neighbours'",
        ),
        (
            c.by_neighbours and a.mixes != "neighbours",
            f"{c.name}: waits for what neighbours send, of which {a.name} takes nothing; use aggregation "
            "'neighbour_average' or 'push_sum'",
        ),
        (
            a.mixes == "pair" and not (c.singly and c.waits_for == "none"),
            f"{a.name}: a pair exchanges whatever others do, and there is no common version or clock that "
            f"{c.name} could wait for; use consistency 'asp'",
        ),
        (
            p.peer_to_peer and not m.gossips,
            f"{m.name} with {p.name}: a worker would not go on from its own model; use communication "
            "'step_then_mix' or 'mix_then_step'",
        ),
        (
            m.gossips and not p.peer_to_peer,
            f"{m.name}: a worker goes on from a mixture, and {p.name} has none; use placement 'gossip'",
        ),
        (
            p.peer_to_peer and {m.codec.name, m.codec_down.name} != {"none"},
            f"{p.name}: what a codec loses of a model that is mixed is not defined here; set both codecs to "
            "'none', or exchange over servers",
        ),
        (
            m.pushes == "alone" and c.waits_for != "none",
            f"{m.name}: a worker that may never push would stall the others, who wait under {c.name}",
        ),
        (m.pushes == "together" and not c.barrier, f"{m.name}: all push together, which needs a barrier"),
        (
            a.reply == "aggregate" and not c.barrier,
            f"{a.name}: a worker that is not in a commit would miss its aggregate; needs a barrier",
        ),
        (
            a.reply == "answer" and not (c.barrier or (c.singly and c.waits_for == "none")),
            f"{a.name}: answers the pushers of a commit, of which {c.name} may release one after the next",
        ),
        (
            a.reply == "answer" and not m.codec_down.entrywise,
            f"{a.name}: an answer is no difference from the one before; codec {m.codec_down.name} needs one",
        ),
        (
            a.answers_models and not m.takes_models,
            f"{a.name} with {m.name}: answers with the model of a region, which a worker would take for a "
            "gradient; use communication 'regional_sgd'",
        ),
        (
            m.takes_models and not a.answers_models,
            f"{m.name}: goes on from the model of a region, and {a.name} has none; use aggregation "
            "'two_levels'",
        ),
        (
            m.local and type(m).step is Communication.step,
            f"{m.name}: keeps steps on the worker and does not say how; derive it from OwnSteps",
        ),
        (
            m.local and a.payload == "gradient" and a.reply == "model",
            f"{m.name} with {a.name}: steps kept on the worker would be lost",
        ),
        (
            a.payload != "gradient" and not m.local,
            f"{a.name} with {m.name}: a worker that does not step by itself has no model of its own to send",
        ),
        (
            a.payload == "parameters" and type(a).update is Aggregation.update,
            f"{a.name}: pushes carry models, and the weighted sum of models is no direction; define 'update'",
        ),
        (
            p.collective and (not (a.linear or a.exchanges) or "dot" in a.measures),
            f"{p.name}: pushes are added up on their way, and {a.name} looks at each",
        ),
        (
            a.reply != "model" and not m.local,
            f"{a.name} with {m.name}: a worker that does not step by itself cannot apply an aggregate",
        ),
        (
            m.overlaps and ((a.payload != "gradient" and not m.local) or c.cancels),
            f"{m.name}: pushes accumulated gradients and cannot be interrupted",
        ),
        (
            m.overlaps and not m.local and not a.takes_sums,
            f"{a.name} with {m.name}: a push of several steps would count as one; use 'accumulated'",
        ),
        (
            a.takes_sums and (m.local or not m.overlaps),
            f"{a.name} with {m.name}: each push is a mean already, not a sum",
        ),
        (
            a.needs_barrier and not c.barrier,
            f"{a.name}: takes a commit for the work of all since the last; {c.name} has no barrier",
        ),
        (
            a.one_at_a_time and not c.singly,
            f"{a.name}: weighs one push against its own state; {c.name} commits several",
        ),
        (
            p.collective and not (m.codec.entrywise and m.codec_down.entrywise),
            f"{p.name}: vectors are added up on their way, as codecs whose bits belong together do not allow",
        ),
        (
            p.stateless_workers and {m.codec.name, m.codec_down.name} != {"none"},
            f"{p.name}: its tasks hand on 32-bit floats; set both codecs to 'none'",
        ),
        (
            p.collective and m.overlaps and not m.local,
            f"{m.name}: its workers are not at one model, which {p.name} needs",
        ),
        (
            a.exchanges and (not p.collective or p.stateless_workers),
            f"{a.name}: its workers hold the model and add up several times for a version, which {p.name} "
            "has no place for; use placement 'all_reduce', or 'summing_servers'",
        ),
        (
            a.exchanges and (bool(a.carries) or m.codec.name != "none"),
            f"{a.name}: decides what its sums carry; send one vector, with codec 'none'",
        ),
        (
            p.gathers > 0 and (m.local or m.overlaps or a.exchanges or a.per_tensor),
            f"{p.name}: a worker holds a share of the model between steps; {m.name} with {a.name} needs all "
            "of it; use placement 'all_reduce'",
        ),
        (
            p.gathers > 0 and (s.drops or {m.codec.name, m.codec_down.name} != {"none"}),
            f"{p.name}: a share of the model is with its worker alone, and gathered as it is: none is "
            "dropped, and both codecs are 'none'; use placement 'all_reduce'",
        ),
        (
            a.per_tensor and p.num_servers > 1,
            f"{a.name}: takes norms of whole tensors, of which each of {p.num_servers} servers holds a part; "
            "use servers: 1",
        ),
        (s.needs_chunks and not m.chunks, f"{s.name}: sizes chunks of data, which {m.name} does not know"),
        (
            s.needs_progress and not m.reports_progress,
            f"{s.name}: looks at the workers' progress, which {m.name} does not tell",
        ),
        (s.needs_barrier and not c.barrier, f"{s.name}: cuts new batches at each barrier; {c.name} has none"),
        (
            p.collective and (not c.barrier or c.cancels),
            f"{p.name}: a collective operation needs all workers, which {c.name} does not give",
        ),
        (
            p.stateless_workers and (a.payload != "gradient" or m.local or m.overlaps or m.accumulates),
            f"{p.name}: its tasks keep nothing between steps",
        ),
    ]
    checks += _of_several_vectors(strategy) if a.carries else []
    checks += _of_fragments(strategy) if type(m).fragments is not Communication.fragments else []
    return [reason for wrong, reason in checks if wrong]


def _of_several_vectors(strategy: Composition) -> list[tuple[bool, str]]:
    """Return what does not fit pushes of more than one vector, with whether it is so."""
    c, a, m, p = strategy.consistency, strategy.aggregation, strategy.communication, strategy.placement
    also = f"{a.name}: pushes carry {' and '.join(map(repr, a.carries))} too"
    return [
        (
            type(m).payload in (Communication.payload, OwnSteps.payload),
            f"{also}, which {m.name} does not give; define its 'payload'",
        ),
        (
            type(m).fragments is not Communication.fragments or bool(a.measures),
            f"{also}; fragments and measured numbers are of one vector",
        ),
        (
            a.payload == "parameters" and not m.codec.entrywise,
            f"{also}; codec {m.codec.name} sends models as differences, and knows of one vector",
        ),
        (not (c.barrier or c.singly), f"{also}, and may wait for a commit under {c.name}, as one vector may"),
        (p.moves, f"{also}, whose entries {p.name} does not move"),
    ]


def _of_fragments(strategy: Composition) -> list[tuple[bool, str]]:
    """Return what does not fit pushes of some entries, with whether it is so."""
    c, a, m, p = strategy.consistency, strategy.aggregation, strategy.communication, strategy.placement
    return [
        (
            not (c.barrier or c.current_only or c.singly) or c.cancels,
            f"{m.name}: a commit is of one fragment, and {c.name} takes pushes of several together",
        ),
        (
            a.payload != "difference" or a.reply != "model" or type(a).update is Aggregation.update,
            f"{m.name} with {a.name}: a fragment is a difference, and a step of its own, as that of 'outer'",
        ),
        (
            bool(a.measures or a.needs_base or a.exchanges),
            f"{a.name}: asks for numbers of whole vectors, of which {m.name} sends fragments",
        ),
        (
            m.codec.has_memory or not m.codec_down.entrywise,
            f"{m.name}: codecs keep whole vectors; use one without error feedback, and 'none' or 'fp16' down",
        ),
        (p.moves, f"{p.name}: parameters that move, while {m.name} has some of them under way"),
    ]


def doubts(strategy: Composition) -> list[str]:
    """Return what of a valid composition is probably not intended; empty if nothing is."""
    c, a, s = strategy.consistency, strategy.aggregation, strategy.stragglers
    checks = [
        (
            c.barrier and s.varies_batch and not a.weighs_samples,
            f"{s.name} gives workers batches of different sizes, and {a.name} weighs them equally: the "
            "update is no longer the gradient of the global batch; use aggregation 'mean'",
        ),
        (
            strategy.lr_scaling == "none" and usual_lr_scaling(c, a) == "by_share",
            f"{c.name} commits every push by itself, and each at the whole learning rate: the pushes of n "
            "workers move the model n times as far as one update of a barrier; use lr_scaling 'by_share'",
        ),
        (
            strategy.lr_scaling == "by_share" and a.shares_rate,
            f"{a.name} shares the learning rate out among pushes already, and lr_scaling 'by_share' would "
            "do so once more; use lr_scaling 'none'",
        ),
    ]
    return [doubt for doubtful, doubt in checks if doubtful]


def doubt_of_optimizer(strategy: Composition, optimizer: str, lr: float) -> str:
    """Return what of an optimizer and its rate is probably not intended; empty if nothing is."""
    if doubt := strategy.aggregation.doubt_of_rates(lr):
        return doubt
    if not strategy.communication.overlaps or strategy.communication.local or optimizer == "sgd":
        return ""
    return (
        f"optimizer {optimizer!r} under {strategy.communication.name}: the steps that workers take by "
        f"themselves are plain SGD at its rate, and only the servers' updates are {optimizer!r}; use 'sgd'"
    )


def unfit_without_server(strategy: Composition, *, tolerance: bool, corruptions: bool) -> str:
    """Return what of an experiment has no meaning where no model is common; empty if all has.

    `tolerance`: whether it ends when an update hardly moves the model; `corruptions`: whether workers send
    wrong vectors.
    """
    if not strategy.placement.peer_to_peer:
        return ""
    parts = (strategy.consistency, strategy.aggregation, strategy.communication, strategy.stragglers)
    if measuring := [part.name for part in parts if part.measures]:
        return f"{measuring[0]}: measures a common model, and every worker has its own; use another part"
    if tolerance:
        return "stop.tolerance: no common model moves; stop by epochs, updates or target_accuracy"
    sent_by_step = strategy.aggregation.mixes == "neighbours" and not strategy.communication.sends_first
    if corruptions and not sent_by_step:
        return (
            "cluster.corruptions: only what a step has made is corrupted; use communication "
            "'step_then_mix' with consistency 'neighbours'"
        )
    return ""


def keeps_on_workers(strategy: Composition) -> bool:
    """Return whether workers have more than a place in their data when they wait: models, or residuals."""
    m = strategy.communication
    encoded = {m.codec.name, m.codec_down.name} != {"none"}
    if strategy.aggregation.exchanges:
        return True
    return m.local or (encoded and not strategy.placement.collective)


def unreplicable(strategy: Composition) -> str:
    """Return why a replica cannot hold all that a run under these parts goes on from; empty if it can.

    What it holds is of the servers, the engine, and workers that wait: one that computes is not asked, as it
    would have to be waited for.
    """
    c, m, p = strategy.consistency, strategy.communication, strategy.placement
    if p.stateless_workers or p.peer_to_peer:
        return "it has no servers"
    if m.overlaps:
        return f"under {m.name} workers compute while they wait"
    if m.pushes == "together":
        return f"under {m.name} workers vote in the middle of a push"
    if m.accumulates:
        return f"under {m.name} workers have counts of their own"
    if c.cancels and keeps_on_workers(strategy):
        return f"{c.name} releases workers that compute, and these have residuals or models of their own"
    if p.moves:
        return "parameters move between its servers"
    parts = (c, strategy.aggregation, m, strategy.stragglers)
    if measuring := [part.name for part in parts if part.measures]:
        return f"{measuring[0]} measures in the middle of an answer"
    return ""
