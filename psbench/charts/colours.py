"""One table of colours: a strategy looks the same in every chart, report and notebook.

Hues are of Okabe and Ito (2008), which readers with any common colour blindness tell apart, with orange, sky
blue, yellow and grey made darker: each has a contrast of at least 3:1 on white and on near-black. Colour is
never alone: every strategy also has a dash and a shape, and no two have the same colour and dash.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import NamedTuple

BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#B5658F"
ORANGE, SKY, OLIVE, GREY = "#B87A00", "#3B8FC2", "#8A8500", "#7B8087"
#: of what is thrown away: readers who lack green see vermillion as they see orange, which is what is sent
VIOLET = "#6048F0"

SOLID: list[int] = [1, 0]
DASHED, DOTTED, DASH_DOT = [7, 3], [2, 2], [8, 3, 2, 3]
LONG, SPARSE, LONG_DOT, LONG_DOT_DOT = [14, 4], [2, 6], [14, 4, 2, 4], [14, 4, 2, 4, 2, 4]


class CurveLook(NamedTuple):
    """How a strategy is drawn: colour, dash pattern of its line, shape of its points."""

    colour: str
    dash: list[int]
    shape: str


#: all wait: blue; none waits: vermillion; some wait: green; first k: purple; few messages: orange;
#: uneven work: sky blue; a switch: olive; anything else: grey
STRATEGIES: dict[str, CurveLook] = {
    "bsp": CurveLook(BLUE, SOLID, "circle"),
    "all_reduce": CurveLook(BLUE, DASHED, "square"),
    "map_reduce": CurveLook(BLUE, DOTTED, "triangle-up"),
    "elastic_bsp": CurveLook(BLUE, DASH_DOT, "diamond"),
    "asp": CurveLook(VERMILLION, SOLID, "triangle-up"),
    "con_sgd": CurveLook(VERMILLION, DASHED, "circle"),
    "n_softsync": CurveLook(VERMILLION, DOTTED, "square"),
    "dyn_sgd": CurveLook(VERMILLION, DASH_DOT, "diamond"),
    "ssp": CurveLook(GREEN, SOLID, "diamond"),
    "dssp": CurveLook(GREEN, DASHED, "square"),
    "early_epoch_stop": CurveLook(GREEN, DOTTED, "triangle-up"),
    "hermes": CurveLook(GREEN, DASH_DOT, "triangle-down"),
    "k_bsp": CurveLook(PURPLE, SOLID, "square"),
    "k_batch_bsp": CurveLook(PURPLE, DASHED, "circle"),
    "k_asp": CurveLook(PURPLE, DOTTED, "triangle-up"),
    "k_batch_asp": CurveLook(PURPLE, DASH_DOT, "diamond"),
    "local_sgd": CurveLook(ORANGE, SOLID, "cross"),
    "adacomm": CurveLook(ORANGE, DASHED, "triangle-down"),
    "selsync": CurveLook(ORANGE, DOTTED, "circle"),
    "osp": CurveLook(ORANGE, DASH_DOT, "square"),
    "lb_bsp": CurveLook(SKY, SOLID, "triangle-right"),
    "dbs_sgd": CurveLook(SKY, DASHED, "triangle-left"),
    "backup_workers": CurveLook(SKY, DOTTED, "diamond"),
    "flex_rr": CurveLook(SKY, DASH_DOT, "circle"),
    "strategy_switch": CurveLook(OLIVE, SOLID, "cross"),
    "sync_switch": CurveLook(OLIVE, DASHED, "triangle-up"),
    "double_squeeze": CurveLook(GREY, SOLID, "triangle-down"),
    "drop_stragglers": CurveLook(GREY, DASHED, "cross"),
    "bounded_step": CurveLook(GREY, DOTTED, "square"),
    "diloco": CurveLook(ORANGE, LONG, "diamond"),
    "streaming_diloco": CurveLook(ORANGE, LONG_DOT, "triangle-right"),
    "eager_diloco": CurveLook(SKY, LONG_DOT, "triangle-left"),
    "decoupled_diloco": CurveLook(GREEN, LONG_DOT, "triangle-left"),
    "sparse_loco": CurveLook(OLIVE, LONG_DOT, "cross"),
    "fedavgm": CurveLook(ORANGE, SPARSE, "triangle-up"),
    "fedadam": CurveLook(SKY, LONG, "square"),
    "slowmo": CurveLook(SKY, SPARSE, "triangle-down"),
    "lookahead": CurveLook(OLIVE, LONG, "circle"),
    "async_local_sgd": CurveLook(VERMILLION, LONG, "cross"),
    "fedasync": CurveLook(VERMILLION, SPARSE, "triangle-down"),
    "fsdp": CurveLook(BLUE, LONG_DOT_DOT, "square"),
    "halos": CurveLook(VERMILLION, LONG_DOT, "diamond"),
    "fedbuff": CurveLook(PURPLE, LONG, "cross"),
    "easgd": CurveLook(GREEN, LONG, "cross"),
    "dc_asgd": CurveLook(GREY, LONG, "circle"),
    "d_psgd": CurveLook(BLUE, LONG, "cross"),
    "d_psgd_step_first": CurveLook(BLUE, SPARSE, "triangle-down"),
    "ad_psgd": CurveLook(OLIVE, SPARSE, "diamond"),
    "sgp": CurveLook(GREEN, SPARSE, "square"),
    "moshpit_sgd": CurveLook(PURPLE, SPARSE, "circle"),
    "power_sgd": CurveLook(BLUE, LONG_DOT, "triangle-right"),
    "one_bit_adam": CurveLook(PURPLE, LONG_DOT, "triangle-down"),
    "hierarchical_sgd": CurveLook(GREY, SPARSE, "cross"),
}

#: for names that are not in the table, and for a second variant of one that is
OTHERS: tuple[CurveLook, ...] = tuple(
    CurveLook(colour, dash, shape)
    for dash, shape in (
        (SOLID, "circle"),
        (DASHED, "square"),
        (DOTTED, "diamond"),
        (DASH_DOT, "triangle-down"),
    )
    for colour in (GREY, SKY, PURPLE, GREEN, ORANGE, OLIVE, VERMILLION, BLUE)
)

#: of waiting, which is what one looks for: nothing else has it, in any chart, page or panel
WAIT = "#E4572E"

#: what a worker does: work is calm; in the timeline messages are half as high
PHASE_COLOURS: dict[str, str] = {
    "compute": "#C9D7E6",
    "pull": "#8FB3D4",
    "send": "#E0B25B",
    "wait": WAIT,
    "cancelled": VIOLET,
}


def looks(labels: Iterable[str], strategies: Iterable[str] | None = None) -> dict[str, CurveLook]:
    """Return the look of each label.

    Parameters
    ----------
    labels : iterable of str
    strategies : iterable of str, optional
        The strategy that each label stands for; a label is its own strategy if not given. The first
        variant of a strategy has the strategy's look, another the next free one.

    Examples
    --------
    >>> looks(["asp"])["asp"].colour == looks(["ssp", "asp"])["asp"].colour
    True
    """
    labels = list(dict.fromkeys(labels))
    names = dict(zip(labels, labels if strategies is None else strategies, strict=True))
    # those of the table first: a free look must not be one of theirs
    first = {name: label for label, name in reversed(names.items())}
    found = {label: STRATEGIES[name] for name, label in first.items() if name in STRATEGIES}
    for label in labels:
        if label not in found:
            found[label] = _free(label, list(found.values()))
    return {label: found[label] for label in labels}


def variant_looks(labels: Iterable[str]) -> dict[str, CurveLook]:
    """Return the looks of strategies with settings: "ssp (staleness_bound 3)" looks like its strategy."""
    labels = list(dict.fromkeys(labels))
    return looks(labels, [label.split(" ")[0] for label in labels])


def _free(label: str, taken: list[CurveLook]) -> CurveLook:
    """Return a look that is not taken, if possible of a colour that is not, the same for the same label."""
    start = zlib.crc32(label.encode()) % 8  # among the solid ones
    in_order = OTHERS[start:] + OTHERS[:start]
    colours = {look.colour for look in taken}
    used = {(look.colour, tuple(look.dash)) for look in taken}
    free = [look for look in in_order if (look.colour, tuple(look.dash)) not in used]
    return next((look for look in free if look.colour not in colours), (free or in_order)[0])
