"""1-bit Adam: Adam at first, what is conserved afterwards, and what travels."""

import pytest
import torch
from vectors import decided, how, pushed

import psbench as ps
from psbench.core.log import Kind
from psbench.errors import DoubtfulComposition, ParameterError
from psbench.optimization.optimizer import SGD
from psbench.runs.replaying import replay
from psbench.strategies.aggregation import OneBitAdam
from psbench.testing import toy_experiment
from psbench.testing.arithmetic import check_update
from psbench.training.server import Server

SHAPES = [(3, 4), (5,)]
WEIGHTS = [0.5, 0.25, 0.25]


def server(**values):
    return Server(torch.zeros(17), torch.zeros(0), SGD(lr=1e-3), 8, OneBitAdam(**values), shapes=SHAPES)


def drawn(*key):
    return torch.randn(17, generator=torch.Generator().manual_seed(hash(key) % 2**31))


def update(own, version, vectors, weights):
    """What each member has after an exchange, and what each leaves out of c_i; and the version is made."""
    numbers, pushes = {"version": float(version)}, pushed(vectors, weights)
    found = own.exchange(pushes, numbers)
    left = [own.left_out(push.vector, found[0], numbers) for push in pushes]
    own.apply(found[:1], how(numbers=numbers))
    return found, left


def adam(x, m, v, gradient, *, lr=1e-3, decay=0.0, frozen=False):
    """Adam's step as the source writes it, without correction of the bias."""
    m = gradient if frozen else 0.9 * m + 0.1 * gradient
    v = v if frozen else 0.999 * v + 0.001 * gradient**2
    return x - lr * (m / (v.sqrt() + 1e-8) + decay * x), m, v


def signs(vector):
    """Each tensor as its signs, with that of 0 +, by its root mean square."""
    parts = [torch.where(part < 0, -1.0, 1.0) * part.square().mean().sqrt() for part in vector.split([12, 5])]
    return torch.cat(parts)


def test_steps_are_those_of_the_source_in_both_phases():
    own = server(freeze_step=3, adam_weight_decay=0.1)
    x = m = v = lost = torch.zeros(17)
    residuals = left = [torch.zeros(17)] * 3
    for version in range(6):
        gradients = [drawn(version, worker) for worker in range(3)]
        if version < 3:
            mean = sum(w * g for w, g in zip(WEIGHTS, gradients, strict=True))
            x, m, v = adam(x, m, v, mean, decay=0.1)
        else:
            c = [0.9 * m + 0.1 * g + e for g, e in zip(gradients, residuals, strict=True)]
            s = sum(w * signs(each) for w, each in zip(WEIGHTS, c, strict=True)) + lost
            residuals, lost = [each - signs(each) for each in c], s - signs(s)
            x, m, v = adam(x, m, v, signs(s), decay=0.1, frozen=True)
        sent = [g if r is None else g + r for g, r in zip(gradients, left, strict=True)]
        found, left = update(own, version, sent, WEIGHTS)
        assert all(torch.equal(each.vector, found[0].vector) for each in found)
        torch.testing.assert_close(own.parameters, x, rtol=1e-4, atol=1e-6)
        if version >= 3:
            torch.testing.assert_close(own.state["lost"], lost, rtol=1e-4, atol=1e-5)
            for mine, expected in zip(left, residuals, strict=True):
                torch.testing.assert_close(0.1 * mine, expected, rtol=1e-4, atol=1e-5)


def test_what_is_sent_and_what_is_lost_are_what_was_to_be_sent():
    own = server(freeze_step=1)
    update(own, 0, [drawn(0)], [1.0])
    for version in range(1, 4):
        vectors = [drawn(version, worker) for worker in range(3)]
        to_send = [0.9 * own.state["mean"] + 0.1 * vector for vector in vectors]
        before = own.state.get("lost", torch.zeros(17)).clone()
        (found, *_), left = update(own, version, vectors, WEIGHTS)
        kept = sum(w * 0.1 * each for w, each in zip(WEIGHTS, left, strict=True))
        mean = sum(w * each for w, each in zip(WEIGHTS, to_send, strict=True))
        torch.testing.assert_close(
            found.vector + own.state["lost"] + kept, mean + before, rtol=1e-5, atol=1e-5
        )


