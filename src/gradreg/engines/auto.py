"""The engine for a model, chosen by what it can do and where it runs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from gradreg.engines.base import DifferentiationError, Engine, Evaluation
from gradreg.engines.compiled import Compiled
from gradreg.engines.double_backward import DoubleBackward
from gradreg.engines.finite_difference import FiniteDifference
from gradreg.engines.forward_pass import Pass
from gradreg.engines.inputs import Inputs, device_of
from gradreg.engines.linearized import Linearized
from gradreg.engines.parallel import wrapper_in


@dataclass(frozen=True)
class Choice:
    """An engine, and why it was chosen."""

    engine: Engine
    reason: str


@dataclass(frozen=True)
class Auto:
    """Exact where the model allows it, compiled where that pays.

    Where the model has no second derivative ``linearized``, or ``finite_difference`` if it has no forward mode either; else
    ``compiled`` for a module on a GPU, unless it is wrapped for several GPUs or its step cannot be compiled; else
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
            if _has_forward_mode(model, inputs, wrt):
                return Choice(Linearized(), f"forward mode, since double backward is not possible: {error}")
            return Choice(FiniteDifference(), f"neither double backward nor forward mode is possible: {error}")
    if isinstance(model, nn.Module) and (wrapper := wrapper_in(model)):
        return Choice(DoubleBackward(), f"{wrapper} synchronises gradients in hooks, which a compiled graph has none of")
    if device_of(inputs).type == "cuda" and isinstance(model, nn.Module):
        return Choice(Compiled(), "a module on a GPU: one compiled graph for the whole step")
    return Choice(DoubleBackward(), "not on a GPU: eager autograd is as fast, and there is nothing to wait for")


def _has_forward_mode(model: Callable[..., Any], inputs: Inputs, wrt: Collection[str]) -> bool:
    try:
        found = Linearized().evaluate(model, inputs, wrt=wrt, how=Pass(own=True, randomness=0))
        for jvp in found.jvps.values():
            jvp([torch.ones_like(point).unsqueeze(0) for point in jvp.points])
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever an operation without forward mode raises
        return False
    return True
