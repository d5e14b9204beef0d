"""Random tangents instead of gradients: forward passes alone."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from gradreg.engines.base import Evaluation
from gradreg.engines.forward_pass import Pass, call
from gradreg.engines.inputs import Inputs, copied, device_of, logits_of
from gradreg.engines.recorded import logits_by_shift, points_of
from gradreg.engines.tangents import by_difference, by_forward_mode, check_step
from gradreg.penalties.probe import JVP


@dataclass(frozen=True)
class Forward:
    r"""The cheapest: an unbiased estimate of the penalty from a random direction of the input.

    .. math:: \mathbb{E}_t \langle c, J t \rangle^2 = \lVert J^T c \rVert_2^2, \qquad
        \mathbb{E}_t \lVert J t \rVert_2^2 = \lVert J \rVert_F^2, \qquad \mathbb{E}[t t^T] = I

    SpectReg, FrobReg and RandomOneHot become :math:`\lVert J t \rVert_2^2`. The others, which project on certain
    directions, have more variance. Under batch norm in training mode, where the gradient runs across examples, it
    estimates what SpectReg has in the mean with ``per_example=True``. Squared norms only.

    Attributes:
        tangents: ``"forward_mode"`` takes ``J t`` exactly; ``"difference"`` by a second forward pass a small step away, for
            models without forward mode. With ReLUs or max-pooling the latter is biased and noisy (docs/engines.md).
        step: how far to move for a difference, relative to the root mean square of the input. The estimate is that of the
            network smoothed over this distance; a shorter step multiplies the noise of ReLUs that switch.

    Cost: one forward and one ordinary backward pass more: 2.0 times a plain step.
    """

    name: ClassVar[str] = "forward"

    tangents: Literal["forward_mode", "difference"] = "forward_mode"
    step: float = 0.05

    def __post_init__(self) -> None:
        check_step(self.step)
        if self.tangents not in ("difference", "forward_mode"):
            raise ValueError(f"tangents={self.tangents!r} is unknown: choose 'difference' or 'forward_mode'.")

    def evaluate(self, model: Callable[..., Any], inputs: Inputs, *, wrt: Collection[str], how: Pass) -> Evaluation:
        again = how.again(model, device_of(inputs))
        logits = logits_of(call(model, copied(inputs), how))

        def jvp(name: str) -> JVP:
            function, points = logits_by_shift(model, inputs, name, again), points_of(model, inputs, name, again)
            if self.tangents == "forward_mode":
                return by_forward_mode(function, points)
            return by_difference(function, points, logits, central=False, step=self.step)

        return Evaluation(logits, jvps={name: jvp(name) for name in wrt})
