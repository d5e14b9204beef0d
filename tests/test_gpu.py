"""On a CUDA device: the same numbers as on the CPU, no side effects, and the errors that only a GPU can give."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from test_objective import ALL, SETTINGS, batch, network, seeded
from test_snapshot import steps_resumed_at, stop_in_a_lane
from torch import Tensor, nn

import gradreg as gr
from gradreg.bench.timing import noise
from gradreg.data import Dataset
from gradreg.draws import Draws
from gradreg.training import Fleet, RunConfig, run, snapshot
from gradreg.training.lanes import Lanes
from gradreg.training.run import matmul_precision

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module", autouse=True)
def _context() -> None:
    """The first backward pass of a process warns that it has to make its own CUDA context."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = torch.ones(2, 2, device="cuda", requires_grad=True)
        (x @ x).sum().backward()


@pytest.mark.parametrize("make", [*ALL[:8], gr.ConfidencePenalty, gr.WeightDecay])
def test_same_value_and_gradient_as_on_the_cpu(make) -> None:
    """A CPU generator draws the same projections wherever the model lives."""
    model, (x, y) = network().double(), batch()
    model[4].p = 0.0
    on_gpu = copy.deepcopy(model).cuda()
    objective = gr.Objective(F.cross_entropy, make(weight=0.1))
    here = objective(model, x.double(), y, generator=seeded())
    there = objective(on_gpu, x.double().cuda(), y.cuda(), generator=seeded())
    torch.testing.assert_close(there.total.cpu(), here.total)
    here.total.backward()
    there.total.backward()
    for expected, found in zip(model.parameters(), on_gpu.parameters(), strict=True):
        torch.testing.assert_close(found.grad.cpu(), expected.grad)


@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
@pytest.mark.parametrize("generator_device", ["cpu", "cuda", None])
def test_leaves_the_random_state_of_the_device_alone(settings, generator_device) -> None:
    model, (x, y) = network().cuda(), batch()
    x, y = x.cuda(), y.cuda()
    torch.manual_seed(1)
    copy.deepcopy(model)(x)
    expected = torch.cuda.get_rng_state()
    torch.manual_seed(1)
    generator = None if generator_device is None else torch.Generator(generator_device).manual_seed(0)
    terms = gr.Objective(F.cross_entropy, gr.SpectReg(weight=1, **settings))(model, x, y, generator=generator)
    terms.total.backward()
    assert torch.equal(torch.cuda.get_rng_state(), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [gr.SpectReg, gr.DoubleBack, gr.FrobReg, gr.JacReg])
def test_autocast(make, dtype: torch.dtype) -> None:
    model = gr.models.resnet(widths=(16, 32), blocks_per_level=1).cuda().to(memory_format=torch.channels_last)
    x = torch.randn(32, 3, 16, 16, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(10, (32,), device="cuda")
    objective = gr.Objective(F.cross_entropy, make(weight=1, norm="l2"))
    exact = objective(model, x, y, generator=seeded()).penalties[make.name]
    with torch.autocast("cuda", dtype):
        terms = objective(model, x, y, generator=seeded())
    terms.total.backward()
    torch.testing.assert_close(terms.penalties[make.name], exact, rtol=0.1, atol=1e-3)


def test_recurrent_layers_of_cudnn_are_named_and_the_way_out_works() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(3, 8, batch_first=True), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(x)[0].mean(1))

    model, x, y = Tagger().cuda(), torch.randn(4, 5, 3).cuda(), torch.tensor([0, 1, 0, 1]).cuda()
    objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=1))
    with pytest.raises(gr.DifferentiationError, match=r"cudnn_rnn.*torch.backends.cudnn.flags"):
        objective(model, x, y)
    with torch.backends.cudnn.flags(enabled=False):
        objective(model, x, y).total.backward()
    gr.Objective(F.cross_entropy, gr.SpectReg(weight=1, wrt="lstm"))(model, x, y).total.backward()


