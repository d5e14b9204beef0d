"""WeightDecay: coupled, on weight matrices only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradreg.penalties.base import Penalty
from gradreg.penalties.probe import Probe


def weight_decay(parameters: Iterable[Tensor]) -> Tensor:
    r"""Half the squared norm of all weight matrices and filters, :math:`\tfrac12 \sum_W \lVert W \rVert_2^2`, a scalar.

    A parameter counts if it has two or more dimensions: filters, dense and embedding matrices, but neither biases nor the
    scales and shifts of normalisation.

    >>> weight_decay([torch.full((2, 2), 3.0), torch.ones(7)])
    tensor(18.)
    """
    matrices = [parameter for parameter in parameters if parameter.ndim >= 2]
    if not matrices:
        raise ValueError(
            "no trainable parameter with two or more dimensions is seen: WeightDecay has nothing to act on. Pass the module "
            "itself, not a function around it, or remove the penalty."
        )
    return 0.5 * torch.stack([matrix.square().sum() for matrix in matrices]).sum()


@dataclass(frozen=True, kw_only=True, repr=False)
class WeightDecay(Penalty):
    r"""Weight decay as the authors had it: a term of the loss, on weight matrices and filters only.

    .. math:: \tfrac12 \textstyle\sum_W \lVert W \rVert_2^2

    Coupled: its gradient passes through the optimizer's momentum and scaling like the loss's own. With plain SGD it
    equals ``torch.optim.SGD(weight_decay=weight)`` on those parameters; with Adam it is not AdamW.
    The paper's weights are 0.0005 (MNIST) and 0.003 (CIFAR).

    A scalar, the same for every example; no extra backward pass. Frozen parameters do not count.

    >>> import gradreg as gr, torch, torch.nn.functional as F
    >>> model, x, y = torch.nn.Linear(4, 3), torch.randn(8, 4), torch.randint(3, (8,))
    >>> terms = gr.Objective(F.cross_entropy, gr.WeightDecay(weight=0.0005))(model, x, y)
    >>> torch.allclose(terms.penalties["weight_decay"], 0.5 * model.weight.square().sum())
    True
    """

    name: ClassVar[str] = "weight_decay"

    def __call__(self, probe: Probe) -> Tensor:
        return weight_decay(probe.parameters.values())
