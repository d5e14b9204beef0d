"""A forward pass: the loss's, or one of the penalty's own that leaves no trace on the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradreg.draws import Draws
from gradreg.engines.dropout import DrawnDropout
from gradreg.engines.inputs import Inputs, arguments, device_of
from gradreg.penalties.base import BatchNorm
from gradreg.penalties.norm import wide


@dataclass(frozen=True)
class RandomState:
    """The global random states of the CPU and of one device, to be used once more."""

    cpu: Tensor
    device: Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> RandomState:
        accelerator = _accelerator(device)
        return cls(torch.get_rng_state(), None if accelerator is None else accelerator.get_rng_state(device))


#: Variance and mean of a batch.
Statistics = tuple[Tensor, Tensor]
#: Where dropout masks come from: a seed for new ones, a state for the same as before, or draws by key.
Randomness = int | RandomState | Draws


@dataclass(frozen=True)
class Pass:
    """How a forward pass is run.

    Attributes:
        own: whether it is the penalty's own, so that what modules write to their buffers is forgotten.
        batch_norm: what the batch-norm layers normalise with.
        randomness: of its dropout masks; None for PyTorch's global state, as an ordinary step.
        state: of PyTorch's generators, for what is random beside dropout; None for the present one.
        buffers: what it starts from; None for the model's present ones.
    """

    own: bool = False
    batch_norm: BatchNorm = "train"
    randomness: Randomness | None = None
    state: RandomState | None = field(default=None, compare=False, repr=False)
    buffers: Mapping[str, Tensor] | None = field(default=None, compare=False, repr=False)
    _statistics: list[Statistics] = field(default_factory=list, compare=False, repr=False)

    @property
    def beside_dropout(self) -> RandomState | int | None:
        """For random numbers that are no masks. Those of a pass by key come from its key, and nobody's state moves on."""
        if self.state is not None or not self.own or not isinstance(self.randomness, Draws):
            return self.state
        key = self.randomness.at("beside dropout").key
        return key if isinstance(key, int) else None  # a tensor, in a graph or a fleet, seeds nothing

    def again(self, model: Callable[..., Any], device: torch.device) -> Pass:
        """The same pass, to be run again with the same masks, from the same buffers. To be asked for before the first."""
        state = self.state or RandomState.now(device)
        randomness = state if self.randomness is None else self.randomness
        return replace(self, own=True, randomness=randomness, state=state, buffers=_copies_of_buffers(model))


def call(model: Callable[..., Any], inputs: Inputs, how: Pass) -> Any:
    """Call the model on the inputs: as an ordinary step does, or as a pass of the penalty's own."""
    args, kwargs = arguments(inputs)
    device = device_of(inputs)
    with _random(how.beside_dropout, device), _random(how.randomness, device):
        if not how.own:
            return model(*args, **kwargs)
        if not isinstance(model, nn.Module):
            _check_function(how)
            return model(*args, **kwargs)
        # On copies, whatever a module writes to its buffers (running statistics, above all) is forgotten.
        buffers = _copies_of_buffers(model) if how.buffers is None else {n: b.clone() for n, b in how.buffers.items()}
        with batch_norm_mode(model, how.batch_norm, how._statistics):
            return torch.func.functional_call(model, buffers, args, kwargs) if buffers else model(*args, **kwargs)


def _copies_of_buffers(model: object) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()} if isinstance(model, nn.Module) else {}


def _random(randomness: Randomness | None, device: torch.device) -> AbstractContextManager[object]:
    if isinstance(randomness, Draws):
        return DrawnDropout(randomness)
    return nullcontext() if randomness is None else random_state_of(randomness, device)


def _check_function(how: Pass) -> None:
    if how.batch_norm != "train":
        raise ValueError(
            f"batch_norm={how.batch_norm!r} needs the layers of a torch.nn.Module, and the model is a plain function: "
            "pass the module itself to the objective."
        )


@contextmanager
def random_state_of(randomness: int | RandomState, device: torch.device) -> Iterator[None]:
    """Run under this seed or state on the CPU and on ``device``, then put the global random states back."""
    accelerator = _accelerator(device)
    with _forked(device):
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


def _forked(device: torch.device) -> AbstractContextManager[object]:
    """Put the random states of the CPU and of this device back at the end."""
    accelerator = _accelerator(device)
    if accelerator is None:
        return torch.random.fork_rng([])
    return torch.random.fork_rng(
        [accelerator.current_device() if device.index is None else device.index], device_type=device.type
    )


def _accelerator(device: torch.device) -> Any:
    """The module of this kind of device, such as torch.cuda; None for the CPU."""
    return None if device.type in ("cpu", "meta") else getattr(torch, device.type)


def batch_norm_mode(model: nn.Module, mode: BatchNorm, statistics: list[Statistics]) -> AbstractContextManager[object]:
    """Switch the batch-norm layers that use batch statistics to constants: the batch's own, or the running ones.

    The batch's own are kept in ``statistics`` by the first pass, and taken from there by the same pass run again, where
    the inputs may have been moved.
    """
    if mode == "train":
        return nullcontext()
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm) and (m.training or m.running_mean is None)]
    if mode == "running":
        _check_running(layers)
    stack, kept = ExitStack(), iter(list(statistics))
    for layer in layers:
        stack.enter_context(_frozen(layer, statistics, kept) if mode == "frozen" else _running(layer))
    return stack


@contextmanager
def _frozen(layer: _BatchNorm, statistics: list[Statistics], kept: Iterator[Statistics]) -> Iterator[None]:
    before = vars(layer).get("forward")
    layer.forward = partial(_forward_with_constant_statistics, layer, statistics, kept)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del layer.forward
        if before is not None:
            layer.forward = before  # type: ignore[method-assign]


def _forward_with_constant_statistics(
    layer: _BatchNorm, statistics: list[Statistics], kept: Iterator[Statistics], x: Tensor
) -> Tensor:
    found = next(kept, None)
    if found is None:
        found = torch.var_mean(wide(x.detach()), [dim for dim in range(x.ndim) if dim != 1], correction=0)
        statistics.append(found)
    var, mean = found
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
