"""Models as users write them: layers with memory, noise, operations in place, and no generator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from test_training import config, toy
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gradreg as gr
from gradreg.draws import Draws
from gradreg.engines import Compiled, FiniteDifference
from gradreg.engines.dropout import DrawnDropout
from gradreg.engines.program import TraceError
from gradreg.training import Fleet, run
from gradreg.training.checkpoint import load_model, save
from gradreg.training.lanes import Lanes
from gradreg.training.resident import prepare
from gradreg.training.together import in_fleets, train_together

CENTRAL = FiniteDifference(central=True)


def of_no_generator(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(input_shape[0], 8), nn.Tanh(), nn.Linear(8, num_outputs))


class Recurrent(nn.Module):
    """Reads its features one after the other."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(1, 4, batch_first=True), nn.Linear(4, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.gru(x.unsqueeze(-1))[0][:, -1])
        return out


def recurrent(num_outputs: int) -> nn.Module:
    return Recurrent(num_outputs)


class Root(nn.Module):
    """Has an infinite derivative at zero."""

    def __init__(self, features: int, num_outputs: int) -> None:
        super().__init__()
        self.last = nn.Linear(features, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(x.relu().sqrt())
        return out


def root(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    return Root(input_shape[0], num_outputs)


@pytest.mark.parametrize("together", [Fleet, Lanes])
def test_one_that_takes_no_generator_starts_from_its_seed_wherever_it_is_trained(together: type) -> None:
    data = toy()
    one = config(data, model=f"{__name__}:of_no_generator", precision="fp64", num_steps=5)
    configs = [replace(one, penalties=(gr.SpectReg(weight=weight),)) for weight in (0.01, 0.02)]
    for trained in together(configs, data, device="cpu").train():
        alone = run(trained.record.config, data).model.state_dict()
        torch.testing.assert_close(trained.model.state_dict(), alone, rtol=1e-9, atol=1e-9)


class Mixed(nn.Module):
    """Mixes its features at random, in a way that it forgot to register."""

    def __init__(self, features: int, num_outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.mix = torch.randn(features, features, generator=generator).double()
        self.last = nn.Linear(features, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(x @ self.mix)
        return out


def mixed(input_shape: tuple[int, ...], num_outputs: int, generator: torch.Generator) -> nn.Module:
    return Mixed(input_shape[0], num_outputs, generator)


def test_one_whose_seed_decides_more_than_its_state_is_trained_alone() -> None:
    data = toy()
    one = config(data, model=f"{__name__}:mixed", precision="fp64", num_steps=5)
    configs = [one, replace(one, seed=1)]
    for together in (Fleet, Lanes):
        with pytest.raises(TraceError, match="mix depends on the seed and is neither parameter nor buffer"):
            list(together(configs, data, device="cpu").train())
    with pytest.warns(UserWarning, match="runs are trained one by one"):
        records = list(train_together(configs, data, "cpu"))
    assert [record.metrics for record in records] == [run(each, data).record.metrics for each in configs]
    assert len(list(Fleet([one, replace(one, learning_rate=0.02)], data).train())) == 2  # of one seed they may share it


def test_one_that_cannot_be_vectorised_is_trained_alone() -> None:
    data = toy()
    one = config(data, model=f"{__name__}:recurrent", num_steps=3)
    with pytest.warns(UserWarning, match="runs are trained one by one"):
        records = list(train_together([one, replace(one, seed=1)], data, "cpu"))
    assert [record.metrics for record in records] == [run(replace(one, seed=seed), data).record.metrics for seed in (0, 1)]


def test_a_weight_of_zero_is_off_beside_others() -> None:
    data = toy()
    one = config(data, model=f"{__name__}:root", num_steps=3, penalties=(gr.SpectReg(weight=0.0),))
    configs = [one, replace(one, penalties=(gr.SpectReg(weight=0.1),))]
    records = [record for fleet in in_fleets(configs, data, "cpu") for record in train_together(fleet, data, "cpu")]
    assert [record.metrics for record in records] == [run(record.config, data).record.metrics for record in records]
    assert {record.config.penalties[0].weight: record.metrics["diverged"] for record in records} == {0.0: 0, 0.1: 1}


class InPlace(nn.Module):
    """Goes on with what its ReLU has changed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu, self.second, self.last = (
            nn.Linear(5, 8),
            nn.ReLU(inplace=True),
            nn.Linear(8, 8),
            nn.Linear(8, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        out: Tensor = self.last(self.second(self.relu(x)) + x)
        return out


class Centred(nn.Module):
    """Subtracts the mean of what it has seen before this batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3)
        self.register_buffer("mean", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        out: Tensor = self.last((h - self.mean.clone()).tanh())
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(h.mean(0), 0.9)
        return out


class DropPath(nn.Module):
    """Noise that is no dropout of PyTorch's."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.empty(len(x), 1, dtype=x.dtype).bernoulli_(0.5) * 2


class Scaling(nn.Module):
    """Changes its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(x.sub_(1.0).div_(0.5).tanh())
        return out


def noisy() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), DropPath(), nn.Linear(8, 3), nn.Tanh())


def squeezed() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))


