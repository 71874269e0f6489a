"""Detached runs: found by name, read exactly once by whoever attaches, ended by no client's death."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster, Security
from relay import Relay
from test_dask_runs import FOREVER, client, experiment, run_detached, simulated
from test_real_cluster import program, read_until
from test_retirement import HERE
from toybox import at_night

import psbench as ps
from psbench.backends.dask.detached.director import Answer, Director, Superseded, digest_of, result_after
from psbench.backends.dask.detached.held_log import HeldLog
from psbench.backends.dask.detached.registry import Listed, Registry
from psbench.cli import main
from psbench.clusters.connection import ConnectionSettings
from psbench.core.log import ROW, EventLog, Kind
from psbench.detached.detached_run import DetachedRun
from psbench.detached.directing import _start_of
from psbench.errors import BackendError, DataError, ParameterError, ServerLost, SpecError
from psbench.system.start_progress import StartProgress, watching_start

pytestmark = pytest.mark.dask
__all__ = ["client"]

LIMITS = ConnectionSettings()
PAGE = Path(__file__).parents[3] / "notebooks/site/howto/detach_a_run.md"
ONE_PORT = PAGE.with_name("run_behind_one_port.md")
PAIR = {"name": "strategy_switch", "first": "all_reduce", "second": "asp", "rule": "manual"}


def row(log: EventLog, *times: float, text: str = "") -> None:
    for time_s in times:
        log.add(Kind.HOLD, time_s, text=text)


class FakeLink:
    """A link to directors in this process; each answers with at most two rows."""

    name = "fake"

    def __init__(self, director: Director) -> None:
        self.director: Director | None = director

    def read(self, start: int, cuts: int, rows: int, texts: int, *, knows: bool) -> Answer | None:
        return None if self.director is None else self.director.answer(start, cuts, rows, texts, knows=True)


def director(start: int) -> Director:
    made = Director.__new__(Director)
    made.log, made.start, made.about, made.control = HeldLog(), start, None, ps.Control()
    made.starting = StartProgress()
    return made


def content(log: EventLog) -> tuple[bytes, tuple[str, ...]]:
    return log.rows().tobytes(), log.texts


def test_a_reader_has_every_row_once_through_cuts_and_directors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cut that the log has outgrown before the reader looks; and one that its director took with it."""
    monkeypatch.setattr("psbench.backends.dask.detached.held_log._MOST_ROWS", 2)
    first, second = director(1), director(2)
    link = FakeLink(first)
    reader, shown = DetachedRun(None, link), StartProgress()
    first.starting.place({"coordinator": "tcp://a"})
    with watching_start(shown):
        reader.read()
    assert shown.rows() == first.starting.rows() != []
    row(first.log, 1.0, text="a")
    row(first.log, 2.0, 3.0, text="is cut")
    for _ in range(2):
        reader.read()
    assert content(reader.log) == content(first.log)
    first.log.truncate(1, 2)
    row(first.log, 1.5, 1.75, 2.5, 3.5, text="b")
    late = DetachedRun(None, link)
    for _ in range(3):
        reader.read()
        late.read()
        assert reader.log.rows()["text"].max() < len(reader.log.texts)  # no row is there before its text
    assert content(reader.log) == content(late.log) == content(first.log)
    first.log.truncate(1, 2)  # which the reader does not see any more
    link.director = second
    row(second.log, 1.0, 1.25, text="a")
    row(second.log, 4.0, 5.0, 6.0, text="c")
    for _ in range(3):
        reader.read()
    assert content(reader.log) == content(second.log)


def test_only_the_newest_director_may_write(client: Client) -> None:
    registry = Registry(client, LIMITS)
    assert registry.reserve("fenced", "a-key", "", numbered=False, replace=False) == "fenced"
    assert registry.reserve("fenced", "a-key", "", numbered=False, replace=False) is None
    assert registry.reserve("fenced", "a-key", "", numbered=True, replace=False) == "fenced-2"
    (worker, *_) = client.nthreads()
    first, second = (director(0) for _ in range(2))
    for each in (first, second):
        each.name, each.client, each._registry, each._is_replaced = "fenced", client, registry, False
        each._worker, each._progress = type("Dask worker", (), {"address": worker}), None
    assert first.begin().starts == 1
    row(first.log, 1.0)
    first.check()
    assert first.control.stopping  # no task has that key
    assert second.begin()[4:7] == (2, worker, True)
    with pytest.raises(Superseded):
        first.check()
    second.check()
    registry.report("fenced", first.start, words="of the first")
    found = registry.run("fenced")
    assert found is not None
    assert (found.starts, found.state, found.words) == (2, "lost", "")
    for name in ("fenced", "fenced-2"):
        registry.remove(name)


