"""Train a small classifier on one TPU chip: python train.py"""
import torch
import torch.nn.functional as F
import torch_xla.core.xla_model as xm
from torch_xla.amp import autocast, syncfree

from device import get_device, save, say


def build_model():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(3600, 5)
    )


def fake_data(n):
    g = torch.Generator().manual_seed(0)
    return [(torch.rand(32, 3, 32, 32, generator=g), torch.randint(5, (32,), generator=g)) for _ in range(n)]


def report(step, loss, tracker):
    say(f"step {step}: loss {loss.item():.4f}, {tracker.rate():.1f} images/s")


def train(device, steps=100):
    model = build_model().to(device)
    optimizer = syncfree.AdamW(model.parameters(), lr=1e-3)
    tracker = xm.RateTracker()
    for step, (images, labels) in enumerate(fake_data(steps)):
        optimizer.zero_grad()
        with autocast():
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        xm.optimizer_step(optimizer, barrier=True)
        tracker.add(len(images))
        if step % 10 == 0:
            xm.add_step_closure(report, args=(step, loss, tracker))
    return model


if __name__ == "__main__":
    torch.manual_seed(42)
    save(train(get_device()), "flowers.pt")
