"""Networks by name, and of one's own; they answer with logits, or with the number to be predicted."""

from psbench.models.base import Model
from psbench.models.convolutional import CNN, VGG16, AlexNet, LeNet
from psbench.models.dense import MLP, Linear, Logistic, Perceptron
from psbench.models.elsewhere import ImportedModel, Torchvision
from psbench.models.own import OwnModel, as_model
from psbench.models.residual import ResNet20, ResNet32, ResNet50, ResNet56
from psbench.models.transformer import Transformer, TransformerLarge, TransformerMedium, TransformerSmall

__all__ = [
    "CNN",
    "MLP",
    "VGG16",
    "AlexNet",
    "ImportedModel",
    "LeNet",
    "Linear",
    "Logistic",
    "Model",
    "OwnModel",
    "Perceptron",
    "ResNet20",
    "ResNet32",
    "ResNet50",
    "ResNet56",
    "Torchvision",
    "Transformer",
    "TransformerLarge",
    "TransformerMedium",
    "TransformerSmall",
    "as_model",
]