def test_entries_without_a_gradient_do_not_move():
    own, gradient = server(freeze_step=2), drawn(0)
    gradient[3] = 0.0
    for version in range(4):
        update(own, version, [gradient], [1.0])
        update(server(freeze_step=0), version, [torch.zeros(17)], [1.0])
    assert own.parameters[3] == 0.0
    assert own.parameters.abs().max() < 1.0


@pytest.mark.parametrize(("workers", "times"), [(2, 1.0), (4, 2.0)])
def test_a_message_is_a_bit_an_entry_and_goes_to_all(workers, times):
    slow = {"workers": workers, "bandwidth_mbit_s": 1.0, "latency_s": 0.25, "step_time": "constant"}
    spec = {"name": "one_bit_adam", "freeze_step": 2}
    model = {"name": "mlp", "hidden": [16]}
    done = ps.run(toy_experiment(spec, cluster=slow, model=model, stop={"updates": 4}))
    pushes = done.log.of_kind(Kind.PUSH)
    whole, message = 4 * 131, 4 * 4 + 17  # four tensors of 131 entries
    up = {v: whole * (workers - 1) / workers if v < 2 else message * (workers - 1) / 2 for v in range(4)}
    assert pushes["bytes"].tolist() == pytest.approx([up[v] for v in pushes["version"]], abs=1)
    assert up[2] / up[0] == pytest.approx(times * message / whole)
    last = (pushes["send_s"] > 0) & (pushes["version"] >= 2)
    seconds = (workers - 1) * (0.25 + message * 8 / 1e6)
    assert pushes["send_s"][last] == pytest.approx(seconds, rel=1e-3)
    replay(done)


def test_the_rate_and_its_schedule_are_the_experiments():
    moved = []
    for rate in (SGD(lr=1e-3), SGD(lr=1e-3, milestones=(0.0,)), SGD(lr=2e-3)):
        own = Server(torch.zeros(17), torch.zeros(0), rate, 8, OneBitAdam(), shapes=SHAPES)
        update(own, 0, [drawn(0)], [1.0])
        moved.append(own.parameters)
    torch.testing.assert_close(moved[0] / 10, moved[1])
    torch.testing.assert_close(moved[0] * 2, moved[2])


def test_a_rate_for_other_steps_is_doubted_and_not_the_default():
    assert ps.Experiment(strategy="one_bit_adam").optimizer.lr == 1e-3
    assert ps.Experiment(strategy="bsp").optimizer.lr == 0.1
    with pytest.warns(DoubtfulComposition, match="rate, 0.01, is 10 times the usual rate .* optimizer.lr"):
        ps.Experiment(strategy="one_bit_adam", optimizer={"name": "sgd", "lr": 0.01})
    with pytest.warns(DoubtfulComposition, match="a step of yogi .* give outer_lr = 0.1"):
        ps.Experiment(strategy={"name": "diloco", "outer_optimizer": "yogi"})
    ps.Experiment(strategy={"name": "fedadam", "outer_optimizer": "yogi"})


@pytest.mark.parametrize(
    ("optimizer", "field"),
    [
        ({"name": "sgd", "momentum": 0.8}, "momentum"),
        ({"name": "sgd", "weight_decay": 0.1}, "weight_decay"),
        ({"name": "adam"}, "name"),
    ],
)
def test_what_it_does_not_read_of_the_optimizer_is_refused(optimizer, field):
    with pytest.raises(ParameterError, match=rf"^optimizer\.{field}: aggregation 'one_bit_adam' uses only"):
        toy_experiment("one_bit_adam", optimizer=optimizer)
    toy_experiment(
        "one_bit_adam",
        optimizer={
            "name": "sgd",
            "lr": 1e-3,
            "schedule": {"name": "cosine", "epochs": 1},
            "clip": {"norm": 1},
        },
    )


def test_its_arithmetic_passes_the_checks_in_both_phases():
    check_update(*decided({"name": "one_bit_adam", "freeze_step": 3}))
