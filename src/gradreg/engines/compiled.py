"""Loss, penalties and gradients as one compiled graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils import _pytree as pytree

from gradreg.engines.around import call_with
from gradreg.engines.base import DifferentiationError, Engine, Evaluation
from gradreg.engines.double_backward import DoubleBackward, check_not_compiled
from gradreg.engines.forward_pass import Pass, RandomState, random_state_of
from gradreg.engines.inputs import Inputs
from gradreg.engines.parallel import check_not_wrapped
from gradreg.engines.program import Code, Program, TraceError, draws
from gradreg.engines.twice import FastTwice
from gradreg.engines.unchanged import unchanged
from gradreg.parts import begin_part_at_gradient

#: From the model, the data, the weights of the penalties and a key for random numbers, to total, loss, values and logits.
Whole = Callable[[nn.Module, Any, Sequence[Tensor], Tensor], tuple[Tensor, Tensor, dict[str, Tensor], Tensor]]


@dataclass(frozen=True)
class Compiled:
    """The whole objective and its gradients by the parameters, traced once and run as one graph.

    On a GPU compiled by ``torch.compile`` and captured in a CUDA graph; on the CPU replayed operation by operation.
    The gradients are there when the objective returns; ``terms.total.backward()`` hands them to the parameters, and
    ``loss``, ``penalties`` and ``logits`` are plain numbers. It is traced anew for other shapes, modes and penalties, so a
    last batch that is smaller costs another compilation: use ``drop_last=True``. Control flow may depend on shapes and
    on ``model.training``, not on values. Random numbers come from a key that is drawn from the generator in each call.

    Attributes:
        inner: the engine that is compiled.
        codes: what was compiled for one model serves for others that differ from it in the values of their parameters and
            buffers alone, if their engines share this dictionary: for those who train one architecture again and again. It
            keeps all that was compiled, is not pickled, and a copied engine has none.

    Cost: that of the inner engine, without overhead; tens of seconds to compile on a GPU. Convolutions may gain from
    ``torch.backends.cudnn.benchmark = True``, set before the first of them.
    """

    name: ClassVar[str] = "compiled"

    inner: Engine = DoubleBackward()  # noqa: RUF009
    codes: dict[Any, Code] | None = field(default=None, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Without what was compiled, which belongs to this process."""
        return vars(self) | {"codes": None}

    def evaluate(self, model: Callable[..., Any], inputs: Inputs, *, wrt: Collection[str], how: Pass) -> Evaluation:
        return self.inner.evaluate(model, inputs, wrt=wrt, how=how)

    @property
    def traced(self) -> Engine:
        """The inner engine as it is traced. Autograd's own vectorised backward passes lose derivatives of our layers."""
        return replace(self.inner, transformed=True) if isinstance(self.inner, DoubleBackward) else self.inner

    def terms(
        self,
        whole: Whole,
        model: Any,
        data: Any,
        weights: dict[str, float],
        key: int,
        *,
        kept: dict[Any, Prepared],
        what: tuple[Any, ...],
        twice: bool,
        replays: bool,
        buffers: Sequence[Tensor] = (),
        optimizer: torch.optim.Optimizer | None = None,
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], Tensor]:
        """Total, loss, penalties and logits; the total gives its gradients to the parameters.

        Args:
            whole: what to compute.
            model: the module.
            data: inputs, targets and unlabelled inputs, in any nesting.
            weights: of the penalties that act, by name.
            key: for random numbers.
            kept: what was traced already, by all that it depends on; the caller's, so that it goes when the caller does.
            what: all that the graph depends on beside model, data and names, hashable.
            twice: whether a gradient is differentiated.
            replays: whether a forward pass is run again, and has to draw what it drew.
            buffers: that the step may change beside the model's: the loss's.
            optimizer: takes its step as part of the graph; the total then gives no gradients.
        """
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"engine='compiled' needs a torch.nn.Module, to find its parameters, and got {type(model).__name__}."
            )
        tensors, structure = pytree.tree_flatten(data)
        _check_data(tensors)

        def alike() -> tuple[Any, ...]:
            return self, _signature(model, tensors), str(structure), tuple(weights), what, twice

        def place() -> tuple[Any, ...]:
            return *alike(), model, optimizer, _state_of(optimizer), _places(model)

        now = place()
        prepared = kept.pop(now, None)
        if prepared is None:
            check_not_wrapped(model)
            check_not_compiled(model)
            own, codes = (alike(), _kind(model)), {}
            if self.codes is not None and not any(map(_is_changed, model.modules())):
                codes = self.codes
            with torch.inference_mode(False), unchanged(buffers):  # what is made there could not be trained with later
                prepared = Prepared(whole, model, tensors, structure, weights, twice, optimizer, codes.get(own))
            codes[own] = prepared.program.code
            if replays:
                self._check_draws_the_same(prepared)
            _make_room(kept)
            now = place()  # which tracing may have changed
        kept[now] = prepared  # the latest last
        return prepared(tensors, list(weights.values()), key)

    def _check_draws_the_same(self, prepared: Prepared) -> None:
        if draws(prepared.program.graph):
            raise DifferentiationError(
                "the model has random operations of its own (beside dropout), and this step runs it again, for "
                f"{self.inner.name!r} or a penalty with batch_norm='frozen' or 'running': inside 'compiled' the second pass "
                f"would draw other numbers. Use engine={self.inner.name!r} without 'compiled'."
            )


