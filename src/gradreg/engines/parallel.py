"""Models that are wrapped for several devices."""

from __future__ import annotations

from torch import nn

from gradreg.engines.base import DifferentiationError

_SHARDED = ("FSDPModule", "FullyShardedDataParallel")


def is_sharded(module: nn.Module) -> bool:
    """Whether FSDP frees its parameters between forward and backward pass."""
    return any(base.__name__ in _SHARDED for base in type(module).__mro__)


def wrapper_in(model: nn.Module) -> str | None:
    """What in this model synchronises gradients, or moves parameters, from hooks of its own."""
    for module in model.modules():
        if is_sharded(module) or isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            return type(module).__name__
    return None


def check_not_wrapped(model: nn.Module) -> None:
    """A graph has no hooks: gradients of the processes would drift apart without a word."""
    if (wrapper := wrapper_in(model)) is not None:
        raise DifferentiationError(
            f"{wrapper} synchronises processes in hooks, which engine='compiled' traces away: gradients would differ from "
            "process to process. Use engine='double_backward' (for FSDP 'finite_difference')."
        )
