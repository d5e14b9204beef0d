"""What an engine is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from gradreg.engines.inputs import Inputs
from gradreg.engines.own_pass import OwnPass
from gradreg.penalties.probe import VJP


@dataclass(frozen=True)
class Evaluation:
    """One forward pass: the logits, and the vector-Jacobian product by each ``wrt`` that was asked for."""

    logits: Tensor
    vjps: Mapping[str, VJP]


class Engine(Protocol):
    """How the Jacobian is differentiated.

    An engine runs the forward pass and gives ``c -> J^T c`` as a function that can be differentiated by the parameters. It
    does not know which penalty it serves, and a penalty does not know which engine serves it.
    """

    @property
    def name(self) -> str: ...

    def evaluate(
        self, model: Callable[..., Any], inputs: Inputs, *, wrt: Collection[str], own: OwnPass | None = None
    ) -> Evaluation:
        """Run the model on the inputs, in the loss's own pass or in one as ``own`` says."""
        ...


class DifferentiationError(RuntimeError):
    """The engine cannot differentiate this model."""
