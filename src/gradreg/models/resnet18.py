"""ResNet-18 for TinyImageNet."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Generator, Tensor, nn

from gradreg.models.init import initialise


class ProjectedBlock(nn.Module):
    """The basic block of He et al.: conv-bn-ReLU-conv-bn, with a 1 x 1 convolution as shortcut where the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, track_running_stats: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels, track_running_stats=track_running_stats)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels, track_running_stats=track_running_stats)
        self.shortcut = nn.Sequential()
        if stride > 1 or in_channels != out_channels:
            self.shortcut.append(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(out_channels, track_running_stats=track_running_stats))

    def forward(self, x: Tensor) -> Tensor:
        residual = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(residual + self.shortcut(x))


def resnet18(
    num_classes: int = 200,
    in_channels: int = 3,
    *,
    track_running_stats: bool = True,
    generator: Generator | None = None,
) -> nn.Sequential:
    """ResNet-18 with the stem for ImageNet, 11 279 112 parameters for 200 classes (the paper's appendix B).

    The authors published no code for TinyImageNet, so batch norm is the ordinary one, with running averages.

    Args:
        num_classes: length of the output.
        in_channels: channels of the images, 64 x 64 or larger.
        track_running_stats: evaluate batch norm with running averages, or with batch statistics.
        generator: draws the initial weights.

    >>> sum(p.numel() for p in resnet18().parameters())
    11279112
    """
    model = nn.Sequential()
    model.add_module("conv", nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False))
    model.add_module("bn", nn.BatchNorm2d(64, track_running_stats=track_running_stats))
    model.add_module("relu", nn.ReLU())
    model.add_module("max_pool", nn.MaxPool2d(3, stride=2, padding=1))
    width = 64
    for level, new_width in enumerate((64, 128, 256, 512)):
        stride = 2 if level > 0 else 1
        model.add_module(f"level{level + 1}_1", ProjectedBlock(width, new_width, stride, track_running_stats))
        model.add_module(f"level{level + 1}_2", ProjectedBlock(new_width, new_width, 1, track_running_stats))
        width = new_width
    model.add_module("pool", nn.AdaptiveAvgPool2d(1))
    model.add_module("flatten", nn.Flatten())
    model.add_module("dense", nn.Linear(width, num_classes))
    initialise(model, generator)
    return model
