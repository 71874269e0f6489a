"""The ring against torch's own all-reduce, and against itself."""

from __future__ import annotations

import math
import queue
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist

from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.roles import Address
from psbench.backends.dask.server.ring_order import RingOrder, one_ring, two_levels
from psbench.backends.dask.worker.ring_all_reduce import Ring, Wired, all_reduce
from psbench.backends.dask.worker.ring_member import RingMember
from psbench.backends.partition import even_ranges
from psbench.clusters import Custom, Homogeneous, Network
from psbench.strategies.placement import AllReduce
from psbench.testing import toy_experiment
from psbench.training.build import Workload


class Links:
    """Clocks of members, and links on which a message keeps its sender's; as quick as can be by default."""

    def __init__(self, members: int, mbit_s: float = math.inf, parts_s: float = 0.0) -> None:
        self.now, self.free = [0.0] * members, [0.0] * members
        self.mbit_s = [mbit_s * (1 + number) for number in range(members)]
        self.parts_s = [parts_s * (number % 3) for number in range(members)]

    def send(self, one: int, other: int, num_bytes: int) -> float:
        """Return the arrival of a message that leaves when the sender and its link are free."""
        passes_s = 8e-6 * num_bytes / min(self.mbit_s[one], self.mbit_s[other])
        self.free[one] = max(self.now[one], self.free[one]) + passes_s
        return self.free[one] + self.parts_s[one] + self.parts_s[other]