#: Graphs that an objective keeps.
MOST_GRAPHS = 8
_PLAIN = frozenset((bool, int, float, str))
NO_TRANSFORM = (
    "(If the step works with engine='double_backward', the compiled engine is in its way: it goes through torch.func, "
    "which has no way through recurrent layers, torch.utils.checkpoint, or a custom autograd function without "
    "setup_context. Use that engine, or leave them out of the model.)"
)


class Prepared:
    """One traced objective: where its inputs go and its outputs come from."""

    def __init__(
        self,
        whole: Whole,
        model: nn.Module,
        tensors: list[Any],
        structure: Any,
        weights: dict[str, float],
        twice: bool,
        optimizer: torch.optim.Optimizer | None = None,
        code: Code | None = None,
    ) -> None:
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ValueError("engine='compiled': the model has no parameter that requires a gradient, so nothing to train.")
        self.frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
        self.buffers = dict(model.named_buffers())
        self.model, self.whole, self.structure, self.names, self.twice = model, whole, structure, list(weights), twice
        self.data = [t.detach().clone() if isinstance(t, Tensor) else t for t in tensors]
        device = next(iter(self.parameters.values())).device
        self.weights = torch.tensor([*weights.values()] or [0.0], dtype=torch.float64, device=device)
        self.key = torch.zeros((), dtype=torch.long, device=device)
        self.inputs = [t for t in self.data if isinstance(t, Tensor)]
        with random_state_of(RandomState.now(device), device):  # what is only tried must not draw
            self.outputs = self._first_outputs()
        self.gradients = [torch.zeros_like(p) for p in self.parameters.values()]  # laid out as their parameters
        self._joined = optimizer is not None
        if optimizer is not None:
            _prepare(optimizer, self.parameters.values(), self.gradients)
        state = [*self.outputs, *self.gradients, *self.buffers.values()]
        try:
            after = None if optimizer is None else optimizer.step
            numbers = len(self.outputs)
            judged = range(numbers), range(numbers, numbers + len(self.gradients))
            with random_state_of(RandomState.now(device), device):
                self.program = Program(self._step, state, self._inputs(), judged=judged, after=after, code=code)
        except TraceError as error:
            raise DifferentiationError(
                f"{error}. The compiled engine needs a model whose control flow depends on shapes alone: use "
                "engine='double_backward', or move what depends on values out of the model."
            ) from error

    def __call__(
        self, tensors: list[Any], weights: list[float], key: int
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], Tensor]:
        for static, new in zip(self.data, tensors, strict=True):
            if isinstance(static, Tensor):
                static.copy_(new.detach())
        if weights:
            self.weights.copy_(torch.tensor(weights, dtype=torch.float64))
        self.key.fill_(key)
        self.program()
        # Copies: the next call overwrites what the graph put out, and this one's may still be wanted.
        logits, *numbers = (output.clone() for output in self.outputs)
        total, loss, *values = (number.squeeze(0) for number in numbers)
        named = dict(zip(self.names, values, strict=True))
        if not self._joined:
            copies = torch._foreach_mul(self.gradients, 1)
            total = _Known.apply(total, len(copies), *copies, *self.parameters.values())  # type: ignore[no-untyped-call]
        return total, loss, named, logits

    def _first_outputs(self) -> list[Tensor]:
        """Where the outputs go. Parameters that turn out to have no gradient count as frozen, as eager mode has it."""
        try:
            outputs, gradients, _ = self._compute(self._inputs(), self.buffers)
        except (DifferentiationError, torch.OutOfMemoryError):
            raise
        except RuntimeError as error:
            raise DifferentiationError(f"{error} {NO_TRANSFORM}") from error
        unused = [name for name, gradient in zip(self.parameters, gradients, strict=True) if gradient is None]
        self.frozen |= {name: self.parameters.pop(name) for name in unused}
        return [output.clone() for output in outputs]

    def _inputs(self) -> list[Tensor]:
        fixed = [*self.parameters.values(), *self.frozen.values()]
        return [*(t.detach() for t in fixed), *self.inputs, self.weights, self.key]

    def _step(self, state: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        buffers = dict(zip(self.buffers, state[len(self.outputs) + len(self.gradients) :], strict=True))
        outputs, gradients, changed = self._compute(inputs, buffers)
        for old, new in zip(state, [*outputs, *gradients, *changed.values()], strict=True):
            assert new is not None  # what has no gradient is not among the parameters any more
            old.copy_(new)

    def _compute(
        self, inputs: Sequence[Tensor], buffers: dict[str, Tensor]
    ) -> tuple[list[Tensor], Sequence[Tensor | None], dict[str, Tensor]]:
        left = iter(inputs)
        parameters = {name: next(left).detach().requires_grad_() for name in self.parameters}
        fixed = {name: next(left) for name in self.frozen}
        data = [next(left) if isinstance(t, Tensor) else t for t in self.data]
        weights, key = left
        buffers = {name: buffer.clone() for name, buffer in buffers.items()}
        with torch.enable_grad(), FastTwice() if self.twice else nullcontext():
            arguments = (pytree.tree_unflatten(data, self.structure), weights.unbind()[: len(self.names)], key)
            found, buffers = call_with(self.model, parameters | fixed | buffers, self.whole, *arguments)
            total, loss, values, logits = found
            if self.twice:
                begin_part_at_gradient(logits)  # derivatives of penalties are done then, up to the model's backward pass
            with torch.autocast(total.device.type, enabled=False):  # it is for forward passes: sums would turn single
                gradients = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
        # Numbers as vectors of one: torch.compile leaves out what is written to a double without dimensions.
        numbers = [tensor.detach().unsqueeze(0) for tensor in (total, loss, *(values[name] for name in self.names))]
        outputs = [logits.detach(), *numbers]
        return outputs, gradients, {name: buffers[name].detach() for name in self.buffers}


def _check_data(tensors: Sequence[Any]) -> None:
    for tensor in tensors:
        if not isinstance(tensor, (Tensor, Hashable)):
            raise TypeError(
                f"engine='compiled' takes tensors, numbers and words, and an input or target is a {type(tensor).__name__}: "
                "make it a tensor."
            )
        if isinstance(tensor, Tensor) and tensor.grad_fn is not None:
            raise DifferentiationError(
                f"an input is computed from other tensors ({tensor.grad_fn.name()}), and engine='compiled' gives gradients "
                "to the parameters of the model alone: make what computes it part of the model, detach it, or use another "
                "engine."
            )


def _make_room(kept: dict[Any, Prepared]) -> None:
    """Drop the graph that was not used for longest."""
    if len(kept) < MOST_GRAPHS:
        return
    warnings.warn(
        f"engine='compiled' has traced this objective for more than {MOST_GRAPHS} shapes, models or Python numbers and "
        "forgets the oldest: each that comes again is traced again, which is slow. Pad batches to a few shapes, use "
        "drop_last=True, and pass numbers that change as tensors.",
        stacklevel=2,
    )
    kept.pop(next(iter(kept)))


def _state_of(optimizer: torch.optim.Optimizer | None) -> tuple[int, ...]:
    """Which tensors the graph writes the optimizer's state to: ``load_state_dict`` puts others in their place."""
    if optimizer is None:
        return ()
    return tuple(
        value.data_ptr() for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)
    )