@pytest.mark.parametrize(
    ("starts", "has_rows", "status", "message"),
    [
        (1, False, "", None),
        (2, False, "", None),  # nothing was done by the first
        (2, True, "", "director is gone, and no checkpoint was written"),
        (2, True, "finished", "has ended .*, and its result is lost"),
    ],
)
def test_a_lost_director_is_like_a_lost_coordinator(
    starts: int, has_rows: bool, status: str, message: str | None, tmp_path: Path
) -> None:
    before = Listed("a", "key", str(tmp_path), 0.0, starts, "", has_rows, "", status, "processing")
    if message is None:
        assert _start_of(before, tmp_path, resume=False) is None
    else:
        with pytest.raises(BackendError, match=message):
            _start_of(before, tmp_path, resume=False)
    if status:
        return
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "epoch-1.npz").touch()
    assert _start_of(before, tmp_path, resume=False) == (tmp_path if has_rows else None)
    assert _start_of(before, tmp_path, resume=True) == tmp_path


def test_a_detached_run_is_the_attached_one(scheduler: str, client: Client, tmp_path: Path) -> None:
    spec = experiment("bsp", scheduler, 2, model=lambda: ps_net(), name="a title")
    with Client(scheduler, set_as_default=False) as other:
        submitted = ps.submit(spec, client=other, folder=tmp_path)
    assert submitted.name == "a-title"
    done = ps.attach("a-title", client=client).wait()
    assert done.meta["status"] == "finished"
    assert done.meta["params_digest"] == simulated(spec).meta["params_digest"]
    assert ps.replay(done) == len(done.log)
    stored = ps.Run.load(tmp_path)
    assert content(stored.log) == content(done.log)
    assert (stored.run_id, stored.summary()) == (done.run_id, done.summary())
    with pytest.raises(ParameterError, match="'a-title' on this cluster already"):
        ps.submit(spec, client=client, name="a-title")
    again = ps.attach("a-title", client=client)
    with pytest.raises(
        BackendError, match=r"has ended \(finished: .*\), and has no director that could stop"
    ):
        again.stop()
    assert again.wait().meta == done.meta  # it is not trained again
    again.forget()
    with pytest.raises(ParameterError, match=r"lists no detached run 'a-title' \(it lists: none\);"):
        ps.attach("a-title", client=client)
    assert not client.run_on_scheduler(lambda dask_scheduler: [str(key) for key in dask_scheduler.tasks])


def ps_net() -> Any:
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


