"""The ways to take a training step that are compared."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradreg.bench.cases import Case
from gradreg.engines import Compiled, DoubleBackward, Engine, FiniteDifference, Forward, Linearized
from gradreg.objective import Objective
from gradreg.penalties import DoubleBack, FrobReg, JacReg, Penalty, Schedule, SpectReg
from gradreg.step import Step

#: Takes one step.
Run = Callable[[], object]
WEIGHT = 0.003

PENALTIES: dict[str, Penalty] = {
    "spect_reg": SpectReg(weight=WEIGHT),
    "double_back": DoubleBack(weight=WEIGHT),
    "frob_reg": FrobReg(weight=WEIGHT),
    "frob_reg in chunks of 2": FrobReg(weight=WEIGHT, chunk_size=2),
    "frob_reg row by row": FrobReg(weight=WEIGHT, chunk_size=1),
    "jac_reg": JacReg(weight=WEIGHT),
    "spect_reg on half the batch": SpectReg(weight=WEIGHT, fraction=0.5),
    "spect_reg every second step": SpectReg(weight=WEIGHT, schedule=Schedule(every=2)),
}
ENGINES: dict[str, Engine] = {
    "double_backward": DoubleBackward(),
    "linearized": Linearized(),
    "finite_difference": FiniteDifference(),
    "forward": Forward(),
    "forward by difference": Forward(tangents="difference"),
    "compiled": Compiled(),
    "compiled linearized": Compiled(Linearized()),
    "compiled finite_difference": Compiled(FiniteDifference()),
    "compiled forward": Compiled(Forward()),
    "compiled forward by difference": Compiled(Forward(tangents="difference")),
}
#: What ``--methods`` takes: ``plain``, ``plain compiled``, ``textbook``, or an engine.
METHODS = ("plain", "plain compiled", "textbook", *ENGINES)


def prepare(method: str, penalty: str, case: Case, device: torch.device) -> Run:
    """A function that takes one step by this method, with the optimizer's part."""
    model, x, y = case.on(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9, nesterov=True, fused=True)
    if method in ("plain", "textbook"):
        return _by_hand(case, model, x, y, optimizer, penalised=method == "textbook")
    penalties = [] if method.startswith("plain") else [PENALTIES[penalty]]
    engine = Compiled() if method.startswith("plain") else ENGINES[method]
    step = Step(Objective(F.cross_entropy, *penalties, engine=engine, check_finite=False), model, optimizer)

    number = itertools.count()

    def run() -> None:
        with case.autocast(device):
            step(x, y, step=next(number))

    return run


def _by_hand(
    case: Case, model: nn.Module, x: Tensor, y: Tensor, optimizer: torch.optim.Optimizer, *, penalised: bool
) -> Run:
    """As users write it today: the paper's appendix A in PyTorch."""

    def run() -> None:
        with case.autocast(x.device), sdpa_kernel(SDPBackend.MATH) if penalised else nullcontext():
            inputs = x.detach().requires_grad_(penalised)
            logits = model(inputs)
            loss = F.cross_entropy(logits, y)
            if penalised:
                r = torch.randn(logits.shape[1], device=x.device)
                (gradient,) = torch.autograd.grad((logits * r).sum(), inputs, create_graph=True)
                loss = loss + WEIGHT * gradient.square().flatten(1).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return run
