"""Faults that were thought of, and that the fuzzer must find: in the engine, and in single rules."""

from __future__ import annotations

import inspect
import sys
import textwrap
from typing import Any, NamedTuple

from psbench.backends.compression import Compression, WorkerCodecs
from psbench.core.action_processor import ActionProcessor
from psbench.core.drain import Drain
from psbench.core.engine import Engine
from psbench.core.membership import EngineMembership
from psbench.core.strategy import Strategy
from psbench.core.view import ClusterView
from psbench.core.worker_loop import WorkerLoop
from psbench.strategies.aggregation import mean, model_average
from psbench.strategies.aggregation.block_momentum import BlockMomentum
from psbench.strategies.aggregation.delay_compensated import DelayCompensated
from psbench.strategies.aggregation.delayed_nesterov import DelayedNesterov
from psbench.strategies.aggregation.dyn_sgd_versioned import DynSGDVersioned
from psbench.strategies.aggregation.federated import FedBuff
from psbench.strategies.aggregation.mean import Mean
from psbench.strategies.aggregation.model_average import MovesToMean
from psbench.strategies.aggregation.one_bit_adam import OneBitAdam
from psbench.strategies.aggregation.outer import Outer
from psbench.strategies.aggregation.power_sgd import PowerSGD
from psbench.strategies.aggregation.robust import Median
from psbench.strategies.aggregation.staleness import _ByStaleness
from psbench.strategies.codecs import Channel, ServerCodecState
from psbench.strategies.communication.elastic import Elastic
from psbench.strategies.communication.osp import OSP
from psbench.strategies.communication.selsync import SelSync
from psbench.strategies.consistency.dssp import DSSP
from psbench.strategies.consistency.elastic_bsp import ElasticBSP
from psbench.strategies.consistency.grace import Grace
from psbench.strategies.consistency.k_async import KASP
from psbench.strategies.consistency.quorum import Quorum
from psbench.strategies.consistency.ssp import ClockBound


class Fault(NamedTuple):
    """In a method of a class, or a function of a module: what is there, and what is put there."""

    owner: Any
    name: str
    right: str
    wrong: str

    @property
    def function(self) -> Any:
        """The function as it should be."""
        return inspect.getattr_static(self.owner, self.name)

    @property
    def module(self) -> str:
        """The module that it is in."""
        return self.owner.__name__ if inspect.ismodule(self.owner) else str(self.owner.__module__)

    def made(self) -> Any:
        """Return the function with the fault in it."""
        source = textwrap.dedent(inspect.getsource(self.function))
        assert self.right in source, f"the fault has to follow the code: {self.right!r} is not in {self.name}"
        scope = dict(vars(sys.modules[self.module]))
        body = textwrap.indent(source.replace(self.right, self.wrong, 1), "    ")
        # what `super()` looks for is an argument here
        whole = f"from __future__ import annotations\ndef made(__class__):\n{body}\n    return {self.name}"
        exec(whole, scope)
        return scope["made"](self.owner)


