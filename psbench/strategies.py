"""The catalogue: published strategies as named compositions of parts, with the published defaults.

Call an entry to get a strategy; its parameters are those of its parts, and a keyword with the name of a
domain replaces that part::

    ssp(staleness_bound=5)
    asp(placement={"name": "parameter_server", "servers": 2})
    strategy_switch(first="all_reduce", second="asp", rule={"name": "empirical", "window": 5})
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from pydantic.fields import FieldInfo

from psbench import aggregation, communication, consistency, placement, stragglers, switching
from psbench.codecs import OneBit
from psbench.core.part import REGISTRY, Part, make_part
from psbench.core.parts import Switching
from psbench.core.strategy import DOMAINS, Strategy
from psbench.core.switching_strategy import AnyStrategy, SwitchingStrategy
from psbench.errors import ParameterError, UnknownName


@dataclass(frozen=True)
class Published:
    """A named composition.

    Parameters
    ----------
    name, summary, source : str
        What it is called, what it does in one line, and where it comes from.
    parts : dict
        The part, or part class, of each domain that differs from a plain parameter server.
    lr_scaling : str
        See `Strategy`.
    defaults : dict
        Parameters whose default differs from that of their part.
    """

    name: str
    summary: str
    source: str
    parts: Mapping[str, type[Part]] = field(default_factory=dict)
    lr_scaling: str = "none"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    notebook: str = ""  #: the tutorial that shows it, if one does

    @property
    def part_classes(self) -> dict[str, type[Part]]:
        """The part class of each domain."""
        return {domain: self.parts.get(domain) or REGISTRY[domain][_PLAIN[domain]] for domain in DOMAINS}

    @property
    def parameters(self) -> dict[str, FieldInfo]:
        """The hyper-parameters by name: those of the composition's parts."""
        fields = (part.model_fields for part in self.part_classes.values())
        return with_defaults({n: info for own in fields for n, info in own.items()}, self.defaults)

    @property
    def __signature__(self) -> inspect.Signature:
        """What a person may type."""
        keyword = inspect.Parameter.KEYWORD_ONLY
        usual = {name: f.get_default(call_default_factory=True) for name, f in self.parameters.items()}
        own = [inspect.Parameter(name, keyword, default=value) for name, value in usual.items()]
        return inspect.Signature([*own, *(inspect.Parameter(d, keyword, default=None) for d in DOMAINS)])

    def __call__(self, **values: Any) -> Strategy:
        """Return the strategy with these parameters.

        Raises
        ------
        UnknownName, ParameterError
        """
        settings: dict[str, Any] = {"name": values.pop("name", self.name)}
        settings["lr_scaling"] = values.pop("lr_scaling", self.lr_scaling)
        replaced = {domain: make_part(domain, values.pop(domain)) for domain in DOMAINS if domain in values}
        for domain, part in self.part_classes.items():
            own = {name: values.pop(name) for name in part.model_fields if name in values}
            if domain in replaced and own:
                raise ParameterError(
                    f"strategy {self.name!r}: give {', '.join(own)} inside {domain}, which you replace"
                )
            usual = {name: value for name, value in self.defaults.items() if name in part.model_fields}
            settings[domain] = replaced.get(domain) or part(**usual | own)
        for unknown in values:
            raise UnknownName(
                f"parameter of strategy {self.name!r}", unknown, [*self.parameters, *DOMAINS, "lr_scaling"]
            )
        return Strategy(**settings)


def with_defaults(fields: dict[str, FieldInfo], defaults: Mapping[str, Any]) -> dict[str, FieldInfo]:
    """Return the fields with other defaults."""
    changed = {name: copy(fields[name]) for name in defaults}
    for name, info in changed.items():
        info.default, info.default_factory = defaults[name], None
    return fields | changed


_PLAIN = {
    "consistency": "asp",
    "aggregation": "mean",
    "communication": "every_step",
    "stragglers": "fixed",
    "placement": "parameter_server",
}


