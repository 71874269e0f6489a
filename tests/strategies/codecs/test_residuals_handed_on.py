"""The residual of error feedback when the strategy or the servers' shares change: nothing of it is lost."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from psbench import strategies
from psbench.backends.compression import Compression, WorkerCodecs
from psbench.backends.control import Control
from psbench.backends.partition import gather, partitions
from psbench.backends.simulated.simulation import Simulation
from psbench.core.events import Push
from psbench.core.log import EventLog, Kind
from psbench.core.strategy import Strategy
from psbench.errors import CodecError
from psbench.runs.execution import run
from psbench.runs.replaying import replay
from psbench.seeds import Streams
from psbench.strategies.codecs import QSGD, Channel, TopK
from psbench.strategies.placement import ParameterServer
from psbench.testing import toy_experiment
from psbench.training.build import Workload

LAYOUT = [("weight", 12), ("bias", 5)]
SIZE = 17
#: what they lose can be told to the last bit where inputs are eighths
EXACT = ["none", *({"name": name, "ratio": 0.2, "error_feedback": True} for name in ("top_k", "random_k"))]
SERVERS = [ParameterServer(), ParameterServer(servers=2, assignment="layer"), ParameterServer(servers=3)]


def whole(workload):
    return partitions(ParameterServer(), workload.model.layout)


segments = st.lists(
    st.tuples(st.sampled_from(EXACT), st.sampled_from(SERVERS), st.integers(0, 4)), min_size=2, max_size=5
)


@pytest.mark.slow
@given(plan=segments, seed=st.integers(0, 99))
def test_sent_and_residual_sum_to_the_input_under_any_sequence_of_codecs(plan, seed):
    rng, streams = np.random.default_rng(seed), Streams(seed)
    given_so_far, sent_so_far = torch.zeros(SIZE), torch.zeros(SIZE)
    residual = None
    for codec, servers, pushes in plan:
        own = partitions(servers, LAYOUT)
        new = WorkerCodecs(strategies.asp(codec=codec, placement=servers), own, streams, 0)
        if residual is not None:
            new.add_residual(residual)
        for _ in range(pushes):
            gradient = torch.from_numpy(rng.integers(-40, 40, SIZE).astype(np.float32) / 8)
            arrived = [
                torch.from_numpy(end.channel.receive(part.numpy()))
                for end, part in zip(new.states, new.push(gradient), strict=True)
            ]
            given_so_far += gradient
            sent_so_far += gather(arrived, own)
        residual = new.residual
        left = torch.zeros(SIZE) if residual is None else residual
        assert torch.equal(sent_so_far + left, given_so_far)


def test_a_codec_without_error_feedback_sends_a_residual_at_once_and_once():
    channel = Channel(QSGD(levels=1, bucket=1), 3, Streams(0), 0)  # exact: each entry is its own norm
    channel.add_residual(np.array([1, 0, -2], np.float32))
    again = Channel(QSGD(levels=1, bucket=1), 3, Streams(0), 0)
    again.restore(channel.residual, channel.num_sent)
    for each in (channel, again):
        assert each.receive(each.send(np.ones(3, np.float32))).tolist() == [2, 1, -1]
        assert each.residual is None
        assert each.receive(each.send(np.ones(3, np.float32))).tolist() == [1, 1, 1]
    with pytest.raises(CodecError, match="3 entries"):
        channel.add_residual(np.ones(2, np.float32))


def test_a_codec_with_error_feedback_adds_a_residual_to_its_own():
    channel = Channel(TopK(ratio=0.3), 3, Streams(0), 0)
    channel.send(np.array([5, 1, 2], np.float32))
    channel.add_residual(np.array([0, 3, 0], np.float32))
    assert channel.residual.tolist() == [0, 4, 2]


@pytest.mark.parametrize(
    ("codec", "placement"),
    [
        *(
            (codec, placement)
            for codec in ("none", "fp16")
            for placement in ("parameter_server", "all_reduce")
        ),
        ({"name": "top_k", "ratio": 0.5}, "parameter_server"),
    ],
    ids=str,
)
def test_a_simulated_worker_pushes_the_residual_that_it_took_over(codec, placement):
    workload = Workload.build(toy_experiment("bsp"))
    composition = strategies.bsp(codec=codec, placement=placement)
    owed = {1: torch.full_like(workload.parameters, 0.25), 2: torch.full_like(workload.parameters, 0.5)}
    compression = Compression(composition, whole(workload), workload.streams, dict(owed))
    gradient = torch.linspace(-8, 6, len(workload.parameters))
    arrived = compression.push(Push(0, 1, 1, 0, 1), gradient)
    left = compression.residuals()
    assert torch.equal(arrived + left.pop(1, torch.zeros(1)), gradient + 0.25)
    assert torch.equal(left[2], owed[2])
    compression.leave(2)
    assert 2 not in compression.residuals()


def test_a_pushed_residual_is_in_checkpoints_until_the_next_release():
    """That push is void if the run resumes from there; after the release it has been answered."""
    workload = Workload.build(toy_experiment("bsp"))
    residual = torch.full_like(workload.parameters, 0.25)
    compression = Compression(strategies.bsp(), whole(workload), workload.streams, {1: residual})
    held = [compression.checkpoint_worker(1, waits=False)[0]]
    compression.mark_release(1)
    compression.push(Push(0, 1, 1, 0, 1), torch.zeros_like(residual))
    held += [compression.checkpoint_worker(1, waits)[0] for waits in (False, True)]
    compression.mark_release(1)
    held += [compression.checkpoint_worker(1, waits)[0] for waits in (False, True)]
    assert [list(tensors) for tensors in held] == [["residual"], ["residual"], [], [], []]
    assert torch.equal(held[1]["residual"], residual)


# ---------------------------------------------------------------- whole runs

TOP = {"name": "top_k", "ratio": 0.1}


def switching(first: Any, second: Any, **changes: Any) -> Any:
    pair = {"name": "strategy_switch", "first": first, "second": second, "momentum": "keep"}
    rule = {"rule": {"name": "after", "fraction": 0.5}}
    return toy_experiment(pair | rule, **{"stop": {"epochs": 4}} | changes)


def watched(experiment: Any) -> tuple[Simulation, dict[int, torch.Tensor]]:
    """Run an experiment; returns also the residuals that the last hand-over carried over."""
    simulation, carried = Simulation(Workload.build(experiment), EventLog(), Control()), {}
    compose = simulation.cluster._compose

    def watch(composition: Strategy, residuals: dict[int, torch.Tensor]) -> None:
        carried.clear()
        carried.update(residuals)
        compose(composition, residuals)

    simulation.cluster._compose = watch
    simulation.run()
    return simulation, carried


@pytest.mark.slow
@pytest.mark.parametrize(
    "second",
    [
        *("bsp", "asp", "all_reduce", {"name": "asp", "codec": TOP}, {"name": "bsp", "codec": "fp16"}),
        {"name": "bsp", "codec": TOP, "placement": {"name": "parameter_server", "servers": 3}},
        *({"name": "bsp", "codec": "qsgd"}, "osp"),
    ],
    ids=json.dumps,
)
def test_a_switch_hands_the_workers_residuals_on(second):
    simulation, carried = watched(switching({"name": "bsp", "codec": TOP}, second))
    assert sorted(carried) == [0, 1, 2]
    assert all(each.abs().max() > 0 for each in carried.values())
    left = simulation.cluster.workers.exchange.residuals()
    has_memory = isinstance(second, dict) and second["codec"] is TOP
    assert sorted(left) == ([0, 1, 2] if has_memory else [])
    assert "dropped the codecs' residuals" not in "".join(simulation.log.texts)


def test_with_rate_one_the_server_has_moved_by_gradients_less_residuals():
    """Plain gradient descent: w_0 - w_end = lr/n (sum of all gradients - what memories still hold)."""
    gradients = []
    experiment = switching(
        {"name": "bsp", "codec": TOP}, {"name": "bsp", "codec": {"name": "top_k", "ratio": 0.4}}
    )
    workload = Workload.build(experiment)
    simulation = Simulation(workload, EventLog(), Control())
    inner = simulation.cluster.steps.result

    def result(*arguments):
        step = inner(*arguments)
        gradients.append(step.gradient.double())
        return step

    simulation.cluster.steps.result = result
    outcome = simulation.run()
    left = sum(each.double() for each in simulation.cluster.workers.exchange.residuals().values())
    pushed = len(simulation.log.of_kind(Kind.PUSH)["id"])
    total = sum(gradients[:pushed]) - left
    moved = (workload.parameters.double() - outcome.parameters.double()) * 3 / 0.1
    torch.testing.assert_close(moved, total, rtol=1e-3, atol=1e-3)
    lost = sum(gradients[:pushed])
    assert float((moved - total).norm()) < 0.05 * float((moved - lost).norm())


@pytest.mark.parametrize(
    ("first", "second"), [("bsp", "local_sgd"), ("local_sgd", "bsp")], ids=["to models", "to gradients"]
)
def test_gradients_and_models_do_not_add_up_and_the_log_says_so(first, second):
    experiment = switching({"name": first, "codec": TOP}, second)
    simulation, carried = watched(experiment)
    assert carried == {}
    notes = [simulation.log.text(number) for number in simulation.log.of_kind(Kind.NOTE)["text"]]
    assert len(notes) == 1
    assert notes[0].startswith("dropped the codecs' residuals")
    replay(run(experiment))


def test_models_after_models_keep_it():
    _, carried = watched(
        switching({"name": "local_sgd", "codec": TOP}, {"name": "local_sgd", "local_steps": 2})
    )
    assert sorted(carried) == [0, 1, 2]
