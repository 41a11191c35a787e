#!/usr/bin/env python3
"""Measure `xla2tpu check` against its floor and its peers, in one run on one tree.

    python benchmarks/bench.py [--cache DIR] [--repeat N] [--skip NAME]...

The tree is the wheel of transformers 4.46.3; torchfix and fixit get every 20th file of it.
Times are CPU seconds of a command with all its child processes; see README.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

TREE = "transformers==4.46.3"
SUBSET_STEP = 20
# Each peer in an environment of its own: torchfix pins an old libcst.
PEERS = {
    "torchfix": "torchfix==0.7.0",
    "fixit": "fixit==2.2.1",
    "pyupgrade": "pyupgrade==3.22.0",
    "ruff": "ruff",
}

READ = """
import pathlib, sys
for path in pathlib.Path(sys.argv[1]).rglob("*.py"):
    b"torch_xla" in path.read_bytes()
"""
PARSE = """
import pathlib, sys
import libcst
for path in pathlib.Path(sys.argv[1]).rglob("*.py"):
    data = path.read_bytes()
    if b"torch_xla" in data:
        libcst.parse_module(data)
"""


@dataclass(frozen=True)
class Cost:
    """CPU seconds, and the peak memory of the largest process in megabytes."""

    seconds: float
    megabytes: float


def run(command: list[str], cwd: Path, ok: tuple[int, ...] = (0,)) -> Cost:
    """Run a command to its end, and stop if its exit status is not among ``ok``."""
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    child = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=cwd, env=env
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in ok:
        raise SystemExit(f"{command[:4]} ended with {child.returncode}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def measure(command: list[str], cwd: Path, repeat: int) -> Cost:
    """The median time and the highest peak of several runs."""
    costs = [run(command, cwd) for _ in range(repeat)]
    return Cost(statistics.median(c.seconds for c in costs), max(c.megabytes for c in costs))


def download(cache: Path) -> Path:
    """The wheel of the tree, from the cache or from the package index."""
    name, version = TREE.split("==")
    if not (found := list(cache.glob(f"{name}-{version}-*.whl"))):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", TREE]
        subprocess.run([*command, "-d", str(cache)], check=True)
        found = list(cache.glob(f"{name}-{version}-*.whl"))
    return found[0]


def peer(name: str, cache: Path) -> str:
    """The command of a peer, installed on first use."""
    home = cache / f"venv-{name}"
    if not (home / "bin" / name).exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([home / "bin" / "pip", "install", "-q", PEERS[name]], check=True)
    return str(home / "bin" / name)


def subset(tree: Path, target: Path) -> list[Path]:
    """Copy every 20th file of the tree."""
    files = sorted(tree.rglob("*.py"))[::SUBSET_STEP]
    for file in files:
        copy = target / file.relative_to(tree)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    return files


class Table:
    """Rows of measurements, and the targets they are held against."""

    def __init__(self) -> None:
        self.costs: dict[str, Cost] = {}

    def add(self, title: str, cost: Cost) -> Cost:
        self.costs[title] = cost
        print(f"{title:54} {cost.seconds:10.3f} {cost.megabytes:8.0f}", flush=True)
        return cost

    def compare(self, title: str, ours: float, limit: float, unit: str = "") -> None:
        verdict = "reached" if ours <= limit else "MISSED"
        print(f"{title:54} {ours:10.3f}{unit} at most {limit:.3f}{unit}: {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cache", type=Path, help="folder for downloads and peers, kept")
    parser.add_argument("--repeat", type=int, default=3, help="runs of the fast commands")
    parser.add_argument("--skip", action="append", default=[], choices=sorted(PEERS))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        cache = (args.cache or Path(scratch) / "cache").absolute()
        cache.mkdir(parents=True, exist_ok=True)
        work = Path(scratch) / "work"
        bench(cache, work, args.repeat, [name for name in PEERS if name not in args.skip])


def bench(cache: Path, work: Path, repeat: int, peers: list[str]) -> None:
    """Measure everything and print it."""
    tree, part, one = work / "tree", work / "subset", work / "one"
    with zipfile.ZipFile(download(cache)) as archive:
        archive.extractall(tree, [n for n in archive.namelist() if n.endswith(".py")])
    files = list(tree.rglob("*.py"))
    hits = sum(b"torch_xla" in f.read_bytes() for f in files)
    part_hits = sum(b"torch_xla" in f.read_bytes() for f in subset(tree, part))
    one.mkdir()
    (one / "plain.py").write_text("import os\n\nprint(os.name)\n")
    programs = {name: peer(name, cache) for name in peers}
    ours = [sys.executable, "-m", "xla2tpu", "check", "--exit-zero"]
    print(f"{TREE}: {len(files)} files, {hits} of them mention torch_xla")
    print(f"subset: every {SUBSET_STEP}th file, {part_hits} of them mention torch_xla\n")
    print(f"{'command':54} {'CPU s':>10} {'peak MB':>8}")

    table = Table()
    check = table.add("xla2tpu check", measure([*ours, str(tree)], work, repeat))
    table.add("read every file", measure([sys.executable, "-c", READ, str(tree)], work, repeat))
    floor = table.add(
        "read every file, libcst.parse_module of the hits",
        measure([sys.executable, "-c", PARSE, str(tree)], work, repeat),
    )
    if "ruff" in programs:
        ruff = [programs["ruff"], "check", "--isolated", "--no-cache", "--exit-zero"]
        table.add(
            "ruff check --select F401", measure([*ruff, "--select=F401", str(tree)], work, repeat)
        )
        table.add("ruff check", measure([*ruff, str(tree)], work, repeat))
    small = table.add("subset: xla2tpu check", measure([*ours, str(part)], work, repeat))
    slow = {}
    if "torchfix" in programs:
        slow["torchfix"] = table.add(
            "subset: torchfix", run([programs["torchfix"], "."], part, (0, 1))
        )
    if "fixit" in programs:
        slow["fixit"] = table.add(
            "subset: fixit lint", run([programs["fixit"], "lint", "."], part, (0, 1, 2, 3))
        )
    click = [sys.executable, "-c", "import click"]
    base = table.add("python -c 'import click'", measure(click, one, 5 * repeat))
    single = table.add(
        "xla2tpu check of one irrelevant file", measure([*ours, "plain.py"], one, 5 * repeat)
    )
    upgrade = None
    if "pyupgrade" in programs:
        # Last, since it rewrites the tree.
        names = [str(f) for f in files]
        options = ["--py39-plus", "--exit-zero-even-if-changed"]
        upgrade = table.add("pyupgrade", run([programs["pyupgrade"], *options, *names], work))

    print("\nTargets")
    table.compare("check / (reading + parsing the hits)", check.seconds / floor.seconds, 1.3)
    if upgrade is not None:
        table.compare("check / pyupgrade", check.seconds / upgrade.seconds, 1.0)
    for name, cost in slow.items():
        table.compare(f"subset: check / {name}", small.seconds / cost.seconds, 0.01)
    table.compare("one file / import click", single.seconds / base.seconds, 1.5)
    table.compare("peak memory of check", check.megabytes, 200.0, " MB")


if __name__ == "__main__":
    main()
