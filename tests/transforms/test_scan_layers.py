"""Layers that were run as one operation: where a loop can stand, and where a helper is called."""

from __future__ import annotations

import pytest
from conftest import check_noop, check_transformed

IMPORT = "from torch_xla.experimental.scan_layers import scan_layers\n\n\n"
HELPER = '''def run_layers(layers, inputs):
    """Call each layer with what the one before it returned; a tuple is its arguments."""
    for layer in layers:
        inputs = layer(*inputs) if isinstance(inputs, tuple) else layer(inputs)
    return inputs


'''
# The body of a function of `net`, `x` and `deep`, and what becomes of it.
LOOPS = {
    "the same name": (
        "    x = scan_layers(net.layers, x)\n    return net.head(x)\n",
        "    for layer in net.layers:\n        x = layer(x)\n    return net.head(x)\n",
    ),
    "a new name": (
        "    h = scan_layers(net.layers, input_data=net.embed(x), is_layer_pure=True)  # all\n",
        "    h = net.embed(x)\n    for layer in net.layers:\n        h = layer(h)  # all\n",
    ),
    "over several lines": (
        "    h = scan_layers(\n        net.layers,\n        x,\n    )\n",
        "    h = x\n    for layer in net.layers:\n        h = layer(h)\n",
    ),
    "on a line with its test": (
        "    if deep: x = scan_layers(net.layers, x)\n",
        "    if deep:\n        for layer in net.layers:\n            x = layer(x)\n",
    ),
    "a name within": (
        "    h = scan_layers(net.layers, y := x)\n",
        "    h = (y := x)\n    for layer in net.layers:\n        h = layer(h)\n",
    ),
    "returned": (
        "    return scan_layers(net.layers, x)\n",
        "    for layer in net.layers:\n        x = layer(x)\n    return x\n",
    ),
    "the usual name is taken": (
        "    layer = net.last\n    x = scan_layers(net.layers, x)\n    return layer(x)\n",
        "    layer = net.last\n    for block in net.layers:\n        x = block(x)\n"
        "    return layer(x)\n",
    ),
}
CALLS = {
    "within an expression": "    return net.head({}(net.layers, x))\n",
    "a tuple": "    x = {}(net.layers, (x, deep))\n",
    "a name for a tuple": "    x = (x, deep)\n    x = {}(net.layers, x)\n",
    "the layers depend on the name": "    x = {}(x.layers, x)\n",
    "the layers are made": "    x = {}(net.make(), x)\n",
    "a closure sees the name": "    net.look = lambda: x\n    return {}(net.layers, x)\n",
    "a handler sees the name": (
        "    try:\n        return {}(net.layers, x)\n    finally:\n        print(x)\n"
    ),
    "a handler sees the name that is assigned": (
        "    try:\n        x = {}(net.layers, x)\n    except RuntimeError:\n        print(x)\n"
    ),
    "in a class": "    class Run:\n        x = {}(net.layers, deep)\n",
    "a tuple of a list": "    x = tuple(deep)\n    x = {}(net.layers, x)\n",
    "perhaps a tuple": "    x = (x, deep) if deep else x\n    x = {}(net.layers, x)\n",
    "a name said to be a tuple": "    h: tuple[int] = net.both(x)\n    h = {}(net.layers, h)\n",
    "an attribute": "    net.h = {}(net.layers, x)\n",
    "two names": "    a = b = {}(net.layers, x)\n",
    "not alone on its line": "    x = {}(net.layers, x); print(x)\n",
    "a comment between": "    x = {}(\n        net.layers,  # of one kind\n        x,\n    )\n",
    "returned what is no name": "    return {}(net.layers, net.embed(x))\n",
    "dropped": "    {}(net.layers, x)\n",
}
LEFT = {
    "a partition function": "    x = scan_layers(net.layers, x, deep)\n",
    "handed on": "    return net.run(scan_layers, x)\n",
    "unpacked": "    x = scan_layers(*deep)\n",
}
FUNCTION = "def forward(net, x, deep):\n"


@pytest.mark.parametrize("form", LOOPS)
def test_loop(form: str) -> None:
    before, after = LOOPS[form]
    check_transformed(IMPORT + FUNCTION + before, FUNCTION + after)


@pytest.mark.parametrize("form", CALLS)
def test_helper(form: str) -> None:
    body = CALLS[form]
    check_transformed(
        IMPORT + FUNCTION + body.format("scan_layers"),
        HELPER + FUNCTION + body.format("run_layers"),
    )


@pytest.mark.parametrize("form", LEFT)
def test_left(form: str) -> None:
    result = check_noop(IMPORT + FUNCTION + LEFT[form], todo=False)
    assert [(f.rule, f.applied) for f in result.findings] == [("XLA831", False)]


def test_nested_function_sees_the_name_of_the_outer_one() -> None:
    body = "    def last():\n        return scan_layers(net.layers, x)\n\n    return last\n"
    check_transformed(
        IMPORT + FUNCTION + body, HELPER + FUNCTION + body.replace("scan_layers", "run_layers")
    )
