"""JUnit's XML, which most build servers show: a suite for each file, a case for each place."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET

from xla2tpu.model import FileResult
from xla2tpu.report.places import Places
from xla2tpu.runner import Run, is_left

# XML 1.0 cannot hold these, not even escaped.
_FORBIDDEN = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(run: Run) -> str:
    """A file with nothing left is one case that passes."""
    suites = [_suite(result) for result in run.results]
    root = ET.Element("testsuites", name="xla2tpu")
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    root.extend(suites)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, "unicode") + "\n"


def _suite(result: FileResult) -> ET.Element:
    path = _clean(result.path.replace(os.sep, "/"))
    left = [f for f in result.findings if is_left(f)]
    suite = ET.Element("testsuite", name=path)
    places = Places(result)
    for finding in left:
        line = places.of(finding)[0]
        case = _case(suite, path, f"{finding.rule} {finding.name}", line)
        failure = ET.SubElement(case, "failure", type=finding.rule, message=_clean(finding.message))
        place = f"{path}:{finding.where}"
        advice = f" {finding.advice}" if finding.fix is None else f" Fix: {finding.fix.title}."
        failure.text = _clean(f"{place}: {finding.rule} {finding.message}.{advice}")
    if result.error is not None:
        error = ET.SubElement(_case(suite, path, "xla2tpu", 1), "error", type="error")
        error.set("message", _clean(result.error))
    if not len(suite):
        _case(suite, path, "xla2tpu", None)
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(left)))
    suite.set("errors", str(int(result.error is not None)))
    return suite


def _case(suite: ET.Element, path: str, name: str, line: int | None) -> ET.Element:
    case = ET.SubElement(suite, "testcase", name=name, classname=path, file=path)
    if line is not None:
        case.set("name", f"{name} (line {line})")
        case.set("line", str(line))
    return case


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
