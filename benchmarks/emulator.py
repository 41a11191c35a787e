"""Training steps on the emulated device next to the same on the CPU, in one run.

    python -m xla2tpu.emulator benchmarks/emulator.py [--steps 200] [--rounds 3]

A small convolutional network, images of 3x32x32, batches of 32, SGD with momentum. Rounds
alternate between the devices, and the best of each counts, so that other load on the machine
matters less. Exit status 1 where the ratio is above the limit.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from torch import nn


def network() -> nn.Module:
    """Two convolutions with batch norm and pooling, and two linear layers."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 8 * 8, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def train(device: str, steps: int) -> tuple[float, float]:
    """Seconds for ``steps`` steps on ``device``, and the last loss."""
    torch.manual_seed(0)
    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    batches = [
        (
            torch.randn(32, 3, 32, 32, generator=generator),
            torch.randint(10, (32,), generator=generator),
        )
        for _ in range(8)
    ]
    loss = 0.0
    start = time.perf_counter()
    for step in range(steps):
        images, labels = (t.to(device) for t in batches[step % len(batches)])
        optimizer.zero_grad()
        error = nn.functional.cross_entropy(model(images), labels)
        error.backward()
        optimizer.step()
        loss = error.item()
    return time.perf_counter() - start, loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=3.0, help="of the ratio")
    arguments = parser.parse_args()
    for device in ("cpu", "tpu"):
        train(device, 5)
    times: dict[str, list[float]] = {"cpu": [], "tpu": []}
    for _ in range(arguments.rounds):
        for device, taken in times.items():
            seconds, loss = train(device, arguments.steps)
            taken.append(seconds)
            print(f"{device}: {seconds:.2f} s for {arguments.steps} steps, last loss {loss:.6f}")
    ratio = min(times["tpu"]) / min(times["cpu"])
    print(f"ratio: {ratio:.2f} (limit {arguments.limit:g})")
    sys.exit(ratio > arguments.limit)


if __name__ == "__main__":
    main()