def test_attention_works_although_its_fused_kernels_do_not() -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(64 * 16, 10)).cuda()
    x, y = torch.randn(8, 16, 64, device="cuda"), torch.randint(10, (8,), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        gr.Objective(F.cross_entropy, gr.SpectReg(weight=1))(model, x, y).total.backward()


def test_chunks_bound_the_peak_memory() -> None:
    model = gr.models.resnet18().cuda()
    x, y = torch.randn(8, 3, 64, 64, device="cuda"), torch.randint(200, (8,), device="cuda")

    def peak(chunk_size: int | None) -> int:
        model.zero_grad()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        gr.Objective(F.cross_entropy, gr.FrobReg(weight=0.01, chunk_size=chunk_size))(model, x, y).total.backward()
        return torch.cuda.max_memory_allocated()

    whole, chunked = peak(None), peak(10)
    assert chunked < whole / 4, f"{whole >> 20} MiB at once, {chunked >> 20} MiB in chunks of 10"


def test_a_run_repeats_itself_bit_for_bit_and_learns_in_every_precision() -> None:
    from dataclasses import replace

    from test_training import without_times

    from gradreg.data import load
    from gradreg.training import RunConfig, run

    pytest.importorskip("sklearn")
    dataset = load("digits")
    sizes = {"train_size": 200, "validation_size": 300, "num_steps": 200}
    penalties = (gr.SpectReg(weight=0.003, forward="fresh"), gr.WeightDecay(weight=5e-4))
    one = RunConfig(data="digits", fingerprint=dataset.fingerprint, model="lenet", penalties=penalties, **sizes)
    first, second = (run(one, dataset, device="cuda").record for _ in range(2))
    assert without_times(first) == without_times(second)
    for precision in ("fp32", "tf32", "bf16"):
        assert run(replace(one, precision=precision), dataset, device="cuda").record.metrics["accuracy"] > 0.85


# ---- compiled graphs and fleets ----

COMPILER_MAY_WARN = pytest.mark.filterwarnings("ignore")


def short_run(data: Dataset, model: str, *penalties: gr.Penalty) -> RunConfig:
    return RunConfig(
        data="noise",
        fingerprint=data.fingerprint,
        model=model,
        train_size=60,
        validation_size=20,
        num_steps=30,
        batch_size=10,
        penalties=penalties,
        precision="fp64",
        num_evaluations=2,
    )


@COMPILER_MAY_WARN
@pytest.mark.parametrize("penalty", [gr.SpectReg(weight=0.1), gr.DoubleBack(weight=0.1), gr.FrobReg(weight=0.1)], ids=repr)
def test_compiled_equals_eager(penalty: gr.Penalty) -> None:
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(36, 3),
    ]
    model = nn.Sequential(*layers).double().cuda()
    x, y = torch.randn(6, 1, 8, 8).double().cuda(), torch.tensor([0, 1, 2, 0, 1, 2]).cuda()
    found = []
    for engine in ("double_backward", "compiled", "compiled"):
        model.zero_grad()
        objective = gr.Objective(F.cross_entropy, penalty, engine=engine)
        for seed in (7, 0):  # the captured graph is replayed with other values
            model.zero_grad()
            terms = objective(model, x, y, generator=Draws.of_seed(seed))
            terms.total.backward()
        numbers = [terms.total.detach(), terms.loss.detach(), *terms.penalties.values()]
        found.append([*numbers, *(p.grad.clone() for p in model.parameters())])
    for mine, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(mine.detach(), theirs.detach(), rtol=1e-8, atol=1e-10)


@COMPILER_MAY_WARN
def test_step_with_a_fused_optimizer_in_the_graph() -> None:
    def weights(engine: str) -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double().cuda()
        x, y = torch.randn(6, 4).double().cuda(), torch.tensor([0, 1, 2, 0, 1, 2]).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, fused=True)
        step = gr.Step(gr.Objective(F.cross_entropy, gr.SpectReg(weight=0.1), engine=engine), model, optimizer)
        for number in range(6):
            if number == 3:
                optimizer.param_groups[0]["lr"] = 0.01
            step(x, y, generator=Draws.of_seed(number))
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    # The learning rate is a tensor of single precision there.
    torch.testing.assert_close(weights("compiled"), weights("double_backward"), rtol=1e-6, atol=1e-8)


@COMPILER_MAY_WARN
@pytest.mark.parametrize("size", [12, 28])
@pytest.mark.parametrize(
    "penalties",
    [
        (),
        (gr.SpectReg(weight=0.03), gr.WeightDecay(weight=0.001)),
        (gr.FrobReg(weight=0.03, forward="fresh"),),
        (gr.JacReg(weight=1.0),),
    ],
    ids=repr,
)
def test_member_of_a_fleet_equals_the_run_alone(penalties, size: int) -> None:
    data = noise((1, size, size))
    base = replace(short_run(data, "lenet", *penalties), num_steps=50)
    configs = [replace(base, seed=seed, learning_rate=0.001 * (1 + seed)) for seed in range(3)]
    for member, one in zip(Fleet(configs, data, device="cuda").train(), configs, strict=True):
        alone = run(one, data, device="cuda")
        tensors = member.model.state_dict()
        for name, expected in alone.model.state_dict().items():
            torch.testing.assert_close(tensors[name], expected, rtol=1e-9, atol=1e-9)
        assert member.record.metrics == pytest.approx(alone.record.metrics, rel=1e-5, abs=1e-5)


