"""The four models of the paper, with the authors' initialisation."""

from gradreg.models.build import MODELS, build, source_fingerprint
from gradreg.models.init import initialise
from gradreg.models.lenet import lenet
from gradreg.models.mlp import mlp
from gradreg.models.resnet import resnet
from gradreg.models.resnet18 import resnet18

__all__ = ["MODELS", "build", "initialise", "lenet", "mlp", "resnet", "resnet18", "source_fingerprint"]
