"""What a penalty may see of one evaluated batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor

from gradreg.recorded_graph import custom_function, nodes_between
from gradreg.sources import GeneratorSource, Source

#: Cotangents ``[num, batch, *output]`` to one gradient ``[num, batch, *point]`` for every tensor differentiated by.
VJP = Callable[[Tensor], Sequence[Tensor]]


@dataclass(frozen=True)
class JVP:
    """The Jacobian-vector product ``t -> J t``, differentiable by the parameters.

    Attributes:
        points: the tensors differentiated by, each with the batch first.
        product: from one tangent ``[num, *point.shape]`` for each point to ``[num, batch, *output]``.
    """

    points: Sequence[Tensor]
    product: Callable[[Sequence[Tensor]], Tensor]

    def __call__(self, tangents: Sequence[Tensor]) -> Tensor:
        return self.product(tangents)


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One batch after its forward pass, as a penalty sees it.

    A penalty reads tensors and calls functions of this object and never touches autograd,
    so it works unchanged under every engine.

    Attributes:
        logits: the model's output, ``[batch, *output]``.
        vjp: the vector-Jacobian product ``c -> J^T c`` of the logits, batched over the first dimension of ``c``;
            differentiable, unless there is a ``jvp``.
        jvp: the Jacobian-vector product, from engines that differentiate it instead.
        targets: the labels, or None for unlabelled data.
        loss_gradient: gives the derivative of each example's loss by its logits, ``[batch, *output]``.
        source: where random draws come from; by default PyTorch's global generator. Draw through ``normal``, ``signs`` and
            ``integers``.
        class_dim: the dimension of the logits that holds the classes; negative counts from the end.
        ignored_label: the label that the loss leaves out, where it has one.
        exclusive: whether an example is of one class only, as a softmax has it; not if the loss reads each output by itself.
        parameters: the model's trainable parameters by name.
    """

    logits: Tensor
    vjp: VJP | None = None
    jvp: JVP | None = None
    targets: Any = None
    loss_gradient: Callable[[], Tensor] | None = None
    source: Source = field(default_factory=GeneratorSource)
    class_dim: int = 1
    ignored_label: int | None = None
    exclusive: bool = True
    parameters: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.class_dim < 0 and self.logits.ndim > 1:
            object.__setattr__(self, "class_dim", self.class_dim + self.logits.ndim)
        if self.class_dim < 1 and self.logits.ndim > 1:
            raise ValueError(f"class_dim points to the batch of an output of shape {tuple(self.logits.shape)}: use 1 or -1.")

    @property
    def batch_size(self) -> int:
        return self.logits.shape[0]

    @property
    def output_shape(self) -> torch.Size:
        """Shape of one example's output, without the batch."""
        return self.logits.shape[1:]

    @property
    def num_outputs(self) -> int:
        """How many numbers the model puts out for one example: the paper's m."""
        return self.output_shape.numel()

    def check_classes(self) -> None:
        """Raise where the output has no class dimension, or several classes may hold at once."""
        if not self.exclusive:
            raise ValueError(
                "the loss reads each output by itself (several labels may hold at once), and this penalty takes a softmax "
                "over them. Use SpectReg, FrobReg or DoubleBack."
            )
        if not 1 <= self.class_dim < self.logits.ndim or self.logits.shape[self.class_dim] < 2:
            raise ValueError(
                f"the output has shape {tuple(self.logits.shape)}, which holds no classes in dimension {self.class_dim}: "
                "this penalty needs class logits. Use SpectReg, FrobReg or DoubleBack for regression, or set class_dim."
            )

    def probabilities(self) -> Tensor:
        """Softmax of the logits over the class dimension."""
        return self.log_probabilities().exp()

    def log_probabilities(self) -> Tensor:
        """Log-softmax of the logits over the class dimension."""
        self.check_classes()
        return self.logits.log_softmax(self.class_dim)

    def one_hot_targets(self) -> Tensor:
        """The integer labels as one-hot vectors in the class dimension, shaped like the logits.

        Zero where a label is negative, or the one that the loss ignores.
        """
        labels = self._integer_targets().unsqueeze(self.class_dim)
        known = labels >= 0 if self.ignored_label is None else (labels >= 0) & (labels != self.ignored_label)
        return torch.zeros_like(self.logits).scatter(self.class_dim, labels * known, known.to(self.logits.dtype))

    def _integer_targets(self) -> Tensor:
        self.check_classes()
        expected = self.logits.select(self.class_dim, 0).shape
        targets = self.targets
        if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.shape != expected:
            found = f"{targets.dtype} {tuple(targets.shape)}" if isinstance(targets, Tensor) else type(targets).__name__
            raise ValueError(
                f"targets are {found}, and this penalty needs integer class labels of shape {tuple(expected)}. "
                "Pass class indices, or use a penalty that needs no labels, such as SpectReg."
            )
        return targets.long()

    def normal(self, *shape: int) -> Tensor:
        """Standard normal draws. Single precision whatever the model's, so that a seed means the same in every dtype."""
        return self.source.normal(*shape, device=self.logits.device).to(self.logits.dtype)

    def integers(self, high: int, *shape: int) -> Tensor:
        """Integers drawn uniformly from 0 to ``high - 1``."""
        return self.source.integers(high, *shape, device=self.logits.device)

    def signs(self, *shape: int) -> Tensor:
        """1 and -1 with equal probability."""
        return (2 * self.integers(2, *shape) - 1).to(self.logits.dtype)


