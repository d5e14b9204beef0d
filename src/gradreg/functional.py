"""The penalties as functions, for those who own the forward pass.

Each takes what the forward pass gave and the tensors it was computed from, and returns one unweighted value for each
example; averaging and weighting are the caller's.

>>> import torch
>>> from gradreg import functional as G
>>> model, x = torch.nn.Linear(4, 3), torch.randn(8, 4).requires_grad_()
>>> G.spect_reg(model(x), x).shape
torch.Size([8])
"""

from gradreg.penalties import (
    confidence_penalty,
    double_back,
    frob_reg,
    jac_reg,
    label_smoothing,
    one_hot,
    random_one_hot,
    softmax_projection,
    spect_reg,
    top_k,
    weight_decay,
)

__all__ = [
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
