"""By how much messages in company take longer: what a prediction for more workers has to leave open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

Array = NDArray[np.float64]
#: messages of one end that are left out together: those that follow each other are alike
_STRETCH = 16


class Crowd(NamedTuple):
    """The messages of one run from one end of a worker's link to the other, in their order.

    `latency_s`: seconds, without what passing took; `others`: how many others were on their way meanwhile.
    """

    run: int
    end: int
    latency_s: Array
    others: Array


def seconds_in_company(crowds: Sequence[Crowd]) -> tuple[float, float, float] | None:
    """Return by how much another message under way makes one later, with a 90 % interval; seconds.

    Messages are later with company: of processes that share cores, sockets and interrupts, or a link whose
    rate is not known. The slope is of least squares, each end of each link by itself. The interval is of a
    jackknife over stretches of messages, of all ends of a run together; what differs from one run to another
    is not in it, as bands have that already.

    Returns
    -------
    (value, low, high), or None if company is always the same.

    Source
    ------
    Tukey (1958): the jackknife; here with stretches left out, as in Künsch (1989).
    """
    known = [each for each in crowds if len(each.latency_s)]
    products: dict[tuple[int, int], float] = {}
    squares: dict[tuple[int, int], float] = {}
    for end in {each.end for each in known}:
        own = [each for each in known if each.end == end]
        middle = float(np.concatenate([each.others for each in own]).mean())
        for each in own:
            for begin in range(0, len(each.others), _STRETCH):
                part = slice(begin, begin + _STRETCH)
                key, apart = (each.run, begin // _STRETCH), each.others[part] - middle
                products[key] = products.get(key, 0.0) + float(apart @ each.latency_s[part])
                squares[key] = squares.get(key, 0.0) + float(apart @ apart)
    xy, xx = (np.array(list(sums.values())) for sums in (products, squares))
    if len(xx) < 2 or not (xx.sum() - xx > 1e-9).all():
        return None
    left_out = (xy.sum() - xy) / (xx.sum() - xx)
    value, n = float(xy.sum() / xx.sum()), len(xx)
    wide = float(stats.t.ppf(0.95, n - 1)) * ((n - 1) * float(left_out.var())) ** 0.5
    return value, value - wide, value + wide
