"""The whole specification of a run, validated; YAML in and out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_validator

from psbench.backend import backend_names, backend_of
from psbench.clusters import Cluster, Custom, make_cluster
from psbench.clusters.connection import ConnectionSettings
from psbench.clusters.recovery import Recovery
from psbench.clusters.scheduler import check_address
from psbench.core.collective import Collective, servers_that_add
from psbench.core.part import make_part
from psbench.core.parts import Switching
from psbench.core.peer_to_peer import unfit_without_server
from psbench.core.plateau import PlateauRule
from psbench.core.specification import Specification, parameter
from psbench.core.stop import Stop
from psbench.core.strategy import MEASURES, STATISTICS, Strategy
from psbench.core.switching_strategy import AnyStrategy, SwitchingStrategy
from psbench.core.target import Target
from psbench.data import DataSource, as_data
from psbench.errors import DoubtfulComposition, ParameterError, UnknownName, in_short, naming
from psbench.models import Model, as_model
from psbench.optimization import direction, layerwise, muon, suitability  # noqa: F401  (their optimizers have names)
from psbench.optimization.losses import Loss
from psbench.optimization.optimizer import SGD, Optimizer
from psbench.optimization.own_functions import as_loss, as_metrics
from psbench.optimization.schedule import Plateau
from psbench.optimization.scores import Metric
from psbench.optimization.torch_optimizer import as_optimizer
from psbench.sharding import Sharding, as_sharding
from psbench.specfile import dump_yaml, read_yaml, set_path
from psbench.strategies import later_switches, make_strategy
from psbench.system.files import write_text

#: settings of a live cluster, which a simulated run does not read
LIVE = ("recovery", "connection")
#: The published 1 % does not fire in 20 epochs of this experiment (0 of 5 seeds): the loss of 360 validation
#: images changes by 3 to 6 % an epoch when it has settled. This rule fires in all five, after 12 to 18; with
#: 40 epochs in all the model recovers from the change.
_STRATEGY = {"name": "strategy_switch", "rule": "noise_adaptive"}
_EPOCHS = 40

#: by field, what makes its value of what a user gives
_MAKERS: dict[str, Callable[[Any], Any]] = {
    "model": as_model,
    "loss": lambda value: None if value is None else as_loss(value),
    "metrics": lambda value: as_metrics({} if value is None else value),
    "sharding": as_sharding,
    "optimizer": lambda value: None if value is None else as_optimizer(value),
    "inner_optimizer": lambda value: None if value is None else as_optimizer(value),
    "cluster": make_cluster,
    "strategy": make_strategy,
}
#: by field, the settings that a mapping gives, and how a message describes it
_MAPPINGS: dict[str, tuple[type[Specification], str]] = {
    "stop": (Stop, "such as {epochs: 20}"),
    "recovery": (Recovery, f"of {', '.join(Recovery.model_fields)}"),
    "connection": (ConnectionSettings, f"of {', '.join(ConnectionSettings.model_fields)}"),
}


class Experiment(Specification):
    """Everything that determines a run.

    Parameters
    ----------
    name : str
        What tables call the run; the strategy's name if empty.
    data, model, cluster, sharding, optimizer : Part
        A part, its name, or a mapping with its name and parameters. A cluster may also be a mapping of its
        own: `{workers: 4, speed: [1, 1, 1, 0.5]}`. A model may also be a torch module, whose weights are the
        start and which is copied; a class of modules; or a function that builds one. Data may also be (X, y)
        and other objects, or a list with one data set for each worker: see `psbench.data`. A sharding may
        also be a function.
    inner_optimizer : Optimizer or None
        That of workers which step by themselves, as those of `local_sgd` and `diloco`, where it is another
        than the servers' `optimizer`; its `clip` is that of all gradients.
    strategy : Strategy
        A strategy, a name of the catalogue, or a mapping that refines or composes one.
    loss : Loss or None
        What is minimised: a name such as `huber`, or a function (outputs, targets) -> mean over the batch, as
        a tensor of one number. None: cross-entropy for classes and tokens, the squared error for numbers.
        A function that broadcasts outputs and targets to a table is refused, also if the model's outputs are
        tensors in tuples, lists or dictionaries; outputs that are other objects are not checked.
    metrics : mapping of str to Metric
        What is measured on the validation set beside loss and accuracy: functions (outputs, targets) ->
        number, called with all of it at once, or names; a list for those that go by their own names. Which
        way is better is said by `{"function": f1, "better": "higher"}`, whose function may be a path.
    batch_size : int, samples
        Global: a worker begins with its share B/n, by largest remainder.
    stop : Stop
    seed : int
    backend : "simulated", "dask", or one that another package adds (`psbench.backend`)
    scheduler : str or None
        Address of a running Dask scheduler; without one the dask backend starts a local cluster.
    evaluate_every : float, epochs
    checkpoint_every : float or None, epochs
        Checkpoints are written at switches and, if set, this often. They need an output folder, and a run
        can go on from one (`psbench.resume`).
    connection : ConnectionSettings
        How the scheduler is reached, and what the run uses of its cluster.
    recovery : Recovery
        What happens when Dask workers are lost or missing, and how many checkpoints are kept.
    timing_only : bool
        Decide and time, but compute no gradient (simulated only): for studies of thousands of workers. The
        default strategy is All-Reduce then, as no switch rule reads what is not evaluated.
    threads : int
        Torch threads of each worker. Results may differ in the last bit between numbers of threads.
    processes : int or "auto"
        Processes of this machine that compute the steps of a simulated run; the results are the same bits
        however many they are. With "auto" a run takes one core until it has shown that its steps are worth
        more, then as many as there are; a run inside a pool of processes takes one.
    device : "cpu", "cuda" or "auto"
        Where gradients are computed; "auto" is a GPU where there is one. Only on "cpu" do equal runs give
        equal bits for certain.

    precision : "bf16", "fp16" or None
        With "bf16" or "fp16" forward and backward compute in 16 bits where torch's autocast does.
        Parameters, gradients, what is sent and what servers hold stay 32-bit floats. Under "fp16" the loss is
        scaled, so that small gradients do not become 0; see `psbench.training.loss_scaling`.

    Raises
    ------
    SpecError
        On anything that cannot work, before any work starts.

    Examples
    --------
    >>> Experiment(strategy="ssp", cluster={"workers": 4}).num_workers
    4
    """

    name: str = ""
    data: DataSource = Field(default_factory=lambda: _part("data", "digits"))
    model: Model = Field(default_factory=lambda: _part("model", "mlp"))
    cluster: Cluster = Field(default_factory=lambda: make_cluster("c2"))
    sharding: Sharding = Field(default_factory=lambda: _part("sharding", "stratified"))
    strategy: Any = Field(default_factory=lambda: make_strategy(_STRATEGY))
    optimizer: Optimizer = Field(default_factory=lambda: _usual_optimizer())
    # the log counts samples in 31 bits
    inner_optimizer: Optimizer | None = Field(
        None, description="optimizer of workers with local steps; none: `optimizer`"
    )
    batch_size: int = parameter(
        128, "samples per update over all workers", unit="samples", gt=0, le=2**31 - 1
    )
    stop: Stop = Field(default_factory=lambda: Stop(epochs=_EPOCHS))
    seed: int = parameter(0, "root of every random stream", ge=0)
    backend: str = parameter("simulated", "backend that executes the run", choices=backend_names())
    scheduler: str | None = parameter(None, "address of a running Dask scheduler, as tcp://host:8786")
    evaluate_every: float = parameter(1.0, "epochs between evaluations", unit="epochs", ge=1e-4)
    checkpoint_every: float | None = parameter(None, "epochs between checkpoints", unit="epochs", ge=1e-4)
    connection: ConnectionSettings = Field(default_factory=ConnectionSettings)
    recovery: Recovery = Field(default_factory=Recovery)
    timing_only: bool = parameter(False, "simulate the timing only, without gradients")
    loss: Loss | None = Field(None, description="the minimised loss; by default the task's usual one")
    metrics: dict[str, Metric] = Field(
        default_factory=dict, description="metrics of the validation set besides loss and accuracy"
    )
    device: Literal["auto", "cpu", "cuda"] = parameter("cpu", "where gradients are computed")
    precision: Literal["bf16", "fp16"] | None = parameter(
        None, "precision of the forward pass, if not float32"
    )
    threads: int = parameter(1, "torch threads of each worker", ge=1, le=256)
    processes: Literal["auto"] | Annotated[int, Field(ge=1, le=256)] = parameter(
        "auto", "processes that compute the steps of a simulated run"
    )

    def __init__(self, **values: Any) -> None:
        if "data" in values:
            values["data"] = as_data(values["data"])
            if values["data"].num_shards is not None:
                values.setdefault("sharding", "given")
        switch_at_s = values.pop("switch_at_s", None)
        if switch_at_s is not None:
            values["strategy"] = _switched_at(values.get("strategy", _STRATEGY), switch_at_s)
        for name in [name for name in values if name not in type(self).model_fields]:
            if within := _section_of(name):
                raise ParameterError(
                    f"{name}: is a field of {within}; give {within}={{..., {name!r}: {values[name]!r:.40}}}"
                )
        super().__init__(**values)
        for composition in self.strategy.compositions:
            if doubt := suitability.doubt_of_optimizer(composition, self.optimizer.name, self.optimizer.lr):
                warnings.warn(f"strategy {composition.name!r}: {doubt}", DoubtfulComposition, stacklevel=2)
        for name in ("optimizer", "inner_optimizer"):
            if doubt := suitability.doubt_of_schedule(getattr(self, name), self.stop.epochs):
                warnings.warn(f"{name}.schedule: {doubt}", DoubtfulComposition, stacklevel=2)

    @field_validator(*_MAKERS, mode="before")
    @classmethod
    def _from_given(cls, value: Any, info: ValidationInfo) -> Any:
        return _MAKERS[str(info.field_name)](value)

    @field_validator(*_MAPPINGS, mode="before")
    @classmethod
    def _settings(cls, value: Any, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        kind, example = _MAPPINGS[name]
        if isinstance(value, kind):
            return value
        if not isinstance(value, Mapping):
            raise ParameterError(f"{name}: expected a mapping {example}, got {in_short(value)}")
        return kind(**value)

    @field_validator("scheduler")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None:
            check_address(value)
        return value

    @model_validator(mode="after")
    def _needs_no_values_to_take_time(self) -> Self:
        """Give a timing-only run the first strategy of the default, whose rule reads validation values."""
        if self.timing_only and "strategy" not in self.model_fields_set:
            self.__dict__["strategy"] = self.strategy.compositions[0]
        return self

    @model_validator(mode="after")
    def _has_a_usual_rate(self) -> Self:
        """Set the usual learning rate of a strategy with local steps, unless one was given."""
        usual = {each.aggregation.usual_lr for each in self.strategy.compositions}
        if "optimizer" not in self.model_fields_set and len(usual) == 1 and all(usual):
            self.__dict__["optimizer"] = self.optimizer.model_copy(update={"lr": usual.pop()})
        return self

    @model_validator(mode="after")
    def _fits(self) -> Self:
        workers = self.num_workers
        if self.batch_size < workers:
            raise ParameterError(
                f"batch_size: {self.batch_size} samples cannot be shared by {workers} workers; "
                f"give at least {workers}"
            )
        self.strategy.check(workers, self.batch_size)
        backend_of(self.backend).check(self)
        for rule in self.rules:
            if rule.needs_epochs and self.stop.epochs is None:
                raise ParameterError(
                    f"switch rule {rule.name!r} needs to know the number of epochs: set stop.epochs, "
                    "or use the rule 'empirical'"
                )
        self.sharding.check_data(self.data.name, self.data.num_shards, workers)
        suitability.check_reduced_momentum(self.strategy, self.optimizer)
        for composition in self.strategy.compositions:
            if self.sharding.ordered and composition.selection.chooses:
                raise ParameterError(
                    f"sharding {self.sharding.name!r} keeps a worker's samples in order, but selection "
                    f"{composition.selection.name!r} changes the order; use another sharding, "
                    "or selection 'reshuffle'"
                )
            placement = composition.placement
            adding = servers_that_add(placement)
            if adding or not isinstance(placement, Collective):
                self.cluster.profile().server_links(adding or placement.num_servers)
            if unknown := composition.unknown_statistics:
                raise ParameterError(
                    f"strategy {composition.name!r}: its parts require {', '.join(unknown)}, but the "
                    f"statistics of a step are {', '.join(STATISTICS)}, and the measures are "
                    f"{', '.join(MEASURES)}"
                )
            if unfit := unfit_without_server(
                composition,
                tolerance=self.stop.tolerance is not None,
                corruptions=bool(self.cluster.corruptions),
            ):
                raise ParameterError(f"{unfit} (strategy {composition.name!r})")
        if self.stop.target is not None:
            self.check_target(self.stop.target, "stop.target")
        watched = self.stop.patience_metric
        if watched is not None:
            self.is_lower_better(self.stop.watched, "stop.patience_metric")
        self._has_fitting_optimizers()
        if self.timing_only:
            self._can_do_without_gradients()
        return self

    def _has_fitting_optimizers(self) -> None:
        strategy, inner = self.strategy, self.inner_optimizer
        suitability.check_optimizers(strategy, self.optimizer, inner, _usual_optimizer())
        comes_or_goes = {
            "cluster.failures": self.cluster.failures,
            "cluster.joins": self.cluster.joins,
            "recovery.replace_workers": self.recovery.replace_workers,
            "recovery.min_workers": self.recovery.min_workers,
            "rule.policy": any(rule.drops for rule in self.rules),
        }
        suitability.check_shares(
            strategy, self.optimizer, [name for name, has in comes_or_goes.items() if has]
        )
        suitability.check_inner_schedule(inner)
        if self.plateau is not None:
            suitability.check_plateau(strategy, self.evaluate_every, self.stop.epochs, self.timing_only)

    @property
    def has_scheduler(self) -> bool:
        """Return True if the scheduler of a running Dask cluster is given, whose machines may be remote."""
        return self.scheduler is not None or self.connection.scheduler_file is not None

    @property
    def plateau(self) -> PlateauRule | None:
        """A new rule of the servers' rate, if the rate depends on evaluations."""
        schedule = self.optimizer.schedule
        if not isinstance(schedule, Plateau):
            return None
        return schedule.rule(self.is_lower_better(schedule.metric, "optimizer.schedule.metric"))

    @property
    def worker_optimizer(self) -> Optimizer:
        """The optimizer of workers that step by themselves; its `clip` applies to every worker's gradient."""
        return self.inner_optimizer or self.optimizer

    def check_target(self, target: Target, asked_by: str) -> None:
        """Reject a target without a metric, or in the wrong direction.

        Raises
        ------
        UnknownName, ParameterError
            Naming `asked_by`.
        """
        direction.check_target(target, self.metrics, asked_by)

    def is_lower_better(self, metric: str, asked_by: str) -> bool:
        """Return whether lower values of a metric are better.

        Parameters
        ----------
        metric : str
            As `loss`, `val_loss`, `train_loss` or `f1`.
        asked_by : str
            What errors name, as "stop.patience_metric".

        Raises
        ------
        UnknownName
            If it is not evaluated.
        ParameterError
            If the metric does not say so.
        """
        return direction.is_lower_better(metric, self.metrics, asked_by)

    @property
    def metric_columns(self) -> list[str]:
        """Names of the evaluated values of the metrics besides loss and accuracy."""
        return [metric.column(name) for name, metric in self.metrics.items()]

    @property
    def patience_is_for_less(self) -> bool:
        """Return True if the metric of `stop.patience` improves as it falls."""
        return self.is_lower_better(self.stop.watched, "stop.patience_metric")

    def _can_do_without_gradients(self) -> None:
        if reader := self.reads_validation:
            raise ParameterError(f"timing_only: nothing is evaluated, but {reader} needs validation values")
        if self.stop.target is not None:
            raise ParameterError("timing_only: nothing is evaluated, but stop.target needs values")
        if self.stop.tolerance is not None:
            raise ParameterError("timing_only: there is no model, but stop.tolerance measures its change")
        for composition in self.strategy.compositions:
            if part := composition.needs_gradients:
                raise ParameterError(
                    f"timing_only: {part!r} of strategy {composition.name!r} decides by losses or gradients, "
                    "which are not computed"
                )

    @property
    def rules(self) -> tuple[Switching, ...]:
        """The rules that change the strategy, in order; empty if it never changes."""
        return self.strategy.rules if isinstance(self.strategy, SwitchingStrategy) else ()

    @property
    def reads_validation(self) -> str:
        """Description of a setting that needs validation data; empty if none does."""
        for rule in self.rules:
            if rule.needs_validation:
                return f"switch rule {rule.name!r}"
        for composition in self.strategy.compositions:
            if composition.reads_validation:
                return f"strategy {composition.name!r}"
        plateau = self.plateau
        if plateau is not None and plateau.column.startswith("val_"):
            return "optimizer.schedule"
        return self.stop.reads_validation

    @property
    def reads_accuracy(self) -> str:
        """Description of a setting that needs an accuracy; empty if none does."""
        plateau = self.plateau
        if plateau is not None and plateau.column.endswith("_accuracy"):
            return "optimizer.schedule"
        return self.stop.reads_accuracy

    @property
    def num_workers(self) -> int:
        """Workers of the cluster."""
        return self.cluster.num_workers

    @property
    def title(self) -> str:
        """The name, or the strategy's."""
        return self.name or str(self.strategy.name)

    def spec(self) -> dict[str, Any]:
        """Return plain data from which an equal experiment can be made."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        # metrics that were not set are left out, as everything else
        return {name: _plain(value) for name, value in values.items() if value is not None and value != {}}

    def but(self, **changes: Any) -> Experiment:
        """Return the experiment with some fields changed."""
        return Experiment(**{name: getattr(self, name) for name in type(self).model_fields} | changes)

    def to_yaml(self, path: str | Path | None = None) -> str:
        """Return the specification as YAML, and write it to `path` if given, whole or not at all.

        Raises
        ------
        SpecError
            If it cannot be written there.
        """
        text = dump_yaml(self.spec())
        if path is not None:
            write_text(Path(path), text)
        return text

    @classmethod
    def from_yaml(cls, source: str | Path, settings: Mapping[str, Any] | None = None) -> Experiment:
        """Read a specification file.

        Parameters
        ----------
        source : path
        settings : mapping of dotted path to value
            Changes to make first, as `{"strategy.staleness_bound": 5}`.

        Raises
        ------
        SpecError
            If the file cannot be read, is not YAML, or specifies something that cannot be.
        """
        with naming(str(source)):
            return cls.from_spec(read_yaml(Path(source)), settings, where=str(source))

    @classmethod
    def from_spec(
        cls, spec: Mapping[str, Any], settings: Mapping[str, Any] | None = None, where: str = "experiment"
    ) -> Experiment:
        """Create an experiment from plain data, with some values replaced by dotted path.

        A path below a field that `spec` does not give changes the default; its `name` replaces the default,
        whose other parameters are not the new one's. `cluster.workers` alone means a custom cluster.
        """
        values, settings = dict(spec), settings or {}
        if values.get("cluster") is None and "cluster.workers" in settings and "cluster.name" not in settings:
            values["cluster"] = {}  # the default's workers are fixed: so many equal ones are meant
        for path, value in sorted(settings.items(), key=_names_first):
            field, _, below = path.partition(".")
            if below and values.get(field) is None:
                values[field] = {} if below == "name" else cls().spec().get(field)
            set_path(values, path, value)
        for unknown in (name for name in values if name not in cls.model_fields and name != "switch_at_s"):
            if within := _section_of(unknown):
                raise ParameterError(f"{where}: {unknown}: is a field of {within}; give {within}.{unknown}")
            raise UnknownName(f"field of {where}", str(unknown), cls.model_fields)
        return cls(**values)


#: fields that are looked for at the top, by where they are
_SECTIONS = {
    "stop": Stop.model_fields,
    "optimizer": SGD.model_fields,
    "cluster": Custom.model_fields,
    "strategy": ("codec", "codec_down", "consistency", "aggregation", "communication", "placement"),
}


def _section_of(name: str) -> str:
    """Return the field of an experiment that has a field of that name; empty without one."""
    return next((part for part in _SECTIONS if name in _SECTIONS[part]), "")


def _names_first(setting: tuple[str, Any]) -> int:
    """Order settings so that a name is set before the fields below it."""
    path = setting[0]
    return 0 if "." not in path else 1 if path.endswith(".name") else 2


def _plain(value: Any) -> Any:
    """Return plain data; each part is dumped by its own class, which keeps the fields of subclasses."""
    if isinstance(value, (Strategy, SwitchingStrategy)):
        return value.spec()
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value.model_dump(mode="json", exclude_none=True) if isinstance(value, BaseModel) else value


def _switched_at(strategy: Any, at_s: Any) -> AnyStrategy:
    """Return the strategy with a switch by hand at that time, as files of older versions specify it."""
    made = make_strategy(strategy)
    if not isinstance(made, SwitchingStrategy):
        raise ParameterError(f"switch_at_s: strategy {made.name!r} has nothing to switch to")
    return made.with_switches((*made.then, *later_switches([{"rule": {"name": "at_time", "at_s": at_s}}])))


def _part(domain: str, name: str) -> Any:
    return make_part(domain, name)


def _usual_optimizer() -> Optimizer:
    return cast(Optimizer, make_part("optimizer", {"name": "sgd", "momentum": 0.9}))
