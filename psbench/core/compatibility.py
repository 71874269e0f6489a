"""Which parts work together, decided from the properties that they declare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol, get_args

from psbench.core.aggregation import Aggregation, PayloadKind, ReplyKind
from psbench.core.own_steps import OwnSteps
from psbench.core.parts import Communication, Consistency, Placement, Stragglers
from psbench.errors import UnknownName

#: codecs that send floats, which a ring adds up hop by hop
_FLOATS = ("none", "fp16")


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
    """Return the default of `Strategy.lr_scaling` for these parts."""
    singly = consistency.singly and aggregation.payload == "gradient"
    return "by_share" if singly and not aggregation.shares_rate else "none"


def misfits(strategy: Composition) -> list[str]:
    """Return why the parts cannot work together, from declared properties alone; empty if they can."""
    a = strategy.aggregation
    declared = (("payload", a.payload, get_args(PayloadKind)), ("reply", a.reply, get_args(ReplyKind)))
    for what, value, known in declared:
        if value not in known:
            raise UnknownName(f"{what} of aggregation {a.name!r}", str(value), known)
    found = [*_misfits_of_pairs(strategy)]
    if a.carries:
        found += _misfits_of_several_vectors(strategy)
    if type(strategy.communication).fragments is not Communication.fragments:
        found += _misfits_of_fragments(strategy)
    return found


def _misfits_of_pairs(strategy: Composition) -> Iterator[str]:
    """Yield why one part does not fit another."""
    c, a, m = strategy.consistency, strategy.aggregation, strategy.communication
    s, p = strategy.stragglers, strategy.placement
    if p.peer_to_peer and not a.mixes:
        yield (
            f"{p.name}: no server makes a version of pushes, as {a.name} does; use aggregation "
            "'neighbour_average', 'push_sum' or 'pair_average'"
        )
    if a.mixes and not p.peer_to_peer:
        yield f"{a.name}: mixes models of workers, and {p.name} has one for all; use placement 'gossip'"
    if a.mixes == "neighbours" and not c.by_neighbours:
        yield (
            f"{a.name}: mixes what a worker's neighbours sent at the same exchange, for which {c.name} does "
            "not wait; use consistency 'neighbours'"
        )
    if c.by_neighbours and a.mixes != "neighbours":
        yield (
            f"{c.name}: waits for what neighbours send, of which {a.name} takes nothing; use aggregation "
            "'neighbour_average' or 'push_sum'"
        )
    if a.mixes == "pair" and not (c.singly and c.waits_for == "none"):
        yield (
            f"{a.name}: a pair exchanges whatever others do, and there is no common version or clock that "
            f"{c.name} could wait for; use consistency 'asp'"
        )
    if p.peer_to_peer and not m.gossips:
        yield (
            f"{m.name} with {p.name}: a worker would not go on from its own model; use communication "
            "'step_then_mix' or 'mix_then_step'"
        )
    if m.gossips and not p.peer_to_peer:
        yield f"{m.name}: a worker goes on from a mixture, and {p.name} has none; use placement 'gossip'"
    if p.peer_to_peer and {m.codec.name, m.codec_down.name} != {"none"}:
        yield (
            f"{p.name}: what a codec loses of a model that is mixed is not defined here; set both codecs to "
            "'none', or exchange over servers"
        )
    if m.pushes == "alone" and c.waits_for != "none":
        yield f"{m.name}: a worker that may never push would stall the others, who wait under {c.name}"
    if m.pushes == "together" and not c.barrier:
        yield f"{m.name}: all push together, which needs a barrier"
    if a.reply == "aggregate" and not c.barrier:
        yield f"{a.name}: a worker that is not in a commit would miss its aggregate; needs a barrier"
    if a.reply == "answer" and not (c.barrier or (c.singly and c.waits_for == "none")):
        yield f"{a.name}: answers the pushers of a commit, of which {c.name} may release one after the next"
    if a.reply == "answer" and m.codec_down.name not in _FLOATS:
        yield f"{a.name}: an answer is no difference from the one before; codec {m.codec_down.name} needs one"
    if a.answers_models and not m.takes_models:
        yield (
            f"{a.name} with {m.name}: answers with a model, which a worker would take for a gradient; use "
            "communication 'regional_sgd' or 'answered_sgd'"
        )
    if m.takes_models and not a.answers_models:
        yield (
            f"{m.name}: goes on from a model that it is answered with, and {a.name} answers with none; use "
            "aggregation 'two_levels' or 'heloco'"
        )
    if m.local and type(m).step is Communication.step:
        yield f"{m.name}: keeps steps on the worker and does not say how; derive it from OwnSteps"
    if m.local and a.payload == "gradient" and a.reply == "model":
        yield f"{m.name} with {a.name}: steps kept on the worker would be lost"
    if a.payload != "gradient" and not m.local:
        yield f"{a.name} with {m.name}: a worker that does not step by itself has no model of its own to send"
    if a.payload == "parameters" and type(a).update is Aggregation.update:
        yield (
            f"{a.name}: pushes carry models, and the weighted sum of models is no direction; define 'update'"
        )
    if p.collective and (not (a.linear or a.exchanges) or "dot" in a.measures):
        yield f"{p.name}: pushes are added up on their way, and {a.name} looks at each"
    if a.reply != "model" and not m.local:
        yield f"{a.name} with {m.name}: a worker that does not step by itself cannot apply an aggregate"
    if m.overlaps and ((a.payload != "gradient" and not m.local) or c.cancels):
        yield f"{m.name}: pushes accumulated gradients and cannot be interrupted"
    if m.overlaps and not m.local and not a.takes_sums:
        yield f"{a.name} with {m.name}: a push of several steps would count as one; use 'accumulated'"
    if a.takes_sums and (m.local or not m.overlaps):
        yield f"{a.name} with {m.name}: each push is a mean already, not a sum"
    if a.needs_barrier and not c.barrier:
        yield f"{a.name}: takes a commit for the work of all since the last; {c.name} has no barrier"
    if a.one_at_a_time and not c.singly:
        yield f"{a.name}: weighs one push against its own state; {c.name} commits several"
    if p.collective and not {m.codec.name, m.codec_down.name} <= {*_FLOATS}:
        yield f"{p.name}: vectors are added up on their way, as floats; use codecs 'none' or 'fp16'"
    elif p.collective and (m.codec.has_memory or m.codec_down.has_memory):
        yield (
            f"{p.name}: sums are rounded on their way, which is no worker's residual; use codecs without "
            "error_feedback"
        )
    if p.stateless_workers and {m.codec.name, m.codec_down.name} != {"none"}:
        yield f"{p.name}: its tasks hand on 32-bit floats; set both codecs to 'none'"
    if p.collective and m.overlaps and not m.local:
        yield f"{m.name}: its workers are not at one model, which {p.name} needs"
    if a.exchanges and (not p.collective or p.stateless_workers):
        yield (
            f"{a.name}: its workers hold the model and add up several times for a version, which {p.name} "
            "has no place for; use placement 'all_reduce', or 'summing_servers'"
        )
    if a.exchanges and (bool(a.carries) or m.codec.name != "none"):
        yield f"{a.name}: decides what its sums carry; send one vector, with codec 'none'"
    if p.gathers > 0 and (m.local or m.overlaps or a.exchanges or a.per_tensor):
        yield (
            f"{p.name}: a worker holds a share of the model between steps; {m.name} with {a.name} needs all "
            "of it; use placement 'all_reduce'"
        )
    if p.gathers > 0 and (s.drops or {m.codec.name, m.codec_down.name} != {"none"}):
        yield (
            f"{p.name}: a share of the model is with its worker alone, and gathered as it is: none is "
            "dropped, and both codecs are 'none'; use placement 'all_reduce'"
        )
    if a.per_tensor and p.num_servers > 1:
        yield (
            f"{a.name}: takes norms of whole tensors, of which each of {p.num_servers} servers holds a part; "
            "use servers: 1"
        )
    if s.needs_chunks and not m.chunks:
        yield f"{s.name}: sizes chunks of data, which {m.name} does not know"
    if s.needs_progress and not m.reports_progress:
        yield f"{s.name}: looks at the workers' progress, which {m.name} does not tell"
    if s.needs_barrier and not c.barrier:
        yield f"{s.name}: cuts new batches at each barrier; {c.name} has none"
    if p.collective and (not c.barrier or c.cancels):
        yield f"{p.name}: a collective operation needs all workers, which {c.name} does not give"
    if p.stateless_workers and (a.payload != "gradient" or m.local or m.overlaps or m.accumulates):
        yield f"{p.name}: its tasks keep nothing between steps"


def _misfits_of_several_vectors(strategy: Composition) -> Iterator[str]:
    """Yield what does not fit pushes of more than one vector."""
    c, a, m, p = strategy.consistency, strategy.aggregation, strategy.communication, strategy.placement
    also = f"{a.name}: pushes carry {' and '.join(map(repr, a.carries))} too"
    if type(m).payload in (Communication.payload, OwnSteps.payload):
        yield f"{also}, which {m.name} does not give; define its 'payload'"
    if type(m).fragments is not Communication.fragments or bool(a.measures):
        yield f"{also}; fragments and measured numbers are of one vector"
    if a.payload == "parameters" and not m.codec.entrywise:
        yield f"{also}; codec {m.codec.name} sends models as differences, and knows of one vector"
    if not (c.barrier or c.singly):
        yield f"{also}, and may wait for a commit under {c.name}, as one vector may"
    if p.moves:
        yield f"{also}, whose entries {p.name} does not move"


def _misfits_of_fragments(strategy: Composition) -> Iterator[str]:
    """Yield what does not fit pushes of some entries."""
    c, a, m, p = strategy.consistency, strategy.aggregation, strategy.communication, strategy.placement
    if not (c.barrier or c.current_only or c.singly) or c.cancels:
        yield f"{m.name}: a commit is of one fragment, and {c.name} takes pushes of several together"
    if a.payload != "difference" or a.reply != "model" or type(a).update is Aggregation.update:
        yield f"{m.name} with {a.name}: a fragment is a difference, and a step of its own, as that of 'outer'"
    if a.measures or a.needs_base or a.exchanges:
        yield f"{a.name}: asks for numbers of whole vectors, of which {m.name} sends fragments"
    if m.codec.has_memory or m.codec_down.name not in _FLOATS:
        yield (
            f"{m.name}: codecs keep whole vectors; use one without error feedback, and 'none' or 'fp16' down"
        )
    if p.moves:
        yield f"{p.name}: parameters that move, while {m.name} has some of them under way"


def doubts(strategy: Composition) -> Iterator[str]:
    """Yield warnings about a valid composition that is probably not intended."""
    c, a, s = strategy.consistency, strategy.aggregation, strategy.stragglers
    if c.barrier and s.varies_batch and not a.weighs_samples:
        yield (
            f"{s.name} gives workers batches of different sizes, and {a.name} weighs them equally: the "
            "update is no longer the gradient of the global batch; use aggregation 'mean'"
        )
    if strategy.lr_scaling == "none" and usual_lr_scaling(c, a) == "by_share":
        yield (
            f"{c.name} commits every push by itself, and each at the whole learning rate: the pushes of n "
            "workers move the model n times as far as one update of a barrier; use lr_scaling 'by_share'"
        )
    if strategy.lr_scaling == "by_share" and a.shares_rate:
        yield (
            f"{a.name} shares the learning rate out among pushes already, and lr_scaling 'by_share' would "
            "do so once more; use lr_scaling 'none'"
        )


def doubt_of_optimizer(strategy: Composition, optimizer: str, lr: float) -> str:
    """Return a warning if optimizer or rate are probably not intended; empty otherwise."""
    if doubt := strategy.aggregation.doubt_of_rates(lr):
        return doubt
    if not strategy.communication.overlaps or strategy.communication.local or optimizer == "sgd":
        return ""
    return (
        f"optimizer {optimizer!r} under {strategy.communication.name}: the steps that workers take by "
        f"themselves are plain SGD at its rate, and only the servers' updates are {optimizer!r}; use 'sgd'"
    )


def unfit_without_server(
    strategy: Composition, *, tolerance: bool, corruptions: bool, link_times: bool
) -> str:
    """Return why an experiment needs a common model and its workers have none; empty if it fits.

    `tolerance`: whether it ends when an update hardly moves the model; `corruptions`: whether workers send
    wrong vectors; `link_times`: whether latencies between workers and servers vary.
    """
    if not strategy.placement.peer_to_peer:
        return ""
    parts = (strategy.consistency, strategy.aggregation, strategy.communication, strategy.stragglers)
    if measuring := [part.name for part in parts if part.measures]:
        return f"{measuring[0]}: measures a common model, and every worker has its own; use another part"
    if tolerance:
        return "stop.tolerance: no common model moves; stop by epochs, updates or target_accuracy"
    if link_times:
        return (
            "cluster.link_time: latencies between workers and servers, and there is no server; give the "
            "workers' constant latencies by latency_s"
        )
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
    """Return why a replica cannot hold the whole state of such a run; empty if it can.

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
