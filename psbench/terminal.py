"""Texts that are safe to print: names, paths and messages cannot control the terminal."""

from __future__ import annotations

import re

#: what a terminal obeys rather than shows, but for tabs and ends of lines; changes of the writing direction;
#: halves of characters, which paths may have and no terminal can print
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(text: object) -> str:
    r"""Return a text, or an object's text, for printing: control characters are escaped.

    >>> shown("\x1b[31mred\x07 bell, naïve\tcafé")
    '\\x1b[31mred\\x07 bell, naïve\tcafé'
    """
    return _OBEYED.sub(_escaped, str(text))


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}"  # as in JSON, which escapes the first itself


def is_shown(text: str) -> bool:
    """Return whether a text is a single line without control characters."""
    return not _OBEYED.search(text) and not {"\n", "\t"} & {*text}
