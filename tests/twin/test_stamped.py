"""What stamps tell: cores, codecs and clocks."""

import numpy as np
import pytest

import psbench as ps
from psbench.backends.stamps import CoordinatorStamps
from psbench.results.run import Run
from psbench.twin.calibration import Calibration
from psbench.twin.codecs import Coding, with_codec
from psbench.twin.exchanges import exchanges_of
from psbench.twin.measures import measures_of
from psbench.twin.stamped import stamps_of, with_cpu_times
from tests.twin.known import PLAIN, TRUTH, stamped, times


def test_cores_are_found_from_the_stamps_of_stretches_of_short_steps(crowded):
    """Steps of .5 ms: one stretch in four, of both workers at once; of 2 ms and more: all."""
    for step_s, every in ((5e-4, 4), (2e-3, 1), (1e-9, 16)):
        stamps = CoordinatorStamps(workers=2)
        chosen = [(stamps.begins(each % 2), stamps.has(each % 2, step_s)) for each in range(511)]
        assert all(begun == has for begun, has in chosen)
        noted = sum(begun for begun, _ in chosen[63:])
        assert (stamps.facts()["every"], noted) == (every, 64 * (7 // every))
    runs, _ = crowded
    few = []
    for run in runs:
        plain = run.meta["stamps"]
        kept = {(row[0], row[1]) for row in plain["pushes"] if row[-1] // 64 % 2}
        workers = {
            name: own | {"rows": [row for row in own["rows"] if (int(name[-1]), row[0]) in kept]}
            for name, own in plain["workers"].items()
        }
        few.append(Run(run.experiment, run.log, run.meta | {"stamps": plain | {"workers": workers}}))
    each = with_cpu_times(stamps_of(few[0]), exchanges_of(few[0].log))
    assert each.compute_s == pytest.approx((5e-3 + 32 * 2e-4) * (1 + 1e-6 * (each.push + 1)), rel=1e-9)
    found, whole = Calibration.of(few), Calibration.of(runs)
    assert found.cluster["cores"] == pytest.approx(2.0, abs=0.15)
    assert found.cluster["seconds_per_step"] == pytest.approx(5e-3, rel=0.02)
    assert found.fitted["latency of worker 0 back, s"] == whole.fitted["latency of worker 0 back, s"]


@pytest.mark.nightly
def test_what_codecs_take_is_fitted_and_put_on_what_has_one(tmp_path):
    """From runs with a codec alone both those with it and those without are predicted; others are refused."""
    coding = Coding(4e-3, 2e-4, 1e-4, 3e-3)
    rng = np.random.default_rng(0)
    links = {"name": "trace", "seconds": (1e-3 * rng.lognormal(0, 0.2, (8, 200))).tolist()}
    bare = TRUTH | {"link_time": links}
    coded = PLAIN.but(strategy={"name": "bsp", "codec": "fp16"}, cluster=with_codec(bare, coding))
    coded = coded.but(stop={"updates": 100})
    asp = coded.but(strategy={"name": "asp", "codec": "fp16"}, batch_size=64, stop={"updates": 400})
    runs = [ps.run(coded), ps.run(asp)]
    message_s = coded.cluster.service.message_s
    for run in runs:
        run.meta["coordinator"] = {"pushes": 400, "serving_s": 800 * message_s, "handled_s": 800 * message_s}
    without = Calibration.of(runs)
    assert any("fp16" in each and "no times of it" in each for each in without.unknown)
    with pytest.raises(ps.SpecError, match=r"the time of codec fp16.* was not measured"):
        ps.predict(without, [{"name": "ssp", "codec": "fp16"}], seeds=2)
    for run in runs:
        stamps = stamped(run, 1e-4).meta["stamps"]
        for own in stamps["workers"].values():
            own |= times(encoding=coding.worker_encodes, decoding=coding.worker_decodes)
        served = times(encoding=coding.server_encodes, decoding=coding.server_decodes, updating=5e-5)
        served |= {"waiting": [[1.0]] * 400, "serving": [[2 * message_s]] * 400}
        stamps["servers"] = {"server 0": served, "server 1": served | {"serving": [[4 * message_s]] * 400}}
    found = Calibration.of(runs)
    ((name, measured),) = found.codecs.items()
    assert name.startswith("fp16")
    assert measured == pytest.approx(coding)
    assert found.fitted["update at a server, s"].value == pytest.approx(5e-5)
    assert found.fitted["service of a message, s"].value == pytest.approx(1e-4)
    assert found.cluster["service"]["message_s"] == pytest.approx(1e-4)
    later = (4 * message_s - coding.server_decodes - coding.server_encodes) / 2
    assert found.fitted["service of a message at server 1, s"].value == pytest.approx(later)
    assert any(each.startswith("server 1: ") and "1 others waiting" in each for each in found.remarks)
    # where all runs have both servers, a message is as late as at the one that takes longer
    named = [
        ({"name": name, "codec": "fp16", "servers": 2}, run)
        for name, run in zip(("bsp", "asp"), runs, strict=True)
    ]
    two = Calibration.of([Run(run.experiment.but(strategy=each), run.log, run.meta) for each, run in named])
    assert two.cluster["service"]["message_s"] == pytest.approx(later)
    found.to_yaml(tmp_path / "profile.yaml")
    found = Calibration.read(tmp_path / "profile.yaml")
    for codec, cluster in (("none", bare), ("fp16", coded.cluster)):
        ssp = {"name": "ssp", "codec": codec}
        predicted = ps.predict(found, [ssp], seeds=2).rows[0].update_s.mean
        truth = measures_of(ps.run(coded.but(strategy=ssp, cluster=cluster, stop={"epochs": 20}))).update_s
        assert predicted == pytest.approx(truth, rel=0.05)


def test_stamps_of_clocks_that_run_apart_or_cut_off_are_refused(crowded):
    runs, _ = crowded
    first, (apart, cut) = runs[0], (Run(run.experiment, run.log, dict(run.meta)) for run in [runs[0]] * 2)
    stamped(apart, 1e-3, behind_s=0.02)
    cut.meta["stamps"] = {name: own for name, own in first.meta["stamps"].items() if name != "pushes"}
    for run, problem in (
        (apart, r"clocks of worker \d and the coordinator drift apart by 0.02 s"),
        (cut, "are truncated"),
    ):
        with pytest.raises(ps.DataError, match=problem):
            Calibration.of([run])