@COMPILER_MAY_WARN
def test_compiled_transformer_in_half_precision() -> None:
    """Derivatives are taken outside autocast: softmax has no backward kernel for mixed types."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(32 * 8, 5)).cuda()
    x, y = torch.randn(8, 8, 32, device="cuda"), torch.randint(5, (8,), device="cuda")

    def gradient(engine: str, half: bool) -> Tensor:
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            terms = gr.Objective(F.cross_entropy, gr.SpectReg(weight=0.1), engine=engine)(
                model, x, y, generator=Draws.of_seed(0)
            )
        terms.total.backward()
        return torch.cat([p.grad.flatten().clone() for p in model.parameters()])

    exact = gradient("double_backward", half=False)
    for engine in ("compiled", "double_backward"):
        assert (gradient(engine, half=True) - exact).norm() < 0.05 * exact.norm(), engine


@COMPILER_MAY_WARN
def test_lanes_give_what_runs_alone_give() -> None:
    data = noise((1, 12, 12))
    base = short_run(data, "lenet", gr.SpectReg(weight=0.03), gr.WeightDecay(weight=0.001))
    configs = [replace(base, seed=seed, learning_rate=0.001 * (1 + seed)) for seed in range(3)]
    for trained in Lanes(configs, data, device="cuda", num_lanes=2).train():
        alone = run(trained.record.config, data, device="cuda")
        tensors = trained.model.state_dict()
        for name, expected in alone.model.state_dict().items():
            torch.testing.assert_close(tensors[name], expected, rtol=1e-5, atol=1e-6)  # its learning rate is single


@COMPILER_MAY_WARN
@pytest.mark.parametrize("penalty", [gr.SpectReg(weight=0.03), gr.DoubleBack(weight=1.0)], ids=repr)
def test_lanes_of_the_resnet_in_half_precision(penalty: gr.Penalty) -> None:
    """Channels last and batch norm, also where the norms of Jacobians are measured at the end."""
    data = noise((3, 32, 32))
    one = short_run(data, "resnet", penalty, gr.WeightDecay(weight=0.001))
    one = replace(one, num_steps=4, optimizer="sgd", precision="bf16")
    for trained in Lanes([replace(one, seed=seed) for seed in range(3)], data, device="cuda", num_lanes=2).train():
        assert set(trained.record.gradient_norms) == {"train", "test", "between"}
        assert len(set(trained.record.curve["train_loss"])) == 2


@COMPILER_MAY_WARN
def test_lanes_go_on_from_snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a captured step, whether they come first in their lane or later."""
    monkeypatch.setattr(snapshot, "KEEP_EVERY", 0.0)
    data = noise((1, 12, 12))
    one = replace(short_run(data, "lenet", gr.SpectReg(weight=0.03)), num_steps=8, num_evaluations=4)
    configs = [replace(one, seed=seed) for seed in range(3)]
    expected = list(Lanes(configs, data, device="cuda", num_lanes=1).train())
    for config in configs[::2]:
        stop_in_a_lane(config, data, tmp_path, monkeypatch, step=4, device="cuda")
    found = list(Lanes(configs, data, device="cuda", num_lanes=1, snapshots=tmp_path).train())
    assert [steps_resumed_at(trained) for trained in found] == [[2], [], [2]]
    for trained, other in zip(found, expected, strict=True):
        torch.testing.assert_close(trained.model.state_dict(), other.model.state_dict(), rtol=1e-4, atol=1e-5)
        assert trained.record.curve["step"] == other.record.curve["step"]


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("engine", ["double_backward", "compiled", "linearized", "finite_difference"])
@COMPILER_MAY_WARN
def test_error_of_the_gradient_in_lower_precision(engine: str, precision: str) -> None:
    """Against double precision, smooth network: rounding of the format, times what differentiating twice makes of it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 36, 32), nn.Tanh(), nn.Linear(32, 5))
    x, y = torch.randn(64, 1, 8, 8), torch.randint(5, (64,))

    def gradient(engine: str, dtype: torch.dtype) -> Tensor:
        here = copy.deepcopy(model).to("cuda", dtype)
        objective = gr.Objective(F.cross_entropy, gr.SpectReg(weight=0.1), engine=engine)
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16" and dtype == torch.float32):
            terms = objective(here, x.to("cuda", dtype), y.cuda(), generator=Draws.of_seed(0))
        terms.total.backward()
        return torch.cat([p.grad.flatten().double() for p in here.parameters()])

    exact = gradient("double_backward", torch.float64)
    with matmul_precision(precision):
        error = (gradient(engine, torch.float32) - exact).norm() / exact.norm()
    bound = {"tf32": 2e-3, "bf16": 2e-2}[precision] * (5 if engine == "finite_difference" else 1)
    assert error < bound, f"{engine} in {precision}: {error:.2e}"
