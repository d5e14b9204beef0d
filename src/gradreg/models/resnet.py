"""The residual network of the paper's CIFAR experiments."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Generator, Tensor, nn

from gradreg.models.init import initialise


class PaddedBlock(nn.Module):
    """conv-bn-ReLU-conv-bn, added to the input, then ReLU.

    The shortcut has no parameters: average-pooled where the block strides, padded with zero channels where it widens.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, track_running_stats: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1)
        self.bn1 = nn.BatchNorm2d(out_channels, track_running_stats=track_running_stats)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(out_channels, track_running_stats=track_running_stats)
        self.stride = stride
        self.widening = out_channels - in_channels

    def forward(self, x: Tensor) -> Tensor:
        residual = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        shortcut = F.avg_pool2d(x, self.stride) if self.stride > 1 else x
        return F.relu(residual + F.pad(shortcut, (0, 0, 0, 0, 0, self.widening)))


def resnet(
    num_classes: int = 10,
    in_channels: int = 3,
    *,
    widths: tuple[int, ...] = (48, 96, 192),
    blocks_per_level: int = 3,
    track_running_stats: bool = False,
    generator: Generator | None = None,
) -> nn.Sequential:
    """The CIFAR ResNet of the paper: three levels of three blocks, 2 414 794 parameters for 10 classes (appendix B).

    Args:
        num_classes: length of the output.
        in_channels: channels of the images; any size that halves once a level works.
        widths: filters of each level.
        blocks_per_level: residual blocks of each level.
        track_running_stats: evaluate batch norm with running averages; the authors used batch statistics at test time too.
        generator: draws the initial weights.

    >>> sum(p.numel() for p in resnet().parameters())
    2414794
    """
    model = nn.Sequential()
    model.add_module("conv", nn.Conv2d(in_channels, widths[0], 3, padding=1))
    model.add_module("bn", nn.BatchNorm2d(widths[0], track_running_stats=track_running_stats))
    model.add_module("relu", nn.ReLU())
    width = widths[0]
    for level, new_width in enumerate(widths):
        for block in range(blocks_per_level):
            stride = 2 if level > 0 and block == 0 else 1
            model.add_module(f"level{level + 1}_{block + 1}", PaddedBlock(width, new_width, stride, track_running_stats))
            width = new_width
    model.add_module("pool", nn.AdaptiveAvgPool2d(1))
    model.add_module("flatten", nn.Flatten())
    model.add_module("dense", nn.Linear(width, num_classes))
    initialise(model, generator)
    return model
