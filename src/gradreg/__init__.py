"""Gradient regularization for PyTorch: penalise the norm of a network's gradient with respect to its input."""

from gradreg import functional, models
from gradreg.engines import Compiled, DifferentiationError, DoubleBackward, FiniteDifference, Forward, Linearized
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
from gradreg.step import Step

__version__ = "0.1.0"

__all__ = [
    "Compiled",
    "ConfidencePenalty",
    "DifferentiationError",
    "DoubleBack",
    "DoubleBackward",
    "FiniteDifference",
    "Forward",
    "FrobReg",
    "GradientPenalty",
    "JacReg",
    "LabelSmoothing",
    "Linearized",
    "Objective",
    "OneHot",
    "Penalty",
    "Probe",
    "RandomOneHot",
    "Schedule",
    "SoftmaxProjection",
    "SpectReg",
    "Step",
    "TargetSlope",
    "Terms",
    "TopK",
    "WeightDecay",
    "functional",
    "models",
]
