"""What sending layer by layer, and the front layers first, would save of a synchronous iteration.

The times of each layer are measured here, one thread. From them a small simulation computes an iteration of
BSP in which a worker (i) computes, pushes, pulls, in turn, as psbench does; (ii) pushes each layer's gradient
when it is there and pulls each layer when all have pushed it (wait-free backpropagation: Poseidon, Zhang et
al., USENIX ATC 2017); (iii) does so in slices, the front layers' first on both ways, and begins the next
forward pass with the first layer that is there (P3, Jayarajan et al., MLSys 2019); (iv) as (iii), but the
servers answer whole pushes, which is what a strategy decides on: pushing overlaps with the backward pass and
pulling with the forward pass, but neither with the other. Workers are equal and share the servers' link,
which carries both directions at once; latency, the update and the cost of more messages are left out, so
these are what could be gained at best. The last rows measure live what share of a worker's time goes into
pulling and sending on this machine: overlap can hide no more than that.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Literal, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from psbench.core.part import make_part
from psbench.experiment import Experiment
from psbench.metrics import timeline
from psbench.runs.execution import run as run_experiment
from psbench.seeds import Streams
from tests.benchmarks.measure import Pictures, Row, Rows

#: model, shape of a sample
MODELS = (
    ("cnn", (1, 28, 28)),
    ("resnet20", (3, 32, 32)),
    ({"name": "mlp", "hidden": (3000, 3000)}, (1, 28, 28)),
    ("vgg16", (3, 32, 32)),
)
BATCH = 32
NETWORKS = {"100 Mbit/s": 1e8, "1 Gbit/s": 1e9, "10 Gbit/s": 1e10}
WORKERS = (1, 8)
#: entries of a slice, as P3 has it
SLICE = 50_000
REPEATS = 5


class Layer(NamedTuple):
    """Seconds of its forward and its backward pass, and entries."""

    forward_s: float
    backward_s: float
    entries: int


# ---------------------------------------------------------------- the model of an iteration


def in_turn(layers: Sequence[Layer], entry_s: float) -> float:
    """Return the seconds of an iteration that computes, pushes and pulls one after another."""
    computing = sum(layer.forward_s + layer.backward_s for layer in layers)
    return computing + 2 * entry_s * sum(layer.entries for layer in layers)


def overlapped(
    layers: Sequence[Layer],
    entry_s: float,
    order: Literal["fifo", "front"],
    slice_entries: float = SLICE,
    whole: bool = False,
) -> float:
    """Return the seconds of an iteration whose transfers overlap, from one backward pass to the next.

    Parameters
    ----------
    layers : sequence of Layer
        From the input to the output.
    entry_s : float, seconds
        That an entry takes on its way up, and again on its way down.
    order : "fifo" or "front"
        What a link carries first: what came first, or what the forward pass needs first.
    slice_entries : float
        A link carries a slice to its end.
    whole : bool
        Whether servers answer when a push is there as a whole, as a strategy decides on pushes.
    """
    ready, now = [0.0] * len(layers), 0.0
    for number in reversed(range(len(layers))):
        now += layers[number].backward_s
        ready[number] = now
    gradients = [
        (ready[number], number, entries * entry_s)
        for number in reversed(range(len(layers)))
        for entries in _slices(layers[number].entries, slice_entries)
    ]
    pushed = list(_carried(gradients, order))  # everybody's at once
    if whole:
        pushed = [(pushed[-1][0], number, seconds) for _, number, seconds in pushed]
    there = [0.0] * len(layers)
    for arrived, number, _ in _carried(pushed, order):
        there[number] = max(there[number], arrived)
    for layer, arrived in zip(layers, there, strict=True):
        now = max(now, arrived) + layer.forward_s
    return now


def _slices(entries: int, most: float) -> Iterator[float]:
    left = float(entries)
    while left > 0:
        yield min(left, most)
        left -= most


def _carried(
    waiting: Sequence[tuple[float, int, float]], order: Literal["fifo", "front"]
) -> Iterator[tuple[float, int, float]]:
    """Return what a link carries, as (time of arrival, layer, seconds), given when each may be sent."""
    coming = sorted(range(len(waiting)), key=lambda i: waiting[i][0])
    queue: list[tuple[int, int]] = []
    now = 0.0
    while coming or queue:
        if not queue:
            now = max(now, waiting[coming[0]][0])
        while coming and waiting[coming[0]][0] <= now:
            item = coming.pop(0)
            heappush(queue, (waiting[item][1] if order == "front" else 0, item))
        _, item = heappop(queue)
        _, number, seconds = waiting[item]
        now += seconds
        yield now, number, seconds


# ---------------------------------------------------------------- measuring layers


def measured(model: nn.Module, inputs: torch.Tensor) -> list[Layer]:
    """Return the layers of a model that have parameters, with medians of their times.

    What has no parameters counts to the layer before it, as the next one cannot begin without it.
    """
    named = [module for module in model.modules() if list(module.parameters(recurse=False))]
    order = _order(model, named, inputs)
    times = [_times(model, order, inputs) for _ in range(REPEATS + 1)][1:]
    return [
        Layer(
            statistics.median(forward[i] for forward, _ in times),
            statistics.median(backward[i] for _, backward in times),
            sum(p.numel() for p in layer.parameters(recurse=False)),
        )
        for i, layer in enumerate(order)
    ]


def _hooked(
    model: nn.Module, modules: Sequence[nn.Module], inputs: torch.Tensor, notify: Callable[..., None]
) -> torch.Tensor:
    hooks = [module.register_forward_pre_hook(lambda module, _: notify(module)) for module in modules]
    try:
        return model(inputs)
    finally:
        for hook in hooks:
            hook.remove()


def _order(model: nn.Module, modules: Sequence[nn.Module], inputs: torch.Tensor) -> list[nn.Module]:
    """Return modules in the order in which the forward pass comes to them."""
    seen: list[nn.Module] = []
    _hooked(model, modules, inputs, seen.append)
    return seen


def _times(
    model: nn.Module, order: Sequence[nn.Module], inputs: torch.Tensor
) -> tuple[list[float], list[float]]:
    """Return the seconds of each layer's forward and backward pass, once."""
    model.zero_grad()
    began, forward = time.perf_counter(), []
    outputs = _hooked(model, order, inputs, lambda _: forward.append(time.perf_counter()))
    loss = functional.cross_entropy(outputs, torch.arange(len(inputs)) % outputs.shape[1])
    turned = time.perf_counter()
    forward_s = [
        stop - start for start, stop in zip([began, *forward[1:]], [*forward[1:], turned], strict=True)
    ]
    done = [turned] * len(order)
    hooks = [
        parameter.register_post_accumulate_grad_hook(lambda _, i=i: done.__setitem__(i, time.perf_counter()))
        for i, layer in enumerate(order)
        for parameter in layer.parameters(recurse=False)
    ]
    loss.backward()
    for hook in hooks:
        hook.remove()
    # a branch may be done before a layer behind it: a layer's own time is what is left of the way back
    latest, backward_s = turned, [0.0] * len(order)
    for i in reversed(range(len(order))):
        backward_s[i] = max(0.0, done[i] - latest)
        latest = max(latest, done[i])
    return forward_s, backward_s