def ring(
    vectors: list[torch.Tensor],
    wired: Wired | None = None,
    groups: list[list[int]] | None = None,
    links: Links | None = None,
) -> list[torch.Tensor]:
    """Reduce in threads, with queues for a wire; in groups and between them, if there are any."""
    links = links or Links(len(vectors))
    numbers = range(len(vectors))
    places = [[place] for place in one_ring(numbers)]
    if groups is not None:
        places = [two_levels(groups)[number] for number in numbers]
    inboxes = [[queue.SimpleQueue[tuple[int, torch.Tensor, float]]() for _ in range(2)] for _ in vectors]
    results = [vector.clone() for vector in vectors]

    def part(number: int, level: int) -> Ring:
        def receive(step: int) -> torch.Tensor:
            sent, piece, at_s = inboxes[number][level].get(timeout=60)
            assert sent == step
            links.now[number] = max(links.now[number], at_s)
            return piece

        def send(step: int, piece: torch.Tensor) -> None:
            sent = piece.clone() if wired is None else wired(piece)
            at_s = links.send(number, own.following, 4 * len(sent))
            inboxes[own.following][level].put((step, sent, at_s))

        own = places[number][level]
        return Ring(own.place, own.size, own.pieces, send, receive)

    def member(number: int) -> None:
        all_reduce(results[number], [part(number, level) for level in range(len(places[number]))], wired)

    threads = [threading.Thread(target=member, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("groups", [[[0, 1], [2, 3]], [[0, 1, 2], [3], [4, 5]], [[2, 0], [1, 4, 3], [5, 6]]])
@pytest.mark.parametrize("length", [1, 1001])
@pytest.mark.parametrize("wired", [None, lambda piece: piece.half().float()])
def test_groups_have_the_sum_of_one_ring_up_to_rounding(
    groups: list[list[int]], length: int, wired: Wired | None
) -> None:
    """Everybody has the same bits, whatever the sizes of the groups; the order of the sum is another."""
    generator = torch.Generator().manual_seed(length)
    vectors = [torch.randn(length, generator=generator) for _ in range(sum(map(len, groups)))]
    results, tolerance = ring(vectors, wired, groups), 1e-5 if wired is None else 1e-2
    assert all(torch.equal(result, results[0]) for result in results)
    torch.testing.assert_close(results[0], ring(vectors)[0], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "groups",
    [[[0, 1, 2], [3, 4, 5]], [[0], [2, 1], [3, 4, 5]], [[5, 2, 4, 1], [3, 0]], [[0, 1, 2, 3, 4, 5]]],
)
@pytest.mark.parametrize(("mbit_s", "parts_s"), [(0.01, 0.0), (1e6, 0.1), (0.01, 0.1)])
def test_groups_are_charged_what_their_members_take(
    groups: list[list[int]], mbit_s: float, parts_s: float
) -> None:
    """In virtual time pieces go where they go live, over links that differ, also in uneven groups."""
    links = Links(6, mbit_s, parts_s)
    ring([torch.zeros(720) for _ in range(6)], None, groups, links)
    cluster = Custom(workers=6, bandwidth_mbit_s=links.mbit_s, peer_latency_s=links.parts_s)
    network = Network(cluster.profile())
    assert network.two_levels(4 * 720, groups, local=False) == pytest.approx(max(links.now))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("length", [1, 4, 1001])
def test_everybody_gets_the_sum_bit_for_bit_the_same(size: int, length: int) -> None:
    generator = torch.Generator().manual_seed(size)
    vectors = [torch.randn(length, generator=generator) for _ in range(size)]
    results = ring(vectors)
    assert all(torch.equal(result, results[0]) for result in results)
    torch.testing.assert_close(results[0], torch.stack(vectors).sum(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_wire_that_rounds_leaves_everybody_with_the_same_sum(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    vectors = [torch.randn(1001, generator=generator) for _ in range(size)]
    results = ring(vectors, wired=lambda piece: piece.half().float())
    assert all(torch.equal(result, results[0]) for result in results)
    assert torch.equal(results[0], results[0].half().float())
    torch.testing.assert_close(results[0], torch.stack(vectors).sum(0), rtol=1e-2, atol=1e-2)


def test_the_sum_is_the_same_every_time() -> None:
    generator = torch.Generator().manual_seed(1)
    vectors = [torch.randn(100, generator=generator) for _ in range(4)]
    assert torch.equal(ring(vectors)[0], ring(vectors)[0])


def gloo(
    rank: int, vectors: list[torch.Tensor], store: str, answers: queue.SimpleQueue[torch.Tensor]
) -> None:
    group = dist.ProcessGroupGloo(
        dist.PrefixStore("ring", dist.FileStore(store, len(vectors))), rank, len(vectors)
    )
    mine = vectors[rank].clone()
    group.allreduce([mine]).wait()
    answers.put(mine)


def test_it_agrees_with_gloo(tmp_path: object) -> None:
    generator = torch.Generator().manual_seed(2)
    vectors = [torch.randn(1000, generator=generator) for _ in range(3)]
    answers: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
    threads = [
        threading.Thread(target=gloo, args=(rank, vectors, f"{tmp_path}/store", answers)) for rank in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close(ring(vectors)[0], answers.get(timeout=60), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("length", "count"), [(10, 3), (2, 5), (0, 2), (7, 7)])
def test_slices_cover_everything_once(length: int, count: int) -> None:
    parts = even_ranges(length, count)
    assert len(parts) == count
    assert [i for part in parts for i in range(length)[part]] == list(range(length))
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) - min(sizes) <= 1


class Sent(list[Message]):
    """What a member sends the coordinator."""

    send = list.append


@pytest.mark.parametrize("strategy", ["all_reduce", {"name": "local_sgd", "placement": "all_reduce"}])
def test_a_version_of_nothing_is_the_model_before(strategy: object) -> None:
    """Pushes are gradients, and models."""
    workload = Workload.build(toy_experiment(strategy, optimizer={"name": "sgd", "lr": 0.1}))
    sent: Any = Sent()
    member = RingMember(0, sent, None, b"", None)  # type: ignore[arg-type]
    member.begin(replica := workload.server(), "none")
    before = replica.parameters.clone()
    member.handle(msg.ContributeZeros(-1))
    member.handle(msg.StartRing(1, msg.RingPlace(0, 1, 1, 0), [], 1.0, 1.0, 4, 1, {}))
    assert sent == [msg.RingVerdict(1, True)]
    member.handle(msg.MakeVersion(1, 1, msg.Update(1.0, 0.0, 1.0, {"keep": 0.0}, -1)))
    torch.testing.assert_close(replica.parameters, before, rtol=0, atol=0)


def test_each_form_of_the_groups_is_said_once() -> None:
    hosts = {worker: Address(f"tls://10.0.0.{1 + worker // 2}:{worker}") for worker in range(4)}
    said = list[str]()
    network = Network(Homogeneous(workers=4).profile())
    order = RingOrder(AllReduce(algorithm="hierarchical"), network, 1000, hosts.get, said.append)
    for workers in ([0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2], [0, 1, 2]):
        assert {*order.levels(workers)} == {*workers}
    assert order.levels([0, 2]) == order.levels([1]) == {}  # each is alone on its host
    assert [text.partition(",")[0].partition(":")[0] for text in said] == [
        "All-Reduce in 2 groups of 2 workers",
        "All-Reduce in 2 groups of 1 to 2 workers",
        "All-Reduce in one ring of 2 workers",
        "All-Reduce in one ring of 1 workers",
    ]
