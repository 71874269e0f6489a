"""The layers of the residual networks, in a separate module because they import torch."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn import functional

#: channels of the three stages; the second and third halve height and width
STAGES = (16, 32, 64)


class ResidualBlock(nn.Module):
    """Two convolutions of 3 x 3 with batch normalisation, added to the input (He et al. 2016, Fig. 2)."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.missing = channels_out - channels_in
        self.body = nn.Sequential(
            *normalised(channels_in, channels_out, stride), nn.ReLU(), *normalised(channels_out, channels_out)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the rectified sum of body and shortcut."""
        return functional.relu(cast("Tensor", self.body(x)) + self.shortcut(x))

    def shortcut(self, x: Tensor) -> Tensor:
        """Return the input in the shape of the output: option A, without parameters."""
        if self.missing == 0:
            return x
        before = self.missing // 2
        return functional.pad(
            x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.missing - before)
        )


class Bottleneck(nn.Module):
    """Convolutions of 1 x 1, 3 x 3 and 1 x 1 with batch normalisation, added to the input (Fig. 5, right).

    Where the shape changes, the shortcut is a normalised convolution of 1 x 1 (option B).
    """

    #: channels that come out for each one inside
    expansion = 4

    def __init__(self, channels_in: int, channels_inside: int, stride: int) -> None:
        super().__init__()
        channels_out = self.expansion * channels_inside
        self.body = nn.Sequential(
            *normalised(channels_in, channels_inside, size=1),
            nn.ReLU(),
            *normalised(channels_inside, channels_inside, stride),
            nn.ReLU(),
            *normalised(channels_inside, channels_out, size=1),
        )
        same = channels_in == channels_out and stride == 1
        self.shortcut = nn.Sequential(
            *([] if same else normalised(channels_in, channels_out, stride, size=1))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the rectified sum of body and shortcut."""
        return functional.relu(cast("Tensor", self.body(x)) + cast("Tensor", self.shortcut(x)))


def normalised(channels_in: int, channels_out: int, stride: int = 1, *, size: int = 3) -> list[nn.Module]:
    """Return a convolution without biases, and the batch normalisation that replaces them."""
    return [
        nn.Conv2d(channels_in, channels_out, size, stride=stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(channels_out),
    ]


def residual_network(channels: int, num_outputs: int, blocks_per_stage: int) -> nn.Sequential:
    """Return the network of 6 `blocks_per_stage` + 2 layers."""
    layers: list[nn.Module] = [*normalised(channels, STAGES[0]), nn.ReLU()]
    width = STAGES[0]
    for stage in STAGES:
        for _ in range(blocks_per_stage):
            layers.append(ResidualBlock(width, stage, stride=1 if stage == width else 2))
            width = stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_outputs))


def bottleneck_network(channels: int, num_outputs: int, stages: tuple[tuple[int, int], ...]) -> nn.Sequential:
    """Return the network of bottlenecks, given inner channels and counts; all stages but the first halve."""
    width = stages[0][0]
    layers: list[nn.Module] = [*normalised(channels, width), nn.ReLU()]
    for number, (inside, count) in enumerate(stages):
        for index in range(count):
            layers.append(Bottleneck(width, inside, stride=2 if number > 0 and index == 0 else 1))
            width = Bottleneck.expansion * inside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_outputs))
