"""Energy and cost: closed forms, and the sum over machines."""

from __future__ import annotations

import pytest

import psbench as ps
from psbench import metrics
from psbench.backends.dask import energy_meters
from psbench.backends.dask.energy_meters import EnergyMeters
from psbench.cli import main
from psbench.clusters.connection import ConnectionSettings
from psbench.clusters.costs import Costs
from psbench.core.log import EventLog, Kind
from psbench.system.rapl import RaplMeter
from psbench.testing import toy_experiment

COSTS = {
    **{"idle_watts": 50, "busy_watts": [150, 200, 250], "server_idle_watts": 20, "server_busy_watts": 80},
    **{
        "joules_per_byte": 1e-6,
        "price_per_hour": 3.6,
        "server_price_per_hour": 1.8,
        "spot_price_per_hour": 0.36,
    },
}
#: seconds of a step of each worker, and of a message each way
STEPS, WAY = (0.1, 0.2, 0.4), 0.01
CLUSTER = {
    **{"workers": 3, "speed": [1, 0.5, 0.25], "step_time": "constant", "latency_s": WAY},
    **{"seconds_per_sample": 1e-15, "seconds_per_step": STEPS[0]},
    **{"bandwidth_mbit_s": 1e12, "server_bandwidth_mbit_s": 1e12, "costs": COSTS},
}


def spent(strategy, **changes):
    """Return the table by machine of a run with constant times, and the run."""
    run = ps.run(toy_experiment(strategy, cluster=CLUSTER, timing_only=True, **changes))
    return metrics.energy(run.log, run.meta).set_index("machine"), run


def test_bsp_with_constant_times():
    """Every round takes the slowest worker's step and its two messages; others wait for it at 50 W."""
    rounds = 20
    table, run = spent("bsp", stop={"updates": rounds})
    whole = rounds * (STEPS[2] + 2 * WAY)
    size = run.meta["model_bytes"]
    for worker, (step, watts) in enumerate(zip(STEPS, COSTS["busy_watts"], strict=True)):
        row = table.loc[f"worker {worker}"]
        assert row["seconds"] == pytest.approx(whole)
        assert row["busy_s"] == pytest.approx(rounds * step)
        assert row["waiting_s"] == pytest.approx(rounds * (STEPS[2] - step), abs=1e-6)
        moved = 2 * rounds * size * COSTS["joules_per_byte"]
        joules = watts * rounds * step + 50 * (whole - rounds * step) + moved
        assert row["joules"] == pytest.approx(joules, rel=1e-5)
        assert row["waiting_joules"] == pytest.approx(50 * rounds * (STEPS[2] - step), abs=1e-4)
        assert row["cost"] == pytest.approx(3.6 * whole / 3600)
        assert row["spot_cost"] == pytest.approx(0.36 * whole / 3600)
        assert row["unused_joules"] == row["unused_cost"] == 0
    server = table.loc["server 0"]
    assert server["joules"] == pytest.approx(20 * whole)
    assert server["cost"] == server["spot_cost"] == pytest.approx(1.8 * whole / 3600)


def test_asp_with_constant_times():
    """No worker waits: each computes for its step of every step with its two messages."""
    table, run = spent("asp", stop={"seconds": 30.0})
    assert table.loc[["worker 0", "worker 1", "worker 2"], "waiting_s"].tolist() == [0, 0, 0]
    for worker, (step, watts) in enumerate(zip(STEPS, COSTS["busy_watts"], strict=True)):
        row = table.loc[f"worker {worker}"]
        share = step / (step + 2 * WAY)
        assert row["busy_s"] / row["seconds"] == pytest.approx(share, abs=0.01)
        moved = run.meta["model_bytes"] * COSTS["joules_per_byte"] / (step / 2 + WAY)
        assert row["joules"] / row["seconds"] == pytest.approx(
            watts * share + 50 * (1 - share) + moved, rel=0.01
        )


def test_unused_work_and_the_sum_over_machines():
    """A late push is dropped when it arrives, a cancelled step never does: both at the worker's watts."""
    table, run = spent({"name": "backup_workers", "spares": 1}, stop={"updates": 40})
    fates = metrics.pushes(run.log)
    seconds = fates.loc[fates["fate"] == "discarded", "compute_s"].sum()
    late, size = table.loc["worker 2"], run.meta["model_bytes"]
    assert late["unused_s"] == pytest.approx(seconds)
    assert late["unused_s"] == pytest.approx(STEPS[2] * (fates["worker"] == 2).sum())
    assert late["unused_joules"] == pytest.approx(250 * seconds + 1e-6 * size * (fates["worker"] == 2).sum())
    assert table.loc[["worker 0", "worker 1"], "unused_s"].tolist() == [0, 0]
    cancelled, _ = spent({"name": "k_bsp", "k": 1}, stop={"updates": 40})
    assert cancelled.loc["worker 2", "unused_s"] == cancelled.loc["worker 2", "busy_s"] > 0
    assert cancelled.loc["worker 0", "unused_s"] == 0
    total = run.summary()["energy"]
    assert total == {name: pytest.approx(table[name].sum()) for name in total}
    assert {"joules", "waiting_joules", "unused_joules", "cost", "spot_cost"} < {*total}


