"""Runs as tables, and what other programs read of them."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pandas as pd
import pytest
from perfetto_engine import query

import psbench as ps
from psbench import metrics
from psbench.cli import main
from psbench.cli.telemetry import telemetry
from psbench.core.log import EventLog, Kind
from psbench.errors import SpecError, UnknownName
from psbench.results.csv_file import csv_of_rows
from psbench.results.export import write_table
from psbench.results.run import Run
from psbench.results.telemetry import Telemetry
from psbench.testing import toy_experiment


@pytest.fixture(scope="module")
def run():
    """A toy run, whose cluster holds workers back."""
    return ps.run(toy_experiment("ssp"))


@pytest.fixture(scope="module")
def saved(run, tmp_path_factory):
    """The same, saved."""
    return run.save(tmp_path_factory.mktemp("frames") / "run")


def test_curves_are_the_evaluations(run):
    frame = run.frame()
    wanted = run.log.evaluations()
    assert frame["val_accuracy"].tolist() == [row["val_accuracy"] for row in wanted]
    assert frame["updates"].tolist() == [row["version"] for row in wanted]
    assert frame["time_s"].iloc[-1] == run.summary()["time_s"]


def test_training_is_a_row_a_push(run):
    assert len(run.frame("training")) == len(run.log.of_kind(Kind.PUSH)["row"])


def test_events_are_the_log_in_words(run):
    frame = run.frame("events")
    assert len(frame) == len(run.log)
    assert set(frame.query("kind == 'hold'")["text"]) == {"staleness bound"}
    assert (frame["kind"] == "apply").sum() == run.summary()["updates"]


def test_a_comparison_s_frame_has_every_run_by_label_and_seed():
    compared = ps.compare([toy_experiment("bsp"), toy_experiment("asp")], seeds=2)
    frame = compared.frame()
    assert list(frame)[:2] == ["label", "seed"]
    found = frame.groupby(["label", "seed"], sort=False)["val_loss"].last()
    assert list(found.index) == [("bsp", 0), ("bsp", 1), ("asp", 0), ("asp", 1)]
    assert found.tolist() == [run.summary()["final"]["val_loss"] for run in compared.runs]


def test_an_unknown_table_is_one_line(run):
    with pytest.raises(UnknownName, match="did you mean 'curves'"):
        run.frame("curve")


#: pandas reads floats exactly by default since 3.0, and no longer wants to be asked
exact_csv = (
    pd.read_csv
    if int(pd.__version__.split(".")[0]) >= 3
    else partial(pd.read_csv, float_precision="round_trip")
)


@pytest.mark.parametrize(("suffix", "read"), [(".csv", exact_csv), (".parquet", pd.read_parquet)])
@pytest.mark.parametrize(
    "table", ["curves", "training", "events", "contributions", "trained", "utilisation", "neighbourhoods"]
)
def test_a_table_is_written_and_read_back(suffix, read, table, run, tmp_path):
    path = run.export(tmp_path / "new" / f"table{suffix}", table)
    found = read(path)
    wanted = run.frame(table)
    assert list(found) == list(wanted)
    for name in {"time_s", "gradients", "share", "value"} & {*wanted}:
        assert found[name].tolist() == wanted[name].tolist()
    assert list(path.parent.iterdir()) == [path]


def test_a_name_that_says_no_format_is_refused(run, tmp_path):
    with pytest.raises(SpecError, match=r"\.csv or \.parquet"):
        run.export(tmp_path / "table.xlsx")


def test_export_writes_each_file_it_is_asked_for(saved, tmp_path, capsys):
    files = [str(tmp_path / name) for name in ("a.csv", "a.parquet")]
    assert main(["export", str(saved), "--csv", files[0], "--parquet", files[1], "--table", "events"]) == 0
    assert capsys.readouterr().out.split() == files
    assert len(pd.read_csv(files[0])) == len(pd.read_parquet(files[1])) == len(Run.load(saved).log)


def test_tensorboard_reads_the_curves_at_the_run_s_own_time(run, tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(run.tensorboard(tmp_path))).Reload()
    assert "evaluation/val_accuracy" in found.Tags()["scalars"]
    points = found.Scalars("evaluation/val_loss")
    frame = run.frame()
    assert [point.step for point in points] == frame["updates"].tolist()
    assert [point.wall_time for point in points] == frame["time_s"].tolist()
    assert [point.value for point in points] == pytest.approx(frame["val_loss"].tolist())
    assert len(found.Scalars("training/train_loss")) == len(run.frame("training"))


#: seconds and number of slices by process, thread and name; counters; flows; what the engine found wrong
SLICES = """
    select process.name as process, thread.name as thread, slice.name as name, sum(dur) as ns, count() as n
    from slice join thread_track on slice.track_id = thread_track.id
    join thread using (utid) join process using (upid) where slice.category != 'mark'
    group by process, thread, slice.name
