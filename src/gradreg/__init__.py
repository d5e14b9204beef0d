"""Gradient regularization for PyTorch: penalise the norm of a network's gradient with respect to its input."""

from gradreg import functional, models
from gradreg.engines import DifferentiationError
from gradreg.objective import Objective, Terms
from gradreg.penalties import (
    ConfidencePenalty,
    DoubleBack,
    FrobReg,
    GradientPenalty,
    JacReg,
    LabelSmoothing,
    OneHot,
    Penalty,
    Probe,
    RandomOneHot,
    Schedule,
    SoftmaxProjection,
    SpectReg,
    TargetSlope,
    TopK,
    WeightDecay,
)

__version__ = "0.1.0"

__all__ = [
    "ConfidencePenalty",
    "DifferentiationError",
    "DoubleBack",
    "FrobReg",
    "GradientPenalty",
    "JacReg",
    "LabelSmoothing",
    "Objective",
    "OneHot",
    "Penalty",
    "Probe",
    "RandomOneHot",
    "Schedule",
    "SoftmaxProjection",
    "SpectReg",
    "TargetSlope",
    "Terms",
    "TopK",
    "WeightDecay",
    "functional",
    "models",
]
