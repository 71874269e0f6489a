"""Specifications that are refused, and what the one line that refuses each must name."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

COMPOSED = "strategy.consistency"
DEFAULT_STOP = "stop: {epochs: 1}"
#: as this system says it
TOO_LONG = os.strerror(errno.ENAMETOOLONG)


@dataclass(frozen=True)
class Case:
    """What is typed, and what the answer must name; `{tmp}` stands for the test's folder."""

    name: str
    says: tuple[str, ...]
    sets: tuple[str, ...] = ()
    spec: str | bytes | None = None
    args: tuple[str, ...] = ()


def bad(name: str, sets: str | tuple[str, ...], *says: str, args: tuple[str, ...] = ()) -> Case:
    return Case(name, says, (sets,) if isinstance(sets, str) else sets, args=args)


def bad_file(name: str, spec: str | bytes, *says: str) -> Case:
    return Case(name, says, spec=spec)


UNKNOWN = [
    bad("strategy", "strategy=sssp", "unknown strategy 'sssp'", "did you mean 'ssp'?"),
    bad("strategy with parameters", "strategy={name: k_bps, k: 2}", "did you mean 'k_bsp'?"),
    bad(
        "consistency", "strategy={consistency: n_softsink}", "consistency part 'n_softsink'", "'n_softsync'?"
    ),
    bad("aggregation", "strategy={name: asp, aggregation: meen}", "aggregation part 'meen'", "'mean'"),
    bad("communication", "strategy={name: asp, communication: every_stepp}", "did you mean 'every_step'?"),
    bad("stragglers", "strategy={name: asp, stragglers: fixd}", "did you mean 'fixed'?"),
    bad("placement", "strategy={name: asp, placement: all_reduced}", "did you mean 'all_reduce'?"),
    bad("data", "data=mnits", "'mnits'", "did you mean 'mnist'?"),
    bad("model", "model=resnet200", "'resnet200'", "did you mean 'resnet20'?"),
    bad("cluster", "cluster=herms", "'herms'", "did you mean 'hermes'?"),
    bad("sharding", "sharding=dirichlett", "did you mean 'dirichlet'?"),
    bad("rule", "strategy.rule=emprical", "did you mean 'empirical'?"),
    bad("optimizer", "optimizer=addam", "did you mean 'adam'?"),
    bad("step time", "cluster.step_time=paretto", "did you mean 'pareto'?"),
    bad("field", "optimiser=adam", "unknown field", "'optimiser'", "did you mean 'optimizer'?"),
    bad("field of stop", "stop={epoch: 3}", "'epoch'", "did you mean 'epochs'?"),
    bad(
        "parameter of a strategy",
        "strategy={name: ssp, stalenes_bound: 5}",
        "did you mean 'staleness_bound'?",
    ),
    bad("parameter of a switch", "strategy.costs=1", "did you mean 'cost_s'?"),
    bad("parameter of a rule", "strategy.rule={name: empirical, windw: 5}", "did you mean 'window'?"),
    bad("parameter of a model", "model={name: mlp, hiden: [10]}", "did you mean 'hidden'?"),
    bad("parameter of an optimizer", "optimizer.momentun=0.5", "did you mean 'momentum'?"),
    bad("parameter of a cluster", "cluster.latency=0.1", "did you mean 'latency_s'?"),
    bad("parameter of a slowdown", "cluster.slowdowns=[{worker: 0, form_s: 1}]", "did you mean 'from_s'?"),
    bad("backend", "backend=dusk", "backend", "simulated", "dask", "'dusk'", "did you mean"),
]

OUT_OF_RANGE = [
    bad("negative staleness bound", "strategy={name: ssp, staleness_bound: -1}", "staleness_bound", "-1"),
    bad("k of nought", "strategy={name: k_asp, k: 0}", "k_asp", "greater than or equal to 1", "got 0"),
    bad("fraction above one", "strategy.rule={name: after, fraction: 1.5}", "fraction", "1.5"),
    bad("window of nought", "strategy.rule.window=0", "window", "got 0"),
    bad("rate of nought", "optimizer.lr=0", "lr", "greater than 0"),
    bad("momentum of one", "optimizer.momentum=1", "momentum", "less than 1"),
    bad("not a number", "optimizer.lr=.nan", "optimizer 'sgd': lr", "finite"),
    bad("infinite", "stop.epochs=.inf", "stop: epochs", "finite"),
    bad("infinite parameter of a part", "strategy.cost_s=.inf", "cost_s", "finite"),
    bad("batch of nought", "batch_size=0", "batch_size", "greater than 0"),
    bad("negative seed", "seed=-1", "seed", "-1"),
    bad("accuracy above one", "stop.target_accuracy=90", "target_accuracy", "less than or equal to 1"),
    bad("no workers", "cluster={workers: 0}", "workers", "greater than or equal to 1"),
    bad("negative speed", "cluster={workers: 2, speed: [1, -1]}", "speed of worker 1", "-1"),
    bad("no threads", "threads=0", "threads", "got 0"),
    bad("spread above one", "cluster.step_time={name: shifted_exponential, spread: 2}", "spread", "got 2"),
    bad("too many servers", "strategy={name: asp, servers: 1000}", "servers", "1000"),
    bad("no neurons", "model.hidden=[0]", "hidden", "got 0"),
    bad("alpha of nought", "sharding={name: dirichlet, alpha: 0}", "alpha", "greater than 0"),
    bad("never evaluated", "evaluate_every=0", "evaluate_every", "greater than or equal to 0.0001"),
]

