"""What a live run says to all that it is given is what the transcripts have."""

from __future__ import annotations

import pytest

from .transcripts import SCENES, Scene, file_of, transcript


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_a_live_run_says_what_it_said(scene: Scene) -> None:
    """If a change is meant, `python tests/testing/transcripts.py` writes the files anew."""
    assert transcript(scene).splitlines() == file_of(scene).read_text().splitlines()
