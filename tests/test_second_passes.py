"""A second pass through the model computes what the first did, and where that cannot be, it is said."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

import gradreg as gr
from gradreg.draws import Draws
from gradreg.engines import DifferentiationError, first_order
from gradreg.engines.dropout import DrawnDropout, plain_alpha_dropout, plain_dropout
from gradreg.engines.tangents import forward_mode

EXACT = ("double_backward", "linearized")
SECOND_PASSES = ("linearized", "finite_difference")


def gradient(model: nn.Module, x: Tensor, penalty: gr.Penalty, engine: str, generator: Draws | None = None) -> Tensor:
    """Of the penalty alone, by all parameters, after the same seed."""
    torch.manual_seed(1)
    model.zero_grad()
    terms = gr.Objective(F.cross_entropy, penalty, engine=engine)(
        model, x, torch.arange(len(x)) % 3, generator=torch.Generator().manual_seed(0) if generator is None else generator
    )
    (terms.total - terms.loss).backward()
    return torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in model.parameters()])


def transformer() -> tuple[nn.Module, Tensor]:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(12, 3)), torch.randn(4, 3, 4)


def channels_last() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(48, 3))
    return model, torch.randn(4, 2, 6, 6).contiguous(memory_format=torch.channels_last)


def alpha() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(nn.Conv1d(3, 5, 1), nn.Tanh(), nn.AlphaDropout(0.3), nn.Flatten(), nn.Linear(20, 3))
    return model, torch.randn(4, 4, 3).transpose(1, 2)


def gated() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Conv1d(2, 4, 1), nn.GLU(1), nn.Dropout(0.5), nn.Flatten(), nn.Linear(6, 3)), torch.randn(4, 2, 3)


@pytest.mark.parametrize("make", [transformer, channels_last, alpha, gated])
def test_dropout_has_one_mask_whatever_the_order_of_memory(make: Callable[[], tuple[nn.Module, Tensor]]) -> None:
    model, x = make()
    expected, found = (gradient(model.double(), x.double(), gr.DoubleBack(weight=1), engine) for engine in EXACT)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("pytorchs", "ours"), [(F.dropout, plain_dropout), (F.alpha_dropout, plain_alpha_dropout)])
@pytest.mark.parametrize(
    "x", [torch.randn(2, 3, 4).transpose(1, 2), torch.randn(3, 8)[:, ::2], torch.randn(3, 1).expand(3, 4), torch.randn(5)]
)
def test_dropout_in_forward_mode_is_that_of_pytorch(pytorchs, ours, p: float, x: Tensor) -> None:
    def with_seed(function: Callable[..., Tensor], x: Tensor) -> Tensor:
        torch.manual_seed(0)
        return function(x, p, True)

    expected = with_seed(pytorchs, x)
    assert torch.equal(with_seed(ours, x), expected)
    assert torch.equal(forward_mode(lambda x: with_seed(pytorchs, x), [x], [x])[0], expected)
    assert torch.equal(with_seed(lambda x, p, on: ours(x.clone(), p, on, True), x), expected)


@pytest.mark.parametrize("engine", SECOND_PASSES)
@pytest.mark.parametrize("batch_norm", ["train", "frozen", "running"])
def test_noise_of_the_model_is_that_of_the_loss_also_with_masks_by_key(engine: str, batch_norm: str) -> None:
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.AlphaDropout(0.2), nn.Linear(6, 3)).double()
    penalty = gr.SpectReg(weight=0.3, batch_norm=batch_norm)
    x = torch.randn(8, 5).double()
    expected, found = (gradient(model, x, penalty, one, Draws.of_seed(2)) for one in ("double_backward", engine))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_a_fresh_pass_by_key_leaves_the_random_state_to_others() -> None:
    model, x = nn.Sequential(nn.Linear(5, 6), nn.AlphaDropout(0.5), nn.Linear(6, 3)), torch.randn(4, 5)
    y, objective = torch.tensor([0, 1, 2, 1]), gr.Objective(F.cross_entropy, gr.SpectReg(weight=1, forward="fresh"))
    torch.manual_seed(0)
    F.cross_entropy(model(x), y)
    expected = torch.rand(3)
    torch.manual_seed(0)
    objective(model, x, y, generator=Draws.of_seed(0))
    assert torch.equal(torch.rand(3), expected)


class OwnGenerator(nn.Module):
    """Draws where nobody can see it."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.draw = nn.Linear(5, 5), nn.Linear(5, 3), draw

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.draw(self.first(x).tanh()))
        return out


GENERATOR = torch.Generator()


@pytest.mark.parametrize("engine", SECOND_PASSES)
@pytest.mark.parametrize(
    "draw", [lambda h: h * torch.rand(h.shape, generator=GENERATOR), lambda h: h * random.random()], ids=["own", "random"]
)
def test_numbers_that_cannot_be_repeated_are_refused(engine: str, draw: Callable[[Tensor], Tensor]) -> None:
    model, x = OwnGenerator(draw), torch.randn(4, 5)
    gradient(model, x, gr.SpectReg(weight=1), "double_backward")  # which runs it once
    with pytest.raises(DifferentiationError, match=r"other logits.*a generator of its own"):
        gradient(model, x, gr.SpectReg(weight=1), engine)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh())
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(checkpoint(self.part, x, use_reentrant=False))
        return out


