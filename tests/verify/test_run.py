"""Runs: what the recorder sees of a program, time limits, and that nothing is left running."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from pathlib import Path

import pytest

from xla2tpu.verify.project import program_of
from xla2tpu.verify.record import Record
from xla2tpu.verify.run import (
    Program,
    RunError,
    Way,
    check_interpreter,
    copy,
    on_emulator,
    on_torch,
    record,
)

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)


def run(tmp_path: Path, text: str, *args: str, timeout: float = 60, trace: bool = False) -> Record:
    root = tmp_path / "program"
    root.mkdir()
    (root / "main.py").write_text(text, encoding="utf-8")
    program = Program(root, "main.py", False, args)
    return record(program, on_torch(sys.executable, timeout), tmp_path / "record", trace)


def texts(record: Record) -> list[str]:
    return [event["text"] for event in record.of_kind(0, "line")]


def test_lines_files_and_status(tmp_path: Path) -> None:
    made = run(
        tmp_path,
        "import sys\n"
        "print('a', 'b', end='')\n"
        "sys.stdout.write('c\\nd\\n')\n"
        "print('1%', end='\\r'); print('2%')\n"
        "open('out.txt', 'w').write('kept\\n')\n"
        "print(sys.argv[1:], __name__)\n"
        "sys.exit(3)\n",
        "--n",
        "1",
    )
    assert made.status == 3
    assert texts(made) == ["a bc", "d", "2%", "['--n', '1'] __main__"]
    assert [event["at"] for event in made.of_kind(0, "line")] == [
        "main.py:2",
        "main.py:3",
        "main.py:4",
        "main.py:6",
    ]
    assert made.files == {"out.txt": {"kind": "text", "lines": ["kept"]}}
    assert (made.error, made.args, list(made.sources)) == (None, ["--n", "1"], ["main.py"])


def test_exception_has_its_place(tmp_path: Path) -> None:
    made = run(tmp_path, "def f():\n    raise ValueError('bad')\n\n\nprint('x')\nf()\n")
    assert made.status == 1
    assert made.error == {"event": "error", "type": "ValueError", "text": "bad", "at": "main.py:2"}
    assert made.stderr.endswith("ValueError: bad\n")


def test_lines_that_ran(tmp_path: Path) -> None:
    made = run(tmp_path, "x = 1\nif x > 1:\n    print(x)\nelse:\n    x = 2\n", trace=True)
    assert made.executed == {"main.py": [1, 2, 5]}


def test_time_limit_ends_all_that_was_started(tmp_path: Path) -> None:
    made = run(
        tmp_path,
        "import subprocess, sys\n"
        "code = 'import time; time.sleep(600)'\n"
        # One in the program's group, and one in a session of its own, as launchers have them.
        "a = subprocess.Popen([sys.executable, '-c', code])\n"
        "b = subprocess.Popen([sys.executable, '-c', code], start_new_session=True)\n"
        "open('pids', 'w').write(f'{a.pid} {b.pid}')\n"
        "print('started', flush=True)\n"
        "a.wait()\n",
        timeout=3,
    )
    assert made.status is None
    assert texts(made) == ["started"]
    assert [lives(int(pid)) for pid in made.files["pids"]["lines"][0].split()] == [False, False]


def lives(pid: int) -> bool:
    """Whether a process runs, after a moment for the system to end it."""
    for _ in range(50):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return False
        if state == "Z":
            return False
        time.sleep(0.05)
    return True


@needs_torch
def test_training_is_recorded(tmp_path: Path) -> None:
    made = run(
        tmp_path,
        "import torch\n"
        "m = torch.nn.Linear(3, 2)\n"
        "o = torch.optim.SGD(m.parameters(), lr=0.5)\n"
        "def step():\n"
        "    o.zero_grad()\n"
        "    loss = (m(torch.ones(1, 3)) ** 2).sum()\n"
        "    loss.backward()\n"
        "    o.step()\n"
        "    return loss\n"
        "a = step()\n"
        "b = step()\n"
        "print(a.item(), b.item())\n"
        "torch.save({'m': m.state_dict(), 'n': [1, 'two']}, 'm.pt')\n",
    )
    assert made.status == 0, made.stderr
    kinds = [event["event"] for event in made.ranks[0]]
    assert kinds == ["loss", "step", "loss", "step", "line"]
    losses = [event["value"] for event in made.of_kind(0, "loss")]
    assert [float(text) for text in texts(made)[0].split()] == pytest.approx(losses, rel=1e-6)
    first = made.of_kind(0, "step")[0]
    assert (first["at"], first["optimizer"]) == ("main.py:8", "SGD")
    (group,) = first["groups"]
    assert (group["lr"], group["momentum"], "params" in group) == (0.5, 0, False)
    assert [(p["name"], p["shape"]) for p in first["parameters"]] == [
        ("weight", [2, 3]),
        ("bias", [2]),
    ]
    saved = made.files["m.pt"]["values"]
    last = made.of_kind(0, "step")[1]
    assert saved["m.weight"]["of"] == last["parameters"][0]["of"]
    assert (saved["n[0]"], saved["n[1]"]) == (1, "two")
    assert made.versions["torch"].startswith("2.")


@needs_torch
@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.parametrize("spawned", [False, True])
def test_losses_that_no_step_follows(tmp_path: Path, emulated: bool, spawned: bool) -> None:
    body = (
        "import torch\n"
        "import torch.multiprocessing as mp\n"
        "def work(rank):\n"
        f"    w = torch.ones(2, device='{'tpu' if emulated else 'cpu'}', requires_grad=True)\n"
        "    for n in range(3):\n"
        "        (w.sum() * n).backward()\n"
        "        print(n)\n"
        "if __name__ == '__main__':\n"
        f"    {'mp.spawn(work, nprocs=1)' if spawned else 'work(0)'}\n"
    )
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "main.py").write_text(body)
    way = on_emulator(sys.executable, 1, False, 120) if emulated else on_torch(sys.executable, 120)
    made = record(Program(tmp_path / "p", "main.py"), way, tmp_path / "record")
    assert made.status == 0, made.stderr
    assert [event["value"] for event in made.of_kind(0, "loss")] == [0.0, 2.0, 4.0]
    assert texts(made) == ["0", "1", "2"]


@needs_torch
def test_failing_recorder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="could not be recorded: RuntimeError: gone"):
        run(
            tmp_path,
            "import sys, torch\n"
            "def gone():\n"
            "    raise RuntimeError('gone')\n"
            "sys.modules['_xla2tpu_recorder']._emit({'event': 'draw', 'at': None, 'what': gone})\n",
        )


@needs_torch
def test_children_are_recorded_and_loader_workers_are_not(tmp_path: Path) -> None:
    made = run(
        tmp_path,
        "import multiprocessing as mp, os\n"
        "import torch\n"
        "class Data(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, i):\n"
        "        print('loaded', i)\n"
        "        return torch.ones(1) * i\n"
        "def work(rank):\n"
        "    os.environ['RANK'] = str(rank)\n"
        "    print('worker', rank)\n"
        "if __name__ == '__main__':\n"
        "    context = mp.get_context('spawn')\n"
        "    p = context.Process(target=work, args=(1,)); p.start(); p.join()\n"
        "    loader = torch.utils.data.DataLoader(Data(), num_workers=1)\n"
        "    print(sum(x.item() for x in loader))\n",
    )
    assert made.status == 0, made.stderr
    lines = {rank: [e["text"] for e in made.of_kind(rank, "line")] for rank in made.ranks}
    assert lines == {0: ["6.0"], 1: ["worker 1"]}


def test_hidden_sitecustomize_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import builtins\nbuiltins.theirs = 5\n")
    monkeypatch.setenv("PYTHONPATH", str(theirs))
    assert texts(run(tmp_path, "print(theirs)\n")) == ["5"]


@needs_torch
def test_interpreters() -> None:
    check_interpreter(sys.executable, ("json",))
    with pytest.raises(RunError, match="lacks no_such_module"):
        check_interpreter(sys.executable, ("json", "no_such_module"))
    with pytest.raises(RunError, match=r"needs torch 99\.0 or newer, not 2\."):
        check_interpreter(sys.executable, ("torch",), (99, 0))
    with pytest.raises(RunError, match="cannot be run"):
        check_interpreter(os.path.join(os.sep, "no", "such", "python"), ())


def test_run_that_cannot_begin(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("")
    way = Way("reference", (str(tmp_path / "no-python"),), {}, 5)
    with pytest.raises(RunError, match="cannot be run"):
        record(Program(tmp_path, "main.py"), way, tmp_path / "record")


def test_copy_leaves_out_itself_and_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("x = 1\n")
    (tmp_path / ".git").mkdir()
    (tmp_path / "data").symlink_to("main.py")
    os.mkfifo(tmp_path / "pipe")
    into = tmp_path / "scratch" / "copy"
    copy(tmp_path, into)
    assert sorted(path.relative_to(into).as_posix() for path in into.rglob("*")) == [
        "data",
        "main.py",
    ]


def test_large_folder_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "weights", "wb") as file:
        file.truncate(2**30 + 1)
    with pytest.raises(RunError, match="holds more than 1 GiB"):
        copy(tmp_path, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_programs(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("if __name__ == '__main__':\n    pass\n")
    (tmp_path / "library.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_text("def\n")
    assert program_of(str(script), None, None, ("a",)) == Program(
        tmp_path, "train.py", False, ("a",)
    )
    assert program_of(str(tmp_path), None, None, ()).target == "train.py"
    assert program_of(str(tmp_path), None, "pkg.train", ()).command() == ["-m", "pkg.train"]
    assert program_of(str(tmp_path), "library.py", None, ()).target == "library.py"
    (tmp_path / "other.py").write_text("if __name__ == '__main__':\n    pass\n")
    with pytest.raises(RunError, match=r"several scripts \(other.py, train.py\)"):
        program_of(str(tmp_path), None, None, ())
    with pytest.raises(RunError, match="no such file"):
        program_of(str(tmp_path), "none.py", None, ())
    with pytest.raises(RunError, match="no such file"):
        program_of(str(tmp_path / "none"), None, None, ())
    with pytest.raises(RunError, match="go with a folder"):
        program_of(str(script), "train.py", None, ())
