"""A difference along the gradient instead of a second derivative."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from gradreg.engines.base import Evaluation
from gradreg.engines.first_order import evaluate
from gradreg.engines.forward_pass import Pass
from gradreg.engines.inputs import Inputs
from gradreg.engines.tangents import Function, by_difference, check_step
from gradreg.penalties.probe import JVP


@dataclass(frozen=True)
class FiniteDifference:
    r"""Needs no second derivative: works with fused attention, recurrent layers, FSDP, and all that has one backward.

    .. math:: d\, \phi(J^T c) \approx d \langle c, \frac{g(x + h t) - g(x)}{h} \rangle,
        \qquad t = \nabla \phi(J^T c) \text{ held constant}

    The value of the penalty is exact; its derivative by the parameters has an error of :math:`O(h)`, or
    :math:`O(h^2)` with central differences, plus one of :math:`O(\epsilon / h)` from rounding. Where ReLUs or max-pooling
    switch along the way it may exceed the gradient itself (docs/engines.md): for such models use an exact engine.

    Attributes:
        central: take the difference to both sides, for a smaller error and one more forward and backward pass.
        step: how far to move, relative to the root mean square of the input. None chooses 0.01 (0.03 in half
            precision), and in double precision :math:`\epsilon^{1/2}` (central: :math:`\epsilon^{1/3}`).
        transformed: go through ``torch.func`` instead of autograd's own graph, to be used inside its transforms.

    Cost for one cotangent: a backward pass to the point, then one forward and one ordinary backward pass (central: two):
    2.3 times a plain step in operations (central: 3.3).
    """

    name: ClassVar[str] = "finite_difference"

    central: bool = False
    step: float | None = None
    transformed: bool = False

    def __post_init__(self) -> None:
        check_step(self.step)

    def evaluate(self, model: Callable[..., Any], inputs: Inputs, *, wrt: Collection[str], how: Pass) -> Evaluation:
        return evaluate(model, inputs, wrt, how, self._jvp, in_forward_mode=False, transformed=self.transformed)

    def _jvp(self, function: Function, points: Sequence[Tensor], logits: Tensor) -> JVP:
        return by_difference(function, points, logits, central=self.central, step=self.step)
