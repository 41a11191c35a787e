"""The HTML report: complete, well formed, without network, and at work in a real browser."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
import report_page
from click.testing import CliRunner

from xla2tpu.cli import main

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
XM = "import torch_xla.core.xla_model as xm\n"
VOID = {"meta", "input", "br"}


class Page(HTMLParser):
    """Checks that tags are closed in order, and keeps what was found."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def of(self, css_class: str) -> list[dict[str, str | None]]:
        return [a for _, a in self.tags if css_class in (a.get("class") or "").split()]


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").touch()
    Path("a <b>").mkdir()
    Path("a <b>/train.py").write_text(
        f'{XM}xm.mark_step()\nx = "<script>alert(1)</script>"; xm.rendezvous("a", replicas=[1])\n'
    )
    Path("done.py").write_text(f"{XM}xm.mark_step()\n")
    Path("bad.py").write_bytes(b"# coding: nonsense\nimport torch_xla\n")
    Path("plain.py").write_text("x = 1\n")
    result = CliRunner().invoke(main, ["migrate", "--report", "out.html", "--allow-dirty", "."])
    assert result.exit_code == 2
    return Path("out.html").resolve()


def test_the_page(report: Path) -> None:
    text = report.read_text()
    page = Page(text)
    assert [a["data-path"] for a in page.of("file")] == ["a <b>/train.py", "bad.py", "done.py"]
    in_files = {(a["data-rule"], a["data-kind"]) for a in page.of("finding")}
    assert in_files == {("XLA101", "applied"), ("XLA520", "manual")}
    # Once in the checklist, once in its file.
    assert [a["data-rule"] for a in page.of("finding")].count("XLA520") == 2
    assert len(page.of("diff")) == 2
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    links = [a["href"] or "" for t, a in page.tags if t == "a"]
    assert {link.removeprefix("#") for link in links} <= set(ids)
    assert "nonsense" in page.text
    assert '<mark>xm.rendezvous</mark>("a", replicas=[1])' in text.replace("&quot;", '"')
    assert "<script>alert" not in text
    assert text.count("<script>") == 1
    assert not re.search(r"https?://", text.partition('<section id="rules">')[0])
    assert not [a for t, a in page.tags if "src" in a or t == "link"]


def test_nothing_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain.py").write_text("x = 1\n")
    assert CliRunner().invoke(main, ["check", "--report", "out.html"]).exit_code == 0
    assert "Nothing of torch_xla was found." in Page(Path("out.html").read_text()).text


def test_fixes_are_shown_before_they_are_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text(f"{XM}d = xm.xla_device()\n")
    CliRunner().invoke(main, ["check", "--report", "out.html"])
    assert 'd = torch.device("tpu")' in Page(Path("out.html").read_text()).text


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
def test_in_a_browser(report: Path, tmp_path: Path) -> None:
    """The script runs without an error, counts what is shown, and opens the file of a link."""
    (anchor,) = re.findall(r'id="(file-done[^"]*)"', report.read_text())
    command = [
        str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
        "--no-first-run", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr",
        "--dump-dom", f"{report.as_uri()}#{anchor}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    assert ">3 of 3 findings shown</output>" in done.stdout
    assert 'aria-label="Filter the findings">' in done.stdout
    (opened,) = re.findall(rf'<details[^>]*id="{anchor}"[^>]*>', done.stdout)
    assert " open=" in opened


@pytest.mark.slow
@pytest.mark.skipif(report_page.browser() is None, reason="there is no Chromium")
@pytest.mark.skipif(
    "XLA2TPU_DOWNLOADS" not in os.environ,
    reason="XLA2TPU_DOWNLOADS names no folder with pytorch-lightning 1.6.5",
)
def test_a_large_project_in_a_browser(tmp_path: Path) -> None:
    """Filtered, opened and read by the keyboard alone, without a script error or a request."""
    cache = Path(os.environ["XLA2TPU_DOWNLOADS"])
    page, json_report = report_page.migrated(report_page.PROJECT, cache, tmp_path)
    outcome = report_page.use(page, json_report, str(report_page.browser()), tmp_path)
    assert outcome.failures == []
    assert outcome.findings >= 30


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
def test_the_browser_tells_what_is_wrong(tmp_path: Path) -> None:
    """Errors of scripts and requests are seen, so that their absence means something."""
    bad = tmp_path / "bad.html"
    bad.write_text('<img src="other.png"><script>nothing()</script>')
    with report_page.Page(str(BROWSER), tmp_path / "profile") as page:
        page.open(bad.as_uri())
        problems = "\n".join(page.problems)
    assert "script error" in problems
    assert f"request: {tmp_path.as_uri()}/other.png" in problems
