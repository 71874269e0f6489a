"""The colours of runs and of workers' activities, for all charts, reports, notebooks and the panel.

Most hues of runs are of Okabe and Ito (2008), which readers with any common colour blindness tell apart; each
has a contrast of at least 3:1 on white and on near-black. Colour is never alone: beyond ten, runs also
differ in their dash, and points in their shape.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

BLUE, GREEN = "#0072B2", "#009E73"
ORANGE, SKY, OLIVE, GREY = "#B87A00", "#3B8FC2", "#8A8500", "#7B8087"
#: of what is thrown away: readers who lack green tell it from what is sent
VIOLET = "#6048F0"

SOLID: list[int] = [1, 0]
DASHED, DOTTED, DASH_DOT = [7, 3], [2, 2], [8, 3, 2, 3]
LONG, SPARSE = [14, 4], [2, 6]


class CurveLook(NamedTuple):
    """Appearance of a run in charts: colour, dash pattern of its line, shape of its points."""

    colour: str
    dash: list[int]
    shape: str


#: of the runs (or groups) of a page, one after the other; each has a contrast of 3 on white and on near-black
HUES = (BLUE, ORANGE, GREEN, "#C2418A", OLIVE, SKY, "#8A63D2", GREY, "#9A6340", "#1B8A9A")
#: of those after as many as there are hues
DASHES = (SOLID, DASHED, DOTTED, DASH_DOT, LONG, SPARSE)
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")

#: of waiting, which is what one looks for: nothing else has it, in any chart, page or panel
WAIT = "#E4572E"

#: what a worker does: work is calm; in the timeline messages are half as high. All but waiting let the paper
#: through (the last two digits), so that they are paler than it on white and darker than it on black
PHASE_COLOURS: dict[str, str] = {
    "compute": "#789BC166",
    "pull": "#5F93C2B3",
    "send": "#CF8903A6",
    "wait": WAIT,
    "cancelled": VIOLET,
}


def looks(labels: Iterable[str], among: Iterable[str] | None = None) -> dict[str, CurveLook]:
    """Return the look of each label: hues in order, then dashes.

    Parameters
    ----------
    labels : iterable of str
    among : iterable of str, optional
        All labels of a page in their order, so that each looks the same in every chart; else `labels`.

    Examples
    --------
    >>> looks(["asp"], among=["bsp", "asp"])["asp"] == looks(["bsp", "asp"])["asp"]
    True
    """
    labels = list(labels)
    places = {label: place for place, label in enumerate(dict.fromkeys(among or labels))}
    return {label: _look(places.setdefault(label, len(places))) for label in labels}


def on_paper(colour: str, paper: str = "#ffffff") -> str:
    """Return the opaque colour that a translucent one gives on a paper.

    Examples
    --------
    >>> on_paper(PHASE_COLOURS["compute"]), on_paper(WAIT)
    ('#c9d7e6', '#e4572e')
    """
    (*front, share), (*back, _) = _parts(colour), _parts(paper)
    mixed = (round(share * own + (1 - share) * other) for own, other in zip(front, back, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _parts(colour: str) -> tuple[int, int, int, float]:
    """Return red, green and blue (0 to 255), and how much covers the paper (0 to 1)."""
    red, green, blue, share = bytes.fromhex(f"{colour[1:]}ff"[:8])
    return red, green, blue, share / 255


def _look(place: int) -> CurveLook:
    dash = DASHES[place // len(HUES) % len(DASHES)]
    return CurveLook(HUES[place % len(HUES)], dash, SHAPES[place % len(SHAPES)])
