"""The layers that are fast when differentiated twice, against PyTorch's own in float64."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradreg.engines.twice import FastTwice, grouped, rows, stacked, windows
from gradreg.engines.twice.batch_norm import batch_norm
from gradreg.engines.twice.geometry import Geometry

LAYERS = {
    "conv2d": lambda: (nn.Conv2d(4, 6, 3), (3, 4, 7, 6)),
    "conv2d stride and padding": lambda: (nn.Conv2d(4, 6, 3, stride=2, padding=1), (3, 4, 8, 7)),
    "conv2d groups and dilation": lambda: (nn.Conv2d(4, 6, 3, groups=2, dilation=2, bias=False), (3, 4, 7, 8)),
    "conv2d same": lambda: (nn.Conv2d(4, 6, 3, padding="same"), (3, 4, 5, 6)),
    "conv2d unequal": lambda: (nn.Conv2d(2, 3, (3, 2), padding=(2, 0)), (3, 2, 5, 6)),
    "conv1d": lambda: (nn.Conv1d(4, 6, 3, padding=1), (3, 4, 7)),
    "conv3d": lambda: (nn.Conv3d(2, 3, 2, stride=2), (3, 2, 5, 4, 4)),
    "max pool": lambda: (nn.Sequential(nn.Conv2d(2, 3, 2), nn.MaxPool2d(2)), (3, 2, 7, 9)),
    "max pool of unequal sides": lambda: (nn.Sequential(nn.Conv2d(2, 3, 2), nn.MaxPool2d((2, 3))), (3, 2, 5, 7)),
    "max pool with a rest": lambda: (nn.Sequential(nn.Conv2d(2, 3, 2), nn.MaxPool2d(2)), (3, 2, 6, 6)),
    "max pool that overlaps": lambda: (nn.Sequential(nn.Conv2d(2, 3, 2), nn.MaxPool2d(3, 2, padding=1)), (3, 2, 7, 7)),
    "relu": lambda: (nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), (6, 4)),
    "layer norm": lambda: (nn.LayerNorm(5), (3, 4, 5)),
    "batch norm 1d": lambda: (nn.BatchNorm1d(4), (5, 4)),
    "batch norm 2d": lambda: (nn.BatchNorm2d(4), (3, 4, 3, 2)),
    "batch norm without affine": lambda: (nn.BatchNorm2d(4, affine=False, track_running_stats=False), (3, 4, 3, 2)),
    "batch norm in evaluation": lambda: (nn.BatchNorm2d(4).eval(), (3, 4, 3, 2)),
}


def second_derivative(layer: nn.Module, x: Tensor, mode) -> list[Tensor]:
    """Value, gradient by the input, and the derivative of its weighted square by everything."""
    torch.manual_seed(1)
    x = x.clone().requires_grad_()
    with mode:
        y = layer(x).tanh()
    (gradient,) = torch.autograd.grad(y, x, torch.randn_like(y), create_graph=True)
    total = (gradient.square() * torch.randn_like(gradient)).sum() + (y * torch.randn_like(y)).sum()
    return [y, gradient, *torch.autograd.grad(total, [x, *layer.parameters()])]


@pytest.mark.parametrize("name", LAYERS)
def test_values_and_both_derivatives_are_pytorchs(name: str) -> None:
    torch.manual_seed(0)
    layer, shape = LAYERS[name]()
    layer, x = layer.double(), torch.randn(shape, dtype=torch.float64)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    expected = second_derivative(layer, x, nullcontext())
    for found, wanted in zip(second_derivative(layer, x, FastTwice(everywhere=True)), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["conv2d", "batch norm 2d"])
def test_third_derivative(name: str) -> None:
    layer, shape = LAYERS[name]()
    layer = layer.double()

    def gradient(x: Tensor) -> Tensor:
        with FastTwice(everywhere=True):
            return torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)[0]

    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(gradient, x)


def test_running_statistics_are_pytorchs() -> None:
    x = torch.randn(5, 3, 4, 4)
    ours, theirs = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    with FastTwice(everywhere=True):
        ours(x)
    theirs(x)
    for found, wanted in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("rows", [False, True], ids=["members", "members and rows"])
def test_vectorised_over_members_with_their_own_weights(name: str, rows: bool) -> None:
    """As one member after the other: value, input gradients for several cotangents, and their second derivatives."""
    torch.manual_seed(0)
    layer, shape = LAYERS[name]()
    layer = layer.double()
    x = torch.randn(4, *shape, dtype=torch.float64)
    weights = {n: torch.randn(4, *p.shape, dtype=torch.float64) for n, p in layer.named_parameters()}

    state = {n: torch.stack([b] * 4) for n, b in layer.named_buffers()}

    def penalty(weights: dict[str, Tensor], x: Tensor, state: dict[str, Tensor]) -> Tensor:
        def call(x: Tensor) -> Tensor:
            buffers = {n: b.clone() for n, b in state.items()}
            return torch.func.functional_call(layer, weights | buffers, (x,)).tanh()

        y, pull = torch.func.vjp(call, x)
        cotangents = torch.stack([torch.ones_like(y), y.detach().cos()])
        gradients = torch.func.vmap(pull)(cotangents)[0] if rows else pull(cotangents[0])[0]
        return gradients.square().sum() + y.sum()

    def member(tensors: dict[str, Tensor], i: int) -> dict[str, Tensor]:
        return {n: t[i] for n, t in tensors.items()}

    alone = [torch.func.grad(penalty, argnums=(0, 1))(member(weights, i), x[i], member(state, i)) for i in range(4)]
    with FastTwice(everywhere=True):
        together = torch.func.vmap(torch.func.grad(penalty, argnums=(0, 1)))(weights, x, state)
    for i, (by_weights, by_x) in enumerate(alone):
        torch.testing.assert_close(together[1][i], by_x, rtol=1e-9, atol=1e-11)
        for n, wanted in by_weights.items():
            torch.testing.assert_close(together[0][n][i], wanted, rtol=1e-9, atol=1e-11)


WAYS = {"windows": windows.PRODUCTS, "rows": rows.PRODUCTS, "one by one": stacked._ONE_BY_ONE}


@pytest.mark.parametrize("kind", ["y", "x", "w"])
@pytest.mark.parametrize("way", WAYS)
def test_the_ways_to_stack_agree(way: str, kind: str) -> None:
    geometry = Geometry((3, 2, 7, 6), (4, 2, 3, 2), (1, 1), (2, 1), (1, 1), 1, members=5)
    x, w, y = torch.randn(5, 3, 2, 7, 6).double(), torch.randn(5, 4, 2, 3, 2).double(), torch.randn(5, 3, 4, 9, 7).double()
    operands = {"y": (x, w), "x": (y, w), "w": (y, x)}[kind]
    expected = grouped.PRODUCTS[kind](*operands, geometry)
    torch.testing.assert_close(WAYS[way][kind](*operands, geometry), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "stride", "padding", "expected"),
    [
        ((50, 1, 28, 28), (6, 1, 5, 5), (1, 1), (2, 2), rows.PRODUCTS),
        ((50, 6, 14, 14), (16, 6, 5, 5), (1, 1), (0, 0), rows.PRODUCTS),
        ((500, 6, 14, 14), (16, 6, 5, 5), (1, 1), (0, 0), rows.PRODUCTS),  # ten rows of a Jacobian
        ((2, 48, 32, 32), (48, 48, 3, 3), (1, 1), (1, 1), windows.PRODUCTS),
        ((50, 6, 14, 14), (16, 6, 5, 5), (2, 2), (0, 0), grouped.PRODUCTS),
        ((128, 48, 32, 32), (48, 48, 3, 3), (1, 1), (1, 1), stacked._ONE_BY_ONE),
    ],
)
def test_which_way(x_shape, w_shape, stride, padding, expected) -> None:
    assert stacked.ways(Geometry(x_shape, w_shape, stride, padding, (1, 1), 1, members=4), on_gpu=True) is expected


def test_under_autocast_in_bfloat16() -> None:
    torch.manual_seed(0)
    layer, x = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Tanh()), torch.randn(4, 2, 8, 8)

    def derivative(mode, half: bool) -> Tensor:
        point = x.clone().requires_grad_()
        with mode, torch.autocast("cpu", torch.bfloat16, enabled=half):
            y = layer(point)
        (gradient,) = torch.autograd.grad(y.float().square().sum(), point, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), layer[0].weight)[0]

    expected = derivative(nullcontext(), half=False)
    ours, theirs = ((derivative(mode, half=True) - expected).norm() for mode in (FastTwice(everywhere=True), nullcontext()))
    assert ours < 0.05 * expected.norm()
    assert ours < 2 * theirs


def test_no_second_convolution_is_as_large_as_the_image() -> None:
    """The point of it: PyTorch's second derivative convolves with a filter the size of the output."""
    layer, x = nn.Conv2d(2, 3, 3), torch.randn(4, 2, 9, 9, requires_grad=True)
    sizes: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.convolution.default:
                sizes.append(args[1].shape[-1])
            return func(*args, **kwargs or {})

    with Watch():
        for mode in (nullcontext(), FastTwice(everywhere=True)):
            with mode:
                y = F.relu(layer(x))
            (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            sizes.clear()
            torch.autograd.grad(gradient.square().sum(), layer.weight)
    assert all(size == 3 for size in sizes), sizes


def test_batch_norm_of_one_value_is_refused_as_by_pytorch() -> None:
    for mode in (nullcontext(), FastTwice()):
        with mode, pytest.raises(ValueError, match="more than (1|one) value"):
            nn.BatchNorm1d(3)(torch.randn(1, 3))


@pytest.mark.parametrize("batched", [(True, False), (False, True), (True, True)], ids=["dy", "x", "both"])
@pytest.mark.parametrize("inner_rows", [False, True])
def test_batch_norm_vectorised_over_some_of_its_arguments(batched: tuple[bool, bool], inner_rows: bool) -> None:
    """First and second derivative, with rows of a Jacobian inside, against one after the other."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    dy = random(*[3] * batched[0], *[2] * inner_rows, 4, 5, 2, 2)
    x = random(*[3] * batched[1], 4, 5, 2, 2)
    weight, tangent = random(5), random(4, 5, 2, 2)

    def derivative(dy: Tensor, x: Tensor) -> Tensor:
        with FastTwice():
            y, pull = torch.func.vjp(lambda x: F.batch_norm(x, None, None, weight, training=True), x)
        return (torch.func.vmap(pull)(dy)[0].sum(0) if inner_rows else pull(dy)[0]) * y

    def both(dy: Tensor, x: Tensor) -> Tensor:
        by_dy, by_x = torch.func.grad(lambda dy, x: (derivative(dy, x) * tangent).sum(), (0, 1))(dy, x)
        return torch.cat([derivative(dy, x).flatten(), by_dy.flatten(), by_x.flatten()])

    found = torch.func.vmap(both, tuple(0 if one else None for one in batched))(dy, x)
    alone = [both(dy[n] if batched[0] else dy, x[n] if batched[1] else x) for n in range(3)]
    torch.testing.assert_close(found, torch.stack(alone), rtol=1e-10, atol=1e-10)


def test_batch_norm_of_rows_gives_a_derivative_laid_out_as_its_input() -> None:
    x = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    rows = torch.randn(24, 3, 5, 5).to(memory_format=torch.channels_last).unflatten(0, (6, 4))

    def penalty(x: Tensor) -> Tensor:
        _, vjp = torch.func.vjp(lambda x: batch_norm(x, None, None, training=True), x)
        return torch.func.vmap(lambda row: vjp(row)[0])(rows).square().sum()

    assert torch.func.grad(penalty)(x).is_contiguous(memory_format=torch.channels_last)


def test_max_pool_of_equal_values_takes_the_first_as_pytorch() -> None:
    x = torch.ones(1, 1, 4, 4, requires_grad=True)
    found = []
    for mode in (nullcontext(), FastTwice(everywhere=True)):
        with mode:
            y = F.max_pool2d(x, 2)
        found.append(torch.autograd.grad(y.sum(), x)[0])
    assert torch.equal(found[0], found[1])


def test_max_pool_is_replaced() -> None:
    x = torch.randn(1, 1, 4, 4, requires_grad=True)
    with FastTwice(everywhere=True):
        assert "MaxPool" not in type(F.max_pool2d(x, 2).grad_fn).__name__
