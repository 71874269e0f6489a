"""The works that parts cite, in full: `REFERENCES.md`, looked up by the short form of a citation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_ENTRY = re.compile(r"- \*\*(?P<key>[^*]+)\*\*(?: \((?P<aliases>[^)]*)\))?: (?P<text>.+)")
_YEAR_IN_BRACKETS = re.compile(r"\((\d{4})\)")


@dataclass(frozen=True)
class Reference:
    """A cited work: its key, other citation names, and authors, title, place and year."""

    key: str
    aliases: tuple[str, ...]
    text: str


@cache
def references() -> tuple[Reference, ...]:
    """Return all entries of `REFERENCES.md`, in its order."""
    lines = files("psbench").joinpath("REFERENCES.md").read_text(encoding="utf-8").splitlines()
    found = [match for line in lines if (match := _ENTRY.fullmatch(line))]
    return tuple(
        Reference(m["key"], tuple((m["aliases"] or "").split("; ")) if m["aliases"] else (), m["text"])
        for m in found
    )


def resolve(source: str) -> tuple[list[Reference], str]:
    """Return the works that a text cites, in the order of its words, and the text without their names.

    Examples
    --------
    >>> found, rest = resolve("Ho et al. (2013), sec. 3; thesis 3.2.2")
    >>> [reference.key for reference in found], rest
    (['Ho et al. 2013', 'thesis'], ', sec. 3; 3.2.2')
    """
    rest = _YEAR_IN_BRACKETS.sub(r"\1", _squeeze(source))
    found: list[tuple[int, Reference]] = []
    for name, reference in _by_name():
        match = re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", rest, re.IGNORECASE)
        if match:
            found.append((match.start(), reference))
            rest = rest[: match.start()] + " " * len(match.group()) + rest[match.end() :]
    order = {reference.key: (at, reference) for at, reference in sorted(found, key=lambda each: -each[0])}
    return [reference for _, reference in sorted(order.values(), key=lambda each: each[0])], _squeeze(rest)


@cache
def _by_name() -> tuple[tuple[str, Reference], ...]:
    """Return every name of every work, long ones first: "Zhao et al. 2019, DSSP" before "DSSP"."""
    names = [(name, reference) for reference in references() for name in (reference.key, *reference.aliases)]
    return tuple(sorted(names, key=lambda each: -len(each[0])))


def _squeeze(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
