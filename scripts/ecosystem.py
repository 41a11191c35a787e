#!/usr/bin/env python3
"""Migrate real projects and check that nothing breaks.

Downloads fixed releases of projects that use torch_xla, runs ``xla2tpu migrate`` on a copy of
each and checks: no crash; the counts of every file add up; what compiled still compiles; no
unused, undefined or redefined name that was not there before (ruff); a second run changes
nothing. Prints a table and the commonest reasons for manual work. Exit status 1 if a check fails.

    python scripts/ecosystem.py [--cache DIR] [--work DIR] [--only NAME]...
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROJECTS = (
    "accelerate==1.10.1",
    "pytorch-lightning==1.6.5",
    "transformers==4.30.2",
    "catalyst==22.4",
    "pytorch-ignite==0.4.13",
    "torch_xla==2.9.0",
    "fairseq==0.9.0",
    "wtfml==0.0.3",
    "mosaicml==0.17.2",
    "tpu-util==0.1.3",
)
SDISTS = {"fairseq", "tpu-util"}
FAMILIES = ("XLA501-505 loaders, gradients", "XLA506-526 launch, collectives", "others")
# Their metadata is older than the present rules, and pip refuses it since 24.1.
OLD_METADATA = {"pytorch-lightning", "catalyst"}
# torch_xla has wheels for Linux only, one for each Python.
PLATFORM = ("--python-version", "3.11", "--platform", "manylinux_2_28_x86_64")
RUFF_CODES = "F401,F821,F811"


@dataclass
class Outcome:
    """What came out for one project; ``failures`` is empty where all checks hold."""

    name: str
    seconds: float = 0.0
    summary: dict[str, int] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    families: Counter[tuple[str, str]] = field(default_factory=Counter)
    new_names: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def download(requirement: str, cache: Path) -> Path:
    """The wheel or sdist of ``requirement``, from the cache or from the package index."""
    name, version = requirement.split("==")
    sdist = name in SDISTS
    ending = ".tar.gz" if sdist else "-*.whl"
    patterns = [f"{n}-{version}{ending}" for n in (name.replace("-", "_"), name)]
    if found := sorted(p for pattern in patterns for p in cache.glob(pattern)):
        return found[0]
    pip = [sys.executable, "-m", "pip"]
    if name in OLD_METADATA:
        pip = [str(_old_pip(cache)), "-m", "pip"]
    platform = PLATFORM if name == "torch_xla" else ()
    kind = "--no-binary=:all:" if sdist else "--only-binary=:all:"
    command = [*pip, "download", "-q", "--no-deps", kind, *platform]
    subprocess.run([*command, "-d", str(cache), requirement], check=True)
    return next(p for pattern in patterns for p in cache.glob(pattern))


def _old_pip(cache: Path) -> Path:
    python = cache / "old-pip" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(cache / "old-pip")], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "pip==24.0"], check=True)
    return python


def unpack(package: Path, target: Path) -> None:
    """Take the Python files out of a wheel or an sdist."""
    if package.suffix == ".gz":
        with tarfile.open(package) as archive:
            members = [m for m in archive.getmembers() if m.name.endswith(".py")]
            archive.extractall(target, members, filter="data")
        return
    with zipfile.ZipFile(package) as archive:
        archive.extractall(target, [n for n in archive.namelist() if n.endswith(".py")])


def migrate(tree: Path) -> tuple[dict[str, Any] | None, str]:
    """The JSON report of ``xla2tpu migrate`` on ``tree``, and what it wrote to standard error."""
    command = [sys.executable, "-m", "xla2tpu", "migrate", "--allow-dirty"]
    done = subprocess.run(
        [*command, "--output-format", "json", str(tree)], capture_output=True, text=True
    )
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return None, f"exit {done.returncode}: {done.stderr.strip()[-2000:]}"
    return report, done.stderr.strip() if done.returncode not in (0, 1) else ""


def sources(tree: Path) -> dict[str, bytes]:
    """The Python files below ``tree``."""
    return {str(p.relative_to(tree)): p.read_bytes() for p in tree.rglob("*.py") if p.is_file()}


def compiles(data: bytes) -> bool:
    """Whether this Python accepts the source."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(data, "file", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return False
    return True


def ruff_names(tree: Path, files: list[str]) -> dict[str, Counter[str]]:
    """For each file, how often ruff complains of which name; lines do not matter."""
    if not files:
        return {}
    done = subprocess.run(
        ["ruff", "check", "--isolated", "--no-cache", "--exit-zero", "--select", RUFF_CODES]
        + ["--output-format", "json", *files],
        capture_output=True,
        text=True,
        check=True,
        cwd=tree,
    )
    names: dict[str, Counter[str]] = {}
    for item in json.loads(done.stdout):
        path = str(Path(item["filename"]).relative_to(tree.resolve()))
        quoted = re.search(r"`([^`]*)`", item["message"])
        name = quoted.group(1) if quoted else item["message"]
        names.setdefault(path, Counter())[f"{item['code']} {name}"] += 1
    return names


