"""Percents as text, with a no-break space before their sign: it never begins a line."""

from __future__ import annotations

import re

#: of numbers in percent
UNIT = "\u00a0%"


def percent(share: float, digits: int = 0, sign: str = "-") -> str:
    r"""Return a share of 1 as percents; with "+" as sign, more than 0 has a sign too.

    >>> percent(0.912, 1), percent(0.03, sign="+")
    ('91.2\xa0%', '+3\xa0%')
    """
    return spaced(f"{share:{sign}.{digits}%}")


def spaced(text: str) -> str:
    r"""Return a text with a no-break space before each percent sign, such as the reason of a switch.

    >>> spaced("loss changed by 0.97% an epoch, below 1.00%")
    'loss changed by 0.97\xa0% an epoch, below 1.00\xa0%'
    """
    return re.sub(r"(?<=\d)%", UNIT, text)
