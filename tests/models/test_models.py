"""Models: published sizes, reproducible starts, shapes, and clear refusals."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from psbench.core.part import REGISTRY, make_part
from psbench.data import Digits
from psbench.errors import ParameterError, UnknownName
from psbench.models import (
    CNN,
    MLP,
    VGG16,
    AlexNet,
    LeNet,
    Linear,
    Logistic,
    Model,
    Perceptron,
    ResNet20,
    ResNet32,
    ResNet50,
    ResNet56,
)
from psbench.models.initialise import initialise
from psbench.models.residual_layers import Bottleneck, ResidualBlock
from psbench.seeds import Streams

#: those that psbench builds itself, from nothing but the data's shape
OF_TEXT = {"transformer", "transformer_small", "transformer_medium", "transformer_large"}
NAMES = sorted(set(REGISTRY["model"]) - {"import", "torchvision"} - OF_TEXT)
MNIST, CIFAR = (1, 28, 28), (3, 32, 32)


def build(model: Model, shape=CIFAR, num_classes: int = 10, seed: int = 0) -> nn.Module:
    return model.build(shape, num_classes, Streams(seed))


def size(network: nn.Module) -> int:
    return sum(values.numel() for values in network.parameters())


@pytest.mark.parametrize(
    ("model", "shape", "classes", "published", "exact"),
    [
        (MLP(hidden=(128, 64)), MNIST, 10, 109_386, 109_386),
        (MLP(), (1, 8, 8), 10, 4_810, 4_810),
        (Perceptron(), (28,), 2, 707, 707),
        (Logistic(), MNIST, 10, 7_850, 7_850),
        (CNN(), MNIST, 10, 110_000, 110_634),
        (LeNet(), MNIST, 10, 61_706, 61_706),
        (AlexNet(), CIFAR, 10, 990_000, 989_410),
        (VGG16(), CIFAR, 10, 14_714_688 + 5_130, 14_719_818),
        (
            VGG16(batch_norm=True),
            CIFAR,
            10,
            14_719_818 + 2 * (2 * 64 + 2 * 128 + 3 * 256 + 6 * 512),
            14_728_266,
        ),
        (ResNet20(), CIFAR, 10, 270_000, 269_722),
        (ResNet32(), CIFAR, 10, 464_000, 464_154),
        (ResNet32(), CIFAR, 100, 470_000, 470_004),
        (ResNet56(), CIFAR, 10, 853_000, 853_018),
        (ResNet50(), CIFAR, 10, 23_520_842, 23_520_842),
        (ResNet50(), CIFAR, 100, 23_705_252, 23_705_252),
    ],
    ids=lambda value: value.name if isinstance(value, Model) else None,
)
def test_sizes_are_the_published_ones(model, shape, classes, published, exact):
    network = build(model, shape, classes)
    assert size(network) == exact
    assert exact == pytest.approx(published, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_logits_gradients_and_every_value_set(name):
    network = build(make_part("model", name))
    x = torch.zeros(2, *CIFAR).uniform_(generator=torch.Generator().manual_seed(1))
    logits = network(x)
    assert logits.shape == (2, 10)
    functional.cross_entropy(logits, torch.tensor([0, 1])).backward()
    assert all(values.grad is not None and values.grad.isfinite().all() for values in network.parameters())
    assert all(values.isfinite().all() for values in network.state_dict().values())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_start_depends_on_the_seed_alone(name):
    model = make_part("model", name)
    before = torch.get_rng_state()
    first, again, other = (build(model, seed=seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert name == "logistic" or any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", ["mlp", "cnn", "alexnet", "resnet20", "linear", "logistic"])
def test_models_for_the_digits(name):
    assert build(make_part("model", name), (1, 8, 8))(torch.zeros(3, 1, 8, 8)).shape == (3, 10)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 12, 12), (3, 33, 47)])
@pytest.mark.parametrize("name", ["cnn", "lenet", "alexnet", "resnet20", "resnet50"])
def test_images_of_other_sizes(name, shape):
    assert build(make_part("model", name), shape)(torch.zeros(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize("name", ["cnn", "lenet", "alexnet", "resnet20", "resnet50"])
def test_the_smallest_image_passes_and_a_smaller_one_is_refused(name):
    model = make_part("model", name)
    side = model.min_side
    assert build(model, (1, side, side)).eval()(torch.zeros(2, 1, side, side)).shape == (2, 10)
    with pytest.raises(
        ParameterError, match=f"'{name}' needs images of at least {side} x {side}.*{side - 1} x"
    ):
        build(model, (1, side - 1, side))


@pytest.mark.parametrize("name", ["cnn", "lenet", "alexnet", "resnet20", "resnet50"])
def test_samples_that_are_no_images_are_refused(name):
    with pytest.raises(ParameterError, match=rf"'{name}' needs images.*\(20,\); use 'mlp'"):
        build(make_part("model", name), (20,))


def test_samples_that_are_no_images_suit_the_dense_models():
    assert build(MLP(hidden=(5, 4)), (20,), 3)(torch.zeros(2, 20)).shape == (2, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "learning_rate", "accuracy"),
    [(MLP(), 0.2, 0.96), (CNN(), 0.1, 0.9), (Logistic(), 0.5, 0.93), (Linear(), 0.5, 0.93)],
    ids=lambda value: value.name if isinstance(value, Model) else None,
)
def test_models_learn_the_digits(model, learning_rate, accuracy):
    streams = Streams(0)
    data = Digits().load(streams)
    network = model.build(data.input_shape, data.num_classes, streams)
    optimizer = torch.optim.SGD(network.parameters(), lr=learning_rate, momentum=0.9)
    for epoch in range(4 if isinstance(model, CNN) else 12):
        order = torch.from_numpy(streams.generator("shuffle", epoch).permutation(len(data.train_y)))
        for batch in order.split(64):
            optimizer.zero_grad()
            functional.cross_entropy(network(data.train_x[batch]), data.train_y[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        right = network(data.val_x).argmax(1) == data.val_y
    assert right.float().mean().item() >= accuracy


def test_logistic_begins_at_the_loss_of_guessing():
    logits = build(Logistic(), (4,), 5)(torch.ones(3, 4))
    assert functional.cross_entropy(logits, torch.tensor([0, 1, 2])).item() == pytest.approx(math.log(5))


def test_linear_without_bias():
    assert size(build(Linear(bias=False), (4,), 5)) == 20


def test_an_mlp_without_hidden_layers_is_linear():
    assert size(build(MLP(hidden=()), (4,), 5)) == size(build(Linear(), (4,), 5))


def test_hidden_layers_have_he_variance_and_the_output_is_small():
    network = build(MLP(hidden=(512, 512)), (400,), 10)
    first, second, last = (layer for layer in network if isinstance(layer, nn.Linear))
    assert first.weight.var().item() == pytest.approx(2 / 400, rel=0.02)
    assert second.weight.var().item() == pytest.approx(2 / 512, rel=0.02)
    assert not first.bias.any()
    assert 0.9 / math.sqrt(512) < last.weight.abs().max().item() <= 1 / math.sqrt(512)


def test_signal_keeps_its_scale_through_a_deep_rectifier_net():
    network = build(MLP(hidden=(256,) * 12), (256,))
    x = torch.empty(64, 256).normal_(generator=torch.Generator().manual_seed(0))
    hidden = network[:-1](x)
    assert 0.5 < hidden.square().mean().item() / 1.0 < 2.0


def test_an_unknown_layer_is_not_left_unset():
    with pytest.raises(TypeError, match="LayerNorm"):
        initialise(nn.Sequential(nn.LayerNorm(3)), torch.Generator())


def test_option_a_shortcut_takes_every_other_pixel_and_adds_zero_channels():
    block = ResidualBlock(2, 4, stride=2)
    x = torch.arange(32.0).reshape(1, 2, 4, 4)
    short = block.shortcut(x)
    assert torch.equal(short[:, 1:3], x[:, :, ::2, ::2])
    assert not short[:, [0, 3]].any()
    assert short.shape == block(x).shape


@pytest.mark.parametrize(("model", "layers"), [(ResNet20(), 20), (ResNet32(), 32), (ResNet56(), 56)])
def test_residual_networks_have_the_layers_they_are_named_for(model, layers):
    weighted = [m for m in build(model).modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert len(weighted) == layers


def test_resnet_50_is_the_published_one_but_for_its_first_and_last_layer():
    """25,557,032 parameters on ImageNet, with a first layer of 7 x 7 x 3 x 64 and 1,000 classes."""
    features = 2048
    ours = size(build(ResNet50()))
    assert ours - 3 * 3 * 3 * 64 - (features + 1) * 10 == 25_557_032 - 7 * 7 * 3 * 64 - (features + 1) * 1000


def bottlenecks_in_closed_form(channels, classes):
    """Convolutions without biases, a scale and a shift for each of their channels, and one linear layer."""

    def conv(fan_in, fan_out, side):
        return side * side * fan_in * fan_out + 2 * fan_out

    total, width = conv(channels, 64, 3), 64
    for inside, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        total += conv(width, 4 * inside, 1)  # the one shortcut of the stage that changes the shape
        for _ in range(count):
            total += conv(width, inside, 1) + conv(inside, inside, 3) + conv(inside, 4 * inside, 1)
            width = 4 * inside
    return total + (width + 1) * classes


@pytest.mark.parametrize(("channels", "classes"), [(3, 10), (3, 100), (1, 10)])
def test_resnet_50_in_closed_form(channels, classes):
    network = build(ResNet50(), (channels, 32, 32), classes)
    assert size(network) == bottlenecks_in_closed_form(channels, classes)


def test_resnet_50_has_50_layers_and_halves_three_times():
    network = build(ResNet50())
    weighted = [m for m in network.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    short = [m.shortcut[0] for m in network.modules() if isinstance(m, Bottleneck) and len(m.shortcut)]
    assert (len(weighted) - len(short), len(short)) == (50, 4)
    assert network[:-3](torch.zeros(1, *CIFAR)).shape == (1, 2048, 4, 4)


def test_a_bottleneck_of_the_same_shape_adds_its_input():
    block = Bottleneck(8, 2, stride=1)
    last = block.body[-1]
    nn.init.zeros_(last.weight)
    x = torch.ones(2, 8, 3, 3)
    assert torch.equal(block(x), x)


def test_vgg_16_has_16_layers_on_imagenet_and_14_here():
    """Three linear layers there, one here; five pools bring 32 pixels to one."""
    network = build(VGG16())
    layers = [type(layer) for layer in network]
    assert (layers.count(nn.Conv2d), layers.count(nn.Linear), layers.count(nn.MaxPool2d)) == (13, 1, 5)
    assert network[:-2](torch.zeros(1, *CIFAR)).shape == (1, 512, 1, 1)


def test_hidden_layers_need_neurons():
    with pytest.raises(ParameterError, match="hidden"):
        MLP(hidden=(8, 0))


def test_names_are_offered_for_a_slip():
    with pytest.raises(UnknownName, match="did you mean 'lenet'"):
        make_part("model", "lenett")


def test_the_perceptron_is_a_chain_of_sigmoids():
    network = build(Perceptron(hidden=(3,)), (4,), 2)
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    first, last = network[1], network[3]
    by_hand = functional.linear(torch.sigmoid(x @ first.weight.T + first.bias), last.weight, last.bias)
    assert torch.equal(network(x), by_hand)
    assert all(layer.weight.abs().max() <= 2.4 / math.sqrt(layer.in_features) for layer in (first, last))
    assert first.weight.abs().max() > 1 / math.sqrt(4)  # wider than the start of an output layer
