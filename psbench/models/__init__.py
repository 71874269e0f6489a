"""Networks by name; they answer with logits, or with the number to be predicted."""

from psbench.models.base import Model
from psbench.models.convolutional import CNN, VGG16, AlexNet, LeNet
from psbench.models.dense import MLP, Linear, Logistic, Perceptron
from psbench.models.residual import ResNet20, ResNet32, ResNet50, ResNet56

__all__ = [
    "CNN",
    "MLP",
    "VGG16",
    "AlexNet",
    "LeNet",
    "Linear",
    "Logistic",
    "Model",
    "Perceptron",
    "ResNet20",
    "ResNet32",
    "ResNet50",
    "ResNet56",
]