"""
COUNTERS = """
    select track.name as name, count() as n, max(value) as most, avg(value) as mean
    from counter join process_counter_track as track on counter.track_id = track.id group by track.name
"""
FLOWS = """
    select count() as n, sum(source.ts + source.dur <= target.ts) as forward
    from flow join slice as source on slice_out = source.id join slice as target on slice_in = target.id
"""
WRONG = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"


def seconds_of(spans):
    """Return the seconds of each worker's phases."""
    took = (spans["end_s"] - spans["start_s"]).groupby([spans["worker"], spans["phase"].astype(str)]).sum()
    return {
        (f"worker {worker}", phase): pytest.approx(each, abs=1e-6) for (worker, phase), each in took.items()
    }


@pytest.mark.parametrize("strategy", ["ssp", {"name": "streaming_diloco", "local_steps": 4}, "ad_psgd"])
def test_perfetto_reads_the_totals_of_a_run(strategy, tmp_path):
    """By Perfetto's own trace processor: seconds, pushes, flows, versions and staleness are the log's."""
    cluster = {"workers": 3, "speed": [1, 0.5, 0.25], "step_time": "constant", "bandwidth_mbit_s": 0.02}
    run = ps.run(toy_experiment(strategy, cluster=cluster, stop={"epochs": 3}))
    path = run.perfetto(tmp_path / "trace.json.gz")
    slices, counters, [(flows, forward)], wrong = query(path, SLICES, COUNTERS, FLOWS, WRONG)
    assert wrong == []
    workers = {(thread, name): ns / 1e9 for process, thread, name, ns, _ in slices if process == "workers"}
    beside = {
        (thread.partition(",")[0], name): workers.pop((thread, name))
        for thread, name in [*workers]
        if "," in thread
    }
    assert workers == seconds_of(metrics.timeline(run.log))
    assert beside == seconds_of(metrics.sends_beside(run.log))
    assert bool(beside) == isinstance(strategy, dict)
    summary = run.summary()
    pushes = {fate: count for fate, count in summary["pushes"].items() if count}
    decided = pd.DataFrame([row[2:] for row in slices if row[0] in ("servers", "models")]).groupby(0)[2].sum()
    assert decided.to_dict() == pushes
    found = {name.removesuffix(" value"): rest for name, *rest in counters}
    assert found["updates" if strategy == "ad_psgd" else "version"][1] == summary["updates"]
    stale = summary["staleness"]
    assert found["staleness"] == [pushes["committed"], stale["max"], pytest.approx(stale["mean"])]
    assert found["val_loss"][0] == len(run.log.evaluations())
    # from the worker to the decision, and on to the worker's next activity
    assert 2 * (sum(pushes.values()) - 3) <= flows == forward <= 2 * sum(pushes.values())


def test_a_trace_marks_who_leaves_and_comes_when_the_log_says(tmp_path):
    cluster = {"workers": 3, "failures": [{"worker": 1, "at_s": 0.02, "rejoin_s": 0.05}]}
    run = ps.run(toy_experiment("asp", cluster=cluster, stop={"seconds": 0.1}))
    events = json.loads(run.perfetto(tmp_path / "trace.json").read_text())["traceEvents"]
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 1}
    marks = [(e["name"], threads[e["tid"]], e["ts"] / 1e6) for e in events if e["ph"] == "i"]
    joins = [("joins", f"worker {worker}", 0.0) for worker in range(3)]
    assert marks == [*joins, ("leaves", "worker 1", 0.02), ("joins", "worker 1", 0.05)]


def test_a_push_takes_the_thread_of_the_one_decided_as_it_arrives(run, tmp_path):
    log = EventLog()
    log.add(Kind.JOIN, 0.0, 0)
    log.add(Kind.RELEASE, 0.0, 0)
    log.add(Kind.PUSH, 1.0, 0, 0, 0, 4, 1)
    log.add(Kind.RELEASE, 1.0, 0)
    log.add(Kind.PUSH, 2.0, 0, 1, 0, 4, 1)
    log.add(Kind.APPLY, 2.0, 0, 0, 1, 4, 1, loss=1.0)
    log.add(Kind.APPLY, 3.0, 0, 1, 2, 4, 1, loss=1.0)
    path = dataclasses.replace(run, log=log).perfetto(tmp_path / "trace.json")
    events = json.loads(path.read_text())["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 2]
    assert names == ["pushes of worker 0"]


def test_a_trace_is_exported_by_a_command(saved, tmp_path, capsys):
    file = tmp_path / "trace.json"
    assert main(["export", str(saved), "--perfetto", str(file)]) == 0
    assert capsys.readouterr().out.split() == [str(file)]
    trace = json.loads(file.read_text())
    assert trace["otherData"]["clock"] == "virtual"
    assert {event["ph"] for event in trace["traceEvents"]} == {*"MXstfCi"}
    assert main(["export", str(saved), "--perfetto", str(tmp_path / "trace.pftrace")]) == 2
    assert "must end in .json or .json.gz" in capsys.readouterr().err


@pytest.mark.skipif(not (find_spec("tensorflow") and find_spec("triton")), reason="needs both")
def test_torchvision_loads_after_tensorboard_and_its_tensorflow(saved, tmp_path):
    code = "import sys, psbench as ps; ps.Run.load(sys.argv[1]).tensorboard(sys.argv[2]); import torchvision"
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, saved, tmp_path], check=True, capture_output=True
    )


