"""Pushes that carry more than one vector, wherever they are added up, and how long they are."""

from collections.abc import Sequence
from typing import ClassVar

import pytest
import torch
from threaded_run import ThreadedRun
from toybox import put_in, take_out

import psbench as ps
from psbench.core.actions import Apply
from psbench.core.aggregation import Aggregation
from psbench.core.arithmetic import Pushed, State, Step, Vector
from psbench.core.log import Kind
from psbench.core.strategy import Strategy
from psbench.errors import ParameterError
from psbench.runs.execution import run as run_from
from psbench.runs.replaying import replay
from psbench.strategies.aggregation import Mean
from psbench.strategies.communication import LocalSGD
from psbench.testing import check_strategy, toy_experiment

RING = {"placement": "all_reduce"}


class WithControl(Aggregation):
    """Averages differences, and beside it what the workers say that theirs differ from those before."""

    name: ClassVar[str] = "several_with_control"
    payload: ClassVar = "difference"
    carries: ClassVar[tuple[str, ...]] = ("control", "twice")
    linear: ClassVar[bool] = True

    def on_commit(self, pushes, view):
        return [Apply(pushes, [1 / len(pushes)] * len(pushes))]

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        for push in pushes:
            state.vector("control").add_(push.more["control"], alpha=push.weight)
            x.sub_(2 * push.vector - push.more["twice"] / 2, alpha=push.weight)
        x.sub_(state["control"], alpha=0.01)


class SendsControl(WithControl):
    """Sends what it knows of the workers' changes with the model."""

    name: ClassVar[str] = "several_sends_control"
    sends: ClassVar[tuple[str, ...]] = ("control", "unknown")


class ByNorm(Mean):
    """Weighs a push by the norm that its worker has measured."""

    name: ClassVar[str] = "several_by_norm"
    reads: ClassVar[tuple[str, ...]] = ("push_norm",)

    def on_commit(self, pushes, view):
        norms = [push.stats["push_norm"] for push in pushes]
        return [Apply(pushes, [norm / sum(norms) for norm in norms])]


class GivesControl(LocalSGD):
    """Local steps that give both."""

    name: ClassVar[str] = "several_gives_control"

    def payload(self, w, state, own):
        difference = super().payload(w, state, own)
        control = difference - state.vector("before")
        state["before"] = difference
        return {"vector": difference, "control": control, "twice": 2 * difference}


class ReadsControl(GivesControl):
    """Local steps that begin where the others' changes lead."""

    name: ClassVar[str] = "several_reads_control"

    def begin(self, w, model, state, own):
        super().begin(w, model, state, own)
        w.add_(own.answer["unknown"])  # zeros: the server has no such vector
        w.sub_(own.answer["control"], alpha=0.5)

    def step(self, w, gradient, state, own):
        super().step(w, gradient + 0.1 * own.answer["control"], state, own)


OWN = take_out("several_")


@pytest.fixture(autouse=True)
def _known():
    put_in(OWN)
    yield
    take_out("several_")


def strategy(**parts):
    return Strategy(
        **{
            "consistency": "bsp",
            "aggregation": "several_with_control",
            "communication": {"name": "several_gives_control", "local_steps": 3} | parts.pop("codecs", {}),
        }
        | parts
    )


def run(made, **changes):
    return ps.run(toy_experiment(made, **{"stop": {"updates": 6}, "seed": 1} | changes))


def test_one_server_three_and_a_ring_have_the_same_model():
    three = {"placement": {"name": "parameter_server", "servers": 3}}
    one, *others = (run(strategy(**placement)).parameters for placement in ({}, three, RING))
    for other in others:
        torch.testing.assert_close(one, other)


def test_each_vector_arrives_as_it_was_sent():
    plain = {"outer_optimizer": "plain", "outer_lr": 1.0, "outer_momentum": 0.0}
    other = run(
        {"name": "diloco", "local_steps": 3, "local_momentum": "cleared"} | plain, stop={"updates": 1}
    )
    own = run(strategy(), stop={"updates": 1})
    start = run(strategy(), stop={"updates": 1}, optimizer={"name": "sgd", "lr": 1e-30}).parameters
    # the first difference is its own control
    torch.testing.assert_close(own.parameters - start, 1.01 * (other.parameters - start))


def test_a_push_is_as_long_as_its_vectors():
    done, plain = run(strategy()), run({"name": "diloco", "local_steps": 3})
    sent, other = (each.log.of_kind(Kind.PUSH)["bytes"][0] for each in (done, plain))
    assert sent == 3 * other
    down = [each.log.of_kind(Kind.RELEASE)["bytes"][0] for each in (done, plain)]
    assert down[0] == down[1]
    assert replay(done) == len(done.log)