def test_what_a_checkpoint_recomputes_cannot_be_moved() -> None:
    model, x = Checkpointed(), torch.randn(4, 5)
    with pytest.raises(DifferentiationError, match=r"wrt='part.1' lies in a part that torch.utils.checkpoint recomputes"):
        gradient(model, x, gr.FrobReg(weight=1, wrt="part.1"), "finite_difference")


def test_forward_mode_has_no_way_through_a_checkpoint() -> None:
    with pytest.raises(DifferentiationError, match="where forward mode has ended"):
        gradient(Checkpointed(), torch.randn(4, 5), gr.FrobReg(weight=1), "linearized")


def test_a_difference_goes_through_a_checkpoint() -> None:
    model, x = Checkpointed().double(), torch.randn(4, 5).double()
    expected, found = (gradient(model, x, gr.FrobReg(weight=1), one) for one in ("double_backward", "finite_difference"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_saving_on_the_cpu_is_no_checkpoint() -> None:
    """Masks by key stay those of the key."""
    x = torch.ones(100)
    with DrawnDropout(Draws.of_seed(0)):
        expected = F.dropout(x, 0.5)
    with torch.autograd.graph.save_on_cpu(), DrawnDropout(Draws.of_seed(0)):
        assert torch.equal(F.dropout(x, 0.5), expected)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * gradient


class OnceInTraining(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        hidden = super().forward(x)
        return Square.apply(hidden) if self.training else hidden.square()


def test_a_model_is_tried_in_each_of_its_modes() -> None:
    model, x = OnceInTraining(5, 3), torch.randn(4, 5)
    gradient(model.eval(), x, gr.FrobReg(weight=1), "double_backward")
    with pytest.raises(DifferentiationError, match="Square is marked @once_differentiable"):
        gradient(model.train(), x, gr.FrobReg(weight=1), "double_backward")


class CubeGradient(torch.autograd.Function):
    """Of the cube, with a ``vmap`` written by hand that calls it again."""

    @staticmethod
    def forward(g: Tensor, x: Tensor) -> Tensor:
        return 3 * x.square() * g

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, v: Tensor) -> tuple[Tensor, Tensor]:
        g, x = ctx.saved_tensors
        return (3 * x.square() * v).sum_to_size(g.shape), (6 * x * g * v).sum_to_size(x.shape)

    @staticmethod
    def vmap(info, in_dims, g: Tensor, x: Tensor) -> tuple[Tensor, int]:  # noqa: ARG004
        return CubeGradient.apply(g, x), 0


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        return CubeGradient.apply(g, *ctx.saved_tensors)


@pytest.mark.parametrize("make", [gr.FrobReg, gr.JacReg])
def test_rows_of_a_jacobian_through_a_custom_function(make: type[gr.FrobReg]) -> None:
    first, last, x = nn.Linear(5, 6).double(), nn.Linear(6, 3).double(), torch.randn(4, 5).double()
    found = []
    for cube in (lambda h: h**3, Cube.apply):
        first.zero_grad()
        objective = gr.Objective(F.cross_entropy, make(weight=1))
        terms = objective(lambda x, cube=cube: last(cube(first(x))), x, torch.tensor([0, 1, 2, 1]))
        (terms.total - terms.loss).backward()
        found.append(first.weight.grad)
    torch.testing.assert_close(found[1], found[0])


def test_attention_is_as_it_was_when_threads_leave_in_another_order_than_they_came() -> None:
    first_in, second_in, first_out = (threading.Event() for _ in range(3))

    class Waiting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            arrived, leave = (first_in, second_in) if self.out_features == 3 else (second_in, first_out)
            arrived.set()
            leave.wait()
            return super().forward(x)

    def step(classes: int) -> None:
        objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=1))
        objective(Waiting(5, classes), torch.randn(4, 5), torch.tensor([0, 1, 2, 1]))

    def flags() -> tuple[bool, ...]:
        return torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled()

    before = flags()
    one, other = (threading.Thread(target=step, args=(classes,)) for classes in (3, 4))
    one.start()
    first_in.wait()
    other.start()
    one.join()
    first_out.set()
    other.join()
    assert flags() == before


class Deep(nn.Module):
    """Rounds a lot, and says so in single precision, as models do whose logits are made float."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()) for _ in range(30)]
        self.body, self.head = nn.Sequential(nn.Conv2d(1, 4, 1), *blocks), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3))).float()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("engine", SECOND_PASSES)
@pytest.mark.parametrize("how", ["autocast", "half"])
def test_rounding_is_no_other_function(engine: str, how: str, seed: int) -> None:
    torch.manual_seed(seed)
    model, x = Deep(), torch.randn(8, 1, 6, 6)
    model, x = (model.bfloat16(), x.bfloat16()) if how == "half" else (model, x)
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        assert gradient(model, x, gr.SpectReg(weight=1), engine).isfinite().all()


def test_a_method_is_compared_once_and_another_function_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function may hold another model than the last, although it is written in the same line."""
    calls = []
    monkeypatch.setattr(first_order, "check_agrees", lambda *_, **__: calls.append(1))
    layer, objective = nn.Linear(5, 3), gr.Objective(F.cross_entropy, gr.SpectReg(weight=1), engine="linearized")
    for _ in range(3):
        objective(layer.forward, torch.randn(4, 5), torch.tensor([0, 1, 2, 1]))
    assert len(calls) == 1
    for _ in range(3):
        objective(lambda x: layer(x), torch.randn(4, 5), torch.tensor([0, 1, 2, 1]))
    assert len(calls) == 4