WRONG_KIND = [
    bad("a text for a number", "batch_size=many", "batch_size", "number", "'many'"),
    bad("a number in quotes", "optimizer.lr='0.1'", "lr", "number", "'0.1'"),
    bad("yes for a number", "seed=true", "seed", "number", "True"),
    bad("half a sample", "batch_size=12.5", "batch_size", "12.5"),
    bad("a word for a speed", "cluster={workers: 1, speed: fast}", "speed", "number", "'fast'"),
    bad("a number for a list", "cluster.joins=3", "joins", "list"),
    bad("a number for data", "data=5", "data: expected a name or a mapping", "5"),
    bad("a list for a strategy", "strategy=[asp, bsp]", "strategy: expected a name or a mapping"),
    bad("a number for stop", "stop=20", "stop: expected a mapping", "20"),
    bad("nothing for a seed", "seed=", "seed", "got None"),
    bad("an empty stop", "stop={}", "stop: give at least one of epochs"),
    bad("a strategy without a name", "strategy={k: 3}", "strategy: give a name of the catalogue"),
    bad("a list for the name of a strategy", "strategy={name: [asp]}", "unknown strategy", "['asp']"),
    bad("a part without a name", "optimizer={lr: 0.1}", "optimizer: expected a name", "adam, lamb"),
]

IMPOSSIBLE = [
    bad("two metrics of one name", "metrics=[top_k, {name: top_k, k: 2}]", "two are called 'top_k'"),
    bad("k above the workers", "strategy={name: k_bsp, k: 10}", "k = 10", "the cluster has 9"),
    bad("k above the workers, inside a switch", "strategy.first={name: k_asp, k: 10}", "k = 10"),
    bad("a batch smaller than the workers", "batch_size=8", "batch_size: 8", "9 workers"),
    bad("a batch larger than the data", "batch_size=5000", "batch_size: 5000", "1438"),
    bad(
        "an empty shard", ("sharding=labels_per_worker", "cluster=hermes"), "labels_per_worker", "12 workers"
    ),
    bad(
        "more workers than samples",
        ("cluster={workers: 2000}", "batch_size=2000", "data={name: mixture, num_samples: 500}"),
        *("400", "2000"),
    ),
    bad("a smallest shard too large", "sharding={name: dirichlet, min_size: 1000}", "min_size"),
    bad(
        "target accuracy without validation data",
        ("data={name: digits, val_fraction: 0}", "strategy=asp", "stop={target_accuracy: 0.9}"),
        *("stop.target_accuracy needs validation data", "'digits'"),
    ),
    bad(
        "patience without validation data",
        ("data={name: digits, val_fraction: 0}", "strategy=asp", "stop={epochs: 5, patience: 2}"),
        "stop.patience needs validation data",
    ),
    bad(
        "the default rule without validation data",
        "data={name: digits, val_fraction: 0}",
        *("'noise_adaptive' needs validation data", "'digits'"),
    ),
    bad("after without epochs", ("strategy.rule=after", "stop={updates: 5}"), "'after'", "set stop.epochs"),
    bad("a switch inside a switch", "strategy.first=strategy_switch", "cannot itself switch"),
    bad("three speeds for four workers", "cluster={workers: 4, speed: [1, 1, 1]}", "3 values for 4 workers"),
    bad("two latencies for nine workers", "cluster.latency_s=[0.1, 0.2]", "latency_s", "2", "9"),
    bad("a failure of nobody", "cluster.failures=[{worker: 9, at_s: 1}]", "worker 9", "0 to 8"),
    bad(
        "a slowdown backwards",
        "cluster.slowdowns=[{worker: 0, from_s: 2, to_s: 1, factor: 2}]",
        "from_s = 2 must be before to_s = 1",
    ),
    bad("gradients left out on dask", ("timing_only=true", "backend=dask", "strategy=asp"), "timing_only"),
    bad(
        "nothing evaluated, but a rule asks",
        ("timing_only=true", "strategy=strategy_switch"),
        "timing_only",
        "'empirical'",
    ),
    bad("a scheduler for the simulator", "scheduler=tcp://127.0.0.1:8786", "set backend: dask"),
    bad("no address", ("backend=dask", "scheduler=localhost"), "'localhost' is not an address", "tcp://"),
    bad("a ring without a barrier", "strategy={name: asp, placement: all_reduce}", "all_reduce", "asp"),
    bad(
        "a ring that is cancelled",
        "strategy={name: k_bsp, k: 2, placement: all_reduce}",
        *("all_reduce", "all workers", "k_bsp"),
    ),
    bad(
        "a parameter of a part that is replaced",
        "strategy={name: asp, servers: 2, placement: {name: parameter_server}}",
        "give servers inside placement",
    ),
    bad("a model that needs larger images", "model=lenet", "lenet", "8 x 8"),
    bad("a model that needs images", ("model=cnn", "data=mixture"), "cnn", "images"),
    bad("fewer samples than classes", "data={name: mixture, num_samples: 3}", "3 samples", "5 classes"),
]

