"""A forward pass of the penalty's own, that leaves no trace on the model or on the global random state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradreg.engines.inputs import Inputs, arguments, device_of
from gradreg.penalties.base import BatchNorm


@dataclass(frozen=True)
class RandomState:
    """The global random states of the CPU and of one device, to be used once more."""

    cpu: Tensor
    device: Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> RandomState:
        accelerator = _accelerator(device)
        return cls(torch.get_rng_state(), None if accelerator is None else accelerator.get_rng_state(device))


@dataclass(frozen=True)
class OwnPass:
    """How the pass differs from the loss's.

    Attributes:
        batch_norm: what the batch-norm layers normalise with.
        randomness: of its dropout masks: a seed for new ones, or the state before the loss's pass, for the same.
    """

    batch_norm: BatchNorm
    randomness: int | RandomState


def call(model: Callable[..., Any], inputs: Inputs, own: OwnPass | None = None) -> Any:
    """Call the model on the inputs: as an ordinary step does, or as a pass of the penalty's own."""
    args, kwargs = arguments(inputs)
    if own is None:
        return model(*args, **kwargs)
    with random_state_of(own.randomness, device_of(inputs)):
        if not isinstance(model, nn.Module):
            _check_function(own)
            return model(*args, **kwargs)
        # On copies, whatever a module writes to its buffers (running statistics, above all) is forgotten.
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        with batch_norm_mode(model, own.batch_norm):
            return torch.func.functional_call(model, buffers, args, kwargs)


def _check_function(own: OwnPass) -> None:
    if own.batch_norm != "train":
        raise ValueError(
            f"batch_norm={own.batch_norm!r} needs the layers of a torch.nn.Module, and the model is a plain function: "
            "pass the module itself to the objective."
        )


@contextmanager
def random_state_of(randomness: int | RandomState, device: torch.device) -> Iterator[None]:
    """Run under this seed or state on the CPU and on ``device``, then put the global random states back."""
    accelerator = _accelerator(device)
    fork = torch.random.fork_rng([device.index or 0], device_type=device.type) if accelerator else torch.random.fork_rng([])
    with fork:
        if isinstance(randomness, RandomState):
            torch.set_rng_state(randomness.cpu)
            if accelerator is not None:
                accelerator.set_rng_state(randomness.device, device)
        else:
            torch.default_generator.manual_seed(randomness)
            if accelerator is not None:
                with accelerator.device(device):
                    accelerator.manual_seed(randomness)
        yield


def _accelerator(device: torch.device) -> Any:
    """The module of this kind of device, such as torch.cuda; None for the CPU."""
    return None if device.type in ("cpu", "meta") else getattr(torch, device.type)


def batch_norm_mode(model: nn.Module, mode: BatchNorm) -> AbstractContextManager[object]:
    """Switch the batch-norm layers that use batch statistics to constants: the batch's own, or the running ones."""
    if mode == "train":
        return nullcontext()
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm) and (m.training or m.running_mean is None)]
    if mode == "running":
        _check_running(layers)
    stack = ExitStack()
    for layer in layers:
        stack.enter_context(_frozen(layer) if mode == "frozen" else _running(layer))
    return stack


@contextmanager
def _frozen(layer: _BatchNorm) -> Iterator[None]:
    before = vars(layer).get("forward")
    layer.forward = partial(_forward_with_constant_statistics, layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del layer.forward
        if before is not None:
            layer.forward = before  # type: ignore[method-assign]


def _forward_with_constant_statistics(layer: _BatchNorm, x: Tensor) -> Tensor:
    others = [dim for dim in range(x.ndim) if dim != 1]
    values = x.detach() if x.dtype == torch.float64 else x.detach().float()
    var, mean = torch.var_mean(values, others, correction=0)
    return F.batch_norm(x, mean, var, layer.weight, layer.bias, training=False, eps=layer.eps)


@contextmanager
def _running(layer: _BatchNorm) -> Iterator[None]:
    layer.training = False
    try:
        yield
    finally:
        layer.training = True


def _check_running(layers: list[_BatchNorm]) -> None:
    for layer in layers:
        if layer.running_mean is None:
            raise ValueError(
                f"batch_norm='running': {layer} keeps no running statistics. "
                "Use batch_norm='frozen', which takes the batch's own as constants, or track_running_stats=True."
            )