#: by where they were planted first: in the engine, with its invariants known
KNOWN = {
    "clock counted twice": Fault(Engine, "_push", "worker.clock + 1", "worker.clock + 2"),
    "computing not counted down": Fault(Engine, "_push", "view.num_computing -= 1", "pass"),
    "old tickets taken": Fault(Engine, "_push", "worker.ticket != push.ticket or ", ""),
    "a push counted twice": Fault(
        Engine, "_push", "view.pushes += 1", "view.pushes += 1 + (view.pushes == 20)"
    ),
    "vote not counted": Fault(Engine, "_vote", "self.view.num_voted += 1", "pass"),
    "parts not loaded": Fault(
        *(Engine, "load_state_dict", 'part.load_state_dict(state["parts"][part.domain])', "pass")
    ),
    "switch never begun": Fault(Engine, "_switch", "self._processor.drain = Drain(switch)", "pass"),
    "samples counted wrongly": Fault(
        *(ActionProcessor, "apply", "view.samples += push.samples"),
        "view.samples += push.samples + (version == 7)",
    ),
    "ticket not raised": Fault(ActionProcessor, "release", "worker.ticket + 1", "worker.ticket"),
    "batch orders ignored": Fault(ActionProcessor, "release", "view.num_computing += 1", "pass"),
    "cancelled work counted": Fault(ActionProcessor, "cancel", "self.view.num_computing -= 1", "pass"),
    "discarded push kept": Fault(ActionProcessor, "discard", "pop(push.id, None)", "get(push.id, None)"),
    "kept samples lost": Fault(ActionProcessor, "_complete_for_own_half", "view.samples += kept", "pass"),
    "leaver still active": Fault(EngineMembership, "_remove", "view.num_active -= 1", "pass"),
    "leaver's clock kept": Fault(EngineMembership, "_remove", "view.leave_clock(worker)", "pass"),
    "hand-over with work under way": Fault(Drain, "next_actions", "or view.num_under_way", "or False"),
    "buffer not emptied": Fault(Drain, "next_actions", "if view.pending else []", "if False else []"),
    "samples forgotten late": Fault(
        WorkerLoop, "_reset_statistics", "self._steps = self._samples = 0", "self._steps = 0"
    ),
    "slowest clock not followed": Fault(ClusterView, "leave_clock", "self._raise_min_clock()", "pass"),
    "rise of the slowest clock untold": Fault(
        ClusterView, "_raise_min_clock", "self.min_clock_rose = True", "pass"
    ),
}

#: in engine and parts, without a look at the invariants; the fuzzer once missed all but the first three
UNKNOWN = {
    "a newcomer begins at clock 0": Fault(
        ClusterView, "enter_clock", "worker.clock = self.min_clock", "worker.clock = 0"
    ),
    "a leaver's pushes counted twice": Fault(
        *(EngineMembership, "_remove", "view.num_active -= 1"),
        "view.num_active -= 1; view.samples += sum(p.samples for p in view.pending.values() "
        "if p.worker == worker.id)",
    ),
    "elastic_bsp waits for a leaver": Fault(
        ElasticBSP, "on_leave", "self._remaining.pop(str(worker), None)", "pass"
    ),
    "staleness from the version that the worker holds now": Fault(
        *(_ByStaleness, "on_commit", "view.version - push.base_version"),
        "view.version - view.workers[push.worker].base_version",
    ),
    "staleness counts the push's own version": Fault(
        *(_ByStaleness, "on_commit", "view.version - push.base_version"),
        "view.version + 1 - push.base_version",
    ),
    "k_asp does not release when a leave completes k": Fault(
        KASP, "on_leave", "return self._commit(view)", "return self._commit(view)[:1]"
    ),
    "a timer of an old composition is taken": Fault(
        Engine, "_timer", "timer.composition_id == self._processor.composition_id", "True"
    ),
    "dssp grants one step too many": Fault(DSSP, "_may_go_on", "left - 1", "left"),
    "a dropped worker is readmitted twice": Fault(
        EngineMembership, "_readmit", "if not self._view.workers[readmit.worker].dropped", "if False"
    ),
    "one that rejoins goes although its push waits": Fault(
        Grace, "on_join", 'hold_if_pending(worker, view, "grace period")', "[Release(worker)]"
    ),
    "one that rejoins is not sent a whole model": Fault(
        EngineMembership, "_add", "self._processor.needs_full_model.add(worker)", "pass"
    ),
    "selsync waits for a leaver's vote": Fault(SelSync, "on_leave", "return self._answer(view)", "return []"),
    "selsync counts a leaver's vote": Fault(
        SelSync, "on_leave", "self._flags.pop(str(worker), None)", "pass"
    ),
    "the version of the hand-over is lost on load": Fault(
        ActionProcessor, "load_state_dict", 'self.handed_over = state["handed_over"]', "pass"
    ),
    "the number of hand-overs is lost on load": Fault(
        ActionProcessor, "load_state_dict", 'self.composition_id = state["composition_id"]', "pass"
    ),
    "the rate's share is of the active workers": Fault(
        ActionProcessor, "apply", "count / view.num_workers", "count / view.num_active"
    ),
    "the model's share is of all workers": Fault(
        model_average, "_share_of_all", "len(pushes) / view.num_active", "len(pushes) / view.num_workers"
    ),
    "a leaver's push counts for nothing": Fault(
        *(Mean, "on_commit", "sample_shares(pushes)"),
        "[s * (view.workers[p.worker].status != 4) for s, p in zip(sample_shares(pushes), pushes)]",
    ),
    "shares take the first batch for all": Fault(
        mean, "sample_shares", "push.samples / samples", "pushes[0].samples / samples"
    ),
    "who is to be sent a whole model is lost on load": Fault(
        ActionProcessor, "load_state_dict", 'self.needs_full_model = set(state["needs_full_model"])', "pass"
    ),
    "a drain that is loaded ends the work under way once more": Fault(
        *(Drain, "of_state", 'drain.parked, drain._swept = set(state["parked"]), state["swept"]'),
        'drain.parked = set(state["parked"])',
    ),
    "a lost worker's vote counts towards a switch": Fault(
        EngineMembership,
        "_remove",
        "worker.status, worker.voted_samples = Status.GONE, 0",
        "worker.status = Status.GONE",
    ),
    "a timer of an earlier round ends the grace": Fault(
        Quorum, "on_timer", 'key == f"{GRACE} {view.version}"', "key.startswith(GRACE)"
    ),
    "who leads by the bound stays held when the slowest leaves": Fault(
        ClockBound, "on_leave", "self._within(w, view)", "view.clock_lead(w) < self.bound"
    ),
    "the grace of a quorum is of the longest push": Fault(
        Quorum, "on_push", 'push.stats["compute_s"] / push.steps', 'push.stats["compute_s"]'
    ),
    "the batch after a hand-over is the one before": Fault(
        EngineMembership, "restart_all", "worker.batch_size = self._first_batch(worker.id)", "pass"
    ),
}

