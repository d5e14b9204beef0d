"""LeNet-5 as the paper trains it on MNIST."""

from __future__ import annotations

from collections import OrderedDict

from torch import Generator, nn

from gradreg.models.init import initialise


def lenet(
    num_classes: int = 10,
    in_channels: int = 1,
    *,
    image_size: tuple[int, int] = (28, 28),
    dropout: float = 0.5,
    batch_norm: bool = False,
    track_running_stats: bool = False,
    width: int = 1,
    generator: Generator | None = None,
) -> nn.Sequential:
    """LeNet-5, with 61 706 parameters for 28 x 28 images (the paper's appendix B).

    Args:
        num_classes: length of the output.
        in_channels: channels of the images.
        image_size: height and width. Below 20 pixels the kernels are 3 wide instead of 5, and keep the size.
        dropout: rate after the dense hidden layer.
        batch_norm: put batch norm in the place of dropout, after the ReLU of the dense hidden layer, as the authors.
        track_running_stats: evaluate batch norm with running averages; the authors used batch statistics at test time too.
        width: factor of the number of filters and hidden units; the paper's network has 1.
        generator: draws the initial weights.

    >>> sum(p.numel() for p in lenet().parameters())
    61706
    """
    kernel = 5 if min(image_size) >= 20 else 3
    padding = 0 if kernel == 5 else 1
    rows, columns = ((side // 2 + 2 * padding - kernel + 1) // 2 for side in image_size)
    if min(rows, columns) < 1:
        raise ValueError(f"images of {image_size[0]} x {image_size[1]} are too small for lenet: use mlp, or 4 x 4 at least.")
    last = (min(kernel, rows), min(kernel, columns))
    first, second, third, hidden = (width * size for size in (6, 16, 120, 84))
    features = third * (rows - last[0] + 1) * (columns - last[1] + 1)
    model = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(in_channels, first, kernel, padding=kernel // 2),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(first, second, kernel, padding=padding),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            conv3=nn.Conv2d(second, third, last),
            relu3=nn.ReLU(),
            flatten=nn.Flatten(),
            dense1=nn.Linear(features, hidden),
            relu4=nn.ReLU(),
            regularize=nn.BatchNorm1d(hidden, track_running_stats=track_running_stats)
            if batch_norm
            else nn.Dropout(dropout),
            dense2=nn.Linear(hidden, num_classes),
        )
    )
    initialise(model, generator)
    return model