@pytest.mark.parametrize(("weight", "unused_s"), [(1.0, 0.0), (0.0, 1.5)])
def test_work_that_is_applied_with_weight_0_is_unused(weight, unused_s):
    log = EventLog()
    log.add(Kind.JOIN, 0.0, 0)
    log.add(Kind.RELEASE, 0.0, 0)
    log.add(Kind.PUSH, 2.0, 0, 0, 0, 4, 1, compute_s=1.5)
    log.add(Kind.APPLY, 2.0, 0, 0, 1, 4, 1, loss=weight)
    found = metrics.energy(log, {"costs": Costs(busy_watts=100).facts(1)})
    assert found["unused_s"].tolist() == [unused_s]
    assert found["unused_joules"].tolist() == [100 * unused_s]


@pytest.mark.parametrize("servers", [1, 2])
def test_servers_are_busy_for_their_service_times(servers):
    """Each has its share of the bytes; the first one decides."""
    service = {"message_s": 1e-3, "byte_s": 1e-7, "decision_s": 2e-3}
    strategy = {"name": "asp", "servers": servers}
    run = ps.run(toy_experiment(strategy, cluster=CLUSTER | {"service": service}, stop={"updates": 30}))
    sent = run.summary()
    messages = sent["messages"]["push"] + sent["messages"]["release"]
    each = 1e-3 * messages + 1e-7 * sum(sent["bytes"].values()) / servers
    table = metrics.energy(run.log, run.meta).set_index("machine")
    for server in range(servers):
        row, busy = (
            table.loc[f"server {server}"],
            each + (2e-3 * sent["messages"]["push"] if not server else 0),
        )
        assert row["busy_s"] == pytest.approx(busy)
        assert row["joules"] == pytest.approx(80 * busy + 20 * (row["seconds"] - busy))
    without = ps.run(toy_experiment("all_reduce", cluster=CLUSTER, timing_only=True))
    assert list(metrics.energy(without.log, without.meta)["machine"]) == [f"worker {i}" for i in range(3)]


def test_models_that_were_under_way_at_the_end_cost_nothing():
    run = ps.run(toy_experiment("asp", cluster=CLUSTER, timing_only=True))
    joules, sent = zip(
        *(
            (metrics.energy(run.log, meta)["joules"].sum(), metrics.summarise(run.log, meta)["bytes"]["down"])
            for meta in (run.meta | {"unanswered": answer} for answer in (False, True))
        ),
        strict=True,
    )
    assert sent[0] > sent[1]
    assert joules[0] - joules[1] == pytest.approx(COSTS["joules_per_byte"] * (sent[0] - sent[1]), rel=1e-3)


def test_columns_and_the_front_have_energy_and_cost(capsys):
    runs = [ps.run(toy_experiment(name, cluster=CLUSTER)) for name in ("bsp", "asp")]
    compared = ps.compare(runs)
    assert compared.table()["joules"].tolist() == [run.summary()["energy"]["joules"] for run in runs]
    text = str(compared)
    assert "energy (J)" in text
    assert "spot cost" in text
    assert "energy (J)" not in str(ps.compare([toy_experiment("bsp"), toy_experiment("asp")]))
    assert len(runs[0].frame("energy")) == 4
    front = compared.chart("pareto_joules", "pareto_cost")
    assert len(front.to_dict()["vconcat"]) == 2


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("busy_watts=-1", "busy_watts: must be a finite number of at least 0, got -1"),
        ("busy_watts=[1, 2]", "busy_watts has 2 values for 3 workers"),
        ("busy_watts=much", "busy_watts: expected a number, or a list with one for each worker"),
        ("idle_watts=100", "worker 0 has busy_watts 0, less than its idle_watts 100"),
        ("price_per_hour=.inf", "price_per_hour: must be a finite number"),
        ("watts=3", "did you mean"),
        ("server_idle_watts=5", "server_busy_watts 0 is less than server_idle_watts 5"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(setting, said, capsys):
    given = [
        "--set",
        "cluster.workers=3",
        "--set",
        "cluster.name=custom",
        "--set",
        f"cluster.costs.{setting}",
    ]
    assert main(["run", *given, "--set", "timing_only=true"]) == 2
    assert said in capsys.readouterr().err


def test_the_processors_of_a_live_run_are_measured_where_they_can_be(tmp_path, monkeypatch):
    """Two packages, one of whose counters begins again; a machine without them says so."""
    for name, count in (("intel-rapl:0", 7_000_000), ("intel-rapl:1", 9_000_000), ("intel-rapl:0:0", 1)):
        zone = tmp_path / name
        zone.mkdir()
        (zone / "energy_uj").write_text(f"{count}\n")
        (zone / "max_energy_range_uj").write_text("10000000\n")
    meter = RaplMeter(tmp_path)
    (tmp_path / "intel-rapl:0/energy_uj").write_text("9500000\n")
    (tmp_path / "intel-rapl:1/energy_uj").write_text("500000\n")
    (tmp_path / "intel-rapl:0:0/energy_uj").write_text("900\n")
    assert meter.end() == 2.5 + 1.5
    assert RaplMeter(tmp_path / "none").end() is None
    answers = {"tcp://a:1": ("a", 4.0), "tcp://a:2": ("a", 3.9), "tcp://b:1": ("b", None)}
    monkeypatch.setattr(energy_meters, "ask", lambda *_, of, **__: {each: answers[each] for each in of})
    meters = EnergyMeters(None, ConnectionSettings())
    meters.begin(answers)
    joules, incidents = meters.joules()
    assert joules == {"a": 4.0}
    assert incidents == ["energy was not measured on b: no RAPL counter that psbench may read"]