#: in what is computed: schedules show these only if they carry vectors
COMPUTED = {
    "diloco does not look ahead": Fault(Outer, "update", "nesterov=is_nesterov", "nesterov=False"),
    "slowmo's momentum is not at the workers' rate": Fault(
        BlockMomentum, "update", "alpha=step.lr * beta", "alpha=beta"
    ),
    "delayed nesterov never begins its total anew": Fault(DelayedNesterov, "update", "total.zero_()", "pass"),
    "the mean of a stage forgets its first push": Fault(
        DynSGDVersioned, "update", "change if before is None else before + change", "change"
    ),
    "fedbuff's mean is of the rate 1": Fault(FedBuff, "update", ", alpha=self.outer_lr", ""),
    "the median of an even number is its upper one": Fault(Median, "centre", "if count % 2:", "if True:"),
    "a stale gradient is corrected towards its base": Fault(
        DelayCompensated, "update", "(x - push.base)", "(push.base - x)"
    ),
    "a worker goes less far than its centre": Fault(Elastic, "begin", " / (1.0 - self.elastic_rate)", ""),
    "an exchange does not keep the sum": Fault(
        MovesToMean, "update", "mean.add(x, alpha=keep)", "mean.add(x, alpha=0.99 * keep)"
    ),
    "half of what power_sgd leaves out is lost": Fault(
        *(PowerSGD, "left_out", "each.of(mine) - each.of(total.vector)"),
        "0.5 * (each.of(mine) - each.of(total.vector))",
    ),
    "1-bit adam owes momentum and not gradients": Fault(OneBitAdam, "left_out", " / (1.0 - self.beta1)", ""),
    "what is owed is dropped at a switch": Fault(
        *(Compression, "__init__", "_pending_residuals = residuals", "_pending_residuals = {}")
    ),
    "what was owed before a switch is pushed twice": Fault(
        Compression, "push", "_pending_residuals.pop(worker, None)", "_pending_residuals.get(worker)"
    ),
    "a residual is pushed twice": Fault(Channel, "send", "before + vector", "2 * before + vector"),
    "a residual outlives its worker": Fault(
        Compression, "leave", "self._workers.pop(worker, None)", "self._workers.get(worker)"
    ),
    "what is owed outlives its worker": Fault(
        Compression, "leave", "self._pending_residuals.pop(worker, None)", "pass"
    ),
    "what gradients are owed is added to models": Fault(
        Strategy,
        "forgets_residual",
        "return (a.payload, a.carries)",
        "return before.leaves_residuals and (a.payload, a.carries)",
    ),
    "a void push takes its residual along": Fault(WorkerCodecs, "checkpoint", "if waits:", "if True:"),
    "a residual is left behind where entries move": Fault(
        WorkerCodecs, "repartitioned", "residual is not None", "False"
    ),
    "the servers' residual is left behind where entries move": Fault(
        Compression, "repartition", "residual is not None", "False"
    ),
    "an aggregate is encoded anew for each worker": Fault(
        ServerCodecState, "encode_aggregate", "self._aggregate is None", "True"
    ),
    "gradients under way are lost with the answer": Fault(
        OSP, "begin", "model if unpushed is None else model - own.lr * unpushed", "model"
    ),
}

