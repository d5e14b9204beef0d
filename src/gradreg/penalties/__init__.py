"""What is penalised. One file a penalty: a function for those who own the forward pass, a dataclass for the Objective."""

from gradreg.penalties.base import GradientPenalty, Penalty
from gradreg.penalties.confidence_penalty import ConfidencePenalty, confidence_penalty
from gradreg.penalties.double_back import DoubleBack, double_back
from gradreg.penalties.frob_reg import FrobReg, frob_reg
from gradreg.penalties.jac_reg import JacReg, jac_reg
from gradreg.penalties.label_smoothing import LabelSmoothing, label_smoothing
from gradreg.penalties.norm import Norm, TargetSlope
from gradreg.penalties.one_hot import OneHot, one_hot
from gradreg.penalties.probe import VJP, Probe
from gradreg.penalties.random_one_hot import RandomOneHot, random_one_hot
from gradreg.penalties.schedule import Schedule
from gradreg.penalties.softmax_projection import SoftmaxProjection, softmax_projection
from gradreg.penalties.spect_reg import SpectReg, spect_reg
from gradreg.penalties.top_k import TopK, top_k
from gradreg.penalties.weight_decay import WeightDecay, weight_decay

#: The concrete penalties by name.
PENALTIES: dict[str, type[Penalty]] = {
    kind.name: kind
    for kind in (
        SpectReg,
        DoubleBack,
        FrobReg,
        JacReg,
        OneHot,
        RandomOneHot,
        TopK,
        SoftmaxProjection,
        ConfidencePenalty,
        LabelSmoothing,
        WeightDecay,
    )
}

__all__ = [
    "PENALTIES",
    "VJP",
    "ConfidencePenalty",
    "DoubleBack",
    "FrobReg",
    "GradientPenalty",
    "JacReg",
    "LabelSmoothing",
    "Norm",
    "OneHot",
    "Penalty",
    "Probe",
    "RandomOneHot",
    "Schedule",
    "SoftmaxProjection",
    "SpectReg",
    "TargetSlope",
    "TopK",
    "WeightDecay",
    "confidence_penalty",
    "double_back",
    "frob_reg",
    "jac_reg",
    "label_smoothing",
    "one_hot",
    "random_one_hot",
    "softmax_projection",
    "spect_reg",
    "top_k",
    "weight_decay",
]