def test_telemetry_counts_what_the_summary_counts(monkeypatch):
    """Spans into memory and counters into a registry, of a log that is read as it grows."""
    exporter = pytest.importorskip(
        "opentelemetry.sdk.trace.export.in_memory_span_exporter"
    ).InMemorySpanExporter()
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with Telemetry("toy", tracer_provider=provider) as telemetry:
        run = ps.run(toy_experiment("k_batch_asp", stop={"epochs": 3}), observer=telemetry)
    *spans, whole = exporter.get_finished_spans()
    assert (whole.name, whole.attributes["psbench.name"]) == ("run", "toy")
    assert {span.parent.span_id for span in spans} == {whole.context.span_id}
    found = {}
    for span in spans:
        key = span.attributes["psbench.worker"], span.name
        found[key] = found.get(key, 0.0) + (span.end_time - span.start_time) / 1e9
    took = metrics.timeline(run.log).assign(s=lambda frame: frame["end_s"] - frame["start_s"])
    wanted = took.groupby([took["worker"], took["phase"].astype(str)])["s"].sum()
    assert found == {key: pytest.approx(each, abs=1e-5) for key, each in wanted.items()}
    summary = run.summary()
    value = telemetry.registry.get_sample_value
    assert sum(value("psbench_pushes_total", {"worker": str(w)}) for w in range(3)) == sum(
        summary["pushes"].values()
    )
    assert value("psbench_updates_total") == summary["updates"]
    assert value("psbench_samples_total") == pytest.approx(summary["epochs"] * run.meta["dataset_size"])
    assert value("psbench_bytes_total", {"direction": "up"}) == summary["bytes"]["up"]
    assert value("psbench_staleness_count") == summary["pushes"]["committed"]
    assert value("psbench_evaluation", {"name": "val_loss"}) == summary["final"]["val_loss"]
    monkeypatch.setattr("psbench.results.telemetry.is_there", lambda name: False)
    with pytest.raises(SpecError, match=r"pip install 'psbench\[otel\]'"):
        Telemetry("toy")


def test_telemetry_of_a_run_that_goes_back_counts_new_rows_only():
    """The run began before its first rows were read, and rows that are kept are not counted again."""
    exporter = pytest.importorskip(
        "opentelemetry.sdk.trace.export.in_memory_span_exporter"
    ).InMemorySpanExporter()
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    provider, log = TracerProvider(), EventLog()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    log.add(Kind.JOIN, 0.0, 0)
    log.add(Kind.RELEASE, 0.0, 0)
    with Telemetry("toy", tracer_provider=provider) as telemetry:
        for push, begin_s in enumerate((1000.0, 2000.0)):
            log.add(Kind.PUSH, begin_s, 0, push, push, 4, 1)
            log.add(Kind.APPLY, begin_s, 0, push, push + 1, 4, 1, loss=1.0)
            log.add(Kind.RELEASE, begin_s, 0, version=push + 1)
        began_ns = time.time_ns() - int(2000e9)
        telemetry(log)
        log.truncate(5, len(log.texts))
        telemetry(log)
        log.add(Kind.PUSH, 3000.0, 0, 1, 1, 4, 1)
        telemetry(log)
    value = telemetry.registry.get_sample_value
    assert value("psbench_pushes_total", {"worker": "0"}) == 3
    assert value("psbench_samples_total") == 8
    assert exporter.get_finished_spans()[-1].start_time == pytest.approx(began_ns, abs=60e9)