@dataclass(frozen=True)
class PublishedSwitch:
    """A named pair of strategies with a rule; its parameters are those of `SwitchingStrategy`.

    Parameters
    ----------
    rules : tuple of Switching
        A keyword that no switching strategy has is a parameter of the rule: of the first of these that has
        all that are given. Without one, the first is the rule.
    defaults : dict
        Other parameters whose default differs.
    """

    name: str
    summary: str
    source: str
    first: str
    second: str
    rules: tuple[Switching, ...]
    defaults: dict[str, Any] = field(default_factory=dict)
    notebook: str = "03_strategy_switch"

    @property
    def parameters(self) -> dict[str, FieldInfo]:
        """The hyper-parameters by name."""
        own = {n: f for n, f in SwitchingStrategy.model_fields.items() if n != "name"}
        for name, value in self.defaults.items():
            own[name] = copy(own[name])
            own[name].default = value
        return own

    def __call__(self, **values: Any) -> SwitchingStrategy:
        """Return the switching strategy with these parameters.

        Raises
        ------
        UnknownName, ParameterError
        """
        of_rule = {name: values.pop(name) for name in [*values] if name not in SwitchingStrategy.model_fields}
        first, second = (_single(values.pop(key, default)) for key, default in self._pair())
        rule = self._rule(values.pop("rule", None), of_rule)
        settings = {"name": self.name, "first": first, "second": second, "rule": rule}
        return SwitchingStrategy(**settings | self.defaults | values)

    def _rule(self, given: Any, values: dict[str, Any]) -> Any:
        known = [*SwitchingStrategy.model_fields, *(n for r in self.rules for n in type(r).model_fields)]
        for unknown in (name for name in values if name not in known):
            raise UnknownName(f"parameter of strategy {self.name!r}", unknown, dict.fromkeys(known))
        if given is not None and values:
            raise ParameterError(f"strategy {self.name!r}: give {', '.join(values)} inside the rule")
        if given is not None:
            return given
        for rule in self.rules:
            own = type(rule).model_fields
            if values.keys() <= own.keys():
                return type(rule)(**{name: getattr(rule, name) for name in own} | values)
        raise ParameterError(f"strategy {self.name!r}: no rule has all of {', '.join(values)}")

    def _pair(self) -> list[tuple[str, str]]:
        return [("first", self.first), ("second", self.second)]