FILES = [
    bad_file("not YAML", "strategy: [asp", "spec.yaml, line 1", "not YAML"),
    bad_file("a tab", "strategy:\n\tname: asp\n", "spec.yaml, line 2", "not YAML"),
    bad_file("a list", "- asp\n- bsp\n", "spec.yaml", "expected a mapping", "list"),
    bad_file("a word", "asp\n", "spec.yaml", "expected a mapping", "str"),
    bad_file("empty", "", "spec.yaml", "expected a mapping", "found nothing"),
    bad_file("binary", bytes(range(256)), "spec.yaml", "not a text file"),
    bad_file("control characters", b"strategy: \x00asp", "spec.yaml", "not YAML"),
    bad_file("a key twice", "seed: 1\nstrategy: asp\nseed: 2\n", "line 3", "'seed' is given twice"),
    bad_file(
        "a key twice, deeper", "strategy: {name: ssp, staleness_bound: 1, staleness_bound: 2}", "given twice"
    ),
    bad_file("a key that is no name", "strategy: {1: 2}", "1 is not a name"),
    bad_file("an object of Python's", "data: !!python/object/apply:os.getcwd []", "not YAML", "python"),
    bad_file("an anchor that is not there", "data: *nowhere", "not YAML", "nowhere"),
    bad_file("a typo in a field", f"startegy: asp\n{DEFAULT_STOP}", "spec.yaml", "did you mean 'strategy'?"),
]

