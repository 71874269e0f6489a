"""Keys of saved states that have been renamed: files of older versions are read under both names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def current_names(state: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """Return a state with its old keys replaced; `renamed` maps old to new.

    >>> current_names({"goes_on": True, "id": 3}, {"goes_on": "overlapping"})
    {'overlapping': True, 'id': 3}
    """
    return {renamed.get(key, key): value for key, value in state.items()}