# ---------------------------------------------------------------- rows


def run() -> Rows:
    """Measure the layers of each model, compute its iterations, and measure two runs live."""
    torch.set_num_threads(1)
    rows: Rows = []
    for spec, shape in MODELS:
        model = make_part("model", spec).build(shape, 10, Streams(0)).train()
        inputs = torch.randn(BATCH, *shape, generator=torch.Generator().manual_seed(0))
        layers = measured(model, inputs)
        name = spec if isinstance(spec, str) else spec["name"]
        rows += [_row(str(name), layers, label, n) for label in NETWORKS for n in WORKERS]
    return rows + [
        _live(name, updates) for name, updates in (("logistic", 1000), ("cnn", 300), ("resnet20", 30))
    ]


def _row(name: str, layers: Sequence[Layer], network: str, workers: int) -> Row:
    entry_s = 32 * workers / NETWORKS[network]
    plain = in_turn(layers, entry_s)
    early = overlapped(layers, entry_s, "fifo", float("inf"))
    front = overlapped(layers, entry_s, "front")
    whole = overlapped(layers, entry_s, "front", whole=True)
    computing = in_turn(layers, 0.0)
    entries = sum(layer.entries for layer in layers)
    return Row(
        f"{name}, {entries:,} entries, {network}, {workers} at a server: in turn / front first",
        f"{1e3 * computing:,.1f} + {1e3 * (plain - computing):,.1f} ms on the wire",
        f"{1e3 * early:,.1f} wait-free, {1e3 * front:,.1f} front first, {1e3 * whole:,.1f} whole pushes",
        plain / front,
    )


def _live(model: str, updates: int) -> Row:
    experiment = Experiment(
        data=Pictures(),
        model=model,
        strategy="bsp",
        backend="dask",
        batch_size=2 * BATCH,
        cluster={"name": "homogeneous", "workers": 2},
        stop={"updates": updates},
        evaluate_every=1e9,
        optimizer={"name": "sgd", "lr": 0.01},
    )
    spans = timeline(run_experiment(experiment).log)
    seconds = (spans["end_s"] - spans["start_s"]).groupby(spans["phase"], observed=False).sum()
    moving = float(seconds["pull"] + seconds["send"])
    share = moving / float(seconds.sum())
    parts = ", ".join(f"{phase} {lasted / seconds.sum():.1%}" for phase, lasted in seconds.items() if lasted)
    return Row(
        f"live, {model}, 2 workers on loopback: all / all but pull and send",
        parts,
        f"{1e3 * moving / (2 * updates):.2f} ms an iteration",
        1 / (1 - share),
    )
