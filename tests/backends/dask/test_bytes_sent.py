"""A live run's bytes, as its log has them, are those that its sockets carried.

Every Dask process counts the payloads that its server socket receives with pushes and sends with releases,
frame by frame; the log's bytes come from the codecs' own arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from distributed import Client

from psbench.backends.dask.protocol.messages import PushMessage, ReleaseMessage
from psbench.core.log import Kind
from psbench.experiment import Experiment
from psbench.runs.execution import run

pytestmark = [pytest.mark.dask, pytest.mark.slow]


def count_payloads() -> None:
    """Have this process note the bytes of each message's payload, in order, by the kind of the message."""
    from collections import defaultdict

    from psbench.backends.dask import tasks
    from psbench.backends.dask.protocol import transport

    class CountingSocket(transport.ServerSocket):
        carried: defaultdict[int, list[int]] = defaultdict(list)

        def next_frame(self, timeout_s: float) -> Any:
            found = super().next_frame(timeout_s)
            if found is not None:
                self.note(found[1])
            return found

        def send_frame(self, name: str, frame: Any) -> bool:
            done = super().send_frame(name, frame)
            self.note(frame)
            return done

        def note(self, frame: Any) -> None:
            """Note the bytes that a frame's payload takes on the wire."""
            size = 0 if frame.payload is None else len(bytes(frame.payload.numpy()))
            self.carried[frame.kind].append(size)

    tasks.ServerSocket = CountingSocket


def payloads() -> dict[int, list[int]]:
    """Return what was noted, and note no more."""
    from psbench.backends.dask import tasks
    from psbench.backends.dask.protocol import transport

    counted: Any = tasks.ServerSocket
    tasks.ServerSocket = transport.ServerSocket
    return dict(counted.carried)


WORKERS = 2
#: another ratio with every push, so that in each run some differ
ADAPTS = {"name": "mq_grad", "codec": "top_k", "window": 1, "explore": 2}


@pytest.fixture
def counting(scheduler: str) -> Iterator[Client]:
    with Client(scheduler, set_as_default=False) as client:
        client.run(count_payloads)
        yield client


def coded(name: str, codec: Any, servers: int = 1) -> dict[str, Any]:
    placement = {"name": "parameter_server", "servers": servers}
    return {"name": name, "codec": codec, "codec_down": codec, "placement": placement}


def switching(codec: str) -> dict[str, Any]:
    """Two compositions of one server; at the hand-over everybody is sent the whole model."""
    pair = {"first": coded("bsp", codec), "second": coded("asp", codec)}
    return {"name": "strategy_switch", "rule": {"name": "after", "fraction": 0.5}} | pair


@pytest.mark.by_day(3)
@pytest.mark.parametrize(
    ("strategy", "servers"),
    [
        (coded("bsp", "none"), 1),
        (coded("bsp", "fp16"), 1),
        (coded("bsp", "top_k"), 1),
        (coded("bsp", "sign", 2), 2),
        (coded("asp", ADAPTS) | {"codec_down": "none"}, 1),
        (switching("sign"), 1),
    ],
    ids=["none", "fp16", "top_k", "sign on two servers", "mq_grad", "sign and a hand-over"],
)
def test_the_bytes_of_a_run_are_those_that_the_sockets_carried(
    strategy: dict[str, Any], servers: int, scheduler: str, counting: Client
) -> None:
    done = run(
        Experiment(
            strategy=strategy,
            cluster={"workers": WORKERS, "step_time": "constant"},
            batch_size=24,
            stop={"epochs": 8 * 24 / 1438},
            backend="dask",
            scheduler=scheduler,
        )
    )
    sockets = [noted for noted in counting.run(payloads).values() if PushMessage.kind in noted]
    assert len(sockets) == servers
    for kind, row in ((PushMessage.kind, Kind.PUSH), (ReleaseMessage.kind, Kind.RELEASE)):
        carried = [noted[kind] for noted in sockets]
        logged = done.log.of_kind(row)["bytes"].tolist()
        # the run ends with its last version: its answers are decided and not sent, and what workers push
        # meanwhile is not read into the log
        whole = min(len(logged), *map(len, carried))
        assert whole >= len(logged) - WORKERS
        assert [sum(slices) for slices in zip(*(each[:whole] for each in carried), strict=True)] == (
            logged[:whole]
        )
        assert all(len(each) <= len(logged) + WORKERS for each in carried)
        if kind == ReleaseMessage.kind:
            assert done.summary()["bytes"]["down"] == sum(map(sum, carried))
            assert [done.summary()["messages"]["release"]] * servers == list(map(len, carried))
