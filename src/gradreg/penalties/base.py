"""The two abstract kinds of penalty: any, and those on a projection of the logits' Jacobian."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from numbers import Real
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gradreg.parts import begin_part, begin_part_at_gradient
from gradreg.penalties.norm import Norm, check_norm, power_sum, size, wide
from gradreg.penalties.probe import Probe
from gradreg.penalties.schedule import ALWAYS, Schedule

BatchNorm = Literal["train", "frozen", "running"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Penalty(ABC):
    """A term added to the loss: ``weight`` times the batch mean of ``penalty(probe)``.

    Attributes:
        name: under which its value is found; that of the class in snake case, unless the class has its own.
        weight: the paper's lambda. Zero switches the penalty off at no cost.
        schedule: warm-up and lazy application.
    """

    name: ClassVar[str]

    weight: float
    schedule: Schedule = ALWAYS

    def __init_subclass__(cls) -> None:
        if not hasattr(cls, "name") and cls.__module__ != __name__:  # GradientPenalty has none to pass on
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    def __post_init__(self) -> None:
        if not isinstance(self.weight, Real):
            raise TypeError(
                f"{type(self).__name__}: weight={self.weight!r} must be a number, not {type(self.weight).__name__}."
            )
        if not isinstance(self.weight, (int, float)):
            object.__setattr__(self, "weight", float(self.weight))  # numpy's numbers cannot be written to records
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise ValueError(
                f"{type(self).__name__}: weight={self.weight!r} must be a finite number of at least 0: "
                "a negative weight would reward what it should penalise. Use weight=0 to switch the penalty off."
            )

    def __repr__(self) -> str:
        """As it would be written: without what is left at its default."""
        given = [f"{f.name}={value!r}" for f in fields(self) if (value := getattr(self, f.name)) != f.default]
        return f"{type(self).__name__}({', '.join(given)})"

    @abstractmethod
    def __call__(self, probe: Probe) -> Tensor:
        """The unweighted value for each example, ``[batch]`` (or a scalar, for penalties of the parameters alone)."""


@dataclass(frozen=True, kw_only=True, repr=False)
class GradientPenalty(Penalty):
    r"""The norm of a projection of the logits' Jacobian, :math:`\lVert J_g(x)^T c \rVert`.

    All gradient penalties of the paper have this form (its section 2.4) and differ only in the cotangents
    :math:`c` they project on. To add one, give its ``cotangents``; the rest is shared:

    Attributes:
        wrt: what to differentiate by: ``"input"`` (every floating-point input), ``"input.<key>"`` (one of several
            inputs, by its key or position), or the name of a submodule, for its output (hidden activations, or the
            embeddings of a text model).
        forward: ``"shared"`` differentiates the loss's own forward pass, or one with the same dropout mask where
            ``batch_norm`` asks for another; ``"fresh"`` runs one with its own mask, as the authors' code did for all
            penalties but DoubleBack. Costs one forward pass.
        batch_norm: ``"train"`` leaves the layers in the mode of the loss's pass, as the paper: in training mode the
            gradient runs through the batch statistics and so across examples. ``"frozen"`` takes the same statistics
            as constants, ``"running"`` the running averages; both need a forward pass of their own.
            Whichever is chosen, running statistics are updated once a step, by the loss's pass.
        norm: ``"squared_l2"`` (the paper), ``"l2"``, ``"l1"``, or a :class:`~gradreg.TargetSlope`.
        fraction: share of the batch, drawn at random, to penalise: the mean over the part has the same expectation as
            the mean over the batch (batch norm in training mode then sees the part's statistics). It runs a forward
            pass of its own on that part, with its own dropout mask, so that a small fraction costs little.
        chunk_size: how many cotangents to differentiate at once; None means all. Chunks are recomputed in the
            backward pass, so that peak memory is that of one chunk, for twice the work.
    """

    #: Whether it reads labels, and so cannot use unlabelled data.
    needs_targets: ClassVar[bool] = False
    #: Whether the rows together are one gradient (a Jacobian), rather than samples to average.
    rows_are_one_jacobian: ClassVar[bool] = False
    #: Whether the sum of ``c c^T`` over the rows is the identity in the mean, so that the penalty estimates FrobReg.
    isotropic: ClassVar[bool] = False

    wrt: str = "input"
    forward: Literal["shared", "fresh"] = "shared"
    batch_norm: BatchNorm = "train"
    norm: Norm = "squared_l2"
    fraction: float = 1.0
    chunk_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_norm(self.norm)
        if not isinstance(self.wrt, str):
            raise TypeError(f"wrt={self.wrt!r} must be a name: 'input', or that of a module in model.named_modules().")
        if self.forward not in ("shared", "fresh"):
            raise ValueError(f"forward={self.forward!r} is unknown: choose 'shared' or 'fresh'.")
        if self.batch_norm not in ("train", "frozen", "running"):
            raise ValueError(f"batch_norm={self.batch_norm!r} is unknown: choose 'train', 'frozen' or 'running'.")
        if not isinstance(self.fraction, Real) or not 0 < self.fraction <= 1:
            raise ValueError(f"fraction={self.fraction!r} must be above 0 and at most 1: it is a share of the batch.")
        if self.chunk_size is not None and (not isinstance(self.chunk_size, int) or self.chunk_size < 1):
            raise ValueError(f"chunk_size={self.chunk_size!r} must be at least 1 and whole, or None for all at once.")

    @property
    def own_pass(self) -> bool:
        """Whether it penalises another function than the loss was computed with, and so needs a second forward pass."""
        return self.forward == "fresh" or self.batch_norm != "train" or self.fraction < 1

    @property
    def same_mask(self) -> bool:
        """Whether a pass of its own is to have the dropout mask of the loss's."""
        return self.own_pass and self.forward == "shared" and self.fraction == 1

    @property
    def num_samples(self) -> int:
        """How many random tangents an engine that estimates is to average over."""
        return 1

    @abstractmethod
    def cotangents(self, probe: Probe) -> Tensor:
        """What to project on, ``[num, batch, *output]``, or ``[num, 1, *output]`` if shared by the batch."""

    def __call__(self, probe: Probe) -> Tensor:
        """The unweighted value for each example, ``[batch]``."""
        if probe.vjp is None and probe.jvp is None:
            raise ValueError(
                f"{type(self).__name__} needs gradients, and this probe has none: evaluate it with an Objective."
            )
        if probe.jvp is None:
            return self._differentiated_twice(probe)
        return self._by_tangents_of_the_gradient(probe) if probe.vjp is not None else self._estimated(probe)

    def _differentiated_twice(self, probe: Probe) -> Tensor:
        assert probe.vjp is not None
        return self._value(row_powers(probe, self._full_cotangents(probe), self.norm, self.chunk_size))

    def _by_tangents_of_the_gradient(self, probe: Probe) -> Tensor:
        r"""The value from a plain gradient :math:`u = J^T c`, its derivative from a product with the Jacobian.

        :math:`d\, \phi(J^T c) = d \langle c, J t \rangle` with :math:`t = \nabla \phi(u)` held constant: no gradient is
        differentiated. Both sides agree for the mean over the batch, which is what an objective takes.
        """
        assert probe.vjp is not None
        assert probe.jvp is not None
        c = self._full_cotangents(probe)
        u = tuple(gradient.detach() for gradient in probe.vjp(c.detach()))
        tangents, value = torch.func.grad(self._sum_and_values, has_aux=True)(u)
        slope = _of_examples(wide(c) * wide(probe.jvp([t.detach() for t in tangents]))).sum(0)
        values: Tensor = value.detach()
        return values + (slope - slope.detach())

    def _sum_and_values(self, gradients: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        values = self._value(power_sum(gradients, self.norm))
        return values.sum(), values

    def _estimated(self, probe: Probe) -> Tensor:
        r"""Estimate from random tangents, unbiased: :math:`\mathbb{E}_t \langle c, J t \rangle^2 = \lVert J^T c \rVert^2`.

        Where the cotangents are random with identity covariance, their mean is taken exactly:
        :math:`\mathbb{E}_c \langle c, J t \rangle^2 = \lVert J t \rVert_2^2`.
        """
        assert probe.jvp is not None
        if self.norm != "squared_l2":
            raise ValueError(
                f"{type(self).__name__}: norm={self.norm!r} cannot be estimated from random tangents without bias. "
                "Use norm='squared_l2', or another engine than 'forward'."
            )
        num = self.num_samples
        products = wide(probe.jvp([probe.signs(num, *point.shape).to(point.dtype) for point in probe.jvp.points]))
        if self.isotropic:
            return _of_examples(products.square()).mean(0)
        return self._value(_of_examples(self._full_cotangents(probe) * products).square())

    def _value(self, rows: Tensor) -> Tensor:
        """From the power sums of the rows, ``[num, batch]``, to the value of each example."""
        if self.rows_are_one_jacobian:
            rows = rows.sum(0, keepdim=True)
        return size(rows, self.norm).mean(0)

    def _full_cotangents(self, probe: Probe) -> Tensor:
        cotangents = self.cotangents(probe)
        return cotangents.expand(len(cotangents), *probe.logits.shape)


def _of_examples(products: Tensor) -> Tensor:
    """Sums over the outputs, ``[num, batch]``."""
    return products.reshape(*products.shape[:2], -1).sum(2)


def row_powers(probe: Probe, cotangents: Tensor, norm: Norm, chunk_size: int | None) -> Tensor:
    """Power sums of the gradient of every cotangent and example, ``[num, batch]``, chunk by chunk."""
    vjp = probe.vjp
    assert vjp is not None

    def one_chunk(chunk: Tensor) -> Tensor:
        return power_sum(vjp(chunk), norm)

    if chunk_size is None or chunk_size >= len(cotangents):
        return one_chunk(cotangents)
    chunks = torch.split(cotangents, chunk_size)
    if torch._C._functorch.maybe_current_level() is not None:  # inside a transform, which cannot be checkpointed
        return torch.cat([one_chunk(chunk) for chunk in chunks])
    # Without rematerialisation every chunk's graph would stay alive until the backward pass, and chunks would save nothing.
    return torch.cat([_recomputed(one_chunk, chunk) for chunk in chunks])


def _recomputed(function: Callable[[Tensor], Tensor], chunk: Tensor) -> Tensor:
    """Computed once for its value, and again for its derivatives; each time a part of its own in a traced step."""
    begin_part()
    values: Tensor = checkpoint(function, chunk, use_reentrant=False, preserve_rng_state=False)
    begin_part_at_gradient(values)
    return values
