"""A forward pass of the penalty's own, that leaves no trace on the model or on the global random state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
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
class OwnPass:
    """How the pass differs from the loss's: its batch-norm mode, and the seed of its dropout masks."""

    batch_norm: BatchNorm
    seed: int


def call(model: Callable[..., Any], inputs: Inputs, own: OwnPass | None = None) -> Any:
    """Call the model on the inputs: as an ordinary step does, or as a pass of the penalty's own."""
    args, kwargs = arguments(inputs)
    if own is None:
        return model(*args, **kwargs)
    with random_state_of(own.seed, device_of(inputs)):
        if not isinstance(model, nn.Module):
            return model(*args, **kwargs)
        # On copies, whatever a module writes to its buffers (running statistics, above all) is forgotten.
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        with batch_norm_mode(model, own.batch_norm):
            return torch.func.functional_call(model, buffers, args, kwargs)


@contextmanager
def random_state_of(seed: int, device: torch.device) -> Iterator[None]:
    """Run under this seed on the CPU and on ``device``, then put the global random states back."""
    on_accelerator = device.type not in ("cpu", "meta")
    fork = (
        torch.random.fork_rng([device.index or 0], device_type=device.type) if on_accelerator else torch.random.fork_rng([])
    )
    with fork:
        torch.default_generator.manual_seed(seed)
        if on_accelerator:
            with getattr(torch, device.type).device(device):
                getattr(torch, device.type).manual_seed(seed)
        yield


def batch_norm_mode(model: nn.Module, mode: BatchNorm) -> Any:
    """Switch the batch-norm layers that use batch statistics to constants: the batch's own, or the running ones."""
    if mode == "train":
        return nullcontext()
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm) and (m.training or m.running_mean is None)]
    stack = ExitStack()
    for layer in layers:
        stack.enter_context(_FREEZE[mode](layer))
    return stack


@contextmanager
def _frozen(layer: _BatchNorm) -> Iterator[None]:
    layer.forward = partial(_forward_with_constant_statistics, layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del layer.forward


def _forward_with_constant_statistics(layer: _BatchNorm, x: Tensor) -> Tensor:
    others = [dim for dim in range(x.ndim) if dim != 1]
    var, mean = torch.var_mean(x.detach(), others, correction=0)
    return F.batch_norm(x, mean, var, layer.weight, layer.bias, training=False, eps=layer.eps)


@contextmanager
def _running(layer: _BatchNorm) -> Iterator[None]:
    if layer.running_mean is None:
        raise ValueError(
            f"batch_norm='running': {layer} keeps no running statistics. "
            "Use batch_norm='frozen', which takes the batch's own as constants, or track_running_stats=True."
        )
    layer.training = False
    try:
        yield
    finally:
        layer.training = True


_FREEZE = {"frozen": _frozen, "running": _running}
