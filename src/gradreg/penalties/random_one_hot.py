"""RandomOneHot: one logit, chosen at random."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from gradreg.penalties.base import GradientPenalty
from gradreg.penalties.norm import Norm
from gradreg.penalties.probe import Probe, probe_of


def random_one_hot(
    logits: Tensor,
    inputs: Tensor | Sequence[Tensor],
    *,
    per_example: bool = True,
    norm: Norm = "squared_l2",
    generator: Generator | None = None,
) -> Tensor:
    r"""Squared norm of the gradient of one random logit, :math:`m \lVert \partial g_k(x_i) / \partial x_i \rVert_2^2`.

    Args:
        logits: the model's output, ``[batch, *output]``.
        inputs: what it was computed from, with ``requires_grad_()`` set before the forward pass.
        per_example: draw the logit for every example rather than once for the batch.
        norm: ``"squared_l2"``, ``"l2"``, ``"l1"`` or a :class:`~gradreg.TargetSlope`.
        generator: where the logit is drawn from; None means PyTorch's global generator.

    Returns:
        One unweighted value for each example, ``[batch]``.

    >>> import torch
    >>> x = torch.randn(1, 3, requires_grad=True)
    >>> round(random_one_hot(5 * x, x).item(), 3)  # all three logits have squared gradient 25
    75.0
    """
    return RandomOneHot(weight=1.0, per_example=per_example, norm=norm)(probe_of(logits, inputs, generator=generator))


@dataclass(frozen=True, kw_only=True, repr=False)
class RandomOneHot(GradientPenalty):
    r"""Penalise the input gradient of one logit, chosen uniformly at random.

    .. math:: \lVert J_g(x)^T \sqrt{m}\, e_k \rVert_2^2, \qquad k \sim U\{1, \dots, m\}

    The paper's RandomOneHot (in its source, section 2.1, left out of the published text). The factor
    :math:`\sqrt m` makes the covariance the identity, so that it estimates :class:`FrobReg`, with more variance than
    :class:`SpectReg`. (The authors' code left the factor out, and never drew the last class.)

    Attributes:
        per_example: draw k for every example, as the authors' code, rather than once for the batch.

    Needs no labels. Per-example value; reduced by mean over the batch. One extra backward pass, differentiated twice.
    Takes the options of :class:`~gradreg.penalties.GradientPenalty`.

    >>> import gradreg as gr, torch, torch.nn.functional as F
    >>> model, x, y = torch.nn.Linear(4, 3), torch.randn(8, 4), torch.randint(3, (8,))
    >>> terms = gr.Objective(F.cross_entropy, gr.RandomOneHot(weight=0.03))(model, x, y)
    >>> terms.total.backward()
    """

    name: ClassVar[str] = "random_one_hot"
    isotropic: ClassVar[bool] = True

    per_example: bool = True

    def cotangents(self, probe: Probe) -> Tensor:
        num_draws = probe.batch_size if self.per_example else 1
        drawn = probe.integers(probe.num_outputs, num_draws, 1)
        chosen = drawn == torch.arange(probe.num_outputs, device=drawn.device)
        return math.sqrt(probe.num_outputs) * chosen.to(probe.logits.dtype).reshape(1, num_draws, *probe.output_shape)