def test_it_is_controlled_by_name_and_all_readers_have_the_same(
    scheduler: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the logs of the cluster have no line for each poll of a reader or each report of a director."""
    lines, of_calls = list[str](), logging.getLogger("distributed.worker")  # the scheduler's, too
    monkeypatch.setattr(of_calls, "info", lambda *of: lines.append(of[0] % of[1:]))
    submitted = ps.submit(experiment(PAIR, scheduler, 4, stop=FOREVER), client=client)  # on all six threads
    reader, asked = ps.attach(submitted.name, client=client), list[str]()
    with pytest.raises(ps.SpecError, match="unknown fault 'losst'; did you mean 'lost'"):
        submitted.press(1, "losst")  # type: ignore

    def observer(log: EventLog) -> None:
        if not asked:
            asked.append("switch")
            ps.attach(submitted.name, client=client).switch()
        if asked == ["switch"] and len(log.of_kind(Kind.HANDOVER)["row"]):
            asked.append("stop")
            submitted.stop()

    first = reader.wait(observer)
    second = submitted.wait()
    assert first.meta["status"] == "stopped"
    assert first.meta == second.meta
    assert content(first.log) == content(second.log)
    assert first.log.rows()["kind"].tolist().count(Kind.HANDOVER) == 1
    listed, (packed, texts) = submitted.listed, content(first.log)
    calls = Counter(line for line in lines if "out-of-band" in line)
    once = ("serve", "add_page", "hold", "let_go")
    assert calls.keys() <= {f"Run out-of-band function '{name}'" for name in once}
    assert max(calls.values()) <= 12  # of each client, and of the director
    for rows, digest, rest in (
        (len(first.log) - 2, digest_of(packed[: -2 * ROW.itemsize]), packed[-2 * ROW.itemsize :]),
        (len(first.log) - 2, digest_of(packed), None),  # of another log
    ):
        place = listed.key, digest, rows, len(texts)
        kept = client.run(result_after, *place, workers=[listed.at])[listed.at]
        assert (None if kept is None else kept.rows) == rest
    submitted.forget()


@pytest.mark.parametrize("command", ["run", *at_night("attach")])
def test_counters_of_a_live_run_rise_and_end_as_those_of_its_log(
    command: str, scheduler: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port is scraped while the run goes on, and closed after it; the last numbers are the registry's."""
    prometheus = pytest.importorskip("prometheus_client")
    served, scraped, over = list[Any](), list[float](), threading.Event()
    serve = prometheus.start_http_server

    def start_http_server(*arguments: Any, registry: Any, **options: Any) -> Any:
        served.append(registry)
        return serve(*arguments, registry=registry, **options)

    def scrape() -> None:
        while not over.wait(0.02):
            with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                scraped.append(pushes_in(answer.read().decode()))
            if command == "attach" and len(set(scraped)) > 5 and served:
                ps.attach("counted", client=client).stop()
                return

    monkeypatch.setattr(prometheus, "start_http_server", start_http_server)
    spec = experiment("asp", None, 2, stop={"updates": 1500} if command == "run" else FOREVER)
    spec.to_yaml(tmp_path / "spec.yaml")
    if command == "attach":
        ps.submit(spec, client=client, name="counted")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    scraper = threading.Thread(target=scrape)
    scraper.start()
    what = "counted" if command == "attach" else str(tmp_path / "spec.yaml")
    options = "--scheduler", scheduler, "--out", str(tmp_path / "run"), "--telemetry", f"prometheus:{port}"
    assert main([command, what, *options]) == 0
    over.set()
    scraper.join()
    with pytest.raises(URLError):
        urlopen(f"http://127.0.0.1:{port}/metrics")
    done, value = ps.Run.load(tmp_path / "run"), served[0].get_sample_value
    total = len(done.log.of_kind(Kind.PUSH)["row"])
    assert len({each for each in scraped if 0 < each < total}) > 2
    assert scraped == sorted(scraped)
    summary = done.summary()
    assert [value("psbench_pushes_total", {"worker": str(each)}) for each in range(2)] == [
        done.log.of_kind(Kind.PUSH)["worker"].tolist().count(each) for each in range(2)
    ]
    assert value("psbench_updates_total") == summary["updates"]
    assert value("psbench_samples_total") == pytest.approx(summary["epochs"] * done.meta["dataset_size"])
    assert value("psbench_bytes_total", {"direction": "up"}) == summary["bytes"]["up"]
    if command == "attach":
        ps.attach("counted", client=client).forget()


def pushes_in(text: str) -> float:
    """Return the sum of the counters of pushes in an answer to Prometheus."""
    return sum(map(float, re.findall(r"^psbench_pushes_total\{.*\} (\S+)$", text, re.MULTILINE)))


def test_what_cannot_run_is_refused_before_any_work_starts(
    scheduler: str, client: Client, tmp_path: Path
) -> None:
    spec, lock = experiment("asp", scheduler, 1), threading.Lock()
    (tmp_path / "run.json").write_text("{}")
    for given, options, message in (
        (spec.but(backend="simulated", scheduler=None), {}, "has no detached runs; set backend: dask"),
        (spec, {"name": "no/name"}, "name: 'no/name' must have at most 64"),
        (spec, {"resume": True}, "resume: continues the run in a folder"),
        (spec.but(model=lambda: lock and ps_net()), {}, "cannot be sent to Dask's workers"),
        (spec, {"folder": tmp_path}, "holds another run"),
        (spec.but(data={"name": "csv", "path": str(tmp_path / "nope.csv"), "target": "y"}), {}, "nope.csv"),
    ):
        with pytest.raises((SpecError, DataError), match=message):
            ps.submit(given, client=client, **options)
    assert Registry(client, LIMITS).runs() == []
    with pytest.raises(SpecError, match="client: expected a Client of Dask, as Client"):
        ps.attach("asp", client=scheduler)


def test_the_shell_lines_of_the_how_to_run(
    scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the test's scheduler, and a run of few epochs where the page does not stop it."""
    monkeypatch.chdir(tmp_path)
    experiment("ssp", None, 2).to_yaml("experiment.yaml")
    blocks = re.findall(r"^```text\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line.split() for block in blocks for line in block.splitlines() if line.startswith("psbench ")]
    assert {words[1] for words in lines} == {"run", "runs", "attach", "stop", "forget", "switch", "fault"}
    for words in lines:
        if words[1] in ("switch", "fault", "stop"):
            continue
        assert main([word.replace("tcp://10.0.0.1:8786", scheduler) for word in words[1:]]) == 0, words
    shown = capsys.readouterr()
    assert "submitted ssp" in shown.out
    assert re.search(r"^ssp  (running|ended)  \S", shown.out, re.MULTILINE)
    assert ps.Run.load("runs/ssp").meta["status"] == "finished"
    assert "the cluster has forgotten ssp" in shown.err
    assert main(["stop", "ssp", "--scheduler", scheduler]) == 2
    assert "lists no detached run 'ssp'" in capsys.readouterr().err
    assert main(["runs"]) == 2
    assert "give its address (in a shell --scheduler)" in capsys.readouterr().err


# -------------------------------------------------------------------- at night


def in_order(log: EventLog) -> bool:
    """Return whether each version is made once, after the one before."""
    made = log.of_kind(Kind.APPLY)["version"].tolist()
    return bool(made) and list(dict.fromkeys(made)) == list(range(1, made[-1] + 1)) and made == sorted(made)


SUBMITTER = """
import sys
import psbench as ps
from distributed import Client

if __name__ == "__main__":
    with Client(sys.argv[1], set_as_default=False) as client:
        experiment = ps.Experiment.from_yaml(sys.argv[2])
        submitted = ps.submit(experiment, client=client, name="orphan", folder=sys.argv[3])
        submitted.wait(lambda log: print(len(log), flush=True))
"""


@pytest.mark.nightly
def test_a_client_that_is_killed_in_mid_run_ends_nothing(
    scheduler: str, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "submitter.py").write_text(SUBMITTER)
    experiment("asp", None, 2, stop=FOREVER).to_yaml(tmp_path / "spec.yaml")
    command = [sys.executable, str(tmp_path / "submitter.py"), scheduler, str(tmp_path / "spec.yaml")]
    command.append(str(tmp_path / "run"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = next(int(line) for line in process.stdout if int(line) > 200)
        process.send_signal(signal.SIGKILL)
    attached = ps.attach("orphan", client=client)

    def observer(log: EventLog) -> None:
        if len(log) > 2 * seen and attached.listed.state == "running":
            attached.stop()

    done = attached.wait(observer)
    attached.forget()
    assert done.meta["status"] == "stopped"
    assert in_order(done.log)
    assert content(done.log) == content(ps.Run.load(tmp_path / "run").log)
    assert ps.replay(done) == len(done.log)


@pytest.mark.nightly
def test_faults_come_by_name_and_an_interrupt_of_attach_detaches(scheduler: str, client: Client) -> None:
    """By the commands and by the object; each fault shows in the log, which grows after the interrupt."""
    submitted = ps.submit(experiment("asp", scheduler, 3, stop=FOREVER), client=client)
    name, log = submitted.name, submitted.log
    command = [sys.executable, "-m", "psbench", "attach", name, "--scheduler", scheduler]

    def read(kind: Kind, worker: int, least: int = 0) -> Any:
        """Read on until a worker has so many rows of a kind; return them."""
        while True:
            rows = log.rows()
            found = rows[(rows["kind"] == kind) & (rows["worker"] == worker)]
            if len(found) >= least:
                return found
            assert submitted.read()

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as attached:
        assert attached.stdout is not None
        usual_s = float(np.median(read(Kind.PUSH, 0, 20)["compute_s"]))
        assert main(["fault", name, "2", "lost", "--scheduler", scheduler]) == 0
        (left,) = read(Kind.LEAVE, 2, 1)
        assert log.texts[left["text"]] == "failed"
        submitted.press(2, "back")
        assert len(read(Kind.JOIN, 2, 2)) == 2
        assert main(["fault", name, "0", "speed", "--factor", "0.01", "--scheduler", scheduler]) == 0
        while "worker 0 was made 0.01 times as fast by hand" not in submitted.said:
            assert submitted.read()
        slowed = read(Kind.PUSH, 0, len(read(Kind.PUSH, 0)) + 5)
        assert slowed["compute_s"][-1] > 20 * usual_s
        next(line for line in attached.stdout if line.startswith(f"{name}: "))
        attached.send_signal(signal.SIGINT)
        said = attached.stdout.read().splitlines()
    again = f"psbench attach {name} --scheduler {scheduler}"
    assert said[-1] == f"detached; the run goes on; to follow it again: {again}"
    assert attached.returncode == 0
    assert len(read(Kind.PUSH, 1, len(read(Kind.PUSH, 1)) + 100))
    submitted.stop()
    assert submitted.wait().meta["status"] == "stopped"
    submitted.forget()


@pytest.mark.nightly
def test_a_reader_whose_connection_is_cut_reads_on(scheduler: str, client: Client) -> None:
    submitted = ps.submit(experiment("asp", scheduler, 2, stop=FOREVER), client=client, name="cut")
    with (
        Relay("127.0.0.1:0", scheduler.removeprefix("tcp://")) as relay,
        Client(f"tcp://127.0.0.1:{relay.port}", set_as_default=False) as distant,
    ):
        reader, cut_at = ps.attach("cut", client=distant), list[int]()

        def observer(log: EventLog) -> None:
            if len(log) > 100 and not cut_at:
                cut_at.append(len(log))
                relay.cut()
                threading.Timer(2.0, relay.mend).start()
            if cut_at and len(log) > cut_at[0] + 500 and submitted.listed.state == "running":
                submitted.stop()

        read = reader.wait(observer)
    done = submitted.wait()
    submitted.forget()
    assert content(read.log) == content(done.log)


@pytest.mark.nightly
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes network namespaces")
def test_only_the_port_of_the_scheduler_is_reachable(scheduler: str, client: Client, tmp_path: Path) -> None:
    """A namespace with a loopback alone, into which one port is relayed, as by ssh -L."""
    spec, name = experiment("bsp", None, 2, name="ssp"), f"psbench-{os.getpid()}-client"
    spec.to_yaml(tmp_path / "experiment.yaml")
    within = ("ip", "netns", "exec", name)
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"this machine has no network namespaces: {made.stderr}")
    with ExitStack() as stack:
        stack.callback(subprocess.run, ["ip", "netns", "del", name], check=True)
        subprocess.run([*within, "ip", "link", "set", "lo", "up"], check=True)
        stack.enter_context(Relay(str(tmp_path / "socket"), scheduler.removeprefix("tcp://")))
        arguments = ["127.0.0.1:8786", str(tmp_path / "socket")]
        relay = stack.enter_context(
            subprocess.Popen(
                [*within, sys.executable, str(Path(__file__).with_name("relay.py")), *arguments],
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(relay.kill)
        assert relay.stdout is not None
        relay.stdout.readline()

        def psbench(*words: str) -> subprocess.CompletedProcess[str]:
            command = [*within, sys.executable, "-m", "psbench", *words]
            return subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
            )

        address = ("--scheduler", "tcp://127.0.0.1:8786")
        attached = psbench("run", "experiment.yaml", "--set", "connection.connect_within_s=2", *address)
        assert attached.returncode == 1
        assert "reaches the Dask scheduler, but not Dask worker" in attached.stderr
        assert "detached run" in attached.stderr
        lines = re.findall(r"^psbench (.*)$", ONE_PORT.read_text(), re.MULTILINE)
        assert [line.split()[0] for line in lines] == ["run", "runs", "attach", "forget"]
        for line in lines:
            done = psbench(*line.split())
            assert done.returncode == 0, done.stderr
    assert ps.Run.load(tmp_path / "runs/ssp").meta["params_digest"] == simulated(spec).meta["params_digest"]


@contextmanager
def two_workers() -> Iterator[tuple[Client, dict[str, Relay]]]:
    """Yield a client of a cluster with two Dask workers, each with room for a whole run, and their links."""
    with ExitStack() as stack:
        where = ("--host", "tcp://127.0.0.1", "--port", "0", "--no-dashboard")
        started = stack.enter_context(program("scheduler", *where))
        address = read_until(started, r"Scheduler at:\s+(tcp://\S+)")
        options = ("--no-nanny", "--nthreads", "4", "--no-dashboard", "--host", "tcp://127.0.0.1")
        links = [stack.enter_context(Relay("127.0.0.1:0", address.removeprefix("tcp://"))) for _ in range(2)]
        for number, link in enumerate(links):
            name = ("--name", str(number))
            stack.enter_context(program("worker", f"tcp://127.0.0.1:{link.port}", *options, *name))
        client = stack.enter_context(Client(address, set_as_default=False))
        client.wait_for_workers(2)
        there = client.scheduler_info(n_workers=-1)["workers"]
        yield client, {each: links[int(worker["name"])] for each, worker in there.items()}


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["killed", "retired", "frozen", "cut off", "killed without a folder"])
def test_a_run_whose_director_is_lost_goes_on_or_says_why_not(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL", "20s")
    settings: dict[str, Any] = {"stop": FOREVER, "checkpoint_every": 0.2}
    settings["connection"] = {"restart_within_s": 3.0}
    frozen = list[int]()
    with two_workers() as (client, links):
        folder = None if "without" in how else tmp_path
        submitted = ps.submit(experiment("asp", None, 2, **settings), client=client, folder=folder)
        reader, lost_at = ps.attach(submitted.name, client=client), list[int]()

        def lose(at: str) -> None:
            if how == "retired":
                client.retire_workers([at])
            elif how == "cut off":
                links[at].cut()
            else:
                frozen.append(client.run(os.getpid, workers=[at])[at])
                os.kill(frozen[0], signal.SIGSTOP if how == "frozen" else signal.SIGKILL)

        def observer(log: EventLog) -> None:
            listed = submitted.listed
            if len(log) > 1000 and not lost_at and listed.at:
                lost_at.append(len(log))
                lose(listed.at)
            resumed = log.of_kind(Kind.RESUME)["row"]
            if len(resumed) and len(log) > resumed[-1] + 500 and listed.state == "running":
                submitted.stop()

        if folder is None:
            with pytest.raises(ServerLost, match="director is gone, and it had no folder"):
                reader.wait(observer)
            return
        done = reader.wait(observer)
        assert submitted.listed.starts == 2
        if how == "frozen":  # it thaws, and may write nothing any more
            os.kill(frozen[0], signal.SIGCONT)
            thawed, until = psutil.Process(frozen[0]), time.monotonic() + 60
            while thawed.status() != psutil.STATUS_ZOMBIE:
                assert time.monotonic() < until
                time.sleep(0.1)
    assert done.meta["status"] == "stopped"
    assert in_order(done.log)
    stored = ps.Run.load(tmp_path)
    assert content(done.log) == content(stored.log)
    assert stored.meta["incidents"] == done.meta["incidents"]
    assert "the Dask worker of the director is gone; director 2 resumed" in done.meta["incidents"][-1]
    resumed = done.log.of_kind(Kind.RESUME)["version"].tolist()
    assert len(resumed) == 1
    assert how == "killed" or resumed[0] > 0


@pytest.mark.nightly
def test_a_director_leaves_a_dask_worker_whose_lifetime_ends(tmp_path: Path) -> None:
    """Of two Dask workers the one that is there first, and has the director, lives for a minute.

    The scheduler's log has a line for what happens once, and none for each poll.
    """
    with ExitStack() as stack:
        where = ("--host", "tcp://127.0.0.1", "--port", "0", "--no-dashboard")
        scheduler = stack.enter_context(program("scheduler", *where))
        address = read_until(scheduler, r"Scheduler at:\s+(\S+)")
        worker = ("worker", address, "--nthreads", "4", "--no-dashboard", "--host", "tcp://127.0.0.1")
        stack.enter_context(program(*worker, "--lifetime", "60s"))
        client = stack.enter_context(Client(address, set_as_default=False))
        client.wait_for_workers(1)
        spec = experiment("asp", None, 2, stop=FOREVER, checkpoint_every=0.2)
        submitted = ps.submit(spec, client=client, folder=tmp_path)
        first = submitted.listed.at
        stack.enter_context(program(*worker))

        def observer(log: EventLog) -> None:
            resumed = log.of_kind(Kind.RESUME)["row"]
            if len(resumed) and len(log) > resumed[-1] + 500 and submitted.listed.state == "running":
                submitted.stop()

        done = submitted.wait(observer)
        assert first not in client.nthreads()
        assert scheduler.said().count("\n") < 200
    assert in_order(done.log)
    (resumed,) = done.log.of_kind(Kind.RESUME)["version"].tolist()
    assert resumed > 0
    assert content(done.log) == content(ps.Run.load(tmp_path).log)


@pytest.mark.nightly
def test_two_users_who_submit_one_name_at_once_have_one_run_each(scheduler: str) -> None:
    """The name that is chosen for them gets a number; a name that both give is refused to one of them."""
    spec, found = experiment("asp", scheduler, 1, stop=FOREVER), list[Any]()
    start = threading.Barrier(2)

    def user(name: str | None) -> None:
        with Client(scheduler, set_as_default=False) as client:
            start.wait()
            try:
                found.append(ps.submit(spec, client=client, name=name).name)
            except ParameterError as error:
                found.append(str(error))

    for name in (None, "mine"):
        users = [threading.Thread(target=user, args=(name,)) for _ in range(2)]
        for each in users:
            each.start()
        for each in users:
            each.join()
        with Client(scheduler, set_as_default=False) as client:
            runs = [run.name for run in Registry(client, LIMITS).runs()]
            if name is None:
                assert sorted(found) == sorted(runs) == ["asp", "asp-2"]
            else:
                assert runs == ["mine"]
                assert sorted(text[:30] for text in found) == ["mine", "there is a detached run 'mine'"]
            for run, *others in (runs[place:] for place in range(len(runs))):
                attached = ps.attach(run, client=client)
                while not len(attached.log):
                    assert attached.read()
                attached.stop()
                assert attached.wait().meta["status"] == "stopped"
                attached.forget()
                assert {ps.attach(other, client=client).listed.state for other in others} <= {"running"}
        found.clear()


@pytest.mark.nightly
def test_an_ended_run_is_not_trained_again_when_its_worker_dies(tmp_path: Path) -> None:
    with two_workers() as (client, _):
        submitted = ps.submit(experiment("asp", None, 2), client=client, folder=tmp_path)
        done = submitted.wait()
        at = submitted.listed.at
        os.kill(client.run(os.getpid, workers=[at])[at], signal.SIGKILL)
        while submitted.listed.starts < 2:
            time.sleep(0.1)
        again = ps.attach(submitted.name, client=client).wait()
    assert again.run_id == done.run_id
    assert content(again.log) == content(done.log)


@pytest.mark.nightly
def test_jobs_of_map_reduce_can_be_detached(scheduler: str) -> None:
    spec = experiment("map_reduce", scheduler, 2)
    assert run_detached(spec).meta["params_digest"] == simulated(spec).meta["params_digest"]


@pytest.mark.nightly
def test_over_tls_and_on_a_cluster_that_grows() -> None:
    security = Security.temporary()
    where = HERE | {"protocol": "tls://", "security": security}
    with (
        LocalCluster(n_workers=0, threads_per_worker=1, processes=False, **where) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        cluster.adapt(minimum=0, maximum=6, interval="100ms", wait_count=100)
        spec = experiment("bsp", None, 2)
        done = ps.submit(spec, client=client).wait()
    assert done.meta["params_digest"] == simulated(spec).meta["params_digest"]