def gradients(make: Callable[[], nn.Module], engine: object, penalty: gr.Penalty, *, drawn: bool = False) -> Tensor:
    torch.manual_seed(0)
    model, x = make().double(), torch.randn(6, 5, dtype=torch.float64)
    out = model(x.clone())
    y = torch.randn_like(out) if out.ndim == 1 else torch.randint(3, (6,))
    torch.manual_seed(1)
    model = make_again(make)
    loss = F.mse_loss if out.ndim == 1 else F.cross_entropy
    generator = Draws.of_seed(0) if drawn else torch.Generator().manual_seed(0)
    torch.manual_seed(2)
    gr.Objective(loss, penalty, engine=engine)(model, x, y, generator=generator).total.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def make_again(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    return make().double()


@pytest.mark.parametrize("engine", ["linearized", CENTRAL, Compiled(), Compiled(CENTRAL)], ids=repr)
@pytest.mark.parametrize("make", [InPlace, Centred, squeezed])
def test_engines_agree(make: Callable[[], nn.Module], engine: object) -> None:
    penalty = gr.FrobReg(weight=1.0)
    expected = gradients(make, "double_backward", penalty)
    torch.testing.assert_close(gradients(make, engine, penalty), expected, rtol=1e-6, atol=1e-6)


def test_what_is_done_in_place_costs_nothing_if_nobody_looks() -> None:
    """A copy is left in the graph where the changed input is read, and none where it is not."""

    def copies(model: nn.Module) -> int:
        objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=0.1), engine="compiled")
        objective(model, torch.randn(6, 5), torch.randint(3, (6,)))
        [prepared] = objective._prepared.values()
        targets = [node.target for node in prepared.program.graph.graph.nodes]
        return targets.count(torch.ops.aten.copy_.default) - len(prepared.program.state)

    assert copies(nn.Sequential(nn.Linear(5, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))) == 0
    assert copies(InPlace()) == 1


class Normalised(nn.Module):
    """By functions of PyTorch's that its own layers do not call by these names."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.last, self.kind = nn.Linear(5, 8), nn.Linear(8, 3), kind
        self.instance = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        ones, zeros = torch.ones_like(h[0]), torch.zeros_like(h[0])
        if self.kind == "layer":
            h = torch.layer_norm(h, (8,), ones, zeros, 1e-5)
        elif self.kind == "group":
            h = torch.group_norm(h, 2, ones, zeros, 1e-5)
        elif self.kind == "batch":
            h = torch.batch_norm(h, ones, zeros, None, None, True, 0.1, 1e-5, True)
        else:
            h = self.instance(h.unflatten(1, (4, 2))).flatten(1)
        out: Tensor = self.last(h.tanh())
        return out


@pytest.mark.parametrize("engine", ["linearized", Compiled()], ids=repr)
@pytest.mark.parametrize("kind", ["layer", "group", "batch", "instance"])
def test_normalisations_by_other_names(kind: str, engine: object) -> None:
    make, penalty = partial(Normalised, kind), gr.FrobReg(weight=1.0)
    expected = gradients(make, "double_backward", penalty)
    torch.testing.assert_close(gradients(make, engine, penalty), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("engine", ["linearized", CENTRAL], ids=repr)
@pytest.mark.parametrize("drawn", [False, True])
def test_the_same_noise_in_every_pass(engine: object, drawn: bool) -> None:
    penalty = gr.FrobReg(weight=1.0)
    expected = gradients(noisy, "double_backward", penalty, drawn=drawn)
    torch.testing.assert_close(gradients(noisy, engine, penalty, drawn=drawn), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("option", [{"forward": "fresh"}, {"batch_norm": "frozen"}])
def test_inputs_that_are_changed_are_those_of_one_pass_alone(option: dict[str, str]) -> None:
    expected = gradients(Scaling, "double_backward", gr.FrobReg(weight=1.0))
    torch.testing.assert_close(gradients(Scaling, "double_backward", gr.FrobReg(weight=1.0, **option)), expected)


@pytest.mark.parametrize(
    ("function", "shape", "mask"),
    [
        (F.dropout1d, (4, 6, 5), (4, 6, 1)),
        (F.dropout1d, (6, 5), (6, 1)),
        (F.dropout2d, (4, 6), (4, 6)),
        (F.dropout2d, (4, 6, 5), (4, 6, 1)),
        (F.dropout2d, (4, 6, 5, 5), (4, 6, 1, 1)),
        (F.dropout3d, (6, 2, 3, 4), (6, 1, 1, 1)),
        (F.dropout3d, (4, 6, 2, 3, 4), (4, 6, 1, 1, 1)),
    ],
)
@pytest.mark.filterwarnings("ignore:dropout2d")
def test_dropout_of_channels_drops_what_pytorchs_drops(function: Callable[..., Tensor], shape, mask) -> None:
    """The shape of what goes together: as PyTorch's own, with or without a batch."""

    together = [dim for dim, (size, of_mask) in enumerate(zip(shape, mask, strict=True)) if of_mask < size]

    def pattern(out: Tensor) -> None:
        kept = (out != 0).float()
        first, last = (kept.amin(together), kept.amax(together)) if together else (kept, kept)
        assert torch.equal(first, last)
        assert 0.1 < kept.mean() < 0.9

    torch.manual_seed(0)
    pattern(function(torch.ones(shape), 0.5, training=True))
    with DrawnDropout(Draws.of_seed(0)):
        pattern(function(torch.ones(shape), 0.5, training=True))


