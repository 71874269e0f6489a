"""Codecs whose ratio or levels change in the run: identities, decisions, and what survives a change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from psbench import replay, strategies
from psbench.core import Push
from psbench.core.log import Kind
from psbench.core.view import ClusterView
from psbench.errors import CodecError, ParameterError
from psbench.runs.execution import run
from psbench.seeds import Streams
from psbench.strategies.codecs import QSGD, Channel, MQGrad, SendShare, TopK
from psbench.testing import toy_experiment

LAYOUT = [("w", 10_000)]


def view() -> ClusterView:
    return ClusterView(num_workers=2, dataset_size=100, global_batch=10, layout=LAYOUT)


def push(worker: int = 0, compute_s: float = 1.0, send_s: float = 0.0, loss: float = 1.0) -> Push:
    return Push(0, worker, 0, 0, 10, stats={"loss": loss, "compute_s": compute_s, "send_s": send_s})


# ---------------------------------------------------------------- identities


@pytest.mark.by_day(4)
@pytest.mark.parametrize("kind", ["send_share", "mq_grad"])
@pytest.mark.parametrize(
    ("codec", "name"), [({"name": "top_k", "ratio": 0.2}, "ratio"), ({"name": "qsgd", "levels": 3}, "levels")]
)
@pytest.mark.parametrize("strategy", ["bsp", "asp", "local_sgd"])
def test_one_value_is_the_codec_itself(kind, codec, name, strategy):
    constant = {"name": kind, "codec": codec["name"], "values": [codec[name]]}
    ours, theirs = (
        run(toy_experiment(getattr(strategies, strategy)(codec=each), stop={"updates": 12}))
        for each in (constant, codec)
    )
    assert torch.equal(ours.parameters, theirs.parameters)
    rows, others = ours.log.rows(), theirs.log.rows()
    for column in set(rows.dtype.names) - {"text"}:  # which has the statistics that the rule reads
        np.testing.assert_array_equal(rows[column], others[column])


def test_a_share_of_all_is_the_last_value():
    log = run(toy_experiment(strategies.asp(codec={"name": "send_share", "share": 1.0}))).log
    plain = run(toy_experiment(strategies.asp(codec={"name": "qsgd", "levels": 127}))).log
    assert np.array_equal(log.of_kind(Kind.PUSH)["bytes"], plain.of_kind(Kind.PUSH)["bytes"])
    assert np.array_equal(log.rows()["time_s"], plain.rows()["time_s"])


# ---------------------------------------------------------------- what survives a change


@given(settings=st.lists(st.integers(0, 3), min_size=1, max_size=8), size=st.integers(1, 40))
def test_what_is_sent_and_what_is_remembered_are_all_there_was(settings, size):
    """The sum of what has arrived and the residual is the sum of what was given, whatever the setting."""
    channel = Channel(SendShare(codec="top_k", values=[0.01, 0.1, 0.3, 1.0]), size, Streams(0), 0)
    rng = np.random.default_rng(0)
    for setting in settings:
        vector = rng.standard_normal(size).astype(np.float32)
        wanted = channel.residual + vector
        sent = channel.receive(channel.send(vector, setting))
        assert np.array_equal(sent + channel.residual, wanted)
        kept = max(1, int(np.ceil((0.01, 0.1, 0.3, 1.0)[setting] * size - 1e-9)))
        assert np.count_nonzero(sent) <= kept


@given(size=st.integers(1, 70), setting=st.integers(0, 4))
def test_the_length_of_a_message_tells_its_setting(size, setting):
    """Also where two settings take as many bytes: both sides then use the finer one."""
    codec = MQGrad(codec=QSGD(bucket=0))
    vector = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    channel = Channel(codec, size, Streams(0), 0)
    at = codec.at(setting, size)
    assert at.levels >= codec.settings[setting].levels
    assert at.num_bytes(size) == codec.settings[setting].num_bytes(size)
    packed = channel.send(vector, setting)
    assert codec.takes(len(packed), size)
    decoded = channel.receive(packed)
    own = at.encode(vector, Streams(0).generator("codec", 0, 0))
    assert np.array_equal(decoded, at.decode(own, size))
    with pytest.raises(CodecError, match="bytes, depending on the setting, got 9,999"):
        codec.decode(np.zeros(9999, np.uint8), size)


def test_the_state_goes_into_checkpoints_and_parts_are_fresh():
    asp = strategies.asp(codec=SendShare(codec="top_k"))
    communication = asp.communication
    communication.codec.on_push(push(send_s=9.0), view())
    state = communication.state_dict()
    again = communication.fresh()
    assert again.codec.on_release(0, view()) == {}
    again.load_state_dict(state)
    assert again.codec.on_release(0, view()) == communication.codec.on_release(0, view()) != {}


# ---------------------------------------------------------------- decisions


def test_a_worker_sends_as_much_as_fits_into_its_share():
    codec = SendShare(codec=TopK(), values=[0.01, 0.1, 1.0], share=0.25)
    assert codec.on_release(0, view()) == {}
    # 3 s of computing and 1 s of sending is the share; a tenth of the bytes takes a tenth of the time
    assert codec.on_push(push(compute_s=3.0, send_s=1.0), view()) == []
    assert len(codec.on_push(push(compute_s=3.0, send_s=2.0), view())) == 1
    assert codec.on_release(0, view()) == {"codec": 1}
    assert codec.on_release(1, view()) == {}
    assert codec.on_push(push(compute_s=3.0, send_s=0.2), view()) == []  # whole it would take 2 s again
    assert len(codec.on_push(push(compute_s=3.0, send_s=0.05), view())) == 1
    assert codec.on_release(0, view()) == {}
    codec.on_push(push(compute_s=0.001, send_s=50.0), view())
    assert codec.on_release(0, view()) == {"codec": 0}  # none fits: the least


def test_the_setting_of_the_greatest_fall_per_second_is_used():
    codec = MQGrad(values=[1, 3, 7], window=2, explore=5, forget=1.0)
    now, used = view(), []
    # the loss at the end of each window, and the second; the first has none before it
    for loss, second in [(10, 1), (9, 2), (6, 3), (5, 4), (4, 5), (3, 6), (3, 7)]:
        now.now = float(second)
        for _ in range(2):
            codec.on_push(push(loss=float(loss)), now)
        used.append(codec.setting_of(0))
    # settings 2, 1 and 0 fall by 1, 3 and 1; then 1 falls by 1 twice, which is no more than the others; the
    # fifth window that is judged is followed by a trial
    assert used == [2, 1, 0, 1, 0, 1, 0]


@pytest.mark.parametrize("servers", [1, 2])
def test_a_slow_link_makes_a_worker_send_less(servers):
    # 15 entries: with 10 kbit/s a push of 1 byte an entry takes longer than a step
    cluster = {
        "workers": 2,
        "step_time": "constant",
        "latency_s": 0.0,
        "bandwidth_mbit_s": [100.0, 0.01],
        "seconds_per_sample": 0.001,
    }
    codec = {"name": "send_share", "codec": "top_k", "values": [0.1, 0.5, 1.0], "share": 0.3}
    placement = {"name": "parameter_server", "servers": servers}
    done = run(
        toy_experiment(
            strategies.asp(codec=codec, placement=placement), cluster=cluster, stop={"updates": 40}
        )
    )
    pushes = done.log.of_kind(Kind.PUSH)
    fast, slow = (pushes["bytes"][pushes["worker"] == worker] for worker in (0, 1))
    made = done.experiment.strategy.communication.codec
    slices = [15] if servers == 1 else [8, 7]

    def size(setting):
        return sum(made.settings[setting].num_bytes(each) for each in slices)

    assert set(fast) == {size(2)}
    assert slow[0] == size(2)
    assert set(slow[1:]) <= {size(0), size(1)}


def test_runs_with_it_repeat_and_replay():
    experiment = toy_experiment(
        strategies.asp(codec={"name": "mq_grad", "window": 3, "explore": 3}), stop={"updates": 40}
    )
    first, again = run(experiment), run(experiment)
    assert first.log.digest() == again.log.digest()
    assert torch.equal(first.parameters, again.parameters)
    assert len(set(first.log.of_kind(Kind.PUSH)["bytes"])) > 2
    assert replay(first) == len(first.log)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        (
            {"codec": "sign"},
            "'sign' has neither a ratio nor levels to set; use 'qsgd', 'top_k' or 'random_k'",
        ),
        ({"values": [3, 1]}, "values: each must take more bytes than the one before"),
        ({"values": [4, 7]}, "values: each must take more bytes"),
        ({"codec": "top_k", "values": [2.0]}, "ratio.*less than or equal to 1"),
    ],
)
def test_values_that_cannot_be_chosen_from_are_refused(codec, message):
    with pytest.raises(ParameterError, match=message):
        strategies.asp(codec={"name": "mq_grad", **codec})


def test_answers_have_one_setting():
    with pytest.raises(ParameterError, match="set codec_down to the codec whose setting it chooses"):
        strategies.asp(codec_down={"name": "send_share"})


def test_a_ring_adds_up_floats():
    with pytest.raises(ParameterError, match="sums float vectors"):
        strategies.all_reduce(codec="send_share")


def test_a_rule_by_the_loss_needs_gradients():
    with pytest.raises(ParameterError, match="timing_only"):
        run(toy_experiment(strategies.asp(codec="mq_grad"), timing_only=True))