def check_project(requirement: str, cache: Path, work: Path) -> Outcome:
    """Migrate one project and check all that must hold."""
    outcome = Outcome(requirement)
    before, after = work / "before", work / "after"
    unpack(download(requirement, cache), before)
    shutil.copytree(before, after)
    started = time.perf_counter()
    report, trouble = migrate(after)
    outcome.seconds = time.perf_counter() - started
    if trouble:
        outcome.failures.append(trouble)
    if report is None:
        return outcome
    outcome.summary = report["summary"]
    _check_counts(report, outcome)
    old, new = sources(before), sources(after)
    changed = [path for path in sorted(new) if old.get(path) != new[path]]
    for path in changed:
        if path in old and compiles(old[path]) and not compiles(new[path]):
            outcome.failures.append(f"{path}: does not compile any more")
    known = ruff_names(before, [path for path in changed if path in old])
    for path, names in ruff_names(after, changed).items():
        for name, count in (names - known.get(path, Counter())).items():
            outcome.new_names.append(f"{path}: {name} ({count})")
    outcome.failures += outcome.new_names
    again, trouble = migrate(after)
    if again is None or trouble:
        outcome.failures.append(f"second run: {trouble}")
    outcome.failures += [
        f"{path}: a second run changes it"
        for path, data in sources(after).items()
        if new.get(path) != data
    ]
    return outcome


def _check_counts(report: dict[str, Any], outcome: Outcome) -> None:
    """In every file, and in the summary, each reference is in exactly one state."""
    for file in [report["summary"] | {"path": "summary"}, *report["files"]]:
        states = [file[key] for key in ("applied", "fixable", "manual", "suppressed")]
        if file["references"] != sum(states):
            outcome.failures.append(f"{file['path']}: {file['references']} is not {states}")
        if file.get("status") == "error":
            outcome.failures.append(f"{file['path']}: {file.get('error', 'error')}")
    for file in report["files"]:
        counted = sum(f["counts"] for f in file["findings"])
        if file["references"] != counted:
            outcome.failures.append(f"{file['path']}: {counted} findings count")
        for finding in file["findings"]:
            if finding["counts"]:
                state = "rewritten" if finding["applied"] else "left"
                outcome.families[family(finding["rule"]), state] += 1
            if finding["reason"] and finding["counts"] and not finding["suppressed"]:
                outcome.reasons[f"{finding['reason']} ({finding['rule']})"] += 1


def family(code: str) -> str:
    """What a rule is about, for the table of shares."""
    number = int(code[3:]) if code.startswith("XLA5") else 0
    return FAMILIES[0 if 500 < number <= 505 else 1 if 505 < number <= 526 else 2]


def show(outcomes: list[Outcome]) -> None:
    """Print the table, as Markdown, and the commonest reasons."""
    keys = ["files_with_torch_xla", "references", "applied", "manual", "files_done"]
    keys.append("files_needing_work")
    titles = ["project", "files with torch_xla", *keys[1:4], "files done", "needs work"]
    titles += ["new ruff findings", "seconds"]
    rows = [
        [o.name, *(str(o.summary.get(k, "-")) for k in keys), str(len(o.new_names))]
        + [f"{o.seconds:.1f}"]
        for o in outcomes
    ]
    total = [sum(o.summary.get(k, 0) for o in outcomes) for k in keys]
    rows.append(["total", *map(str, total), str(sum(len(o.new_names) for o in outcomes))])
    rows[-1].append(f"{sum(o.seconds for o in outcomes):.1f}")
    print("| " + " | ".join(titles) + " |")
    print("|" + "---|" * len(titles))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print("\n| references | rewritten | of all | share |\n|---|---|---|---|")
    families: Counter[tuple[str, str]] = sum((o.families for o in outcomes), Counter())
    for name in FAMILIES:
        done = families[name, "rewritten"]
        every = done + families[name, "left"]
        print(f"| {name} | {done} | {every} | {done / every if every else 1:.0%} |")
    print("\nCommonest reasons for manual work:")
    reasons: Counter[str] = sum((o.reasons for o in outcomes), Counter())
    for reason, count in reasons.most_common(25):
        print(f"  {count:5}  {reason}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cache", type=Path, help="folder for the downloads, kept")
    parser.add_argument("--work", type=Path, help="folder for the trees, kept; must not exist")
    parser.add_argument("--only", action="append", default=[], help="only projects with this name")
    args = parser.parse_args()
    outcomes = []
    with tempfile.TemporaryDirectory() as scratch:
        cache = args.cache or Path(scratch) / "cache"
        cache.mkdir(parents=True, exist_ok=True)
        work = args.work or Path(scratch) / "work"
        for requirement in PROJECTS:
            name = requirement.split("==")[0]
            if not args.only or name in args.only:
                print(f"{requirement} ...", file=sys.stderr)
                outcomes.append(check_project(requirement, cache, work / name))
    show(outcomes)
    failures = [f"{o.name}: {f}" for o in outcomes for f in o.failures]
    print(f"\n{len(failures)} checks failed" if failures else "\nAll checks hold.")
    for failure in failures:
        print(f"  {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
