"""Pseudo-random numbers that depend only on their arguments."""

from __future__ import annotations

from functools import lru_cache

_MASK = (1 << 64) - 1


def noise(*keys: int) -> float:
    """Return a number in [0, 1) for these keys; the same keys give the same number.

    A generator with a state would give other numbers to what follows once a schedule is shrunk. This is the
    finaliser of SplitMix64, applied to each key.

    Source
    ------
    Steele, Lea and Flood (2014), "Fast Splittable Pseudorandom Number Generators", OOPSLA.

    Examples
    --------
    >>> noise(1, 2) == noise(1, 2), 0 <= noise(3) < 1
    (True, True)
    """
    return (_mixed(_state(keys[:-1]), keys[-1]) >> 11) / (1 << 53)


def quarters(value: float) -> float:
    """Return the nearest quarter: sums of quarters are equal, or differ by one.

    >>> quarters(0.4), quarters(0.1)
    (0.5, 0.0)
    """
    return round(4 * value) / 4


def plane(seed: int, number: int) -> tuple[float, float]:
    """Return a point of a plane: some are the same, some nearly so, and in some schedules all are far away.

    Products of any two need fewer digits than a float has.
    """
    far = 256.0 if noise(seed, 107) < 0.3 else 0.0
    near = (noise(seed, 108, number) < 0.3) / 1024
    across, up = (far + near + round(2 * noise(seed, 109 + axis, number)) for axis in range(2))
    return across, up


@lru_cache(maxsize=1024)
def _state(keys: tuple[int, ...]) -> int:
    """Return the state after all keys but the last, which is the one that counts up."""
    state = 0
    for key in keys:
        state = _mixed(state, key)
    return state


def _mixed(state: int, key: int) -> int:
    state = (state + key + 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)
