"""Names across open files, kept up to date: as if all had been read anew."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pygls", reason="pygls is not installed: pip install 'xla2tpu[lsp]'")

from xla2tpu.server.analyser import Analyser
from xla2tpu.server.document import Document
from xla2tpu.server.options import Options

NAMES = ("a.py", "b.py", "pkg/__init__.py", "pkg/c.py")
TEXTS = (
    "import torch_xla.core.xla_model as xm\n\nxm.mark_step()\n",
    "import torch_xla.core.xla_model as xm\n\n\ndef f():\n    return xm.get_ordinal()\n",
    "import torch_xla.core.xla_model\n\nxm = torch_xla.core.xla_model\n",
    "from a import xm\n\nxm.mark_step()\n",
    "from a import *\n\nxm.mark_step()\n",
    "from a import f as xm\n\nxm()\n",
    "import a\n\na.xm.mark_step()\n",
    "from b import xm as step\n\nstep.mark_step()\n",
    "import pkg\n\npkg.xm.mark_step()\npkg.c.xm.mark_step()\n",
    "from pkg.c import xm\n\nprint(xm)\n",
    "from .c import xm\n\n__all__ = ['xm']\n",
    "from . import c\nfrom pkg import xm\n\nxm.rendezvous('x')\n",
    "import torch_neuronx\n",
    "def xm():\n    pass\n",
    "xm = None\n",
    "",
)
CHANGES = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(TEXTS)), min_size=1, max_size=12
)


@settings(max_examples=60, deadline=None)
@given(CHANGES)
def test_changes_are_seen_as_if_all_were_read_anew(changes: list[tuple[str, str]]) -> None:
    with TemporaryDirectory() as name:
        root = Path(name)
        (root / "pyproject.toml").touch()
        (root / "pkg").mkdir()
        analyser = Analyser()
        documents: dict[str, Document] = {}
        findings: dict[str, object] = {}
        for version, (file, text) in enumerate(changes):
            path = root / file
            document = Document(path.as_uri(), version, text, "utf-16", str(path))
            documents[file] = document
            analyser.take(document)
            checked = analyser.check(document, Options())
            assert checked.parses
            findings[file] = checked.findings
            spreads = analyser.spreads(checked)
            anew = _anew(list(documents.values()))
            for other, known in documents.items():
                if spreads:
                    findings[other] = analyser.check(known, Options()).findings
                # What was not looked at again has not changed.
                assert findings[other] == anew[known.uri], (other, changes[: version + 1])


def _anew(documents: list[Document]) -> dict[str, object]:
    """The findings of files, with nothing known from before."""
    analyser = Analyser()
    for document in documents:
        analyser.take(document)
        analyser.check(document, Options())
    return {d.uri: analyser.check(d, Options()).findings for d in documents}


def test_a_text_that_does_not_parse_leaves_names_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    analyser = Analyser()

    def codes(file: str, text: str) -> list[str]:
        path = tmp_path / file
        document = Document(path.as_uri(), 1, text, "utf-8", str(path))
        return [f.rule for f in analyser.check(document, Options()).findings]

    assert codes("a.py", TEXTS[0]) == ["XLA101"]
    assert codes("b.py", TEXTS[3]) == ["XLA101"]
    assert codes("a.py", "from torch_xla import (\n") == ["XLA000"]
    assert codes("b.py", TEXTS[3]) == ["XLA101"]
    assert codes("a.py", "xm = None\n") == []
    assert codes("b.py", TEXTS[3]) == []
