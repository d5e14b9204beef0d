"""The models of the paper: size, shapes, initialisation."""

from __future__ import annotations

import hashlib
import math
import sys
from pathlib import Path

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


# Models of the user's own, in a file

OWN = """
from __future__ import annotations

import functools
import hashlib
import math
import sys
from pathlib import Path
from dataclasses import dataclass

from torch import nn

@dataclass
class Sizes:
    width: int = 4

class Net(nn.Sequential):
    def __init__(self, input_shape, num_outputs):
        super().__init__(nn.Flatten(), nn.Linear(math.prod(input_shape), num_outputs))

def make(input_shape, num_outputs, width=Sizes.width):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), width), nn.Linear(width, num_outputs))

class Maker:
    def __call__(self, input_shape, num_outputs):
        return make(input_shape, num_outputs, 5)

small, callable_object, network = functools.partial(make, width=8), Maker(), nn.Linear(2, 2)
"""


@pytest.mark.parametrize(("name", "width"), [("Net", 3), ("make", 4), ("small", 8), ("callable_object", 5)])
def test_own_model_in_a_file(tmp_path: Path, name: str, width: int) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    model = models.build(f"{path}:{name}", (1, 2, 2), 3)
    assert model(torch.rand(2, 1, 2, 2)).shape == (2, 3)
    assert model[1].out_features == width
    assert models.source_fingerprint(f"{path}:{name}") == hashlib.sha256(OWN.encode()).hexdigest()[:16]


def test_own_model_in_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_of_ones_own.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("Net", "make", "small", "callable_object"):
        found = models.source_fingerprint(f"module_of_ones_own:{name}")
        assert found == hashlib.sha256(OWN.encode()).hexdigest()[:16], name


def test_own_model_that_is_a_network_already(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    with pytest.raises(ValueError, match="network is one network, and every run needs one of its own"):
        models.build(f"{tmp_path}/mine.py:network", (2,), 2)


def test_own_model_with_modules_beside_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From another folder, at the top of the file or later; each file has those beside it."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    before = [*sys.path]
    for width in (3, 4):
        folder = tmp_path / str(width)
        (folder / "beside_package").mkdir(parents=True)
        (folder / "beside_package" / "__init__.py").write_text(f"width = {width}")
        (folder / "beside.py").write_text("from torch.nn import Linear as Block\nfrom beside_package import width")
        (folder / "beside_later.py").write_text(f"scale = {width}")
        (folder / "mine.py").write_text(
            "from beside import Block, width\ndef net(num_outputs):\n    from beside_later import scale\n"
            "    return Block(width * scale, num_outputs)\n"
        )
        assert models.build(f"../{width}/mine.py:net", (1,), 2).in_features == width**2
    assert sys.path == before


def test_a_changed_neighbour_is_another_model(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from next_door import width\nfrom torch import nn\ndef net(): return nn.Linear(width, 2)"
    )
    (tmp_path / "next_door.py").write_text("width = 3")
    name = f"{tmp_path}/mine.py:net"
    first = models.source_fingerprint(name)
    assert models.source_fingerprint(name) == first
    (tmp_path / "next_door.py").write_text("width = 44")
    assert models.source_fingerprint(name) != first
    assert models.build(name, (1,), 2).in_features == 44