def test_steps_far_apart_in_scale() -> None:
    """No input moves by more than a small part of its size."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, u: Tensor, v: Tensor) -> Tensor:
            out: Tensor = self.c((self.a(u * 1e-4) + self.b(v * 1e3)).tanh())
            return out

    torch.manual_seed(0)
    model, x, y = (
        Two().double(),
        (1e4 * torch.randn(6, 4).double(), 1e-3 * torch.randn(6, 4).double()),
        torch.randint(3, (6,)),
    )

    def gradient(engine: object) -> Tensor:
        total = gr.Objective(F.cross_entropy, gr.FrobReg(weight=1e-6), engine=engine)(model, x, y).total
        return torch.cat([g.flatten() for g in torch.autograd.grad(total, list(model.parameters()))])

    exact = gradient("double_backward")
    assert (gradient(CENTRAL) - exact).norm() < 1e-3 * exact.norm()


def test_what_is_compiled_follows_what_it_was_made_of() -> None:
    """A rate of dropout, a weight of the loss, another penalty of the same name, another parameter in the same memory."""
    torch.manual_seed(0)
    model, x, y = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3)), torch.randn(6, 5), torch.randint(3, (6,))
    loss = nn.CrossEntropyLoss(weight=torch.ones(3))
    objective = gr.Objective(loss, gr.FrobReg(weight=0.1), engine="compiled")

    def same() -> None:
        eager = gr.Objective(loss, *objective.penalties)
        found, expected = (one(model, x, y, generator=Draws.of_seed(0)) for one in (objective, eager))
        torch.testing.assert_close(found.total.float(), expected.total)

    same()
    model[1].p = 0.0
    same()
    loss.weight = torch.tensor([1.0, 2.0, 3.0])
    same()
    objective.penalties = (gr.FrobReg(weight=0.1, norm="l2"),)
    same()
    model[0].weight = nn.Parameter(model[0].weight.data)
    objective(model, x, y).total.backward()
    assert model[0].weight.grad is not None


def test_a_loss_with_parameters_of_its_own_cannot_be_compiled() -> None:
    class Tempered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.t = nn.Parameter(torch.ones(()))

        def forward(self, logits: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(logits * self.t, y)

    objective = gr.Objective(Tempered(), gr.FrobReg(weight=0.1), engine="compiled")
    with pytest.raises(ValueError, match="Tempered, has some of its own. Make them part of the model"):
        objective(nn.Linear(5, 3), torch.randn(6, 5), torch.randint(3, (6,)))


def test_the_loss_comes_first() -> None:
    with pytest.raises(TypeError, match=r"the loss is missing before SpectReg\(weight=0.1\)"):
        gr.Objective(gr.SpectReg(weight=0.1))


def test_the_total_has_the_precision_of_the_model() -> None:
    objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=0.1), engine="compiled")
    assert objective(nn.Linear(5, 3), torch.randn(6, 5), torch.randint(3, (6,))).total.dtype == torch.float32


def test_dropout_in_a_checkpointed_part_has_the_same_mask_when_it_is_run_again() -> None:
    """The output is linear in the weights, so that weights times gradient is the output if both passes have one mask."""
    weights = torch.ones(1000, requires_grad=True)
    with DrawnDropout(Draws.of_seed(0)):
        out = checkpoint(lambda w: F.dropout(w, 0.5) ** 1, weights, use_reentrant=False).sum()
        plain = F.dropout(torch.ones(1000), 0.5)
    out.backward()
    assert (weights * weights.grad).sum() == out
    with DrawnDropout(Draws.of_seed(0)):
        assert torch.equal(F.dropout(torch.ones(1000), 0.5), plain)  # whose numbers it leaves to others


class NormalisingInPlace(nn.Module):
    """Normalises its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x -= 0.5
        return self.last(self.first(x).tanh())


