"""torch's own samples for its operators: the device gives what the CPU gives, and gradients too."""

from __future__ import annotations

import sys
import types
import unittest
import warnings
from collections.abc import Iterator
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import Any

import torch

if find_spec("expecttest") is None:
    # The module of the samples derives a class of it, which nothing here uses.
    stand_in: Any = types.ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase
    sys.modules["expecttest"] = stand_in

from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

# What is not compared, and why. Patterns of names.
EXCEPTIONS = {
    "empty*": "nothing is said of what is in them",
    "new_empty*": "nothing is said of what is in them",
    "jiterator_*": "for CUDA alone",
    "to_sparse": "torch_tpu has no sparse tensors",
    "sparse.*": "torch_tpu has no sparse tensors",
    "as_strided.partial_views": "the sample looks at memory around its tensor",
    "l??space.tensor_overload": "a factory of the CPU that takes tensors",
    "to": "the sample moves the tensor to the CPU",
    "tensor_split": "torch wants the indices on the CPU",
    "broadcast_shapes": "has to do with shapes, not tensors",
    "linalg.eig": "the gradient is not defined",
}


def _moved(value: Any) -> Any:
    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to("tpu").requires_grad_(leaf.requires_grad)
        return leaf

    return tree_map(move, value)


def _back(value: Any) -> Any:
    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        assert leaf.device.type == "tpu", leaf.device
        return leaf.cpu()

    return tree_map(move, value)


def _gradients(result: Any, inputs: list[torch.Tensor]) -> list[Any]:
    outputs = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not outputs or not inputs:
        return []
    total = sum((o.abs() if o.is_complex() else o).sum() for o in outputs)
    return list(torch.autograd.grad(total, inputs, allow_unused=True))


def _inputs(sample: Any) -> list[torch.Tensor]:
    leaves = tree_leaves((sample[0], sample[1], sample[2]))
    return [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]


def _compare(op: Any) -> None:
    kwargs = {"requires_grad": op.supports_autograd}
    for index, sample in enumerate(op.sample_inputs("cpu", torch.float32, **kwargs)):
        if index >= 1:
            return
        there = (sample.input, sample.args, sample.kwargs)
        here = _moved(there)
        if not any(isinstance(t, torch.Tensor) for t in tree_leaves(here)):
            here[2]["device"] = "tpu"  # a factory
        expected = op(there[0], *there[1], **there[2])
        actual = op(here[0], *here[1], **here[2])
        torch.testing.assert_close(_back(actual), expected, equal_nan=True)
        gradients = zip(
            _gradients(actual, _inputs(here)), _gradients(expected, _inputs(there)), strict=True
        )
        for mine, theirs in gradients:
            if theirs is not None:
                torch.testing.assert_close(_back(mine), theirs, equal_nan=True)


def operators() -> Iterator[Any]:
    for op in op_db:
        excepted = any(fnmatchcase(op.full_name, pattern) for pattern in EXCEPTIONS)
        if torch.float32 in op.dtypes and not excepted:
            yield op


def check_operators() -> None:
    wrong = {}
    count = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in operators():
            count += 1
            try:
                _compare(op)
            except Exception as error:
                wrong[op.full_name] = repr(error)[:300]
    assert not wrong, wrong
    assert count > 500, count