def _prepare(optimizer: torch.optim.Optimizer, parameters: Iterable[Tensor], gradients: Iterable[Tensor]) -> None:
    """Let the optimizer read the gradients where the graph writes them, and have its state before the capture."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None  # left from before: it would be taken for one of this step
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    _start(optimizer)


def _start(optimizer: torch.optim.Optimizer) -> None:
    """Make the state, where there is none, with a step: what is made during a capture would be made again in every step."""
    trained = [(p, p.grad) for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    new = {id(p) for p, _ in trained if not optimizer.state.get(p)}
    if not new:
        return
    before = [(p, p.detach().clone()) for p, _ in trained]
    for p, gradient in trained:
        p.grad = torch.zeros_like(gradient) if id(p) in new else None  # the state of the others stays as it is
    optimizer.step()
    with torch.no_grad():
        for p, value in before:
            p.copy_(value)
    for p, gradient in trained:
        p.grad = gradient
        for entry in optimizer.state[p].values() if id(p) in new else ():
            if isinstance(entry, Tensor):
                entry.zero_()


class _Known(Function):
    """A number whose gradients are known already."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, number: int, *gradients_and_parameters: Tensor) -> Tensor:
        ctx.save_for_backward(*gradients_and_parameters[:number])
        return total.clone()

    @staticmethod
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        gradients = torch._foreach_mul(list(ctx.saved_tensors), factor)
        return None, None, *[None] * len(gradients), *gradients


