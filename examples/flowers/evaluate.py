"""Evaluate a trained classifier: python evaluate.py flowers.pt"""
import sys
import time

import torch
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met

from device import get_device, say
from train import build_model, fake_data


@torch.no_grad()
def evaluate(model, batches, device):
    model.eval()
    hits = total = 0
    for images, labels in batches:
        out = model(images.to(device))
        hits += (out.argmax(1).cpu() == labels).sum().item()
        total += len(labels)
        xm.mark_step()
    return hits / total


if __name__ == "__main__":
    device = get_device()
    model = build_model()
    model.load_state_dict(torch.load(sys.argv[1], map_location="cpu"))
    start = time.time()
    accuracy = evaluate(model.to(device), fake_data(8), device)
    xm.wait_device_ops()
    say(f"accuracy {accuracy:.3f} on {device.type} in {time.time() - start:.1f} s")
    if device.type == "xla":
        print(met.metrics_report())