bsp = Published(
    "bsp",
    "everybody waits for everybody after every step",
    "Valiant 1990; thesis 2.1.2",
    {"consistency": consistency.BSP},
    notebook="02_consistency",
)
asp = Published(
    "asp",
    "nobody waits",
    "thesis eq. 2.3",
    {"consistency": consistency.ASP},
    lr_scaling="by_share",
    notebook="02_consistency",
)
ssp = Published(
    "ssp",
    "a worker may lead the slowest by a bounded number of steps",
    "Ho et al. 2013",
    {"consistency": consistency.SSP},
    lr_scaling="by_share",
    notebook="02_consistency",
)
k_bsp = Published(
    "k_bsp",
    "the first k workers make the version; the others' work is void",
    "Dutta et al. 2018 (K-sync); thesis 3.2.2",
    {"consistency": consistency.KBSP},
    notebook="02_consistency",
)
k_batch_bsp = Published(
    "k_batch_bsp",
    "the first k mini-batches make the version; other work is void",
    "Dutta et al. 2018 (K-batch-sync); thesis 3.2.2",
    {"consistency": consistency.KBatchBSP},
    notebook="02_consistency",
)
backup_workers = Published(
    "backup_workers",
    "a barrier that does without the last few: their gradients are dropped",
    "Chen et al. 2016",
    {"consistency": consistency.BackupWorkers},
)
k_asp = Published(
    "k_asp",
    "k workers make a version, whatever they started from, and wait for it",
    "Dutta et al. 2018 (K-async); thesis 3.2.2",
    {"consistency": consistency.KASP},
    lr_scaling="by_share",
    notebook="02_consistency",
)
k_batch_asp = Published(
    "k_batch_asp",
    "every k pushes make a version; nobody waits",
    "Dutta et al. 2018 (K-batch-async), Lian et al. 2015; thesis 3.2.2",
    {"consistency": consistency.KBatchASP},
    lr_scaling="by_share",
    notebook="02_consistency",
)
dssp = Published(
    "dssp",
    "ssp whose fastest worker is granted more steps where that shortens its wait",
    "Zhao et al. 2019",
    {"consistency": consistency.DSSP},
    lr_scaling="by_share",
)
elastic_bsp = Published(
    "elastic_bsp",
    "barriers where the workers' pushes are predicted to fall together, and asp in between",
    "Zhao et al. 2019; ZipLine 2021",
    {"consistency": consistency.ElasticBSP},
    lr_scaling="by_share",
)
n_softsync = Published(
    "n_softsync",
    "about n versions while every worker pushes once; stale pushes count for less",
    "Gupta et al. 2016; Zhang et al. 2016; thesis 3.2.2",
    {"consistency": consistency.NSoftsync, "aggregation": aggregation.StalenessWeighted},
)
con_sgd = Published(
    "con_sgd",
    "ssp in which every push moves the model by its n-th part",
    "Jiang et al. 2017",
    {"consistency": consistency.SSP},
    lr_scaling="by_share",
)
dyn_sgd = Published(
    "dyn_sgd",
    "ssp in which a push is divided by its staleness",
    "Jiang et al. 2017",
    {"consistency": consistency.SSP, "aggregation": aggregation.DynSGD},
)
dbs_sgd = Published(
    "dbs_sgd",
    "asp in which every worker's batch follows its speed",
    "DBS-SGD, AEJ 2022",
    {"consistency": consistency.ASP, "stragglers": stragglers.DBS},
    lr_scaling="by_share",
    notebook="10_batch_sizes",
)
lb_bsp = Published(
    "lb_bsp",
    "bsp whose global batch is cut anew at every barrier, in proportion to speed",
    "Chen et al. 2018, 2020",
    {"consistency": consistency.BSP, "stragglers": stragglers.LBBSP},
    notebook="10_batch_sizes",
)
osp = Published(
    "osp",
    "bsp whose workers step on by themselves while their gradients are on the way",
    "Wang, Guo, Li 2019",
    {
        "consistency": consistency.BSP,
        "aggregation": aggregation.Accumulated,
        "communication": communication.OSP,
    },
)
bounded_step = Published(
    "bounded_step",
    "asp in which a push counts for less the further the model has moved meanwhile",
    "Dutta et al. 2018; thesis 3.2.2",
    {"consistency": consistency.ASP, "aggregation": aggregation.BoundedStep},
    lr_scaling="by_share",
)
early_epoch_stop = Published(
    "early_epoch_stop",
    "asp that meets at the end of every epoch, which is when most workers have done their share",
    "Chilimbi et al. 2014, Project Adam; thesis 3.2.5",
    {"consistency": consistency.EarlyEpochStop},
    lr_scaling="by_share",
)
drop_stragglers = Published(
    "drop_stragglers",
    "bsp that does without workers which are much slower than the others",
    "Zhang et al. 2017, Poseidon; thesis 3.2.5",
    {"consistency": consistency.BSP, "stragglers": stragglers.DropStragglers},
)
flex_rr = Published(
    "flex_rr",
    "bsp in which a worker that lags hands part of its batch to one that is ahead",
    "Harlap et al. 2016, FlexRR; thesis 3.2.5",
    {
        "consistency": consistency.BSP,
        "communication": communication.MicroSteps,
        "stragglers": stragglers.FlexRR,
    },
    notebook="10_batch_sizes",
)
hermes = Published(
    "hermes",
    "asp whose workers push only what has clearly helped, and get as much data as they have time for",
    "Basani et al., Hermes",
    {
        "consistency": consistency.ASP,
        "aggregation": aggregation.LossWeighted,
        "communication": communication.HermesGUP,
        "stragglers": stragglers.DualBinarySearch,
    },
    notebook="09_edge",
)
local_sgd = Published(
    "local_sgd",
    "every worker takes several steps by itself, then all models are averaged (PASGD)",
    "Wang and Joshi 2019, AdaComm, eq. 1",
    {
        "consistency": consistency.BSP,
        "aggregation": aggregation.ModelAverage,
        "communication": communication.LocalSGD,
    },
    notebook="08_local_updates",
)
adacomm = Published(
    "adacomm",
    "local_sgd that averages more often as the training loss falls",
    "Wang and Joshi 2019, AdaComm",
    {
        "consistency": consistency.BSP,
        "aggregation": aggregation.BlockMomentum,
        "communication": communication.AdaComm,
    },
    defaults={"block_momentum": 0.0},
    notebook="08_local_updates",
)
selsync = Published(
    "selsync",
    "workers step by themselves until the gradients of one of them change; then all are averaged",
    "Tyagi and Swany 2023",
    {
        "consistency": consistency.BSP,
        "aggregation": aggregation.Exchange,
        "communication": communication.SelSync,
    },
    notebook="08_local_updates",
)
all_reduce = Published(
    "all_reduce",
    "no server: workers add up their gradients in a ring",
    "Patarasuk and Yuan 2009; thesis 2.1.2",
    {"consistency": consistency.BSP, "placement": placement.AllReduce},
    notebook="03_strategy_switch",
)
map_reduce = Published(
    "map_reduce",
    "a driver starts a job for every mini-batch: map over the partitions, then reduce",
    "Spark MLlib; thesis ch. 2",
    {"consistency": consistency.BSP, "placement": placement.MapReduce},
    notebook="12_mapreduce_vs_ps",
)
#: Both directions with memory: what a worker's push loses is part of its next push, and what one difference
#: of the model loses on the way down is part of the next. The paper's server sends Q(v), v = mean + E; here
#: the server keeps the exact model, and what the workers hold differs from it by the paper's lr E. Which is
#: the same for a constant rate, but evaluated is the server's model. Our choice: 64 entries share two means
#: (1-bit SGD has two for every column of a matrix), since two for a whole model and momentum do not learn.
double_squeeze = Published(
    "double_squeeze",
    "bsp in one bit an entry, up and down; what is lost is part of what is sent next",
    "Tang et al. 2019",
    {"consistency": consistency.BSP},
    defaults={
        "codec": OneBit(bucket=64, error_feedback=True),
        "codec_down": OneBit(bucket=64, error_feedback=True),
    },
    notebook="11_compression",
)
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

