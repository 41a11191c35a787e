"""What holds for places in any file: suppressions, markers, selection, holding back, bytes."""

from __future__ import annotations

import pytest
from helpers_files import migrated, run, told

from xla2tpu.files.places import FILLER, masked
from xla2tpu.model import Edit, Mode, Status
from xla2tpu.report import concise, text
from xla2tpu.runner import Run


@pytest.mark.parametrize(
    "line",
    [
        "torch_xla  # xla2tpu: ignore[XLA910]",
        "torch_xla  # noqa: XLA910",
        "# xla2tpu: ignore[XLA91]\ntorch_xla",
        "# xla2tpu: ignore-file\n\ntorch_xla",
    ],
)
def test_suppressed(line: str) -> None:
    result = run(f"{line}\n", "requirements.txt")
    assert [(f.rule, f.suppressed) for f in result.findings] == [("XLA910", True)]
    assert result.output is None
    assert result.status is Status.NEEDS_WORK


def test_a_suppression_of_nothing_is_told() -> None:
    text_ = "numpy  # xla2tpu: ignore[XLA910]\ntorch_xla\n"
    assert told(text_, "requirements.txt")[0] == ("XLA095", "XLA910", None)


def test_a_suppressed_place_keeps_what_goes_with_it() -> None:
    text_ = "torch==2.0  # xla2tpu: ignore[XLA911]\ntorch_xla\n"
    assert told(text_, "requirements.txt")[1] == ("XLA910", "torch-xla", "goes-together")


def test_markers_come_once_and_go_with_their_place() -> None:
    text_ = "set -e\nexport XLA_USE_BF16=1\nexport PJRT_DEVICE=CPU\n"
    marked = migrated(text_, "a.sh")
    assert marked.count("# TODO(xla2tpu): XLA917") == 2
    mended = "\n".join(line for line in marked.splitlines() if "BF16" not in line) + "\n"
    (stale,) = [f for f in run(mended, "a.sh", mode=Mode.CHECK).findings if f.rule == "XLA096"]
    assert stale.line == 2
    assert migrated(mended, "a.sh").count("# TODO(xla2tpu)") == 1
    assert migrated(text_, "a.sh", todo=False) == text_


def test_crlf_and_byte_order_marks_stay() -> None:
    before = b"\xef\xbb\xbfset -e\r\nexport PJRT_DEVICE=CPU\r\npip install torch_xla\r\n"
    result = run(before, "a.sh")
    assert result.output is not None
    assert result.output.startswith(b"\xef\xbb\xbfset -e\r\n# TODO(xla2tpu): XLA917")
    assert result.output.endswith(b".\r\nexport PJRT_DEVICE=CPU\r\npip install torch_tpu\r\n")
    assert result.output.count(b"\n") == result.output.count(b"\r\n") == 4


def test_other_encodings_stay() -> None:
    result = run(b"# gr\xfc\xdfe\ntorch_xla\n", "requirements.txt")
    assert result.output == b"# gr\xfc\xdfe\ntorch_tpu\n"


def test_a_fix_alone_brings_what_goes_with_it() -> None:
    text_ = "# é\ntorch==2.0\ntorch_xla\n"
    result = run(text_, "requirements.txt", mode=Mode.CHECK)
    at = len("# é\n".encode())
    for finding in result.findings:
        assert finding.fix is not None
        assert finding.fix.edits == (
            Edit(at, at + 10, "torch>=2.11"),
            Edit(at + 11, at + 20, "torch_tpu"),
        )


def test_selection() -> None:
    text_ = "export PJRT_DEVICE=TPU\npip install torch_xla\n"
    assert [r for r, _, _ in told(text_, "a.sh", select=("XLA910",))] == ["XLA910"]
    assert [r for r, _, _ in told(text_, "a.sh", ignore=("XLA91",))] == []
    partly = migrated(text_, "a.sh", select=("XLA917",), partial=True)
    assert partly == "pip install torch_xla\n"


def test_held_back_as_a_whole() -> None:
    text_ = "export XLA_USE_BF16=1\npip install torch_xla\n"
    held = run(text_, "a.sh", mode=Mode.FIX, unsafe=False)
    assert held.output is None
    assert held.held_back == (
        "1 safe fix held back: 1 place needs a person first; --partial applies them"
    )
    half = run(text_, "a.sh", mode=Mode.FIX, unsafe=False, partial=True)
    assert half.output == b"export XLA_USE_BF16=1\npip install torch_tpu\n"
    assert half.status is Status.NEEDS_WORK


def test_states_of_a_file() -> None:
    assert run("pip install torch_xla\n", "a.sh").status is Status.DONE
    assert run("pip install torch_xla\n", "a.sh", mode=Mode.CHECK).status is Status.READY
    assert run("ls\n", "a.sh").status is Status.CLEAN
    assert run("export PJRT_DEVICE=CPU\n", "a.sh").status is Status.NEEDS_WORK


def test_masked_text_has_as_many_bytes() -> None:
    source = "a é b\n# TODO(xla2tpu): XLA910 x\n"
    hidden = masked(source, [(2, 3)])
    assert len(hidden.encode()) == len(source.encode())
    assert hidden.startswith(f"a {FILLER * 2} b\n# {FILLER}")


def test_reports_show_them() -> None:
    result = run("pip install torch_xla\n", "a.sh", mode=Mode.CHECK)
    done = Run(Mode.CHECK, [result])
    assert "a.sh:1:13: XLA910 " in concise.render(done)
    assert "+ pip install torch_tpu" in text.render(done)


def test_a_result_that_cannot_be_read_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    from xla2tpu.files import formats
    from xla2tpu.files.places import Place

    def wrong(source: str, path: str) -> list[Place]:
        return [Place("requirement", 0, 5, "torch-xla", (Edit(0, 0, "torch_xla\n"),))]

    monkeypatch.setattr(formats, "requirements_txt", wrong)
    result = run("torch_xla\n", "requirements.txt")
    assert (result.status, result.output) == (Status.ERROR, None)
    assert result.error is not None
    assert "a second run would change the result (XLA910)" in result.error
