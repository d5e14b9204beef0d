"""What an engine is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from gradreg.engines.forward_pass import Pass
from gradreg.engines.inputs import Inputs
from gradreg.penalties.probe import JVP, VJP


@dataclass(frozen=True)
class Evaluation:
    """One forward pass: the logits, and by each ``wrt`` that was asked for the products with the Jacobian.

    With ``vjps`` alone, these can be differentiated by the parameters. With ``jvps`` too, only those can, and the
    ``vjps`` are plain numbers. With ``jvps`` alone, penalties are estimated from random tangents.
    """

    logits: Tensor
    vjps: Mapping[str, VJP] = field(default_factory=dict)
    jvps: Mapping[str, JVP] = field(default_factory=dict)


class Engine(Protocol):
    """How the Jacobian is differentiated.

    An engine runs the forward pass and gives ``c -> J^T c``, ``t -> J t``, or both, at least one of them
    differentiable by the parameters. It does not know which penalty it serves, and a penalty does not know which
    engine serves it.
    """

    @property
    def name(self) -> str: ...

    def evaluate(self, model: Callable[..., Any], inputs: Inputs, *, wrt: Collection[str], how: Pass) -> Evaluation:
        """Run the model on the inputs, in the loss's own pass or in one of a penalty's."""
        ...


class DifferentiationError(RuntimeError):
    """The engine cannot differentiate this model."""
