"""Attention in plain operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

#: Of the probabilities, at this rate.
Dropout = Callable[[Tensor, float], Tensor]


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    dropout: Dropout = F.dropout,
) -> Tensor:
    """``F.scaled_dot_product_attention``, differentiable any number of times, inside transforms and autocast alike.

    PyTorch's own takes some of its products inside autocast and some outside when it is transformed, and fails. Rows that
    may attend to nothing give zero.
    """
    if is_causal and attn_mask is not None:
        raise ValueError("attention: is_causal=True and an attn_mask were given, and only one may be: put both in the mask.")
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    probabilities = scores.softmax(-1) if attn_mask is None else _softmax(_masked(scores, attn_mask))
    if dropout_p:
        probabilities = dropout(probabilities, dropout_p)
    return probabilities.to(value.dtype) @ value


class _Users:
    """Who needs the MATH kernel now. The flags that choose it are the process's, and threads come and go in any order."""

    lock, number, flags = Lock(), 0, ExitStack()


@contextmanager
def math_attention() -> Iterator[None]:
    """Attention on PyTorch's ``MATH`` kernel, the only one with all derivatives; the last to leave puts the flags back."""
    with _Users.lock:
        if _Users.number == 0:
            _Users.flags.enter_context(sdpa_kernel(SDPBackend.MATH))
        _Users.number += 1
    try:
        yield
    finally:
        with _Users.lock:
            _Users.number -= 1
            if _Users.number == 0:
                _Users.flags.close()


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask


def _softmax(scores: Tensor) -> Tensor:
    nothing = (scores == -math.inf).all(-1, keepdim=True)
    return scores.masked_fill(nothing, 0).softmax(-1).masked_fill(nothing, 0)
