"""Shardings against the rules, the published numbers and scikit-learn."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.model_selection import StratifiedKFold

import psbench as ps
from psbench.core.k_means import Clustering
from psbench.core.part import REGISTRY, make_part
from psbench.errors import ParameterError
from psbench.seeds import Streams
from psbench.sharding import (
    DataSensitiveHashing,
    Dirichlet,
    DistributionAware,
    LabelsPerWorker,
    Modular,
    Quantity,
    Random,
    SelDP,
    Sharding,
    ShardPerClass,
    Stratified,
    label_counts,
    measure_data,
)
from psbench.sharding.hash_family import Family, buckets

PARTITIONS = [
    Random(),
    Modular(),
    Stratified(),
    Stratified(rotate=True),
    Dirichlet(min_size=1),
    ShardPerClass(shards_per_worker=1),
    Quantity(min_size=1),
]


def split(sharding: Sharding, labels, num_workers: int, seed: int = 0, features=None) -> list[np.ndarray]:
    labels = np.asarray(labels)
    features = np.zeros((len(labels), 1), np.float32) if features is None else features
    return sharding.split(features, labels, num_workers, Streams(seed).generator("sharding"))


def balanced(num_classes: int, per_class: int) -> np.ndarray:
    labels = np.repeat(np.arange(num_classes), per_class)
    return Streams(7).generator("labels").permutation(labels)


label_lists = st.lists(st.integers(0, 4), min_size=8, max_size=80)


@given(labels=label_lists, num_workers=st.integers(1, 8), index=st.integers(0, len(PARTITIONS) - 1))
def test_every_sample_goes_to_exactly_one_worker(labels, num_workers, index):
    sharding = PARTITIONS[index]
    if isinstance(sharding, Stratified) and not sharding.rotate and len(labels) < 5 * num_workers:
        labels = labels * num_workers
    shards = split(sharding, labels, num_workers)
    assert len(shards) == num_workers
    assert all(shard.dtype == np.int64 for shard in shards)
    assert sorted(np.concatenate(shards).tolist()) == list(range(len(labels)))


@pytest.mark.parametrize("name", sorted(set(REGISTRY["sharding"]) - {"import"}))
def test_same_seed_same_shards(name):
    labels = balanced(8, 30)
    features = Streams(1).generator("x").standard_normal((240, 3)).astype(np.float32)
    first, again = (split(make_part("sharding", name), labels, 4, 3, features) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("name", ["random", "dirichlet", "shard_per_class", "quantity", "seldp"])
def test_another_seed_gives_other_shards(name):
    first, other = (split(make_part("sharding", name), balanced(8, 30), 4, seed) for seed in (0, 1))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_modular_is_index_mod_n():
    assert [s.tolist() for s in split(Modular(), [0] * 7, 3)] == [[0, 3, 6], [1, 4], [2, 5]]


def test_random_sizes_differ_by_at_most_one():
    assert sorted(map(len, split(Random(), [0] * 50_000, 12))) == [4166] * 4 + [4167] * 8


@pytest.mark.parametrize(
    ("num_classes", "per_class", "sizes"),
    [
        (10, 5000, [4170] * 8 + [4160] * 4),
        (20, 2500, [4180] * 4 + [4160] * 8),
        (100, 500, [4200] * 8 + [4100] * 4),
    ],
    ids=["CIFAR-10", "CIFAR-100 coarse", "CIFAR-100 fine"],
)
def test_stratified_sizes_of_the_thesis(num_classes, per_class, sizes):
    assert [len(s) for s in split(Stratified(), balanced(num_classes, per_class), 12)] == sizes


def test_rotation_evens_the_sizes():
    sizes = [len(s) for s in split(Stratified(rotate=True), balanced(10, 5000), 12)]
    assert max(sizes) - min(sizes) == 1


@given(labels=label_lists, num_workers=st.integers(1, 5), rotate=st.booleans())
def test_stratified_counts_of_a_class_differ_by_at_most_one(labels, num_workers, rotate):
    labels = np.array(labels + [0] * num_workers)
    counts = label_counts(split(Stratified(rotate=rotate), labels, num_workers), labels, 5)
    assert (counts.max(axis=0) - counts.min(axis=0) <= 1).all()


@given(extra=st.lists(st.integers(0, 3), max_size=60), num_workers=st.integers(2, 4))
@pytest.mark.filterwarnings("ignore:The least populated class")
def test_rotating_stratification_has_the_counts_of_scikit_learn(extra, num_workers):
    # scikit-learn numbers classes by first appearance, so each appears once in order first
    labels = np.array([0, 1, 2, 3] * num_workers + extra)
    folds = [fold for _, fold in StratifiedKFold(num_workers).split(labels, labels)]
    ours = label_counts(split(Stratified(rotate=True), labels, num_workers), labels, 4)
    assert np.array_equal(ours, label_counts(folds, labels, 4))


def blobs(sizes: list[int], seed: int = 0) -> np.ndarray:
    rng = Streams(seed).generator("blobs")
    centres = 100.0 * np.arange(len(sizes))[:, None] * np.ones((1, 4))
    points = [centre + rng.standard_normal((size, 4)) for centre, size in zip(centres, sizes, strict=True)]
    return np.concatenate(points).astype(np.float32)


def test_one_cluster_is_modular():
    features = blobs([30])
    ours = split(DistributionAware(clusters=1), [0] * 30, 4, features=features)
    assert [s.tolist() for s in ours] == [s.tolist() for s in split(Modular(), [0] * 30, 4)]


def test_without_sparse_clusters_it_is_a_partition_even_in_every_cluster():
    sizes = [20, 30, 40]
    shards = split(DistributionAware(clusters=3), [0] * 90, 4, features=blobs(sizes))
    assert sorted(np.concatenate(shards).tolist()) == list(range(90))
    counts = label_counts(shards, np.repeat(np.arange(3), sizes), 3)
    assert (counts.max(axis=0) - counts.min(axis=0) <= 1).all()


def test_every_worker_holds_every_sparse_sample():
    shards = split(DistributionAware(clusters=3), [0] * 66, 4, features=blobs([30, 33, 3]))
    assert all({63, 64, 65} <= set(shard.tolist()) for shard in shards)
    assert sum(map(len, shards)) == 66 + (4 - 1) * 3


def test_a_report_tells_neighbourhoods_sparse_ones_and_their_mean_size():
    rng, labels = Streams(0).generator("sharding"), np.zeros(68, dtype=np.int64)
    data = SimpleNamespace(train_x=torch.from_numpy(blobs([30, 33, 3, 2])), strata=(labels, ("0",)))
    division, report = measure_data(DistributionAware(clusters=4, restarts=5), data, 4, rng)
    assert (report.neighbourhoods, report.sparse, report.sparse_mean_size) == (4, 2, 2.5)
    assert report.sizes == [len(shard) for shard in division.shards]
    assert report.seconds > 0
    _, none = measure_data(Modular(), data, 4, rng)
    assert (none.neighbourhoods, none.sparse, none.sparse_mean_size) == (None, None, None)


def test_a_runs_record_tells_the_sharding_and_its_digest_does_not():
    given = {"data": "digits", "sharding": {"name": "distribution_aware", "clusters": 200}, "model": "linear"}
    runs = [ps.run(ps.Experiment(**given, stop={"updates": 1})) for _ in range(2)]
    reports = [run.meta["sharding"] for run in runs]
    assert reports[0]["seconds"] > 0
    assert reports[0]["sparse"] > 0
    assert reports[0] | {"seconds": 0} == reports[1] | {"seconds": 0}
    assert runs[0].log.digest() == runs[1].log.digest()


@pytest.mark.parametrize(("rule", "copies"), [("fewer", 1), ("at_most", 4)])
def test_a_cluster_as_large_as_the_cluster_of_workers(rule, copies):
    sharding = DistributionAware(clusters=2, sparse_rule=rule)
    shards = split(sharding, [0] * 34, 4, features=blobs([30, 4]))
    assert np.count_nonzero(np.concatenate(shards) >= 30) == copies * 4


def test_a_full_rotation_changes_no_cluster():
    features = blobs([20, 30, 40])
    labels = np.zeros(90, dtype=np.int64)
    ids = [
        DistributionAware(clusters=3, components=c).cluster(features, labels, Streams(0).generator("s"))
        for c in (None, 4)
    ]
    assert np.array_equal(*ids)


@pytest.mark.parametrize("components", [2, 0.9])
def test_clusters_are_those_of_scikit_learn(components):
    features = Streams(0).generator("x").standard_normal((120, 6)).astype(np.float32)
    rng, same = (Streams(0).generator("s") for _ in range(2))
    ours = DistributionAware(clusters=5, components=components).cluster(features, np.zeros(120), rng)
    seed = int(same.integers(2**31))
    reduced = PCA(components, random_state=seed).fit_transform(features)
    theirs = KMeans(5, max_iter=150, n_init=1, random_state=seed).fit_predict(reduced)
    assert np.array_equal(ours, theirs)


def test_default_number_of_clusters_is_twice_the_classes():
    features = Streams(0).generator("x").standard_normal((90, 2)).astype(np.float32)
    ids = DistributionAware().cluster(features, np.arange(90) % 3, Streams(0).generator("s"))
    assert len(np.unique(ids)) == 6


def test_coinciding_samples_make_fewer_clusters_and_say_so(monkeypatch):
    said = []  # by the logger itself: what other tests have made of logging does not matter
    monkeypatch.setattr(logging.getLogger(Clustering.__module__), "warning", lambda *of: said.append(of))
    shards = split(DistributionAware(clusters=5), [0] * 12, 2, features=np.ones((12, 3), np.float32))
    assert sorted(np.concatenate(shards).tolist()) == list(range(12))
    assert [of[2:] for of in said] == [(1, 5)]


def hashed(**keys) -> DataSensitiveHashing:
    return DataSensitiveHashing(**{"neighbours": 3, "family": 4} | keys)


def test_a_hash_without_bits_is_modular():
    features = blobs([30, 40])
    ours = split(hashed(bits=0), [0] * 70, 4, features=features)
    assert [s.tolist() for s in ours] == [s.tolist() for s in split(Modular(), [0] * 70, 4)]


def test_one_learned_bit_finds_the_two_clusters_of_distribution_aware():
    features = blobs([30, 43])
    ours = split(hashed(bits=1), [0] * 73, 4, features=features)
    theirs = split(DistributionAware(clusters=2), [0] * 73, 4, features=features)
    assert [s.tolist() for s in ours] == [s.tolist() for s in theirs]


def test_dense_buckets_are_dealt_in_turn_and_sparse_ones_given_to_all():
    features = Streams(3).generator("x").standard_normal((300, 5)).astype(np.float32)
    rng = Streams(0).generator("sharding")
    division = hashed(bits=9, family=9).divide(features, np.zeros(300, np.int64), 8, rng)
    ids = hashed(bits=9, family=9).cluster(features, np.zeros(300), Streams(0).generator("sharding"))
    counts = label_counts(division.shards, ids, ids.max() + 1)
    sizes = np.bincount(ids)
    assert division.neighbourhoods == sizes.tolist()
    assert division.sparse == sizes[sizes < 8].tolist()
    assert division.sparse
    assert (counts[:, sizes < 8] == sizes[sizes < 8]).all()
    assert (np.ptp(counts, axis=0) <= 1).all()


def test_learned_functions_cut_through_no_neighbours():
    # the mean, through which the planes of plain hashing go, is in the middle of a blob
    rng = Streams(5).generator("x")
    x = blobs([60, 60, 60])
    x -= x.mean(axis=0)
    learned = Family("it", 6, 10, 6).fit(x, rng).bits(x)
    drawn = (x @ rng.standard_normal((6, 4)).T > 0).astype(np.int64)
    alike = np.arange(180)[:, None] // 60 == np.arange(180)[None] // 60

    def collisions(bits):  # p1 and p2 of definition 6
        same = (bits[:, None] == bits[None]).mean(axis=2)
        return same[alike].mean(), same[~alike].mean()

    (p1, p2), (q1, _) = collisions(learned), collisions(drawn)
    assert p1 > 0.98 > 0.9 > q1
    assert p2 < 0.5


def test_boosting_makes_functions_that_differ():
    bits = (
        Family("it", 4, 10, 6)
        .fit(blobs([60, 60, 60, 60]), Streams(0).generator("s"))
        .bits(blobs([60, 60, 60, 60]))
    )
    assert len(np.unique(bits, axis=1).T) > 1
    assert len(np.unique(buckets(bits))) == 4  # no function alone can tell four blobs apart


def test_the_bucket_has_a_bit_of_each_function():
    bits = np.array(list(np.ndindex(2, 2, 2)))
    assert buckets(bits).tolist() == list(range(8))


@pytest.mark.parametrize("alpha", [1e-9, 1e-3, 0.1, 1.0, 1e6])
@pytest.mark.parametrize("num_workers", [2, 16])
def test_dirichlet_ends_and_keeps_the_smallest_size(alpha, num_workers):
    labels = balanced(4, 50)
    shards = split(Dirichlet(alpha=alpha, min_size=10), labels, num_workers)
    assert min(map(len, shards)) >= 10
    assert sorted(np.concatenate(shards).tolist()) == list(range(200))


def test_dirichlet_as_tight_as_the_data_allows():
    assert [len(s) for s in split(Dirichlet(alpha=0.01, min_size=10), balanced(4, 10), 4)] == [10] * 4


def test_an_even_dirichlet_has_the_proportions_of_the_whole():
    labels = balanced(5, 400)
    counts = label_counts(split(Dirichlet(alpha=1e8), labels, 4), labels, 5)
    assert np.abs(counts - 100).max() <= 1


def test_a_skewed_dirichlet_gives_each_class_to_one_worker():
    labels = balanced(10, 100)
    counts = label_counts(split(Dirichlet(alpha=1e-6, min_size=1), labels, 3), labels, 10)
    assert (np.sort(counts, axis=0)[-1] >= 98).all()


def test_shard_per_class_on_mnist_like_data():
    labels = balanced(10, 600)
    shards = split(ShardPerClass(), labels, 100)
    counts = label_counts(shards, labels, 10)
    assert {len(s) for s in shards} == {60}
    assert (np.count_nonzero(counts, axis=1) <= 2).all()


def test_labels_per_worker_are_runs():
    labels = balanced(10, 5)
    held = [sorted(set(labels[s].tolist())) for s in split(LabelsPerWorker(), labels, 4)]
    assert held == [[0, 1], [2, 3, 4], [5, 6], [7, 8, 9]]
    assert [len(s) for s in split(LabelsPerWorker(), labels, 10)] == [5] * 10  # as many classes as workers
    for n in (1, 2, 5, 10):  # sahiltyagi4/SelSync f6910a7, noniid_datapartitioner.py, get_labels_per_rank
        held = [sorted(set(labels[s].tolist())) for s in split(LabelsPerWorker(), labels, n)]
        assert held == [[10 // n * rank + i for i in range(10 // n)] for rank in range(n)]


def test_quantity_keeps_the_smallest_size_and_is_skewed():
    sizes = [len(s) for s in split(Quantity(alpha=0.1, min_size=20), balanced(4, 250), 8)]
    assert min(sizes) >= 20
    assert max(sizes) > 2 * 1000 / 8


def test_seldp_orders_form_a_latin_square():
    shards = split(SelDP(), [0] * 8, 4)
    chunks = [shard.reshape(4, 2).tolist() for shard in shards]
    assert [[chunks[0].index(chunk) for chunk in own] for own in chunks] == [
        [0, 1, 2, 3],
        [1, 2, 3, 0],
        [2, 3, 0, 1],
        [3, 0, 1, 2],
    ]


def test_label_counts():
    counts = label_counts([np.array([0, 2]), np.array([], dtype=np.int64)], np.array([1, 0, 1]), 3)
    assert counts.tolist() == [[0, 2, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("sharding", "labels", "workers", "message"),
    [
        (Random(), [0, 1], 3, "2 samples do not suffice for 3 workers; use fewer workers"),
        (Random(), [0, 1], 0, "num_workers must be at least 1, got 0"),
        (Stratified(), [0, 1, 2], 3, "worker 1 of 3 gets no sample of 3; set rotate"),
        (DistributionAware(clusters=9), [0] * 8, 2, "cannot form 9 clusters from 8 samples"),
        (DistributionAware(components=2), [0] * 8, 2, "cannot keep 2 of 1 components"),
        (DataSensitiveHashing(), [0] * 30, 2, "no sample of 30 lies beyond .* set neighbours to 7 or less"),
        (Dirichlet(), [0] * 30, 4, "set min_size to 7 or less"),
        (Quantity(), [0] * 30, 4, "set min_size to 7 or less"),
        (ShardPerClass(), [0, 1, 2], 2, "3 samples cannot be cut into 2 x 2 pieces; lower shards_per_worker"),
        (LabelsPerWorker(), [0, 1, 0], 3, "2 classes cannot be shared by 3 workers"),
    ],
)
def test_impossible_splits_say_what_to_do(sharding, labels, workers, message):
    with pytest.raises(ParameterError, match=message):
        split(sharding, labels, workers)


def test_samples_without_labels_are_refused():
    with pytest.raises(ParameterError, match="3 samples but 2 labels"):
        split(Random(), [0, 1], 1, features=np.zeros((3, 1)))


@pytest.mark.parametrize("value", [1.5, 0, -1])
def test_components_must_be_whole_or_a_share(value):
    with pytest.raises(ParameterError, match="components"):
        DistributionAware(components=value)
