"""Several runs of one large network on one GPU: captured steps side by side on streams, against one after the other.

``python benchmarks/lanes.py 3`` times 1, 2 and 3 runs of the CIFAR ResNet with SpectReg in bfloat16.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.nn.functional as F

from gradreg import Objective, SpectReg, Step
from gradreg.bench.cases import case_of
from gradreg.training.run import matmul_precision

STEPS = 40


def main(largest: int) -> None:
    device = torch.device("cuda")
    case = case_of("resnet", batch_size=None, num_classes=None, precision="bf16")
    lanes = []
    with matmul_precision("bf16"), case.autocast(device):
        for _ in range(largest):
            model, x, y = case.on(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9, nesterov=True, fused=True)
            objective = Objective(F.cross_entropy, SpectReg(weight=0.003), engine="compiled", check_finite=False)
            step = Step(objective, model, optimizer)
            step(x, y)
            lanes.append((torch.cuda.Stream(), step, x, y))
            print(f"lane {len(lanes)} ready", flush=True)
        for number in range(1, largest + 1):
            for together in (False, True):
                torch.cuda.synchronize()
                started = time.perf_counter()
                for _ in range(STEPS):
                    for stream, step, x, y in lanes[:number]:
                        with torch.cuda.stream(stream if together else torch.cuda.default_stream()):
                            step(x, y)
                torch.cuda.synchronize()
                each = 1e3 * (time.perf_counter() - started) / STEPS / number
                print(f"{number} runs {'on streams' if together else 'in turns'}: {each:.3f} ms a step and run", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
