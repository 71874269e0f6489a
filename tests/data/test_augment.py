"""Augmentation: each image is one of its crops, mirrored or not, and chance comes from the generator."""

from __future__ import annotations

import numpy as np
import torch

from psbench.data import CropAndFlip


def images(count: int = 6) -> torch.Tensor:
    return torch.arange(count * 3 * 5 * 7, dtype=torch.float32).reshape(count, 3, 5, 7)


def test_every_image_is_the_crop_and_mirror_that_was_drawn():
    from torchvision.transforms.v2 import functional  # slow to import, in every process that collects

    batch = images()
    ours = CropAndFlip(padding=2)(batch, np.random.default_rng(5))
    same = np.random.default_rng(5)
    tops, lefts = same.integers(0, 5, size=(2, 6))
    mirrored = same.random(6) < 0.5
    padded = functional.pad(batch, [2])
    for index, (top, left, mirror) in enumerate(zip(tops, lefts, mirrored, strict=True)):
        crop = functional.crop(padded[index], int(top), int(left), 5, 7)
        assert torch.equal(ours[index], functional.horizontal_flip(crop) if mirror else crop)


def test_all_places_and_both_directions_occur():
    batch = torch.zeros(4000, 1, 3, 3)
    batch[:, :, 1, 0] = 1.0
    seen = CropAndFlip(padding=1)(batch, np.random.default_rng(0)).flatten(1)
    assert len(torch.unique(seen, dim=0)) == 10  # 3 heights x 3 columns, and gone beyond the border
    assert 0.1 < (seen.sum(1) == 0).float().mean() < 0.6


def test_the_batch_given_stays_and_global_chance_is_untouched():
    batch = images()
    before, state = batch.clone(), torch.get_rng_state()
    new = CropAndFlip()(batch, np.random.default_rng(0))
    assert torch.equal(batch, before)
    assert new.data_ptr() != batch.data_ptr()
    assert torch.equal(state, torch.get_rng_state())


def test_no_padding_only_mirrors():
    batch = images()
    new = CropAndFlip(padding=0)(batch, np.random.default_rng(0))
    flipped = batch.flip(3)
    assert all(torch.equal(n, b) or torch.equal(n, f) for n, b, f in zip(new, batch, flipped, strict=True))
