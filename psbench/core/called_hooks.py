"""Hooks that a composition calls, and errors for parts that override other hooks.

A hook that no rule below names is called in every composition. One whose event may not happen in a run, such
as the loss of a worker, an evaluation or a switch, counts as called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from psbench.core.collective import Collective, Jobs
from psbench.core.own_steps import OwnSteps
from psbench.core.part import overrides
from psbench.core.parts import Communication, Switching
from psbench.core.peer_to_peer import PeerToPeer
from psbench.core.worker_policy import WorkerPolicy

if TYPE_CHECKING:
    from psbench.core.compatibility import Composition

#: the hooks of a communication part that compute on a worker
WORKER_HALF = ("begin", "step", "keep", "payload", "sent", "receive")
_POLICY = tuple(name for name, value in vars(WorkerPolicy).items() if inspect.isfunction(value))


def has_own_half(communication: Communication) -> bool:
    """Return whether the part overrides a hook that runs on workers."""
    return any(overrides(communication, hook) for hook in WORKER_HALF)


def has_own_policy(communication: Communication) -> bool:
    """Return whether workers may do anything except push after a step."""
    policy = communication.worker_policy()
    return any(overrides(policy, hook) for hook in _POLICY)


class _Rule(NamedTuple):
    """Hooks that only some compositions call."""

    domain: str
    hooks: tuple[str, ...]
    is_called: Callable[[Composition], bool]
    #: when nothing calls them
    otherwise: str
    remedy: str


def _may(part: object, declared: str) -> bool:
    """Return whether a class declares a capability, possibly through a property."""
    return bool(getattr(type(part), declared))


def _has_steps_of_its_own(s: Composition) -> bool:
    return overrides(s.communication.worker_policy(), "after_step")


def _keeps_steps(s: Composition) -> bool:
    """Return whether a worker may continue without an answer to its last step."""
    m, p = s.communication, s.placement
    always_answered = isinstance(m, OwnSteps) or m.overlaps or isinstance(p, Collective)
    return _has_steps_of_its_own(s) or isinstance(p, PeerToPeer) or not always_answered


def _measures(domain: str) -> _Rule:
    return _Rule(
        domain,
        ("on_measured",),
        lambda s: _may(getattr(s, domain), "measures"),
        "the part requests no measurements",
        "declare them in `measures`, and return a Measure",
    )


#: fields of a communication part with a codec each, whose hooks are its own
_CODECS = ("codec", "codec_down")

#: hooks that every composition calls, or that some event may call in any
CALLED_IN_ALL: dict[str, tuple[str, ...]] = {
    "consistency": ("on_push", "on_start", "on_join", "on_leave", "on_timer", "on_drained"),
    # an exchange anywhere but in a ring is a misfit
    "aggregation": ("on_commit", "update", "update_buffers", "exchange", "doubt_of_rates"),
    "communication": (
        *("worker_policy", "fragments", "smallest_step", "rate_epoch", "rate_epochs_per_step"),
        *("on_push", "on_leave", "on_applied", "on_release"),
    ),
    "worker policy": ("after_step", "step_samples", "on_orders"),
    "stragglers": ("on_push", "on_timer", "on_applied", "on_release"),
    "selection": (
        *("look", "choose", "learn", "report"),
        *("on_push", "on_evaluated", "on_release"),
    ),
    "placement": ("ranges", "balance", "worker_bytes", "bytes_up", "bytes_down"),
    # a rule with a time alone is asked nothing else: see `never_asked`
    "switching": ("on_applied", "on_evaluated", "on_push", "on_timer", "on_switch_requested", "why_not"),
    "codec": ("num_bits", "num_bytes", "takes", "encode", "decode", "at", "on_push", "on_release"),
}


_RULES = (
    *(
        _Rule(
            domain,
            hooks,
            lambda s: not isinstance(s.placement, Jobs),
            "tasks compute plain gradients, as under placement 'map_reduce'",
            "use placement 'all_reduce' or 'parameter_server'",
        )
        for domain, hooks in (("communication", WORKER_HALF), ("worker policy", _POLICY))
    ),
    _Rule(
        "communication",
        ("receive",),
        lambda s: s.aggregation.reply != "model",
        "workers are sent the model",
        "declare `reply` = 'answer' or 'aggregate' in the aggregation part, or override begin()",
    ),
    _Rule(
        "communication",
        ("sent",),
        lambda s: (
            not (
                s.aggregation.carries
                or overrides(s.communication, "fragments")
                or isinstance(s.placement, PeerToPeer)
            )
        ),
        "a push is not one vector to servers or a ring",
        "have pushes carry one vector with an entry for each parameter",
    ),
    _Rule(
        "communication",
        ("keep",),
        _keeps_steps,
        "workers push every step and are answered before the next",
        "override step(), or have after_step() of the worker policy return 'continue'",
    ),
    *(
        _Rule(
            domain,
            (hook,),
            lambda s: s.communication.pushes == "together",
            "workers do not vote",
            "declare `pushes` = 'together' in the communication part",
        )
        for domain, hook in (("communication", "on_vote"), ("worker policy", "vote_value"))
    ),
    _Rule(
        "worker policy",
        ("on_answer", "takes_answer"),
        lambda s: _may(s.communication, "overlaps"),
        "workers wait for the answer to a push",
        "declare `overlaps` = True in the communication part",
    ),
    *(
        _Rule(
            domain,
            (hook,),
            _has_steps_of_its_own,
            "workers push every step and report nothing",
            "use a communication part whose after_step() returns 'report', such as 'micro_steps'",
        )
        for domain, hook in (("worker policy", "report"), ("stragglers", "on_report"))
    ),
    *map(_measures, ("aggregation", "communication", "placement")),
    _Rule(
        "aggregation",
        ("sums", "left_out"),
        lambda s: s.aggregation.exchanges,
        "pushes are summed without an exchange",
        "override exchange() too",
    ),
    *(
        _Rule(
            domain,
            ("shift_rate",),
            is_called,
            "models are sent whole",
            "leave `entrywise` False, so that differences are sent",
        )
        for domain, is_called in (
            ("codec", lambda s: not s.communication.codec.entrywise),
            ("codec_down", lambda s: not s.communication.codec_down.entrywise),
        )
    ),
    _Rule(
        "codec_down",
        ("at", "on_push", "on_release"),
        lambda s: False,
        "answers are encoded, which no rule sets",
        "set codec_down to the codec whose setting it chooses",
    ),
    _Rule(
        "placement",
        ("on_applied",),
        lambda s: _may(s.placement, "moves"),
        "parameters stay on their servers",
        "declare `moves` = True",
    ),
)


def hooks_by_domain() -> dict[str, frozenset[str]]:
    """Return the known hooks of each domain of parts, whether called in all compositions or in some."""
    found = {domain: set(hooks) for domain, hooks in CALLED_IN_ALL.items()}
    for rule in _RULES:
        found["codec" if rule.domain in _CODECS else rule.domain].update(rule.hooks)
    return {domain: frozenset(hooks) for domain, hooks in found.items()}


def never_called(strategy: Composition) -> Iterator[str]:
    """Yield the overridden hooks that are never called in this composition."""
    m = strategy.communication
    for hook in _POLICY:
        if hook in dir(m):
            yield (
                f"communication {m.name!r} defines {hook}(), which is a hook of its worker policy: define it "
                "in a WorkerPolicy, and return that from worker_policy()"
            )
    has_policy = overrides(m, "worker_policy")
    for rule in _RULES:
        of_policy = rule.domain == "worker policy"
        if of_policy and not has_policy:
            continue
        owner = m if of_policy else getattr(m if rule.domain in _CODECS else strategy, rule.domain)
        part = m.worker_policy() if of_policy else owner
        who = f"the {rule.domain} of {m.name!r}" if of_policy else f"{rule.domain} {owner.name!r}"
        for hook in rule.hooks:
            if overrides(part, hook) and not rule.is_called(strategy):
                yield (
                    f"{who} overrides {hook}(), which is never called because {rule.otherwise}; {rule.remedy}"
                )


def never_asked(rule: Switching) -> str:
    """Return why the hooks of a rule with a fixed time are never called; empty if it has none."""
    for hook in ("start", "on_applied", "on_evaluated", "on_push", "on_timer", "on_switch_requested"):
        if overrides(rule, hook):
            return (
                f"switching {rule.name!r} overrides {hook}(), which is never called because a switch "
                "at a set time leads to an existing composition; give `to` a new strategy"
            )
    return ""