CATALOGUE: dict[str, Published | PublishedSwitch] = {
    entry.name: entry
    for entry in (
        *(bsp, asp, ssp, k_bsp, k_batch_bsp, backup_workers, k_asp, k_batch_asp),
        *(dssp, elastic_bsp, n_softsync, con_sgd, dyn_sgd),
        *(bounded_step, osp, early_epoch_stop),
        *(dbs_sgd, lb_bsp, drop_stragglers, flex_rr),
        *(local_sgd, adacomm, selsync),
        *(hermes, double_squeeze),
        *(all_reduce, map_reduce, strategy_switch, sync_switch),
    )
}


def make_strategy(value: Any) -> AnyStrategy:
    """Return a strategy from a strategy, a catalogue name, or a mapping.

    A mapping with the `name` of a catalogue entry refines it; with any other name, or none, it must give
    at least `consistency` and composes a strategy of its own.

    Raises
    ------
    UnknownName, ParameterError
    """
    if isinstance(value, (Strategy, SwitchingStrategy)):
        return value
    if isinstance(value, (Published, PublishedSwitch)):
        return value()
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping):
        raise ParameterError(f"strategy: expected a name or a mapping, got {value!r}")
    values = dict(value)
    name = values.get("name")
    if name in CATALOGUE:
        values.pop("name")
        return CATALOGUE[name](**values)
    if "consistency" in values:
        for unknown in values.keys() - Strategy.model_fields.keys():
            raise UnknownName("part of a strategy", unknown, Strategy.model_fields)
        return Strategy(**values)
    if "first" in values and "second" in values:  # a switch that was given a name of its own
        return strategy_switch(**values)
    if name is None:
        raise ParameterError("strategy: give a name of the catalogue, or compose one: at least `consistency`")
    raise UnknownName("strategy", str(name), CATALOGUE)


def _single(value: Any) -> Strategy:
    strategy = make_strategy(value)
    if not isinstance(strategy, Strategy):
        raise ParameterError("strategy_switch: its first and second strategy cannot themselves switch")
    return strategy


# imported so that their parts are registered
_ = (aggregation, communication, stragglers)
