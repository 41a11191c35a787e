"""Where the program runs, and what the other files ask about it."""
import torch
import torch_xla.core.xla_model as xm


def get_device():
    return xm.xla_device()


def say(*words):
    """Print once, however many workers there are."""
    xm.master_print(*words, flush=True)


def save(model, path):
    # CPU tensors, so that any machine can read them
    xm.save(model.state_dict(), path)
