"""The residual networks, in their form for CIFAR."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from psbench.models.base import Model

if TYPE_CHECKING:
    from torch import nn


class ResNet(Model):
    """Base of the residual networks of 6 n + 2 layers: three stages of n blocks with 16, 32, 64 channels.

    The shortcut that changes the shape takes every other pixel and pads with zero channels (option A), so it
    has no parameters. Batch normalisation keeps running means as buffers, which are no parameters either.
    """

    source: ClassVar[str] = "He et al. 2016, sec. 4.2"
    #: smaller images would be a single pixel in the last stage
    min_side: ClassVar[int] = 8
    blocks_per_stage: ClassVar[int]

    def network(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        """Return the layers."""
        from psbench.models.residual_layers import residual_network

        return residual_network(input_shape[0], num_outputs, self.blocks_per_stage)


class ResNet20(ResNet):
    """The residual network of 20 layers: 269,722 parameters on CIFAR-10 (published: 0.27 M)."""

    name: ClassVar[str] = "resnet20"
    blocks_per_stage: ClassVar[int] = 3


class ResNet32(ResNet):
    """The residual network of 32 layers: 464,154 parameters on CIFAR-10 (published: 0.46 M)."""

    name: ClassVar[str] = "resnet32"
    blocks_per_stage: ClassVar[int] = 5


class ResNet56(ResNet):
    """The residual network of 56 layers: 853,018 parameters on CIFAR-10 (published: 0.85 M)."""

    name: ClassVar[str] = "resnet56"
    blocks_per_stage: ClassVar[int] = 9


class ResNet50(Model):
    """ResNet-50 for CIFAR: 16 bottlenecks in four stages, 23,520,842 parameters on CIFAR-10.

    As on ImageNet (25,557,032 parameters there) but for the first layer: one convolution of 3 x 3 without
    stride or pooling, as is usual for 32 x 32 pixels, so that the last stage still sees 4 x 4 of them.

    Notes
    -----
    Our reading: AdaComm says no more than "ResNet-50" on CIFAR. A stage halves height and width in the
    3 x 3 convolution of its first bottleneck, as libraries do today, where the paper does so in the 1 x 1
    convolution before it; the number of parameters is the same.
    """

    name: ClassVar[str] = "resnet50"
    source: ClassVar[str] = "He et al. 2016, table 1; AdaComm, sec. 5"
    #: images of 8 pixels would be a single pixel in the last stage
    min_side: ClassVar[int] = 9
    #: channels inside the bottlenecks of each stage, and how many there are
    stages: ClassVar[tuple[tuple[int, int], ...]] = ((64, 3), (128, 4), (256, 6), (512, 3))

    def network(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        """Return the layers."""
        from psbench.models.residual_layers import bottleneck_network

        return bottleneck_network(input_shape[0], num_outputs, self.stages)