FAULTS = KNOWN | UNKNOWN | COMPUTED

_DROPS = {
    "consistency": "ssp",
    "stragglers": {
        **{"name": "drop_stragglers", "window": 1, "patience": 1, "most": 0.7, "readmit_after_s": 2.0}
    },
}
_GRACE = {"consistency": {"name": "grace", "grace_s": 1.0}}
_SOON = {"name": "after", "fraction": 0.02, "whole_epochs": False}
_FEEDBACK = {"name": "top_k", "ratio": 0.4, "error_feedback": True}
_OWED = {"consistency": "asp", "communication": {"name": "every_step", "codec": _FEEDBACK}}
_ANSWERED = {
    "consistency": "bsp",
    "aggregation": {"name": "exchange", "aggregate": "gradient"},
    "communication": {"name": "selsync", "delta": 0.01, "codec_down": _FEEDBACK},
}
_MOVED = {
    **{"name": "parameter_server", "servers": 2},
    "reassignment": {"name": "by_load", "every": 2, "threshold": 1.01},
}
_MODELS = {"consistency": "asp", "communication": "local_sgd", "aggregation": "model_average"}
_SWITCH: dict[str, Any] = {"name": "strategy_switch", "second": "asp", "rule": _SOON}
#: strategies under which a few schedules show a fault; others are shown by any
UNDER: dict[str, Any] = {
    "parts not loaded": "adacomm",
    "vote not counted": "selsync",
    "kept samples lost": "selsync",
    "cancelled work counted": "k_bsp",
    "discarded push kept": "backup_workers",
    "switch never begun": {"first": "ssp", **_SWITCH},
    "hand-over with work under way": "strategy_switch",
    "buffer not emptied": {"first": "k_batch_asp", **_SWITCH},
    "rise of the slowest clock untold": "ssp",
    "a leaver's pushes counted twice": "bsp",
    "elastic_bsp waits for a leaver": {"consistency": {"name": "elastic_bsp", "lookahead": 3}},
    "staleness from the version that the worker holds now": {
        "consistency": {"name": "k_batch_asp", "k": 3},
        "aggregation": "dyn_sgd",
    },
    "staleness counts the push's own version": "dyn_sgd",
    "k_asp does not release when a leave completes k": {"consistency": {"name": "k_asp", "k": 2}},
    "a timer of an old composition is taken": _SWITCH | {"first": _DROPS, "second": _DROPS},
    "dssp grants one step too many": {"consistency": {"name": "dssp", "lower": 0, "upper": 4}},
    "a dropped worker is readmitted twice": _DROPS,
    "one that rejoins goes although its push waits": _GRACE,
    "one that rejoins is not sent a whole model": {
        "consistency": "ssp",
        "communication": {"name": "every_step", "codec_down": "one_bit"},
    },
    "selsync waits for a leaver's vote": {"name": "selsync", "delta": 5.0},
    "selsync counts a leaver's vote": {"name": "selsync", "delta": 0.5, "window": 2, "smoothing": 0.5},
    "the version of the hand-over is lost on load": {
        **{"first": "ssp", **_SWITCH, "momentum": "ramped_additive", "ramp_updates": 8}
    },
    "the number of hand-overs is lost on load": _SWITCH | {"first": "ssp", "second": _GRACE},
    "the rate's share is of the active workers": "ssp",
    "the model's share is of all workers": {
        **{"consistency": "asp", "aggregation": "model_average", "communication": "local_sgd"}
    },
    "a leaver's push counts for nothing": "bsp",
    "shares take the first batch for all": "bsp",
    "diloco does not look ahead": "diloco",
    "slowmo's momentum is not at the workers' rate": "slowmo",
    "delayed nesterov never begins its total anew": "async_local_sgd",
    "the mean of a stage forgets its first push": {"consistency": "ssp", "aggregation": "dyn_sgd_versioned"},
    "fedbuff's mean is of the rate 1": {
        "consistency": {"name": "k_batch_asp", "k": 2},
        "communication": "local_sgd",
        "aggregation": {"name": "fedbuff", "outer_lr": 0.5},
    },
    "the median of an even number is its upper one": {"consistency": "bsp", "aggregation": "median"},
    "a stale gradient is corrected towards its base": "dc_asgd",
    "a worker goes less far than its centre": "easgd",
    "an exchange does not keep the sum": "easgd",
    "half of what power_sgd leaves out is lost": {
        **{"name": "power_sgd", "start_iter": 0, "min_compression_rate": 1.0}
    },
    "1-bit adam owes momentum and not gradients": {"name": "one_bit_adam", "freeze_step": 2},
    "what is owed is dropped at a switch": _SWITCH | {"first": _OWED},
    "what was owed before a switch is pushed twice": _SWITCH | {"first": _OWED},
    "a residual is pushed twice": _OWED,
    "a residual outlives its worker": _OWED,
    "what is owed outlives its worker": {
        **{"name": "power_sgd", "start_iter": 0, "min_compression_rate": 1.0}
    },
    "what gradients are owed is added to models": {
        **(_SWITCH | {"first": _OWED, "then": [{"to": _MODELS, "rule": _SOON}]})
    },
    "a void push takes its residual along": _OWED,
    "a residual is left behind where entries move": _OWED | {"placement": _MOVED},
    "the servers' residual is left behind where entries move": _ANSWERED | {"placement": _MOVED},
    "an aggregate is encoded anew for each worker": _ANSWERED,
    "gradients under way are lost with the answer": "osp",
    "who leads by the bound stays held when the slowest leaves": "ssp",
    "who is to be sent a whole model is lost on load": {"consistency": "bsp", "placement": _MOVED},
    "a drain that is loaded ends the work under way once more": {**_SWITCH, "first": "selsync"},
    "a lost worker's vote counts towards a switch": {**_SWITCH, "first": "selsync"},
    "a timer of an earlier round ends the grace": {
        "name": "decoupled_diloco",
        **{"quorum": 2, "asks": False, "grace_s": 2.0, "grace_steps": 3, "local_steps": 4},
    },
    "the grace of a quorum is of the longest push": {
        "name": "decoupled_diloco",
        **{"quorum": 2, "asks": False, "grace_s": 2.0, "grace_steps": 3, "local_steps": 4},
    },
    "the batch after a hand-over is the one before": {
        **_SWITCH,
        "first": {"consistency": "bsp", "stragglers": "lb_bsp"},
    },
}
