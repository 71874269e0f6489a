"""Hermes' sizing of chunks: whose time is out of line, and what it is given."""

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import psbench as ps
from psbench import metrics, strategies
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.engine import Engine
from psbench.core.log import Kind
from psbench.core.view import ClusterView
from psbench.errors import ParameterError
from psbench.strategies.stragglers.dual_binary_search import BATCHES, fences, search, search_of_the_code

TIMES = [2.0, 2.1, 2.2, 2.3, 2.4, 2.2, 2.1, 2.3, 2.2, 2.0, 2.4, 6.0]
K = 6.0 * 16 / (5 * 2500)


def test_fences_of_the_worked_example():
    assert fences(sorted(TIMES)) == pytest.approx((1.7625, 2.6625))
    assert fences(sorted(TIMES[:-1])) == pytest.approx((1.8, 2.6))


@pytest.mark.parametrize(("batch", "samples"), [(16, 916), (32, 1833), (8, 458)])
def test_sizes_of_the_worked_example(batch, samples):
    assert pytest.approx(0.00768) == K
    assert search(K, 5, 2.2, most=50_000, batch_size=batch) == (samples, batch)


def test_the_code_takes_the_lower_edge_of_its_tolerance():
    assert search_of_the_code(K, 5, 2.2, most=50_000, batch_size=16) == (500, 16)
    assert search_of_the_code(K, 5, 0.9, most=50_000, batch_size=16) == (1, 16)  # 0 in the code
    assert search_of_the_code(K, 5, 1e9, most=50_000, batch_size=16) == (50_000, 16)


def test_the_batch_changes_only_where_no_number_of_samples_does():
    step_s = 0.01  # with batches of 16, 704 samples would take the target
    assert search(step_s, 5, 2.2, most=705, batch_size=16) == (704, 16)
    assert search(step_s, 5, 2.2, most=704, batch_size=16) == (352, 8)
    assert search(step_s, 5, 2.2, most=100, batch_size=16) == (88, 2)
    # not even one sample in a batch of 2: 5 passes are 2.5 s; in a batch of 4 they are 1.25 s
    assert search(1.0, 5, 2.2, most=100, batch_size=2) == (1, 4)


def test_where_nothing_fits_what_comes_closest_is_taken():
    assert search(1e-9, 5, 2.2, most=100, batch_size=16) == (100, 2)
    # not even a step: it takes as long with the 51 samples that 256 are five passes over as with one
    assert search(1000.0, 5, 2.2, most=1000, batch_size=16) == (51, 256)
    assert search(1000.0, 5, 2.2, most=7, batch_size=16) == (7, 64)


def test_a_chunk_may_have_fewer_samples_than_a_batch():
    assert search(1.0, 5, 2.0, most=1000, batch_size=16) == (6, 16)  # two steps; 16 samples would take five


@given(
    step_s=st.floats(1e-6, 10),
    passes=st.integers(1, 20),
    target_s=st.floats(1e-3, 100),
    most=st.integers(1, 5000),
    batch=st.sampled_from(BATCHES),
)
def test_a_chunk_is_the_largest_that_takes_no_longer_than_the_target(step_s, passes, target_s, most, batch):
    exact = target_s * batch / (step_s * passes)
    assume(abs(exact - round(exact)) > 1e-6 * exact)  # where rounding decides, either is right
    size = search(step_s, passes, target_s, most, batch)
    seconds = step_s * passes / size.batch_size  # of a sample
    assert 1 <= size.samples <= most
    assert size.batch_size in BATCHES
    keeps = 0 < int(exact) < most
    assert size.batch_size == batch or not keeps
    if keeps:
        assert seconds * size.samples <= target_s * (1 + 1e-9) < seconds * (size.samples + 1) * (1 + 2e-9)


class Chunks:
    """Workers under Hermes that report chunks; a step takes each of them a time of its own."""

    def __init__(self, workers, dataset_size=50_000, capacity=(), **values):
        cluster = {"num_workers": workers, "dataset_size": dataset_size, "global_batch": workers}
        self.engine = Engine(strategies.hermes(**values), ClusterView(capacity=capacity, **cluster))
        self.tickets, self.sizes, self.told_s = {}, {}, [0.0] * workers
        self.now = 0.0
        self._see(self.engine.begin(range(workers)))

    def report(self, worker, seconds, steps=100):
        """Report a chunk of so many seconds; return what the worker is told."""
        self.told_s[worker] += seconds
        stats = {"compute_s": self.told_s[worker], "test_loss": 1.0, "chunk_steps": steps}
        event = ev.Report(worker, self.tickets[worker], stats)
        return [a for a in self._see(self._handle(event)) if isinstance(a, act.Tell)]

    def push(self, worker, seconds, steps=100):
        """Push after a chunk of so many seconds; return the orders that come with the answer."""
        own = self.told_s[worker] + seconds
        self.told_s[worker] = 0.0
        stats = {"compute_s": own, "test_loss": 1.0}
        push = ev.Push(int(self.now), worker, self.tickets[worker], 0, 9, steps, stats=stats)
        (release,) = [a for a in self._see(self._handle(push)) if isinstance(a, act.Release)]
        return release.orders

    def _handle(self, event):
        self.now += 1.0
        actions = self.engine.handle(event, self.now)
        if self.engine.measuring:
            actions = self.engine.handle(ev.Measured({"model_loss": 1.0, "candidate_loss": 1.0}), self.now)
        return actions

    def _see(self, actions):
        self.tickets |= {a.worker: a.ticket for a in actions if isinstance(a, act.Release)}
        self.sizes |= {a.worker: a.orders for a in actions if isinstance(a, (act.Release, act.Tell))}
        return actions