class Same:
    """An object as part of a key: like itself alone, and there as long as the key is, so that no other takes its address."""

    def __init__(self, thing: object) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


def plain_attributes(module: nn.Module) -> list[Any]:
    """Numbers and words that a module keeps, which become part of the graph: modes, rates, strides."""
    return [value for value in vars(module).values() if type(value) in _PLAIN or _is_plain_tuple(value)]


def _is_plain_tuple(value: object) -> bool:
    return type(value) is tuple and all(type(one) in _PLAIN for one in value)


def _signature(model: nn.Module, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """What a traced graph depends on but for values, and for what the model computes with which parameters."""
    shapes = [_look(t) if isinstance(t, Tensor) else t for t in tensors]
    modes = [value for module in model.modules() for value in plain_attributes(module)]
    device = tensors[0].device.type if tensors and isinstance(tensors[0], Tensor) else "cpu"
    precision = (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device), torch.get_float32_matmul_precision())
    return tuple(shapes), tuple(modes), precision


def _look(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _places(model: nn.Module) -> tuple[Any, ...]:
    """Where the graph finds the parameters and buffers."""
    places = [(id(p), p.data_ptr(), p.dtype, p.requires_grad) for p in model.parameters()]
    return *places, *((0, b.data_ptr(), b.dtype, False) for b in model.buffers()), *map(_code, model.modules())


def _code(module: nn.Module) -> tuple[Any, ...]:
    """What a module computes, as far as it may be exchanged: its class, its hooks and a ``forward`` of its own."""
    hooks = *module._forward_pre_hooks, *module._forward_hooks  # by numbers that are given once
    return type(module), hooks, id(vars(module).get("forward"))


def _kind(model: nn.Module) -> tuple[Any, ...]:
    """What a model is, as far as can be seen: its modules as they print themselves, its parameters and buffers."""
    parameters = [(name, p.requires_grad, *_look(p)) for name, p in model.named_parameters()]
    buffers = [(name, False, *_look(b)) for name, b in model.named_buffers()]
    return *map(type, model.modules()), repr(model), *parameters, *buffers


def _is_changed(module: nn.Module) -> bool:
    """Whether it has hooks, or a ``forward`` of its own, which may do anything; but for PyTorch's own norms."""
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    return "forward" in vars(module) or any(not type(hook).__module__.startswith("torch.nn.utils") for hook in hooks)
