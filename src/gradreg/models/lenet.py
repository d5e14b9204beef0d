"""LeNet-5 as the paper trains it on MNIST."""

from __future__ import annotations

from collections import OrderedDict

from torch import Generator, nn

from gradreg.models.init import initialise


def lenet(
    num_classes: int = 10,
    in_channels: int = 1,
    *,
    dropout: float = 0.5,
    batch_norm: bool = False,
    track_running_stats: bool = False,
    generator: Generator | None = None,
) -> nn.Sequential:
    """LeNet-5 for 28 x 28 images, 61 706 parameters (the paper's appendix B).

    Args:
        num_classes: length of the output.
        in_channels: channels of the images.
        dropout: rate after the dense hidden layer; 0 leaves it out.
        batch_norm: put batch norm in the place of dropout, after the ReLU of the dense hidden layer, as the authors.
        track_running_stats: evaluate batch norm with running averages; the authors used batch statistics at test time too.
        generator: draws the initial weights.

    >>> sum(p.numel() for p in lenet().parameters())
    61706
    """
    last = nn.BatchNorm1d(84, track_running_stats=track_running_stats) if batch_norm else nn.Dropout(dropout)
    model = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(in_channels, 6, 5, padding=2),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(6, 16, 5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            conv3=nn.Conv2d(16, 120, 5),
            relu3=nn.ReLU(),
            flatten=nn.Flatten(),
            dense1=nn.Linear(120, 84),
            relu4=nn.ReLU(),
            regularize=last,
            dense2=nn.Linear(84, num_classes),
        )
    )
    initialise(model, generator)
    return model