def orders(samples, batch_size=16, passes=5):
    return {"samples": samples, "batch_size": batch_size, "passes": passes}


def test_only_the_straggler_of_the_worked_example_is_told_another_size():
    chunks = Chunks(12)
    assert set(map(str, chunks.sizes.values())) == {str(orders(2500))}
    answers = [chunks.report(w, t, steps=2500 * 5 / 16) for w, t in enumerate(TIMES)]
    assert answers == [[]] * 11 + [[act.Tell(11, orders(916))]]


@pytest.mark.parametrize(("mode", "samples"), [("search", 916), ("code", 500)])
def test_a_push_is_looked_at_like_a_report(mode, samples):
    chunks = Chunks(12, mode=mode)
    for worker, seconds in enumerate(TIMES[:-1]):
        chunks.report(worker, seconds)
    assert chunks.push(11, 6.0, steps=2500 * 5 / 16) == orders(samples)


def test_a_chunk_is_timed_alone_though_statistics_add_up_until_a_push():
    chunks = Chunks(4)
    for worker in range(3):
        chunks.report(worker, 1.0)
    for _ in range(3):
        assert chunks.report(3, 1.0) == []
    # 300 steps were reported; 100 more are in the push, which took 2 s: half as many take the median
    assert chunks.push(3, 2.0, steps=400)["samples"] == pytest.approx(100 * 16 / 5 / 2, abs=1)
    assert chunks.report(3, 2.0, steps=50)[0].orders["samples"] == 80  # and that is forgotten


def test_nothing_is_out_of_line_before_all_have_a_time():
    chunks = Chunks(5)
    assert [chunks.report(w, t) for w, t in ((0, 1.0), (1, 1.0), (2, 1.0), (3, 9.0), (3, 9.0))] == [[]] * 5
    assert chunks.report(4, 1.0) == []
    assert chunks.report(3, 9.0) != []


def test_a_time_on_a_fence_is_in_line():
    chunks = Chunks(5)
    for worker, seconds in enumerate([1.0, 2.0, 3.0, 4.0]):  # with a 7: quartiles 2 and 4, upper fence 7
        chunks.report(worker, seconds)
    assert chunks.report(4, 7.0) == []
    assert chunks.report(4, 7.1) != []


@pytest.mark.parametrize(("population", "sized"), [("all", False), ("others", True)])
def test_others_make_tighter_fences_where_workers_are_few(population, sized):
    chunks = Chunks(3, fences=population)
    answers = [chunks.report(worker, seconds) for worker, seconds in enumerate([1.0, 1.1, 5.0])]
    assert bool(answers[2]) == sized


@pytest.mark.parametrize(("freeze", "target"), [(False, 3.0), (True, 1.0)])
def test_the_median_is_taken_anew_unless_it_is_frozen(freeze, target):
    chunks = Chunks(5, freeze_median=freeze)
    for worker in range(5):
        chunks.report(worker, 1.0)
    for worker in range(4):
        chunks.report(worker, 3.0)
    (tell,) = chunks.report(4, 9.0)
    assert tell.orders["samples"] == int(target / (9.0 / 100) * 16 / 5)


def test_a_fast_worker_gets_more_up_to_the_limit():
    chunks = Chunks(5, dataset_size=10_000, max_samples=4000)
    for worker in range(4):
        chunks.report(worker, 6.25, steps=625)
    assert chunks.sizes[4] == orders(2000)  # its share of the training set
    assert chunks.report(4, 3.5, steps=625)[0].orders == orders(3571)
    assert chunks.report(4, 1.0, steps=625)[0].orders == orders(3125, 4)  # 12,500 in batches of 16


def test_memory_bounds_a_chunk_of_two_that_are_held():
    chunks = Chunks(5, dataset_size=10_000, capacity=[20_000, 20_000, 20_000, 1000, 7000])
    assert {order["samples"] for order in chunks.sizes.values()} == {500}  # what the smallest can hold
    for worker in range(4):
        chunks.report(worker, 6.25, steps=625)
    assert chunks.report(4, 1.0, steps=625)[0].orders == orders(3125, 4)  # of 3500; 12,500 in batches of 16


