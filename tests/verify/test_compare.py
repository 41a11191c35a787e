"""What counts as the same, and what is said where it is not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from xla2tpu.verify import report
from xla2tpu.verify.compare import Comparison, Ignored, Tolerance, compare, lines_differ
from xla2tpu.verify.record import Record


def line(text: str, at: str = "a.py:1") -> dict[str, Any]:
    return {"event": "line", "text": text, "at": at}


def loss(value: float, at: str = "a.py:2") -> dict[str, Any]:
    return {"event": "loss", "value": value, "at": at}


def step(
    *slices: float, at: str = "a.py:3", shape: tuple[int, ...] | None = None
) -> dict[str, Any]:
    of = {
        "norm": math.hypot(*slices),
        "mean": sum(map(abs, slices)) / len(slices),
        "slices": list(slices),
    }
    parameter = {"name": "weight", "shape": list(shape or (len(slices),)), "of": of}
    return {"event": "step", "at": at, "optimizer": "SGD", "parameters": [parameter]}


def run(*events: dict[str, Any], status: int | None = 0, **more: Any) -> Record:
    return Record("torch_xla", status, {"torch": "2.9.1"}, {0: list(events)}, **more)


def ranks(*events: list[dict[str, Any]]) -> Record:
    return Record("emulated", 0, {"torch": "2.13.0"}, dict(enumerate(events)))


def differences(found: Comparison) -> list[str]:
    return [difference.what for part in found.parts for difference in part.differences]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("loss 0.12345", "loss 0.12346"),
        ("loss 1.2e-07", "loss 1.3e-07"),
        ("12.50", "12.51"),
        ("tensor([1.], device='xla:0')", "tensor([1.], device='tpu:0')"),
        ("on xla:1", "on tpu"),
        ("value nan", "value nan"),
        ("shape (3, 4)", "shape (3, 4)"),
        ("lr 1e-3", "lr 1.0e-03"),
    ],
)
def test_lines_that_agree(a: str, b: str) -> None:
    assert not lines_differ(a, b, Tolerance())


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("loss 0.12345", "loss 0.12445"),
        ("step 3", "step 4"),
        ("step 1000", "step 1001"),
        ("value nan", "value 1.0"),
        ("done", "Done"),
        ("12.5 of 3", "12.5 of"),
        ("layer4 ok", "layer5 ok"),
        ("lr 0.1", "lr 0.2"),
        ("lr 1e-3", "lr 2e-3"),
        ("0.5", "0.6"),
        ("0.05", "0.06"),
        ("accuracy 0.912", "accuracy 0.914"),
        ("1", "1.0"),
        ("1", "1e0"),
    ],
)
def test_lines_that_differ(a: str, b: str) -> None:
    assert lines_differ(a, b, Tolerance())


def test_same() -> None:
    events = (loss(0.5), step(1.0, 2.0), line("0 0.5"))
    found = compare(run(*events), run(*events))
    assert (found.verdict, found.exit_status, found.first) == ("same", 0, None)


def test_nothing_to_compare_is_not_the_same() -> None:
    found = compare(run(), run())
    assert (found.verdict, found.exit_status) == ("not comparable", 1)
    assert "printed nothing" in report.verdict(found)


def test_first_difference_has_both_places() -> None:
    found = compare(run(loss(0.5), loss(0.25)), run(loss(0.5), loss(0.26, "a.py:7")))
    assert found.first is not None
    assert report.verdict(found) == (
        "differs: first in losses: loss 2: 0.25 became 0.26 [migrated a.py:7, original a.py:2]"
    )


def test_steps_that_are_missing() -> None:
    found = compare(run(step(1.0), step(2.0, at="a.py:9")), run(step(1.0)))
    assert differences(found) == ["the original has 2 optimizer steps, the migrated program 1"]
    assert found.first is not None
    assert found.first[1].original == "a.py:9"


def test_a_single_element_shows() -> None:
    found = compare(run(step(1.0, 2.0)), run(step(1.0, 2.1)))
    assert differences(found)[0].startswith("after step 1 of SGD: weight: norm")
    # The norm is the same, the elements are not.
    found = compare(run(step(1.0, 2.0)), run(step(2.0, 1.0)))
    assert differences(found) == ["after step 1 of SGD: weight: element 0 of 2: 1 became 2"]


@pytest.mark.parametrize(
    ("name", "a", "b"),
    [("lr", 0.1, 0.2), ("betas", [0.9, 0.99], [0.9, 0.999]), ("nesterov", False, True)],
)
def test_settings_of_optimizers(name: str, a: Any, b: Any) -> None:
    before, after = step(1.0), step(1.0)
    before["groups"] = [{name: a, "foreach": None, "old": 1}]
    after["groups"] = [{name: b, "foreach": True, "new": 1}]
    text = f"after step 1 of SGD: {name} of group 0: {a!r} became {b!r}"
    assert differences(compare(run(before), run(after))) == [text]
    assert compare(run(before), run(before)).verdict == "same"
    # A record from before settings were kept.
    assert compare(run(step(1.0)), run(after)).verdict == "same"
    after["groups"] *= 2
    found = differences(compare(run(before), run(after)))
    assert found == ["after step 1 of SGD: 1 groups of parameters became 2"]


def test_elements_of_a_large_parameter() -> None:
    a, b = step(*[1.0] * 16, shape=(32,)), step(*[1.0] * 15, -1.0, shape=(32,))
    assert differences(compare(run(a), run(b)))[0].endswith("but the elements are others")


def test_lines_missing_added_and_changed() -> None:
    before = run(line("begin"), line("loss 1.0"), line("middle"), line("end"))
    after = run(line("begin"), line("loss 2.0", "b.py:4"), line("end"), line("more"))
    assert differences(compare(before, after)) == [
        "'loss 1.0' became 'loss 2.0'",
        "'middle' is no longer printed",
        "'more' is printed in addition",
    ]


def test_lines_in_another_order_are_called_so() -> None:
    found = compare(run(line("closure"), line("step")), run(line("step"), line("closure")))
    assert len(differences(found)) == 1
    assert differences(found)[0].startswith("the same lines come in another order, from line 1 on")


def test_ignored_lines_and_text() -> None:
    before = run(line("took 3.5 s"), line("5 images/s loss 1.0"), line("end"))
    after = run(line("took 99.0 s"), line("7 images/s loss 1.0"), line("end"))
    assert compare(before, after).verdict == "differs"
    ignored = Ignored(("^took",), (r"\d+ images/s",))
    assert compare(before, after, ignored=ignored).verdict == "same"


def test_after_a_draw_that_cannot_be_shared_nothing_counts() -> None:
    end = {"event": "open", "at": "a.py:5", "why": "dropout draws on the device"}
    before, after = (
        run(loss(0.5), end, loss(0.3), line("0.3")),
        run(loss(0.5), loss(0.9), line("1")),
    )
    found = compare(before, after)
    assert (found.verdict, found.exit_status, differences(found)) == ("not comparable", 1, [])
    assert found.open_ends == ["from a.py:5 of the original on: dropout draws on the device"]
    # What comes before it still counts.
    assert compare(before, run(loss(0.6))).verdict == "differs"


def test_exit_status_and_errors() -> None:
    error = {"event": "error", "type": "RuntimeError", "text": "no kernel\nmore", "at": "a.py:8"}
    found = compare(run(line("a")), run(line("a"), error, status=1))
    assert differences(found)[0] == (
        "the original ends with status 0, the migrated program with RuntimeError: no kernel"
    )
    both = compare(run(line("a"), error, status=1), run(line("a"), error, status=1))
    assert both.verdict == "not comparable"
    assert both.open_ends == ["both runs end with RuntimeError: no kernel, at a.py:8"]


def test_time_limit() -> None:
    found = compare(run(line("a"), status=None), run(line("a")))
    assert found.open_ends == ["the original did not end within the time limit"]
    assert found.verdict == "differs"


def tensor(*values: float, dtype: str = "torch.float32") -> dict[str, Any]:
    found = step(*values)["parameters"][0]
    return {"shape": found["shape"], "dtype": dtype, "of": found["of"]}


def values(**entries: Any) -> dict[str, Any]:
    return {"kind": "values", "values": entries}


def test_files() -> None:
    before = run(
        files={
            "same.pt": values(w=tensor(1.0), step=3, lr=0.1),
            "weight.pt": values(w=tensor(1.0), step=3),
            "type.pt": values(w=tensor(1.0)),
            "keys.pt": values(a=1),
            "gone.txt": {"kind": "text", "lines": ["x"]},
            "log.txt": {"kind": "text", "lines": ["loss 1.0", "end"]},
            "odd.bin": {"kind": "bytes", "sha256": "1", "unread": "EOFError: x"},
        }
    )
    after = run(
        files={
            "same.pt": values(w=tensor(1.00001), step=3, lr=0.1),
            "weight.pt": values(w=tensor(1.5), step=4),
            "type.pt": values(w=tensor(1.0, dtype="torch.bfloat16")),
            "keys.pt": values(b=1),
            "log.txt": {"kind": "text", "lines": ["loss 2.0", "end"]},
            "odd.bin": {"kind": "bytes", "sha256": "2", "unread": "EOFError: x"},
        }
    )
    found = compare(before, after)
    assert differences(found) == [
        "gone.txt is no longer written",
        "keys.pt: a is missing",
        "keys.pt: b is new",
        "log.txt: line 1: 'loss 1.0' became 'loss 2.0'",
        "type.pt: w: torch.float32 became torch.bfloat16",
        "weight.pt: w: norm 1 became 1.5",
        "weight.pt: step: 3 became 4",
    ]
    assert found.open_ends == ["odd.bin has other bytes, and cannot be read: EOFError: x"]
    ignored = Ignored(files=("[!s]*.pt", "*.bin", "*.txt"))
    assert compare(before, after, ignored=ignored).verdict == "same"


def test_ranks_against_one_process() -> None:
    reference = run(loss(1.5), step(1.0), line("end"))
    good = ranks([loss(1.0), step(1.0), line("end")], [loss(2.0), step(1.0)])
    found = compare(reference, good)
    assert (found.verdict, [row.migrated for row in found.losses]) == ("same", [1.5])
    apart = ranks([loss(1.0), step(1.0), line("end")], [loss(2.0), step(1.2, at="a.py:6")])
    found = compare(reference, apart)
    assert found.first is not None
    name, first = found.first
    assert name == "ranks"
    assert "gradients were not averaged" in first.what
    assert first.migrated == "a.py:6"


def test_other_numbers_of_processes() -> None:
    found = compare(ranks([line("a")], [line("a")]), run(line("a")))
    assert found.open_ends == ["the original ran with 2 processes and the migrated program with 1"]


@pytest.mark.parametrize("event", [loss(1.0), step(1.0), line("a")])
def test_what_one_side_lacks_is_a_difference(event: dict[str, Any]) -> None:
    file = {"a.txt": {"kind": "text", "lines": ["x"]}}
    for silent in ({}, {0: []}):
        nothing = Record("emulated", 0, {}, silent, files=file)
        assert compare(run(event, files=file), nothing).verdict == "differs"
        assert compare(nothing, run(event, files=file)).verdict == "differs"
    # Of one rank of several too.
    assert compare(run(event), ranks([event], [])).verdict == "differs" or event["event"] == "line"
    assert compare(run(line("b"), files=file), run(line("b"))).verdict == "differs"


def test_text_report_lists_losses() -> None:
    before, after = run(loss(0.5), step(1.0)), run(loss(0.5000001), step(1.0))
    text = report.text(compare(before, after), before, after, "kept.json")
    assert "recorded in kept.json" in text
    assert "     1            0.5      0.5000001        1e-07  a.py:2\n" in text
    assert "losses:         1 compared, agree\n" in text
    assert text.endswith("same: the migrated program did what the original did\n")


def test_long_lists_of_losses_are_cut() -> None:
    events = [loss(1.0 / n) for n in range(1, 101)]
    found = compare(run(*events), run(*events))
    listed = report.text(found, run(*events), run(*events), None).splitlines()
    numbers = [row.split()[0] for row in listed if row.endswith("a.py:2")]
    assert numbers == [str(n) for n in [*range(1, 21), *range(81, 101)]]
    assert "   ..." in listed


def two_step(bias: float, of_bias: float, of_weight: float = 1.0) -> dict[str, Any]:
    """A step of a weight, and of a bias whose gradient has the norm ``of_bias``."""
    made, other = step(0.5), step(bias)
    made["parameters"][0]["gradient"] = of_weight
    other["parameters"][0].update(name="bias", gradient=of_bias)
    made["parameters"] += other["parameters"]
    return made


def test_parameters_that_only_rounding_moves_are_left_out() -> None:
    a = run(two_step(0.1, 2e-9), two_step(0.2, 0.3))
    b = run(two_step(-0.1, 3e-9), two_step(-0.2, 0.3))
    found = compare(a, b)
    assert differences(found) == []
    assert any(note.startswith("bias is not compared from step 1 on") for note in found.notes)


@pytest.mark.parametrize("gradients", [(0.3, 0.3), (2e-9, 0.3), (0.3, 2e-9), (0.0, 0.0)])
def test_all_others_are_compared(gradients: tuple[float, float]) -> None:
    a, b = (run(two_step(v, g)) for v, g in zip((0.1, -0.1), gradients, strict=True))
    assert differences(compare(a, b)) == [
        "after step 1 of SGD: bias: element 0 of 1: 0.1 became -0.1"
    ]


def test_what_is_left_out_is_left_out_of_files_too() -> None:
    def saved(bias: float, variance: float, mean: float) -> dict[str, Any]:
        values = {
            name: {**step(value)["parameters"][0], "dtype": "float32"}
            for name, value in (
                ("model.bias", bias),
                ("model.1.running_var", variance),
                ("model.1.running_mean", mean),
            )
        }
        return {"model.pt": {"kind": "values", "values": values}}

    a = run(two_step(0.1, 2e-9), files=saved(0.1, 1.0, 2.0))
    b = run(two_step(-0.1, 3e-9), files=saved(-0.1, 1.2, 2.0))
    found = compare(a, b)
    assert differences(found) == []
    assert any(note.startswith("running_var of BatchNorm") for note in found.notes)
    c = run(two_step(-0.1, 3e-9), files=saved(-0.1, 1.2, 2.5))
    assert "model.1.running_mean" in differences(compare(a, c))[0]
