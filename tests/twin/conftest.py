"""Fits that several files of tests share."""

import pytest

import psbench as ps
from psbench.twin.calibration import Calibration
from tests.twin.known import ASP, PLAIN, TRUTH, stamped


@pytest.fixture(scope="session")
def measured():
    """The two probes, in virtual time in the place of live ones, with what a coordinator would report."""
    runs = [ps.run(PLAIN), ps.run(ASP)]
    for run, pushes in zip(runs, (1200, 1200), strict=True):
        run.meta["coordinator"] = {"pushes": pushes, "serving_s": 2e-4 * pushes, "handled_s": 3e-4 * pushes}
    return Calibration.of(runs)


@pytest.fixture(scope="session")
def crowded():
    """The probes of four workers on two cores, with stamps, and the experiment."""
    cluster = TRUTH | {"speed": 1.0, "step_time": "constant", "cores": 2.0}
    plain = PLAIN.but(cluster=cluster, stop={"updates": 80})
    asp = plain.but(strategy="asp", batch_size=64, stop={"updates": 320})
    return [stamped(ps.run(plain), 5e-3 + 32 * 2e-4), stamped(ps.run(asp), 5e-3 + 16 * 2e-4)], plain
