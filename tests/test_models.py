"""The models of the paper: size, shapes, initialisation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from gradreg import models


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("make", "shape", "num_outputs", "num_parameters"),
    [
        (models.lenet, (1, 28, 28), 10, 61_706),
        (models.resnet, (3, 32, 32), 10, 2_414_794),
        (lambda: models.resnet(100), (3, 32, 32), 100, 2_432_164),
        (models.resnet18, (3, 64, 64), 200, 11_279_112),
        (models.mlp, (1,), 1, 16_833),
    ],
    ids=["lenet", "resnet", "resnet of 100 classes", "resnet18", "mlp"],
)
def test_size_and_shape(make, shape, num_outputs, num_parameters) -> None:
    model = make()
    assert count(model) == num_parameters
    assert model(torch.randn(2, *shape)).shape == (2, num_outputs)


@pytest.mark.parametrize("make", [models.lenet, models.mlp, models.resnet])
def test_same_generator_same_weights_and_the_global_state_has_no_say(make) -> None:
    torch.manual_seed(1)
    first = make(generator=torch.Generator().manual_seed(7)).state_dict()
    torch.manual_seed(2)
    second = make(generator=torch.Generator().manual_seed(7)).state_dict()
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=0, atol=0)


def test_authors_initialisation() -> None:
    model = models.resnet(generator=torch.Generator().manual_seed(0))
    strided = model.level2_1.conv1.weight
    fan_in, fan_out = 48 * 9, 96 * 9 / 4
    assert strided.std().item() == pytest.approx(math.sqrt(4 / (fan_in + fan_out)), rel=0.02)
    assert strided.abs().max().item() == pytest.approx(math.sqrt(12 / (fan_in + fan_out)), rel=0.01)
    assert model.dense.weight.std().item() == pytest.approx(math.sqrt(2 / (192 + 10)), rel=0.05)
    assert all(not m.bias.any() for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear)))


def test_shortcuts_have_no_parameters_and_pad_with_zeros() -> None:
    block = models.resnet().level2_1
    nn.init.zeros_(block.bn2.weight)  # silences the residual branch
    x = torch.rand(2, 48, 8, 8)
    y = block(x)
    torch.testing.assert_close(y[:, :48], nn.functional.avg_pool2d(x, 2))
    assert not y[:, 48:].any()


def test_lenet_wide_is_lenet_with_four_times_the_filters_and_units() -> None:
    wide, narrow = (models.build(name, (1, 28, 28), 10, dropout=0.3) for name in ("lenet_wide", "lenet"))
    for mine, other in zip(wide.parameters(), narrow.parameters(), strict=True):
        assert mine.shape[0] == (10 if other.shape[0] == 10 else 4 * other.shape[0])
    assert [type(layer) for layer in wide] == [type(layer) for layer in narrow]
    assert wide.regularize.p == 0.3
    assert wide(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_lenet_with_batch_norm_has_it_in_the_place_of_dropout() -> None:
    model = models.lenet(batch_norm=True)
    assert isinstance(model.regularize, nn.BatchNorm1d)
    assert not any(isinstance(module, nn.Dropout) for module in model.modules())
    assert count(model) == 61_706 + 2 * 84


@pytest.mark.parametrize("track", [False, True])
def test_batch_norm_at_test_time(track: bool) -> None:
    """By default batch statistics at test time too, as the authors: the prediction depends on the batch."""
    model = models.resnet(widths=(4, 8), blocks_per_level=1, track_running_stats=track).eval()
    x = torch.randn(8, 3, 8, 8)
    together, alone = model(x)[:4], model(x[:4])
    assert torch.allclose(together, alone, atol=1e-5) == track


def test_resnet_counts_halving_levels() -> None:
    model = models.resnet(widths=(4, 8, 16), blocks_per_level=2)
    assert [name for name, _ in model.named_children() if name.startswith("level")] == [
        f"level{level}_{block}" for level in (1, 2, 3) for block in (1, 2)
    ]
    sizes = []
    model.pool.register_forward_hook(lambda module, args, output: sizes.append(args[0].shape))
    model(torch.randn(2, 3, 16, 16))
    assert sizes == [(2, 16, 4, 4)]