@pytest.mark.parametrize("codec", [{"name": "fp16"}, {"name": "top_k", "ratio": 1.0}])
@pytest.mark.parametrize("servers", [1, 2])
def test_codecs_encode_them_together(codec, servers):
    placement = {"name": "parameter_server", "servers": servers}
    made = run(strategy(codecs={"codec": codec}, placement=placement))
    torch.testing.assert_close(made.parameters, run(strategy()).parameters, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("parts", [{"placement": {"name": "parameter_server", "servers": 2}}, RING])
def test_live_and_in_virtual_time_the_model_is_the_same(parts):
    changes = {"cluster": {"workers": 2, "step_time": "constant"}}
    simulated = run(strategy(**parts), **changes)
    live = ThreadedRun(
        toy_experiment(strategy(**parts), stop={"updates": 6}, seed=1, backend="dask", **changes)
    )
    assert live.run().error is None
    torch.testing.assert_close(live.parameters, simulated.parameters)
    pushes = [log.of_kind(Kind.PUSH)["bytes"].tolist() for log in (live.log, simulated.log)]
    assert pushes[0] == pushes[1]


def test_the_contract_tries_them():
    check_strategy(strategy(), clusters=1)


def test_what_does_not_give_them_is_refused():
    for other, says in (
        (
            {"communication": {"name": "local_sgd"}},
            "but local_sgd pushes one; override 'payload'",
        ),
        ({"consistency": "k_batch_bsp"}, "under k_batch_bsp a push that waits for a commit has one"),
    ):
        with pytest.raises(ParameterError, match=says):
            strategy(**other)


# -------------------------------------------------------------------- answers that carry them


def reading(**parts):
    both = {"aggregation": "several_sends_control", "communication": {"name": "several_reads_control"}}
    both["communication"] |= {"local_steps": 3} | parts.pop("codecs", {})
    return strategy(**both | parts)


def test_workers_read_the_state_that_is_sent_with_the_model():
    assert not torch.equal(run(reading()).parameters, run(strategy()).parameters)
    alone, two = run(reading(), stop={"updates": 1}), run(reading(), stop={"updates": 2})
    plain = run(strategy(), stop={"updates": 2})
    assert not torch.equal(two.parameters, plain.parameters)
    torch.testing.assert_close(alone.parameters, run(strategy(), stop={"updates": 1}).parameters)


def test_one_server_three_and_a_ring_send_the_same_state():
    three = {"placement": {"name": "parameter_server", "servers": 3}}
    one, *others = (run(reading(**placement)).parameters for placement in ({}, three, RING))
    for other in others:
        torch.testing.assert_close(one, other)


def test_an_answer_is_as_long_as_its_vectors():
    done, plain = run(reading()), run(strategy())
    sent, other = (each.log.of_kind(Kind.RELEASE)["bytes"] for each in (done, plain))
    assert (sent == 3 * other).all()
    assert replay(done) == len(done.log)
    ring, plain = run(reading(**RING)), run(strategy(**RING))
    sent, other = (each.log.of_kind(Kind.RELEASE)["bytes"] for each in (ring, plain))
    assert (sent == other).all()  # each member has made the state itself


def test_answers_are_encoded_as_one_vector():
    for codec in ({"name": "fp16"}, {"name": "top_k", "ratio": 1.0}):
        for servers in (1, 2):
            placement = {"name": "parameter_server", "servers": servers}
            made = run(reading(codecs={"codec_down": codec}, placement=placement))
            torch.testing.assert_close(made.parameters, run(reading()).parameters, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    "parts",
    [
        {"placement": {"name": "parameter_server", "servers": 2}},
        {"codecs": {"codec_down": {"name": "top_k", "ratio": 0.5}}, "placement": "parameter_server"},
        RING,
    ],
    ids=str,
)
def test_live_workers_read_the_same_state(parts):
    changes = {"cluster": {"workers": 2, "step_time": "constant"}}
    made = reading(**parts)
    simulated = run(made, **changes)
    live = ThreadedRun(toy_experiment(made, stop={"updates": 6}, seed=1, backend="dask", **changes))
    assert live.run().error is None
    torch.testing.assert_close(live.parameters, simulated.parameters)
    sent = [log.of_kind(Kind.RELEASE)["bytes"].tolist() for log in (live.log, simulated.log)]
    assert sent[0] == sent[1]


@pytest.mark.parametrize("parts", [{}, RING], ids=str)
def test_a_resumed_run_sends_and_reads_the_same_state(tmp_path, parts):
    spec = toy_experiment(reading(**parts), stop={"updates": 9}, seed=1, checkpoint_every=0.7)
    whole = ps.run(spec, folder=tmp_path / "run")
    first = min((tmp_path / "run" / "checkpoints").glob("*.npz"))
    again = run_from(spec, start=first)
    assert torch.equal(again.parameters, whole.parameters)
    assert again.log.digest() == whole.log.digest()


def test_the_contract_tries_answers_of_several_vectors():
    check_strategy(reading(), clusters=1)


def test_what_cannot_send_the_state_is_refused():
    with pytest.raises(
        ParameterError, match=r"under sharded a worker holds a share .* several_reads_control needs all of it"
    ):
        reading(placement="sharded")


@pytest.mark.slow
def test_a_worker_measures_what_it_pushes():
    made = Strategy(consistency="bsp", aggregation="several_by_norm")
    done = run(made, cluster={"workers": 2}, stop={"updates": 3})
    weights = done.log.of_kind(Kind.APPLY)["loss"].reshape(3, 2)
    assert (abs(weights.sum(1) - 1) < 1e-6).all()
    assert (weights[:, 0] != weights[:, 1]).all()
    assert replay(done) == len(done.log)
    live = ThreadedRun(done.experiment.model_copy(update={"backend": "dask"})).run()
    torch.testing.assert_close(live.parameters, done.parameters)
    check_strategy(made, clusters=1)
