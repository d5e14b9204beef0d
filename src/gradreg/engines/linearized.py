"""Exact without double backward: forward mode over a plain gradient."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from gradreg.engines.base import Evaluation
from gradreg.engines.first_order import evaluate
from gradreg.engines.forward_pass import Pass
from gradreg.engines.inputs import Inputs
from gradreg.engines.tangents import Function, by_forward_mode
from gradreg.penalties.probe import JVP


@dataclass(frozen=True)
class Linearized:
    r"""Exact, for models whose operations have a forward-mode derivative: no gradient is differentiated.

    .. math:: d\, \phi(J^T c) = d \langle c, J t \rangle, \qquad t = \nabla \phi(J^T c) \text{ held constant}

    For instance :math:`\phi = \lVert \cdot \rVert_2^2` and :math:`t = 2 J^T c`. Attention runs on PyTorch's ``MATH`` kernel.

    Attributes:
        transformed: go through ``torch.func`` instead of autograd's own graph, to be used inside its transforms.

    Cost for one cotangent: a backward pass to the point, then a forward pass with its tangent and the backward of both:
    3 times a plain step in operations.
    """

    name: ClassVar[str] = "linearized"

    transformed: bool = False

    def evaluate(self, model: Callable[..., Any], inputs: Inputs, *, wrt: Collection[str], how: Pass) -> Evaluation:
        return evaluate(model, inputs, wrt, how, _jvp, in_forward_mode=True, transformed=self.transformed)


def _jvp(function: Function, points: Sequence[Tensor], _: Tensor) -> JVP:
    return by_forward_mode(function, points)