@pytest.mark.parametrize("engine", ["double_backward", "linearized", "finite_difference", "compiled"])
def test_passes_on_an_input_that_is_changed_in_place_do_not_meet(engine: str) -> None:
    torch.manual_seed(0)
    model, x, y = NormalisingInPlace().double(), torch.randn(4, 3, dtype=torch.float64), torch.tensor([0, 1, 0, 1])
    hidden, own = gr.FrobReg(weight=1, wrt="first"), gr.JacReg(weight=1, forward="fresh")

    def values(*penalties: gr.Penalty, engine: str = "double_backward") -> dict[str, Tensor]:
        terms = gr.Objective(F.cross_entropy, *penalties, engine=engine)(model, x.clone(), y)
        terms.total.backward()
        return terms.penalties

    expected = values(hidden) | values(own)
    for name, value in values(hidden, own, engine=engine).items():
        torch.testing.assert_close(value, expected[name])


class Memory(nn.Module):
    """An LSTM, whose backward pass on the CPU cannot be vectorised."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.lstm(x[..., None])[0][:, -1])
        return out


def memory(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    return Memory(num_outputs)


class Tied(nn.Module):
    """Two layers with one weight, and a bias that is no matrix."""

    def __init__(self, features: int, num_outputs: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(features, features), nn.Linear(features, features)
        self.second.weight = self.first.weight
        self.last = nn.Linear(features, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.second(self.first(x).tanh()).tanh())
        return out


def tied(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    return Tied(input_shape[0], num_outputs)


class Shift(nn.Module):
    """Has no weight matrix."""

    def __init__(self, features: int, num_outputs: int) -> None:
        super().__init__()
        self.by, self.num_outputs = nn.Parameter(torch.zeros(features)), num_outputs

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.by)[:, : self.num_outputs]


def shift(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    return Shift(input_shape[0], num_outputs)


def test_the_slopes_of_an_lstm_are_measured_row_by_row() -> None:
    data = toy()
    trained = run(config(data, model=f"{__name__}:memory", num_steps=3, precision="fp64"), data)
    evaluated = prepare(data, trained.record.config, torch.device("cpu"))
    x = evaluated.evaluated.inputs(slice(0, 1)).requires_grad_()
    rows = [torch.autograd.grad(logit, x, retain_graph=True)[0] for logit in trained.model.eval()(x).flatten()]
    expected = torch.stack(rows).square().sum().sqrt().item()
    assert trained.record.gradient_norms["test"][0] == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("name", ["tied", "shift"])
def test_one_with_tied_weights_or_none_is_trained_and_kept(name: str, tmp_path: Path) -> None:
    data = toy()
    trained = run(config(data, model=f"{__name__}:{name}", num_steps=3), data)
    save(trained, data, tmp_path)
    again = load_model(tmp_path)
    torch.testing.assert_close(again.model.state_dict(), trained.model.state_dict())
    in_double = data.x_test[:5].astype("float64")
    torch.testing.assert_close(again(in_double), again(torch.from_numpy(data.x_test[:5])))
    assert trained.record.metrics["squared_weight_norm"] == (0 if name == "shift" else pytest.approx(norm_of(trained.model)))


def norm_of(model: nn.Module) -> float:
    return sum(p.square().sum().item() for p in model.parameters() if p.ndim > 1)


def in_place_from_the_start(num_outputs: int) -> nn.Module:
    return nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, num_outputs))


def test_a_model_that_begins_in_place_is_trained_and_measured() -> None:
    """Alone and in a fleet."""
    data = toy()
    first = config(data, model=f"{__name__}:in_place_from_the_start", penalties=(gr.SpectReg(weight=0.1),), num_steps=3)
    alone, (member,) = run(first, data).record, Fleet([first], data).train()
    assert member.record.gradient_norms["test"] == pytest.approx(alone.gradient_norms["test"], abs=1e-4)
    assert min(alone.gradient_norms["test"]) >= 0
