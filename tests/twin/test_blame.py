"""Culprits that are known are found, and none where workers are alike; trace files, whole and broken."""

import json

import numpy as np
import pytest
import torch

import psbench as ps
from psbench.cli import main
from psbench.percents import percent
from psbench.twin.attribution import Meetings, blame
from psbench.twin.trace_files import read_meetings, read_trace

KINDS = ("slow", "stalls", "spell", "late")


def trace(seed, kind=None):
    """Return a barrier's trace of 3 to 8 workers, and the culprit among them; steps vary by up to a tenth."""
    rng = np.random.default_rng(seed)
    workers, steps = int(rng.integers(3, 9)), int(rng.integers(60, 160))
    noise, rho = rng.uniform(0.02, 0.1), rng.uniform(0, 0.6)
    logs = np.zeros((workers, steps))
    for step in range(steps):
        fresh = rng.standard_normal(workers)
        logs[:, step] = fresh if not step else rho * logs[:, step - 1] + np.sqrt(1 - rho**2) * fresh
    took, delay = np.exp(noise * logs), np.zeros((workers, steps))
    culprit = int(rng.integers(workers))
    if kind == "slow":
        took[culprit] *= rng.uniform(1.2, 1.6)
    elif kind == "stalls":
        took[culprit] *= np.where(rng.random(steps) < 0.15, rng.uniform(2, 4), 1.0)
    elif kind == "spell":
        took[culprit, steps // 3 : steps // 3 * 2] *= rng.uniform(1.4, 2)
    elif kind == "late":
        delay[culprit] = rng.uniform(0.2, 0.5)
    begin, end, now = np.zeros_like(took), np.zeros_like(took), 0.0
    for step in range(steps):
        begin[:, step] = now + delay[:, step]
        end[:, step] = begin[:, step] + took[:, step]
        now = end[:, step].max() + 0.05
    return Meetings([f"w{i}" for i in range(workers)], begin, end), f"w{culprit}"


def test_culprits_are_found_and_no_other_is_blamed():
    """A hundred traces with a culprit, and a hundred without: 95 % and 5 %, as the issue asks."""
    found = others = 0
    for seed in range(100):
        meetings, culprit = trace(seed, KINDS[seed % 4])
        names = [each.worker for each in blame(meetings).culprits]
        found += culprit in names[:1]
        others += bool(set(names) - {culprit})
    alarms = sum(bool(blame(trace(1000 + seed)[0]).culprits) for seed in range(100))
    assert (found >= 95, others <= 5, alarms <= 5) == (True, True, True), (found, others, alarms)


def with_memory(seed, rho, slow=1.0):
    """Return 150 steps of four workers that vary by 5 %, each by its own AR(1); the first is slower."""
    rng = np.random.default_rng(seed)
    fresh = rng.standard_normal((4, 150))
    logs = fresh.copy()
    for step in range(1, 150):
        logs[:, step] = rho * logs[:, step - 1] + np.sqrt(1 - rho**2) * fresh[:, step]
    took = np.exp(0.05 * logs) * np.array([[slow], [1.0], [1.0], [1.0]])
    begin = np.append(0.0, np.cumsum(took.max(axis=0) + 0.05)[:-1])
    return Meetings(["w0", "w1", "w2", "w3"], np.tile(begin, (4, 1)), begin + took)


@pytest.mark.parametrize("rho", [0.6, 0.9, 0.97, 0.99])
def test_spells_of_equal_workers_are_no_stragglers(rho):
    """A worker that is slow by chance stays slow for a while: that is not its own."""
    assert sum(bool(blame(with_memory(seed, rho)).culprits) for seed in range(100)) <= 5


def test_a_worker_that_is_slower_by_a_twentieth_is_found():
    found = [blame(with_memory(1000 + seed, 0.0, slow=1.05)).culprits for seed in range(40)]
    assert [[each.worker for each in culprits] for culprits in found] == [["w0"]] * 40


def test_waits_and_reasons():
    """Two workers: one waits a second for the other in each of ten steps, nine seconds before the last."""
    begin = np.array([np.arange(10.0) * 3, np.arange(10.0) * 3])
    end = begin + np.array([[1.0], [2.0]])
    found = blame(Meetings(["quick", "slow"], begin, end))
    assert found.waits_s.tolist() == [[0, 10], [0, 0]]
    (culprit,) = found.culprits
    assert (culprit.worker, culprit.lost_s, culprit.last) == ("slow", 10, 1)
    assert "2 times the others'" in culprit.why
    shift = np.array([[0.0], [1.0]])
    late = blame(Meetings(["quick", "slow"], begin + shift, begin + shift + 1)).culprits[0]
    assert "begins 1 s later" in late.why
    both = blame(Meetings(["quick", "slow"], begin + shift / 4, end + shift / 4)).culprits[0]
    assert "2 times the others'" in both.why  # which makes more of it than the quarter of a second


def test_the_reason_of_a_second_culprit_is_its_own():
    begin = np.tile(np.arange(20.0) * 5, (4, 1)) + np.array([[0.0], [1.0], [0.0], [0.0]])
    end = begin + np.array([[3.0], [1.0], [1.0], [1.0]])
    found = blame(Meetings(["slow", "late", "c", "d"], begin, end)).culprits
    assert [each.worker for each in found] == ["slow", "late"]
    assert "3 times the others'" in found[0].why
    assert "begins 1 s later" in found[1].why


def test_steps_that_differ_by_rounding_alone_say_nothing_of_chance():
    """A worker is last by half of every step; what sums of times are off by grows along a trace."""
    begin = np.tile(np.arange(14.0), (3, 1))
    took = np.array([[0.25], [0.5], [1.0]]) + 1e-13 * np.arange(14)
    (culprit,) = blame(Meetings(["a", "b", "c"], begin, begin + took)).culprits[:1]
    assert (culprit.worker, culprit.last) == ("c", 1)


def profiler(meetings, rank, ahead, drift=0.0, names=("nccl:all_reduce",)):
    """Return a rank's trace of torch's profiler, by a clock that is ahead and drifts."""
    events, done = [], meetings.end.max(axis=0) + 0.01
    for step in range(meetings.end.shape[1]):
        begin, ready, over = (
            1e6 * (each + ahead + drift * each)
            for each in (meetings.begin[rank, step], meetings.end[rank, step], done[step])
        )
        events.append({"ph": "X", "name": f"ProfilerStep#{step}", "ts": begin, "dur": over - begin + 10})
        events += [{"ph": "X", "name": name, "ts": ready, "dur": over - ready} for name in names]
    return {"distributedInfo": {"rank": rank}, "traceEvents": [*events, {"ph": "M", "name": "process_name"}]}


def recorder(meetings, rank, ahead):
    done = meetings.end.max(axis=0) + 0.01
    return {
        "entries": [
            {
                "profiling_name": "nccl:all_reduce",
                "collective_seq_id": step,
                "time_created_ns": int(1e9 * (meetings.end[rank, step] + ahead)),
                "time_discovered_completed_ns": int(1e9 * (done[step] + ahead)),
            }
            for step in range(meetings.end.shape[1])
        ]
    }


@pytest.fixture
def write(tmp_path):
    def written(made):
        paths = [tmp_path / f"trace_rank_{rank}.json" for rank in range(len(made))]
        for path, each in zip(paths, made, strict=True):
            path.write_text(json.dumps(each))
        return paths

    return written


def test_traces_of_torch_are_read_and_their_clocks_set(write):
    """Each rank's clock is hours ahead of the others, and one drifts: the collectives' ends set them."""
    meetings, culprit = trace(1, "slow")
    ranks = range(len(meetings.workers))
    for made in (
        [profiler(meetings, rank, 3600.0 * rank, 1e-4 * rank) for rank in ranks],
        [recorder(meetings, rank, 3600.0 * rank) for rank in ranks],
    ):
        found = read_meetings(write(made))
        assert (found.end.max(axis=0) - found.end)[:, 5] == pytest.approx(
            (meetings.end.max(axis=0) - meetings.end)[:, 5 if "traceEvents" in made[0] else 6], abs=1e-3
        )
        assert [f"w{each.worker}" for each in blame(found).culprits] == [culprit]


def test_a_run_of_psbench_and_a_csv_are_read(tmp_path):
    cluster = {"workers": 3, "speed": [1, 1, 0.6], "step_time": {"name": "lognormal", "sigma": 0.05}}
    experiment = ps.Experiment(strategy="bsp", cluster=cluster, stop={"updates": 40}, timing_only=True)
    run = ps.run(experiment)
    run.save(tmp_path / "run")
    meetings = read_meetings([tmp_path / "run"])
    assert [each.worker for each in blame(meetings).culprits] == ["worker 2"]
    rows = [
        f"{name},{step},{meetings.begin[i, step]},{meetings.end[i, step]}"
        for i, name in enumerate(meetings.workers)
        for step in range(meetings.end.shape[1])
    ]
    file = tmp_path / "trace.csv"
    file.write_text("\n".join(["worker,step,begin,end", *rows]))
    assert read_meetings([file]).end == pytest.approx(meetings.end)
    for broken, problem in {
        "\n".join(
            ["worker,step,begin,end", *rows[:9], *rows[10:]]
        ): "worker 0 has no step 9: the trace has a gap",
        "\n".join(["worker,step,begin", *rows]): "has no column 'end'",
        "\n".join(["worker,step,begin,end", *rows, rows[0]]): "has step 0 twice",
        "\n".join(["worker,step,begin,end", "a,0,x,1"]): "row 0: begin is not a number",
        "worker,step,begin,end": "has no rows below its header",
        "\n".join(["worker,step,begin,end", rows[0], "a,1.5,0,1"]): "row 1: step is not a whole number",
        "\n".join(["worker,step,begin,end", rows[0], "a,inf,0,1"]): "row 1: step is not a whole number",
        f"worker,step,begin,end\na,1,1{'0' * 400},2": "row 0: begin is too large",
        f"worker,step,begin,end\na,1{'0' * 400},1,2": "row 0: step is not a whole number",
        "\n".join(["worker,step,begin,end", rows[0], "a,1,0,1e300"]): "row 1: end is too large",
        "\n".join(["worker,step,begin,end", rows[0], ",0,0,1"]): "row 1: worker has no name",
    }.items():
        file.write_text(broken)
        with pytest.raises(ps.DataError, match=problem):
            read_meetings([file])
    for paths in ([file, tmp_path / "run"], [tmp_path / "run", file], [file, file]):
        with pytest.raises(ps.DataError, match="contains all workers"):
            read_meetings(paths)
    ps.run(experiment.but(strategy="asp")).save(tmp_path / "asp")
    with pytest.raises(ps.DataError, match="do not synchronise"):
        read_meetings([tmp_path / "asp"])


def test_broken_traces_of_torch_are_one_line(write):
    meetings, _ = trace(2)
    made = [profiler(meetings, rank, 0.0) for rank in range(2)]
    whole = write(made)
    jumping = profiler(meetings, 0, 0.0)
    for place, event in enumerate(jumping["traceEvents"][:-1]):
        event["ts"] += 1e6 * (place // 2 % 3)
    text = whole[0].read_text()
    still = [event | {"ts": 0} if "ts" in event else event for event in made[0]["traceEvents"]]
    done = {"collective_seq_id": 1, "time_created_ns": float("inf"), "time_discovered_completed_ns": 2}
    endless = {"rank": 0, "entries": [{"profiling_name": "nccl:all_reduce", **done}]}
    entries = recorder(meetings, 0, 9.0)["entries"][:9]
    unknown = [each | {"time_discovered_completed_ns": 0} for each in entries]
    for spoilt, problem in [
        (text[: len(text) // 2], "not JSON, or is truncated"),
        ("[]", "must be a mapping"),
        ("{}", "has neither traceEvents"),
        (json.dumps({"distributedInfo": {"rank": 0}, "traceEvents": []}), "no ProfilerStep"),
        (json.dumps(made[1]), "is a second file of rank 1"),
        (json.dumps(jumping), "clocks of rank 1 and rank 0 differ"),
        (json.dumps(made[0] | {"traceEvents": still}), "ends before it begins|no collective|differ by more"),
        (json.dumps({"distributedInfo": None, "traceEvents": None}), "traceEvents is not a list"),
        (json.dumps({"rank": 0, "entries": {"a": 1}}), "entries is not a list"),
        (json.dumps({"rank": 0, "entries": [3]}), "fewer than two completed collectives"),
        (json.dumps(endless), "an entry has no collective_seq_id and times"),
        (json.dumps({"rank": 0, "entries": unknown}), r"completed collectives \(9 have no time_disc"),
        (text.replace('"dur": ', '"dur": 1e999, "was": '), "has no ts and dur"),
        (text.replace('"ts": ', '"ts": 1e300, "was": '), "has no ts and dur"),
        (text.replace("ProfilerStep#", "ProfilerStep#" + "1" * 5000), "no ProfilerStep"),
        ("[" * 100_000, "numbers or lists are too long"),
    ]:
        whole[0].write_text(spoilt)
        with pytest.raises(ps.DataError, match=problem) as error:
            read_meetings(whole)
        assert "\n" not in str(error.value)


def test_collectives_that_are_not_known_to_be_completed_have_no_time(write):
    """Torch writes 0 into JSON: with it each step would begin in 1970, and take alike for all."""
    meetings, culprit = trace(1, "slow")
    made = [recorder(meetings, rank, 1.7e9) for rank in range(len(meetings.workers))]
    whole = read_meetings(write(made))
    for dump in made:
        for entry in dump["entries"][-3:]:
            entry["time_discovered_completed_ns"] = 0
    cut = read_meetings(write(made))
    assert cut.end.shape[1] == whole.end.shape[1] - 3
    assert [f"w{each.worker}" for each in blame(cut).culprits] == [culprit]


def test_process_groups_are_separate_and_incomplete_entries_left_out(write, capsys):
    """Ranks 0 to 3: a group of all in which 2 is slow, pairs of their own, and a group of one rank alone."""
    rng = np.random.default_rng(0)
    took = rng.uniform(0.9, 1.1, (4, 40)) * np.array([[1.0], [1.0], [1.5], [1.0]])
    begin = np.append(0.0, np.cumsum(took.max(axis=0) + 0.5)[:-1])
    both = Meetings([f"{rank}" for rank in range(4)], np.tile(begin, (4, 1)), begin + took)
    # the pairs meet in the pause after the step of all; 1 and 3 are late for their partners
    pair = np.array([0.1, 0.3, 0.1, 0.2])[:, None]
    base = both.end.max(axis=0) + 0.01
    made = []
    for rank in range(4):
        dump = recorder(both, rank, 0.0)
        for entry in dump["entries"]:
            entry["process_group"] = ["0", "default_pg"]
        own, late = str(1 + rank // 2), pair[rank // 2 * 2 : rank // 2 * 2 + 2].max()
        for step in range(40):
            asked, done = base[step] + pair[rank, 0], base[step] + late + 0.01
            times = {"time_created_ns": int(1e9 * asked), "time_discovered_completed_ns": int(1e9 * done)}
            group = {"process_group": [own, "undefined"], "collective_seq_id": step}
            dump["entries"].append({"profiling_name": "nccl:_all_gather_base", **group, **times})
        made.append(dump)
    alone = {"process_group": ["9", "pp"], "profiling_name": "nccl:broadcast"}
    for step in range(20):
        times = {"time_created_ns": step + 1, "time_discovered_completed_ns": step + 2}
        made[0]["entries"].append({**alone, "collective_seq_id": step, **times})
    made[1]["entries"][20]["time_discovered_completed_ns"] = None  # in the midst, of one rank alone
    paths = write(made)
    traced = read_trace(paths)
    assert [*traced.groups] == ["default_pg (0)", "1", "2"]
    assert traced.groups["default_pg (0)"].end.shape == (4, 37)  # without 20, and 21 that begins there
    found = {name: [each.worker for each in blame(own).culprits] for name, own in traced.groups.items()}
    assert found == {"default_pg (0)": ["2"], "1": ["1"], "2": ["3"]}
    assert "one worker" in traced.left_out["pp (9)"]
    with pytest.raises(ps.DataError, match="several process groups"):
        read_meetings(paths)
    assert main(["diagnose", *map(str, paths)]) == 0
    said = capsys.readouterr()
    assert "process group default_pg (0):\n2 makes the others wait" in said.out
    assert "process group pp (9) is left out" in said.err


def test_a_link_that_takes_most_of_the_time_is_named(tmp_path):
    """Of a run that of its worker; else the link that all share, where nobody is late."""
    cluster = {"workers": 4, "step_time": {"name": "lognormal", "sigma": 0.05}, "seconds_per_sample": 1e-9}
    cluster |= {"seconds_per_step": 0.05, "bandwidth_mbit_s": 1e6}
    experiment = ps.Experiment(strategy="bsp", cluster=cluster, stop={"updates": 40}, timing_only=True)
    rate = 8e-6 * ps.run(experiment).meta["model_bytes"] / 0.475  # 0.95 s of a step of 1 s
    for name, rates in (("one", [1e6, 1e6, rate, 1e6]), ("all", rate)):
        ps.run(experiment.but(cluster=cluster | {"bandwidth_mbit_s": rates})).save(tmp_path / name)
    found = blame(read_meetings([tmp_path / "one"]))
    assert [each.worker for each in found.culprits] == ["worker 2"]
    assert found.culprits[0].why.startswith(f"its link: messages take 0.951 s ({percent(0.95)}) of its step")
    assert found.links == ""
    assert (
        f"messages take {percent(0.95)} of the workers' steps"
        in blame(read_meetings([tmp_path / "all"])).links
    )
    begin = np.tile(np.arange(20.0), (3, 1))
    links = blame(Meetings(["a", "b", "c"], begin, begin + 0.05)).links
    assert links == f"collective operations take {percent(0.95)} of the time: the link that all share"


def test_a_profiler_without_a_schedule_is_told_of_it(tmp_path):
    """Of torch itself: `step` marks no steps then, however often it is called."""
    traces, given = {}, torch.profiler.schedule(wait=0, warmup=1, active=3, repeat=1)
    for name, schedule in {"without": None, "with": given}.items():
        path = tmp_path / f"{name}_0.json"
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, schedule=schedule) as profiler:
            for _ in range(4):
                torch.ones(3).sum()
                profiler.step()
        profiler.export_chrome_trace(str(path))
        with pytest.raises(ps.DataError) as error:
            read_meetings([path])
        traces[name] = str(error.value)
    assert "schedule=torch.profiler.schedule(wait=1" in traces["without"]
    assert "no collective" in traces["with"]
