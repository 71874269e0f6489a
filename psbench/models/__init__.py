"""Networks by name, and the user's own; their outputs are logits or numeric predictions."""

from psbench.models.base import Model as Model
from psbench.models.convolutional import CNN as CNN
from psbench.models.convolutional import VGG16 as VGG16
from psbench.models.convolutional import AlexNet as AlexNet
from psbench.models.convolutional import LeNet as LeNet
from psbench.models.dense import MLP as MLP
from psbench.models.dense import Linear as Linear
from psbench.models.dense import Logistic as Logistic
from psbench.models.dense import Perceptron as Perceptron
from psbench.models.imported import ImportedModel as ImportedModel
from psbench.models.imported import Torchvision as Torchvision
from psbench.models.residual import ResNet20 as ResNet20
from psbench.models.residual import ResNet32 as ResNet32
from psbench.models.residual import ResNet50 as ResNet50
from psbench.models.residual import ResNet56 as ResNet56
from psbench.models.transformer import Transformer as Transformer
from psbench.models.transformer import TransformerLarge as TransformerLarge
from psbench.models.transformer import TransformerMedium as TransformerMedium
from psbench.models.transformer import TransformerSmall as TransformerSmall
from psbench.models.user_model import OwnModel as OwnModel
from psbench.models.user_model import as_model as as_model
