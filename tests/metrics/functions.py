"""Metrics of a user's own, by where they are."""

from __future__ import annotations


def doubt(outputs, targets):
    """Return 1 minus the mean probability of the right class: less is better."""
    return 1 - float(outputs.softmax(1).gather(1, targets[:, None]).mean())
