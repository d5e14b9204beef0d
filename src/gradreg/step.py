"""A whole training step in one call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn

from gradreg.draws import Draws
from gradreg.engines import Compiled
from gradreg.engines.inputs import Inputs
from gradreg.objective import Objective, Terms
from gradreg.penalties import GradientPenalty


class Step:
    """Objective, gradients and optimizer: with ``engine="compiled"`` on a GPU all of it is one CUDA graph.

    The optimizer joins the graph if it is a fused one (``fused=True``, and no dampening), and takes its step after it
    otherwise; ``check_finite`` then speaks up after the step, not before it. Learning rates become tensors, so that
    schedulers, and values set by hand, reach the graph. Parameters of the model, of the loss and of the optimizer get their
    gradients; the input gets none (``x.grad``).

    Args:
        objective: what to minimise.
        model: what to train.
        optimizer: of its parameters.

    >>> import gradreg as gr, torch, torch.nn.functional as F
    >>> model, x, y = torch.nn.Linear(4, 3), torch.randn(8, 4), torch.randint(3, (8,))
    >>> objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=0.03), engine="compiled")
    >>> step = gr.Step(objective, model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> first, later = step(x, y).loss, [step(x, y) for _ in range(20)][-1].loss
    >>> bool(later < first)
    True
    """

    def __init__(self, objective: Objective, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        _check(objective, model, optimizer)
        self.objective, self.model, self.optimizer = objective, model, optimizer
        device = next(model.parameters()).device
        joins = isinstance(objective.engine, Compiled) and device.type == "cuda"
        self._joins = joins and all(group.get("fused") and not group.get("dampening") for group in optimizer.param_groups)
        self._rates = [_as_tensor(group, device) for group in optimizer.param_groups] if self._joins else []

    def __call__(
        self,
        x: Inputs,
        y: Any,
        unlabeled: Inputs | None = None,
        generator: Generator | Draws | None = None,
        *,
        step: int | None = None,
    ) -> Terms:
        """Take one step on this batch; the arguments are those of the objective."""
        if not self._joins:
            terms = self.objective(self.model, x, y, unlabeled, generator, step=step)
            self.optimizer.zero_grad()
            backward(terms.total, self.objective, self.model, self.optimizer)
            self.optimizer.step()
            return terms
        self._read_rates()
        engine, data = self.objective.engine, (x, y, unlabeled)
        assert isinstance(engine, Compiled)
        return self.objective.compiled(engine, self.model, data, self.objective.active(step), generator, self.optimizer)

    def _read_rates(self) -> None:
        """A rate that was set by hand replaced the tensor that the graph reads: write it there."""
        for group, tensor in zip(self.optimizer.param_groups, self._rates, strict=True):
            if "capturable" in group:
                group["capturable"] = True  # a state that was loaded may say otherwise
            if group["lr"] is not tensor:
                tensor.fill_(float(group["lr"]))
                group["lr"] = tensor


def _check(objective: object, model: object, optimizer: object) -> None:
    for name, value, kind in (("objective", objective, Objective), ("model", model, nn.Module)):
        if not isinstance(value, kind):
            raise TypeError(f"the {name} is {type(value).__name__}: gr.Step(objective, model, optimizer), in this order.")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError("LBFGS evaluates the loss several times a step, gr.Step once: call the objective in its closure.")


def backward(total: Tensor, objective: Objective, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """``total.backward()`` for parameters alone.

    Without a list of inputs PyTorch also computes the gradient of the total by the model's input, which a gradient penalty
    made part of the graph and which nobody reads: in the first layer, where gradients by few channels can be slow.
    """
    if not any(isinstance(penalty, GradientPenalty) for penalty in objective.penalties):
        total.backward()  # type: ignore[no-untyped-call]
        return
    of_loss = objective.loss.parameters() if isinstance(objective.loss, nn.Module) else ()
    of_optimizer = (parameter for group in optimizer.param_groups for parameter in group["params"])
    known = dict.fromkeys((*model.parameters(), *of_loss, *of_optimizer))
    total.backward(inputs=[parameter for parameter in known if parameter.requires_grad] or None)  # type: ignore[no-untyped-call]


def _as_tensor(group: dict[str, Any], device: torch.device) -> Tensor:
    group["lr"] = torch.tensor(float(group["lr"]), device=device)
    rate: Tensor = group["lr"]
    return rate
