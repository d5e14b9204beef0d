"""Data parallelism and sharding: two processes give the gradients of one on the whole batch."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn

import gradreg as gr

PENALTIES = {
    "shared pass": (gr.DoubleBack(weight=1), gr.FrobReg(weight=0.1, wrt="1")),
    "own passes": (gr.DoubleBack(weight=1, forward="fresh"), gr.FrobReg(weight=0.1, batch_norm="frozen")),
}


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def make_batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 3, generator=generator, dtype=torch.float64), torch.randint(2, (8,), generator=generator)


def end() -> None:
    """Without the interpreter's own end, where PyTorch's threads sometimes abort the process, whatever it did before."""
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    os._exit(0)


def worker(rank: int, port: int, name: str, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(make_model())
    x, y = (part[4 * rank : 4 * rank + 4] for part in make_batch())
    objective = gr.Objective(F.cross_entropy, *PENALTIES[name])
    step = gr.Step(objective, model, torch.optim.SGD(model.parameters(), lr=0.0))
    for way in ("backward", "step"):  # the second finds what the first left behind
        model.zero_grad()
        objective(model, x, y).total.backward() if way == "backward" else step(x, y)
        torch.save([parameter.grad for parameter in model.parameters()], Path(folder) / f"{way}{rank}.pt")
    end()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.parametrize("name", PENALTIES)
def test_two_processes_equal_one(name: str, tmp_path: Path) -> None:
    mp.spawn(worker, (free_port(), name, str(tmp_path)), nprocs=2)
    model, (x, y) = make_model(), make_batch()
    gr.Objective(F.cross_entropy, *PENALTIES[name])(model, x, y).total.backward()
    for name in ("backward0", "backward1", "step0", "step1"):
        for found, parameter in zip(torch.load(tmp_path / f"{name}.pt"), model.parameters(), strict=True):
            torch.testing.assert_close(found, parameter.grad)


def sharded_worker(rank: int, port: int, folder: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    mesh, model = init_device_mesh("cpu", (2,)), make_model()
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    x, y = (part[4 * rank : 4 * rank + 4] for part in make_batch())
    gr.Objective(F.cross_entropy, gr.DoubleBack(weight=1), engine="finite_difference")(model, x, y).total.backward()
    torch.save([parameter.grad.full_tensor() for parameter in model.parameters()], Path(folder) / f"{rank}.pt")
    end()


def test_differences_work_with_sharded_parameters(tmp_path: Path) -> None:
    mp.spawn(sharded_worker, (free_port(), str(tmp_path)), nprocs=2)
    model, (x, y) = make_model(), make_batch()
    gr.Objective(F.cross_entropy, gr.DoubleBack(weight=1))(model, x, y).total.backward()
    for found, parameter in zip(torch.load(tmp_path / "0.pt"), model.parameters(), strict=True):
        torch.testing.assert_close(found, parameter.grad, rtol=1e-6, atol=1e-8)