#: Cotangents in one vectorised backward pass on the CPU, and numbers in the points to differentiate by up to which they
#: share one. Larger layers do not fit into its caches so often (benchmarks/rows.py).
ROWS_AT_ONCE, SMALL = 10, 10_000


def split_rows(cotangents: Tensor, points: Sequence[Tensor]) -> Sequence[Tensor]:
    """The cotangents in parts, each of which is fastest in one vectorised backward pass."""
    if cotangents.device.type != "cpu":
        return [cotangents]
    return torch.split(cotangents, ROWS_AT_ONCE if sum(point.numel() for point in points) <= SMALL else 1)


def autograd_vjp(outputs: Tensor, points: Sequence[Tensor], *, differentiable: bool = True) -> VJP:
    """``c -> J^T c`` of ``outputs`` by ``points``, itself differentiable: the textbook double backward.

    Several cotangents go through one vectorised backward pass, or one after the other where an operation cannot be
    vectorised (convolutions in the channels-last format, for one), and where a custom autograd function is on the way: what
    its ``vmap`` computes is differentiated by the cotangents alone, without a word. A point that the outputs do not depend
    on has gradient zero; it is an error when that holds for all of them.
    """

    def gradients(cotangents: Tensor, batched: bool) -> list[Tensor]:
        with torch.autocast(outputs.device.type, enabled=False):  # it is for forward passes
            found: Sequence[Tensor | None] = torch.autograd.grad(
                outputs,
                points,
                cotangents,
                create_graph=differentiable,
                retain_graph=True,
                is_grads_batched=batched,
                allow_unused=True,
            )
        if all(gradient is None for gradient in found):
            raise ValueError(NO_PATH)
        lead = cotangents.shape[:1] if batched else ()
        zeros = [torch.zeros((), dtype=p.dtype, device=p.device).expand(*lead, *p.shape) for p in points]
        return [zero if gradient is None else gradient for gradient, zero in zip(found, zeros, strict=True)]

    def loses_derivatives() -> bool:
        return differentiable and any(map(custom_function, nodes_between(outputs, points)))

    def at_once(cotangents: Tensor) -> Sequence[Tensor]:
        if len(cotangents) > 1 and not loses_derivatives():
            try:
                return gradients(cotangents, batched=True)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:
                pass  # if it is not the vectorisation, the next line raises it again
        rows = [gradients(cotangent, batched=False) for cotangent in cotangents]
        return [torch.stack(of_one_point) for of_one_point in zip(*rows, strict=True)]

    def vjp(cotangents: Tensor) -> Sequence[Tensor]:
        first, *others = [at_once(part) for part in split_rows(cotangents, points)]
        return [torch.cat(of_one_point) for of_one_point in zip(first, *others, strict=True)] if others else first

    if not outputs.requires_grad:
        raise ValueError(NO_PATH)
    return vjp


NO_PATH = (
    "the output does not depend on the tensor to differentiate by, so there is no gradient to penalise. "
    "The forward pass may detach it, run under torch.no_grad() or round it to integers: "
    "remove that, or name a module after that place in wrt."
)


def probe_of(
    logits: Tensor,
    inputs: Tensor | Sequence[Tensor],
    *,
    targets: Any = None,
    generator: Generator | None = None,
    class_dim: int = 1,
) -> Probe:
    """The probe of a forward pass that the caller ran, with ``inputs.requires_grad_()`` set before it."""
    points = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    for point in points:
        if not point.requires_grad:
            raise ValueError(
                "inputs.requires_grad is False, so PyTorch recorded no path from the inputs to the output. "
                "Call inputs.requires_grad_() before the forward pass, or let gradreg.Objective own it."
            )
        if point.shape[:1] != logits.shape[:1]:
            raise ValueError(
                f"inputs have shape {tuple(point.shape)} and the output {tuple(logits.shape)}: "
                "both must have the same batch size in dimension 0."
            )
    return Probe(
        logits=logits,
        vjp=autograd_vjp(logits, points),
        targets=targets,
        source=GeneratorSource(generator),
        class_dim=class_dim,
    )
