"""A whole step in one call: what plain PyTorch does, without the gradient that nobody reads."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gradreg as gr
from gradreg.draws import Draws
from gradreg.step import _as_tensor


def toy() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3))
    return model.double(), torch.randn(5, 1, 6, 6).double(), torch.tensor([0, 1, 2, 0, 1])


@pytest.mark.parametrize("engine", ["compiled", "double_backward"])
def test_step_is_objective_backward_and_optimizer(engine: str) -> None:
    def by_hand() -> list[Tensor]:
        model, x, y = toy()
        objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=0.1))
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(3):
            optimizer.zero_grad()
            objective(model, x, y, generator=Draws.of_seed(step)).total.backward()
            optimizer.step()
        return list(model.parameters())

    model, x, y = toy()
    objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=0.1), engine=engine)
    step = gr.Step(objective, model, torch.optim.Adam(model.parameters()))
    for number in range(3):
        step(x, y, generator=Draws.of_seed(number))
    for mine, theirs in zip(model.parameters(), by_hand(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-9)


class Watched(nn.Module):
    """Counts how often the gradient by its input is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused, self.frozen = nn.Linear(3, 4), nn.Linear(2, 2), nn.Linear(4, 2)
        self.frozen.requires_grad_(False)
        self.gradients_by_input = 0

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            x.register_hook(self._count)
        return self.frozen(self.used(x).tanh())

    def _count(self, _: Tensor) -> None:
        self.gradients_by_input += 1


def test_the_gradient_of_the_total_by_the_input_is_not_computed() -> None:
    model, x, y = Watched(), torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1])
    step = gr.Step(gr.Objective(F.cross_entropy, gr.SpectReg(weight=1)), model, torch.optim.SGD(model.parameters(), lr=0.1))
    step(x, y)  # with the trial of the second derivative
    model.gradients_by_input = 0
    step(x, y)
    assert model.gradients_by_input == 1  # that of the penalty


def test_parameters_that_are_frozen_or_unused_have_no_gradient() -> None:
    model, x, y = Watched(), torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1])
    gr.Step(gr.Objective(F.cross_entropy, gr.SpectReg(weight=1)), model, torch.optim.SGD(model.parameters(), lr=0.1))(x, y)
    assert model.used.weight.grad.norm() > 0
    assert model.unused.weight.grad is None
    assert model.frozen.weight.grad is None


def test_what_the_input_is_computed_from_is_trained_too() -> None:
    shift = torch.zeros(3, requires_grad=True)
    model, x, y = nn.Linear(3, 2), torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1])
    optimizer = torch.optim.SGD([*model.parameters(), shift], lr=0.1)
    gr.Step(gr.Objective(F.cross_entropy, gr.DoubleBack(weight=1)), model, optimizer)(x + shift, y)
    assert shift.norm() > 0


def in_one_graph(model: nn.Module, penalty: gr.Penalty) -> gr.Step:
    """A step whose optimizer joins the graph, as on a GPU."""
    objective = gr.Objective(F.cross_entropy, penalty, engine="compiled")
    step = gr.Step(objective, model, torch.optim.Adam(model.parameters(), fused=True))
    step._joins, step._rates = True, [_as_tensor(group, torch.device("cpu")) for group in step.optimizer.param_groups]
    return step


def test_gradients_from_before_are_not_taken_for_those_of_a_step() -> None:
    model, x, y = toy()
    F.cross_entropy(model(x), y).backward()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    in_one_graph(model, gr.SpectReg(weight=0.1))(x, y)
    assert torch.equal(model[0].weight, before)


def test_unlabelled_data_that_nobody_can_use_are_refused_in_one_graph_too() -> None:
    model, x, y = toy()
    with pytest.raises(ValueError, match="unlabeled was given, but no penalty here can use it"):
        in_one_graph(model, gr.DoubleBack(weight=0.1))(x, y, unlabeled=x)


def test_a_state_that_is_loaded_is_the_one_that_is_trained_on() -> None:
    model, x, y = toy()
    step = in_one_graph(model, gr.DoubleBack(weight=0.1))
    step(x, y)
    optimizer, weights, state = step.optimizer, copy.deepcopy(model.state_dict()), copy.deepcopy(step.optimizer.state_dict())
    found = []
    for _ in range(2):
        model.load_state_dict(weights)
        optimizer.load_state_dict(copy.deepcopy(state))
        step(x, y)
        found.append(copy.deepcopy(model[0].weight))
    assert torch.equal(*found)
    assert len(step.objective._prepared) == 3  # each writes to another state


def test_parameters_of_another_optimizer_get_their_gradients() -> None:
    model, x, y = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1])
    body = torch.optim.SGD(model[0].parameters(), lr=0.1)
    gr.Step(gr.Objective(F.cross_entropy, gr.DoubleBack(weight=1)), model, body)(x, y)
    assert model[1].weight.grad.norm() > 0


def test_without_a_gradient_penalty_it_is_a_plain_backward_pass() -> None:
    class Checkpointed(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:  # the old kind, which refuses a list of inputs
            return checkpoint(super().forward, x.requires_grad_(), use_reentrant=True)

    model = Checkpointed(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gr.Step(gr.Objective(F.cross_entropy, gr.WeightDecay(weight=0.1)), model, optimizer)(
        torch.randn(2, 3), torch.tensor([0, 1])
    )
    assert model.weight.grad.norm() > 0