def test_telemetry_is_reported_to_a_port_and_to_a_collector(capsys, monkeypatch, tmp_path):
    """By the shell's option; what cannot be reported is refused before there is any work."""
    request = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    spans = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            (resource,) = request.ExportTraceServiceRequest.FromString(body).resource_spans
            spans.extend(span.name for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as collector, socket.socket() as probe:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        probe.bind(("127.0.0.1", 0))
        port, url = probe.getsockname()[1], f"http://127.0.0.1:{collector.server_port}"
        probe.close()
        with telemetry([f"otlp:{url}", f"prometheus:{port}"], "toy") as observer:
            run = ps.run(toy_experiment("asp", stop={"epochs": 2}), observer=observer)
            with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                counters = answer.read().decode()
            taken = main(["run", "--telemetry", f"prometheus:{port}"])
        collector.shutdown()
    assert f"\npsbench_updates_total {run.summary()['updates']:.1f}\n" in counters
    assert sorted(spans) == sorted([*metrics.timeline(run.log)["phase"].astype(str), "run"])
    said = capsys.readouterr().err
    assert f"http://127.0.0.1:{port}/metrics" in said
    assert (taken, "prometheus cannot listen on 127.0.0.1" in said) == (2, True)
    assert "spans did not reach" not in said
    for target, why in (
        (f"otlp:{url}", f"no collector answers at {url}"),
        ("otlp:somewhere", "got 'otlp:somewhere'"),
        ("prometheus:http", "got 'prometheus:http'"),
        ("statsd:1", "got 'statsd:1'"),
    ):
        assert main(["run", "--out", str(tmp_path / "run"), "--telemetry", target]) == 2
        assert why in capsys.readouterr().err
    monkeypatch.setattr("psbench.core.imports.is_there", lambda name: False)
    assert main(["run", "--telemetry", f"otlp:{url}"]) == 2
    assert "pip install 'psbench[otel]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_without_tensorboard_it_is_said_how_to_get_it(run, tmp_path, monkeypatch):
    monkeypatch.setattr("psbench.results.export.find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"pip install 'psbench\[tensorboard\]'"):
        run.tensorboard(tmp_path / "board")
    assert list(tmp_path.iterdir()) == []


def test_a_row_of_the_frame_is_what_a_logger_takes(run):
    rows = run.frame().to_dict("records")
    assert json.loads(json.dumps(rows[-1]))["val_accuracy"] == run.summary()["final"]["val_accuracy"]


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")  # theirs
@pytest.mark.parametrize(("module", "calls"), [("wandb", ("init", "log")), ("mlflow", ("set_", "log_"))])
def test_the_guides_lines_for_other_loggers_run(module, calls, tmp_path, monkeypatch):
    """Its block with their line in place of `print`, without a network; they then have the rows."""
    logger = pytest.importorskip(module)
    page = (Path(__file__).parents[1] / "notebooks/site/howto/use_other_tools.md").read_text()
    block = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    begin, put = (re.search(rf"`({module}\.{call}.*?\))`", page)[1] for call in calls)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_SILENT", "true")
    names = {module: logger}
    exec(f"{begin}\n{block.partition('print(')[0]}{put}\n", names)
    rows = names["run"].frame().to_dict("records")
    if module == "wandb":
        assert logger.run.step == len(rows)
        assert logger.run.summary["val_loss"] == rows[-1]["val_loss"]
        logger.finish()
        assert [*tmp_path.glob("wandb/offline-run-*/*.wandb")]
        return
    kept = logger.MlflowClient().get_metric_history(logger.active_run().info.run_id, "val_loss")
    logger.end_run()
    assert [(each.step, each.value) for each in kept] == [(row["updates"], row["val_loss"]) for row in rows]


def test_no_cell_of_a_csv_is_a_formula(tmp_path):
    """Read back by the standard library: a formula stands after an apostrophe, a number does not."""
    texts = [
        "=cmd|' /C calc'!A0",
        "+1+1",
        "-x",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "a\r=1",
        "asp",
        "-0.5",
        "+1e5",
        "-",
        "",
    ]
    frame = pd.DataFrame(
        {
            "=label": texts,
            "kind": pd.Categorical(texts),
            "loss": np.linspace(-1, 1, len(texts)),
            "updates": -np.arange(len(texts)),
        }
    )
    path = write_table(frame, tmp_path / "t.csv")
    with path.open(newline="") as file:
        heading, *rows = csv.reader(file)
    assert heading == ["'=label", "kind", "loss", "updates"]
    asis = ("a\r=1", "asp", "-0.5", "+1e5", "")
    expected = [(text if text in asis else f"'{text}").replace("\r", "\n") for text in texts]
    assert [row[0] for row in rows] == [row[1] for row in rows] == expected
    assert [float(row[2]) for row in rows] == frame["loss"].tolist()
    assert [int(row[3]) for row in rows] == frame["updates"].tolist()
    assert list(csv.reader(io.StringIO(csv_of_rows([texts]), newline=""))) == [expected]
    packed = pd.read_parquet(write_table(frame, tmp_path / "t.parquet"))
    assert packed["=label"].tolist() == texts
