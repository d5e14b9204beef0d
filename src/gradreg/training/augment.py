"""Images moved and mirrored at random."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gradreg.draws import Draws

#: Pixels that an image may move in each direction.
REACH = 4


def moved_and_mirrored(x: Tensor, draws: Draws) -> Tensor:
    """Every image moved by up to four pixels, with zeros where nothing was, and mirrored in half of the cases.

    The usual augmentation of CIFAR, on images ``[batch, channels, height, width]``.

    >>> moved_and_mirrored(torch.ones(5, 3, 8, 8), Draws.of_seed(0)).shape
    torch.Size([5, 3, 8, 8])
    """
    batch, _, height, width = x.shape
    top, left = draws.at("move").integers(2 * REACH + 1, 2, batch, 1, device=x.device)
    mirrored = draws.at("mirror").integers(2, batch, 1, device=x.device) == 1
    columns = torch.arange(width, device=x.device)
    rows = top + torch.arange(height, device=x.device)
    columns = left + torch.where(mirrored, width - 1 - columns, columns)
    padded = F.pad(x, (REACH,) * 4).permute(0, 2, 3, 1)
    numbers = torch.arange(batch, device=x.device)[:, None, None]
    return padded[numbers, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
