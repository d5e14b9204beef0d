"""The engine for a model, chosen by what it can do and where it runs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from gradreg.engines.base import DifferentiationError, Engine, Evaluation
from gradreg.engines.compiled import Compiled
from gradreg.engines.double_backward import DoubleBackward
from gradreg.engines.finite_difference import FiniteDifference
from gradreg.engines.forward_pass import Pass
from gradreg.engines.inputs import Inputs, device_of


@dataclass(frozen=True)
class Choice:
    """An engine, and why it was chosen."""

    engine: Engine
    reason: str


@dataclass(frozen=True)
class Auto:
    """Exact where the model allows it, compiled where that pays.

    ``finite_difference`` where the model has no second derivative; else ``compiled`` for a module on a GPU; else
    ``double_backward``. The choice is made in the first call and stands in ``objective.choice``.
    """

    name: ClassVar[str] = "auto"

    def evaluate(self, model: Callable[..., Any], inputs: Inputs, *, wrt: Collection[str], how: Pass) -> Evaluation:
        """As the chosen engine does."""
        return choose(model, inputs, wrt).engine.evaluate(model, inputs, wrt=wrt, how=how)


def choose(model: Callable[..., Any], inputs: Inputs, wrt: Collection[str]) -> Choice:
    """Try the model on these inputs."""
    if wrt:
        try:
            DoubleBackward().evaluate(model, inputs, wrt=wrt, how=Pass(own=True, randomness=0))
        except DifferentiationError as error:
            return Choice(FiniteDifference(), f"double backward is not possible: {error}")
    if device_of(inputs).type == "cuda" and isinstance(model, nn.Module):
        return Choice(Compiled(), "a module on a GPU: one compiled graph for the whole step")
    return Choice(DoubleBackward(), "not on a GPU: eager autograd is as fast, and there is nothing to wait for")
