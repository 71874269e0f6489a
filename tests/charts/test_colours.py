"""Phases are told apart by readers who see no green, on light and on dark paper, and waiting stands out."""

import itertools

import numpy as np
import pytest

from psbench.charts.colours import PHASE_COLOURS, on_paper
from psbench.charts.theme import DARK, LIGHT

#: linear RGB as a deuteranope sees it (Machado, Oliveira and Fernandes 2009, severity 1.0)
SEEN = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
#: CIE 1976 difference: 2.3 is just noticed; beside each other in a timeline, five times as much
TOLD_APART = 11.5
#: the reports' and, in JupyterLab, those of cells and of what is around them
PAPERS = (LIGHT["paper"], DARK["paper"], "#111111", "#212121")


def linear(colour):
    code = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(code <= 0.04045, code / 12.92, ((code + 0.055) / 1.055) ** 2.4)


def lab(light):
    part = XYZ @ np.clip(light, 0, 1) / XYZ.sum(axis=1)
    f = np.where(part > 0.008856, np.cbrt(part), 7.787 * part + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("paper", PAPERS)
@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(PHASE_COLOURS, 2)])
def test_phases_differ_under_deuteranopia(one, other, paper):
    seen = [lab(SEEN @ linear(on_paper(PHASE_COLOURS[name], paper))) for name in (one, other)]
    assert np.linalg.norm(seen[0] - seen[1]) > TOLD_APART


def contrast(one, other):
    light = sorted(XYZ[1] @ linear(colour) + 0.05 for colour in (one, other))
    return light[1] / light[0]


@pytest.mark.parametrize("paper", PAPERS)
def test_waiting_stands_out_from_the_paper_more_than_work_and_messages(paper):
    seen = {name: contrast(on_paper(colour, paper), paper) for name, colour in PHASE_COLOURS.items()}
    assert seen["wait"] > 3.5
    assert 1.4 < seen["compute"] < min(seen["pull"], seen["send"])
    assert max(seen["pull"], seen["send"]) < 0.85 * seen["wait"]