def test_equal_workers_keep_their_chunks():
    chunks = Chunks(4)
    third = 1.0 / 3.0  # sums of it are rounded
    for _ in range(20):
        assert [chunks.report(worker, third) for worker in range(4)] == [[]] * 4


def test_one_that_is_back_begins_anew():
    chunks = Chunks(5)
    for worker in range(4):
        chunks.report(worker, 1.0)
    assert chunks.report(4, 9.0) != []
    chunks._see(chunks._handle(ev.Leave(4, "failed")))
    assert chunks.report(0, 9.0) != []  # the times of those who are here suffice
    chunks.told_s[4] = 0.0
    chunks._see(chunks._handle(ev.Join(4)))
    assert chunks.sizes[4] == orders(2500)
    assert chunks.report(1, 99.0) == []


def test_a_chunk_is_no_more_than_a_share_of_the_training_set_at_first():
    assert Chunks(4, dataset_size=1000).sizes[0] == orders(250)
    assert Chunks(4, dataset_size=1000, chunk_samples=100, chunk_batch=8, passes=2).sizes[0] == orders(
        100, 8, 2
    )


def test_communication_must_know_chunks():
    with pytest.raises(ParameterError, match="sets the sizes of data chunks, but every_step"):
        strategies.asp(stragglers="dual_binary_search")


def experiment(**values):
    given = {"batch_size": 96, "data": {"name": "digits"}, "model": "logistic", "stop": {"seconds": 20}}
    given |= {"optimizer": {"name": "sgd", "lr": 0.1}, "evaluate_every": 100.0, "strategy": "hermes"}
    given["cluster"] = {"workers": 5, "speed": [1, 1, 1, 1, 0.25], "step_time": "constant"}
    return ps.Experiment(**given | values)


@pytest.fixture(scope="module")
def done():
    return ps.run(experiment())


def chunk_times(run, worker):
    """Return the seconds of a worker's chunks that were reported, in order."""
    times, before = [], 0.0
    for row in run.log.rows():
        if row["worker"] != worker or row["kind"] not in (Kind.REPORT, Kind.RELEASE):
            continue
        before, was = 0.0, before
        if row["kind"] == Kind.REPORT:
            before = json.loads(run.log.text(row["text"]))["compute_s"]
            times.append(before - was)
    return times


@pytest.mark.nightly
@pytest.mark.slow
def test_the_slow_worker_comes_to_take_as_long_as_the_others(done):
    slow, usual = chunk_times(done, 4), chunk_times(done, 0)
    assert slow[0] == pytest.approx(4 * usual[0])
    assert slow[-1] == pytest.approx(usual[0], rel=0.03)
    assert len(set(usual)) == 1 or max(usual) == pytest.approx(min(usual))


@pytest.mark.slow
def test_chunks_of_data_are_bytes_and_messages(done):
    sent = metrics.chunks_sent(done.log)
    summary, chunks = done.summary(), metrics.chunks(done.log)
    begun = sent.groupby("worker").size()
    ended = chunks.groupby("worker").size()
    assert ((begun - ended) == 1).all()  # every worker is in the midst of one
    assert summary["messages"]["data"] == len(sent)
    assert summary["bytes"]["data"] == sent["samples"].sum() * 64 * 4  # 64 pixels a digit
    first = sent[sent["worker"] == 4].iloc[0]
    assert (first["time_s"], first["samples"]) == (0.0, 287)  # a fifth of the training set
    assert "data" not in ps.run(experiment(strategy="asp", stop={"updates": 5})).summary()["bytes"]


def test_a_machine_too_small_for_two_samples_is_refused():
    small = {"workers": 5, "memory_gb": [8, 8, 8, 1e-6, 8]}
    with pytest.raises(
        ParameterError, match="1e-06 GB of worker 3 are too little for the model and two samples"
    ):
        ps.run(experiment(cluster=small))


@pytest.mark.slow
def test_the_memory_of_a_machine_bounds_its_chunks():
    model = (4 + 4) * 650  # logistic on digits: parameters and gradient
    memory = [8, 8, 8, (model + 2 * 100 * 64 * 4) / 1e9, 8]
    done = ps.run(experiment(cluster={"workers": 5, "memory_gb": memory}, stop={"seconds": 5}))
    sizes = metrics.chunks_sent(done.log).groupby("worker")["samples"]
    assert set(sizes.first()) == {100}
    assert sizes.max()[3] == 100 < sizes.max().max()  # others have more where they were quick
    assert ps.replay(done) == len(done.log)


@pytest.mark.slow
def test_every_decision_is_taken_again_in_replay(done):
    assert Kind.TELL in done.log.rows()["kind"]
    assert ps.replay(done) == len(done.log)


@pytest.mark.nightly
@pytest.mark.slow
def test_it_is_deterministic(done):
    again = ps.run(experiment())
    assert again.log.digest() == done.log.digest()
    assert (again.parameters == done.parameters).all()