ALIASES = "\n".join(
    ["a0: &a0 [1, 1]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9))]
)

#: what would take more memory, disk, stack or digits than there are; a gigabyte is said to be available
SIZES = [
    bad_file("20,000 open brackets", "strategy: " + "[" * 20_000, "line 1", "nested more than 50 deep"),
    bad_file("20,000 brackets", "strategy: " + "[" * 20_000 + "]" * 20_000, "nested more than 50 deep"),
    bad_file("aliases that multiply", ALIASES, "line 7", "more than 1000000 values"),
    bad_file("an alias of itself", "strategy: &a [*a]", "an alias refers to a value that contains it"),
    bad_file("more than a specification has", "#" * 10_000_001, "spec.yaml", "larger than 10 MB"),
    bad_file("a zero byte", 'data: {name: csv, path: "a\\0b"}', "line 1", "zero byte"),
    bad(
        "a setting of brackets", "strategy=" + "[" * 20_000, "--set strategy=[[[", "nested more than 50 deep"
    ),
    bad("a path of 20,000 names", "a." * 20_000 + "a=1", "the path has 20001 names"),
    bad("a number of 400 digits", "cluster.latency_s=1" + "0" * 400, "more than 300 digits"),
    bad("neurons", "model.hidden=[1000000000]", "model 'mlp'", "300 GB", "at most 4.29 GB"),
    bad("neurons beyond 64 bits", f"model.hidden=[{10**18}]", "model 'mlp'", "64 bits"),
    bad("neurons beyond memory", "model.hidden=[10000, 10000]", "model 'mlp'", "1 GB are available"),
    bad(
        "models of workers",
        ("model.hidden=[3000000]", "strategy=local_sgd", "cluster={workers: 100}"),
        *("model 'mlp'", "held 305 times", "or use fewer workers"),
    ),
    bad("processes", ("backend=dask", "model.hidden=[1000000]", "strategy=asp"), "times in 12 processes"),
    bad("rows", f"data={{name: synthetic_table, samples: {10**11}}}", "samples = 100000000000", "12.4 TB"),
    bad("samples", f"data={{name: mixture, num_samples: {10**11}}}", "num_samples = 100000000000", "TB"),
    bad("features", f"data={{name: mixture, num_features: {10**9}}}", "num_features = 1000000000", "TB"),
    bad("classes", f"data={{name: mixture, num_classes: {10**9}}}", "1000000000 classes"),
    bad(
        "pixels",
        f"data={{name: folder, path: '{{tmp}}/images', image_size: {10**6}}}",
        *("1 images of 1000000 x 1000000 pixels", "15 TB", "image_size"),
    ),
    bad(
        "CSV beyond the disk",
        "data={name: csv, path: '{tmp}/a.csv', cache: '{tmp}/c'}",
        "about 1001 rows",
        "disk",
    ),
    bad("workers", f"cluster={{workers: {10**9}}}", "workers", "less than or equal to 65535"),
    bad("samples of a batch", f"batch_size={10**18}", "batch_size", "less than or equal to 2147483647"),
    bad("evaluations", "evaluate_every=1.0e-300", "evaluate_every", "greater than or equal to 0.0001"),
    bad("checkpoints", "checkpoint_every=1.0e-300", "checkpoint_every", "greater than or equal to 0.0001"),
    bad("servers", f"strategy={{name: asp, servers: {10**9}}}", "servers"),
    bad("a path of 300 characters", f"data={{name: folder, path: {'n' * 300}}}", "nnn", TOO_LONG),
    Case("an output folder", (TOO_LONG, "choose another"), args=("--out", "n" * 300)),
]

SETTINGS = [
    bad("no equals sign", "strategy", "--set strategy", "path=value"),
    bad("no path", "=5", "--set =5", "path=value"),
    bad("a path with a hole", "strategy..k=5", "--set strategy..k=5", "path=value"),
    bad("a value that is not YAML", "strategy={name: ssp", "--set strategy={name: ssp", "not YAML"),
    bad("a path through a number", "batch_size.k=5", "batch_size.k", "128"),
    bad("a path to nowhere", "strategi.k=5", "did you mean 'strategy'?"),
    Case("option: unknown backend", ("simulated", "dask", "'spark'"), args=("--backend", "spark")),
    Case(
        "option: scheduler of a simulation",
        ("set backend: dask",),
        args=("--backend", "simulated", "--scheduler", "tcp://127.0.0.1:1"),
    ),
    Case(
        "option: malformed scheduler",
        ("'nowhere:x'",),
        args=("--backend", "dask", "--scheduler", "nowhere:x"),
    ),
    *(
        Case(
            f"option: {protocol}",
            (f"needs the protocol {protocol}, which is not installed", "distributed-ucxx"),
            args=("--backend", "dask", "--scheduler", f"{protocol}://127.0.0.1:1"),
        )
        for protocol in ("ucx", "ucxx")
    ),
    Case("option: a seed that is none", ("--seed", "see psbench run --help"), args=("--seed", "one")),
    Case("option: misspelt", ("--sede", "see psbench run --help"), args=("--sede", "1")),
]

DATA = [
    bad(
        "no such folder",
        "data={name: mnist, root: '{tmp}/nowhere'}",
        "train-images-idx3-ubyte",
        "PSBENCH_DATA",
    ),
    bad("truncated images", "data={name: mnist, root: '{tmp}/truncated'}", "train-images", "truncated"),
    bad("not MNIST", "data={name: mnist, root: '{tmp}/other'}", "train-images", "not an IDX file"),
    bad(
        "labels missing", "data={name: mnist, root: '{tmp}/unlabelled'}", "train-labels-idx1-ubyte is missing"
    ),
    bad("too few labels", "data={name: mnist, root: '{tmp}/short'}", "train-images", "labels"),
    bad("damaged CIFAR-10", "data={name: cifar10, root: '{tmp}/cifar'}", "data_batch_1", "damaged"),
    bad("a folder that is not there", "data={name: folder, path: '{tmp}/nowhere'}", "{tmp}/nowhere", "path"),
    bad("a folder without classes", "data={name: folder, path: '{tmp}/flat'}", "flat", "subfolder"),
    bad(
        "an image that is none", "data={name: folder, path: '{tmp}/images'}", "0.png", "not a readable image"
    ),
]

ALL = {
    f"{group}: {case.name}": case
    for group, cases in {
        **{"unknown": UNKNOWN, "range": OUT_OF_RANGE, "kind": WRONG_KIND, "impossible": IMPOSSIBLE},
        **{"file": FILES, "settings": SETTINGS, "data": DATA, "size": SIZES},
    }.items()
    for case in cases
}
