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


def exact_percent(share: float) -> str:
    r"""Return a share that was given, such as a target, with the digits that it has (at most four).

    >>> exact_percent(0.9), exact_percent(0.977)
    ('90\xa0%', '97.7\xa0%')
    """
    return f"{100 * share:.4g}{UNIT}"


def spaced(text: str) -> str:
    r"""Return a text of a log, such as the reason of a switch or of the end, with percents as elsewhere.

    >>> spaced("loss changed by 0.97% an epoch, below 1.00%")
    'loss changed by 0.97\xa0% an epoch, below 1.00\xa0%'
    >>> spaced("validation accuracy reached 0.9")
    'validation accuracy reached 90\xa0%'
    """
    text = re.sub(r"(?<=accuracy reached )[\d.]+", lambda found: exact_percent(float(found[0])), text)
    return re.sub(r"(?<=\d)%", UNIT, text)
