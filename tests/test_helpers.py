"""What the helper snippets do: in one process, and in two with a process group of gloo."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import io
import os
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from spawned import end_worker

from xla2tpu.rules import load_rules

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
torch = pytest.importorskip("torch")


def make(name: str) -> Any:
    """The function or class of a helper, executed with its imports and the helpers it calls."""
    helpers = load_rules().helpers
    helper = helpers[name]
    space: dict[str, Any] = {
        word: make(word) for word in set(re.findall(r"\w+", helper.code)) & set(helpers) - {name}
    }
    exec("\n".join((*helper.imports, helper.code)), space)
    return space[name]


def inline(name: str) -> Any:
    """The value of a helper's inline form."""
    helper = load_rules().helpers[name]
    space: dict[str, Any] = {}
    exec("\n".join(helper.imports), space)
    return eval(helper.inline or "", space)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "RATE_TRACKER_SMOOTHING"):
        monkeypatch.delenv(name, raising=False)


def test_ranks_of_a_single_process() -> None:
    assert make("world_size")() == inline("world_size") == 1
    assert make("global_rank")() == inline("global_rank") == 0


def test_master_print(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    master_print = make("master_print")
    assert master_print("a", 1, flush=True) is None
    stream = io.StringIO()
    master_print("b", fd=stream)
    monkeypatch.setenv("LOCAL_RANK", "1")
    master_print("not here", local=True)
    master_print("c")
    assert capsys.readouterr().out == "a 1\nc\n"
    assert stream.getvalue() == "b\n"


def test_save_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_cpu = make("save_cpu")
    save_cpu({"w": [torch.ones(2)], "step": 3}, tmp_path / "a.pt")
    loaded = torch.load(tmp_path / "a.pt")
    assert loaded["step"] == 3
    assert loaded["w"][0].tolist() == [1.0, 1.0]
    monkeypatch.setenv("LOCAL_RANK", "1")
    save_cpu({}, tmp_path / "other.pt")
    assert not (tmp_path / "other.pt").exists()
    save_cpu({}, tmp_path / "other.pt", master_only=False)
    assert (tmp_path / "other.pt").exists()
    save_cpu({}, tmp_path / "global.pt", global_master=True)
    assert (tmp_path / "global.pt").exists()


def test_save_cpu_copies_tensors_from_the_device(tmp_path: Path) -> None:
    calls = []

    class Tensor(torch.Tensor):
        def cpu(self, *args: Any, **kwargs: Any) -> Any:
            calls.append(self.shape)
            return torch.zeros(1)

    data = {"w": torch.ones(2).as_subclass(Tensor), "rest": ("x", [torch.ones(3)])}
    make("save_cpu")(data, tmp_path / "a.pt")
    assert calls == [torch.Size([2])]
    assert torch.load(tmp_path / "a.pt")["w"].tolist() == [0.0]


def test_send_to_device() -> None:
    send = make("send_to_device")
    (one,) = send(torch.ones(1), "meta")
    assert one.device.type == "meta"
    batch = send({"x": torch.ones(1), "y": ("label", torch.ones(2))}, torch.device("meta"))
    assert batch["x"].is_meta
    assert batch["y"][0] == "label"
    assert batch["y"][1].is_meta


def test_rate_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "time", lambda: now)
    tracker = make("RateTracker")()
    assert tracker.rate() == tracker.global_rate() == 0.0
    tracker.add(10)
    tracker.add(10)
    now = 102.0
    assert tracker.rate() == pytest.approx(10.0)
    assert tracker.global_rate() == pytest.approx(10.0)
    tracker.add(40)
    now = 104.0
    # 40 in 2 seconds, smoothed with the 10 of before: 0.6 * 20 + 0.4 * 10.
    assert tracker.rate() == pytest.approx(16.0)
    assert tracker.global_rate() == pytest.approx(15.0)
    assert tracker.rate() == 0.0


def test_rate_tracker_reads_its_smoothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATE_TRACKER_SMOOTHING", "0.9")
    now = 0.0
    monkeypatch.setattr(time, "time", lambda: now)
    read, given = make("RateTracker")(), make("RateTracker")(smooth_factor=0.0)
    rates = []
    for tracker in (read, given):
        for count in (10, 20):
            tracker.add(count)
            now += 1.0
            rates.append(tracker.rate())
    assert rates[0] == 10.0
    assert rates[1] == pytest.approx(11.0)
    assert rates[3] == 20.0


def test_do_on_ordinals() -> None:
    do_on_ordinals = make("do_on_ordinals")
    assert do_on_ordinals(lambda a, b: a + b, data=(1, 2)) == 3
    assert do_on_ordinals(lambda: 1 / 0, ordinals=[1]) is None


def test_getenv_as(monkeypatch: pytest.MonkeyPatch) -> None:
    getenv_as = make("getenv_as")
    monkeypatch.setenv("XLA2TPU_TEST", "0")
    assert getenv_as("XLA2TPU_TEST", bool, True) is False
    assert getenv_as("XLA2TPU_TEST", int) == 0
    assert getenv_as("XLA2TPU_TEST", str) == "0"
    assert getenv_as("XLA2TPU_TEST_NOT_SET", int) is None
    assert getenv_as("XLA2TPU_TEST_NOT_SET", int, "kept") == "kept"


@pytest.mark.parametrize(
    ("text", "answer"), [("true", True), ("1", True), ("0", False), ("", False), ("yes", False)]
)
def test_check_env_flag(monkeypatch: pytest.MonkeyPatch, text: str, answer: bool) -> None:
    check = make("check_env_flag")
    monkeypatch.setenv("XLA2TPU_TEST", text)
    assert check("XLA2TPU_TEST") is answer
    monkeypatch.delenv("XLA2TPU_TEST")
    assert check("XLA2TPU_TEST", default=text) is answer


def test_as_list() -> None:
    as_list = make("as_list")
    assert as_list((1, 2)) == (1, 2)
    assert as_list([1]) == [1]
    assert as_list("ab") == ["ab"]


def test_sample_generator() -> None:
    samples = make("SampleGenerator")(data=("x", "y"), sample_count=3)
    assert len(samples) == 3
    assert list(samples) == [("x", "y")] * 3
    assert list(samples) == [("x", "y")] * 3
    assert samples.next() == next(samples) == ("x", "y")


def test_timed(capsys: pytest.CaptureFixture[str]) -> None:
    timed = make("timed")
    lines: list[str] = []
    assert timed(lambda: 5, msg="run ", printfn=lines.append) == 5
    assert lines[0].startswith("run ")
    assert lines[0].endswith("ms")
    assert timed(lambda: 6) == 6
    assert capsys.readouterr().err.endswith("ms\n")


def test_parallel_work() -> None:
    parallel_work = make("parallel_work")
    assert parallel_work(2, lambda a, b: a * b, [1, 2, 3], [4, 5, 6]) == [4, 10, 18]
    with pytest.raises(ZeroDivisionError):
        parallel_work(2, lambda a: 1 / a, [1, 0])


def test_get_free_tcp_ports() -> None:
    ports = make("get_free_tcp_ports")(2)
    assert len(ports) == 2
    assert all(0 < port < 65536 for port in ports)


class Writer:
    """Keeps what a TensorBoard writer is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def add_scalar(self, *args: Any) -> None:
        self.calls.append(args)

    def flush(self) -> None:
        self.calls.append(("flush",))

    def close(self) -> None:
        self.calls.append(("close",))


def test_helpers_of_summary_writers() -> None:
    write, close = make("write_to_summary"), make("close_summary_writer")
    write(None, 1, {"a": 1.0})
    close(None)
    assert make("get_summary_writer")(None) is None
    writer = Writer()
    write(writer, 7, dict_to_write={"a": 1.0, "b": 2.0})
    write(writer)
    close(writer)
    assert writer.calls == [("a", 1.0, 7), ("b", 2.0, 7), ("flush",), ("close",)]


def test_status_lines(capsys: pytest.CaptureFixture[str]) -> None:
    writer = Writer()
    update = make("print_training_update")
    update("tpu", 3, torch.tensor(0.5), 10.0, 9.0, epoch=1, summary_writer=writer)
    make("print_test_update")("tpu", 97.5, epoch=1)
    training, test = capsys.readouterr().out.splitlines()
    fields = "| Training Device=tpu/0 Epoch=1 Step=3 Loss=0.50000 Rate=10.00 GlobalRate=9.00 Time="
    assert training.startswith(fields)
    assert test.startswith("| Test Device=tpu/0 Epoch=1 Accuracy=97.50 Time=")
    assert writer.calls == [("examples/sec", 10.0), ("average_examples/sec", 9.0)]


class Plain:
    """A batch of its own kind: no mapping, no sequence, no ``to``."""

    def __init__(self, x: Any) -> None:
        self.x, self.note = x, "kept"


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any


class Moving:
    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def to(self, device: Any) -> Moving:
        return Moving(str(device))


def test_device_loader_moves_what_is_in_a_batch() -> None:
    ones = torch.ones(1)
    point = collections.namedtuple("point", "x y")
    ordered = collections.OrderedDict(b=ones, a="text")
    grouped = collections.defaultdict(list, a=[ones])
    user = collections.UserDict(a=ones)
    batches = [
        ones, [ones, 3], (ones, "text"), point(ones, None), ordered, grouped, user,
        {"inner": {"deep": (ones, [ones])}}, Plain(ones), Frozen(ones), Moving(), "text", 7, int,
        torch.nn.utils.rnn.pack_sequence([torch.ones(2)]),
    ]  # fmt: skip
    loader = make("DeviceLoader")(batches, torch.device("meta"))
    for _ in range(2):  # it may be looped over again
        moved = list(loader)
        assert moved[0].is_meta
        assert (moved[1][0].is_meta, moved[1][1], type(moved[1])) == (True, 3, list)
        assert (moved[2][0].is_meta, moved[2][1], type(moved[2])) == (True, "text", tuple)
        assert (moved[3].x.is_meta, moved[3].y, type(moved[3])) == (True, None, point)
        assert (list(moved[4]), moved[4]["b"].is_meta) == (["b", "a"], True)
        assert type(moved[4]) is collections.OrderedDict
        assert (moved[5]["a"][0].is_meta, moved[5]["new"]) == (True, [])
        assert (moved[6]["a"].is_meta, type(moved[6])) == (True, collections.UserDict)
        deep = moved[7]["inner"]["deep"]
        assert (deep[0].is_meta, deep[1][0].is_meta) == (True, True)
        assert (moved[8].x.is_meta, moved[8].note) == (True, "kept")
        assert moved[9].x.is_meta
        assert moved[10].device == "meta"
        assert moved[11:14] == ["text", 7, int]
        assert moved[14].data.is_meta
    # The loader's own batches stay where they were.
    assert not any(t.is_meta for t in (ones, ordered["b"], grouped["a"][0], user["a"]))
    assert not batches[8].x.is_meta
    assert not batches[9].x.is_meta


def test_device_loader_moves_what_refers_to_itself() -> None:
    parent, child = Plain(torch.ones(1)), Plain(torch.ones(1))
    parent.child, child.parent, parent.torch = child, parent, torch
    mapping: dict[str, Any] = {"x": torch.ones(1)}
    mapping["self"] = mapping
    loader = make("DeviceLoader")([parent, mapping, {torch.ones(1)}], "meta")
    moved, again, group = loader
    assert (moved.x.is_meta, moved.child.x.is_meta, moved.torch is torch) == (True, True, True)
    assert moved.child.parent is moved
    assert again["x"].is_meta
    assert again["self"] is again
    assert [t.is_meta for t in group] == [True]
    assert not child.x.is_meta


def test_device_loader_stands_for_the_loader() -> None:
    data = torch.utils.data
    inner = data.DataLoader(data.TensorDataset(torch.ones(6)), batch_size=4)
    loader = make("DeviceLoader")(inner, "meta")
    assert (len(loader), loader.batch_size, len(loader.dataset)) == (2, 4, 6)
    assert loader._loader is inner
    assert not hasattr(loader, "nothing")
    loader.dataset = "another"
    assert (loader.dataset, len(inner.dataset)) == ("another", 6)
    twin = copy.copy(make("DeviceLoader")(inner, "meta"))
    assert [batch[0].device.type for batch in twin] == ["meta", "meta"]


def optimizer_of(*params: Any) -> Any:
    return torch.optim.SGD([{"params": [p]} for p in params], lr=1.0)


def with_gradients(*gradients: Any) -> list[Any]:
    params = []
    for gradient in gradients:
        shape = (2, 3) if gradient is None else gradient.shape
        params.append(torch.nn.Parameter(torch.zeros(shape)))
        params[-1].grad = gradient
    return params


def test_averaging_in_a_single_process_changes_nothing() -> None:
    one, none = with_gradients(torch.full((2,), 3.0), None)
    optimizer = optimizer_of(one, none)
    assert make("average_gradients")(optimizer) is None
    assert one.grad.tolist() == [3.0, 3.0]
    assert none.grad is None
    (shared,) = make("gradients_of")(optimizer)
    shared.mul_(2)
    assert one.grad.tolist() == [6.0, 6.0]
    make("sum_gradients")([one.grad], scale=0.5)
    assert one.grad.tolist() == [6.0, 6.0]


def test_average_and_step_hands_over_arguments_and_the_value() -> None:
    (one,) = with_gradients(torch.ones(2))
    optimizer = optimizer_of(one)
    assert make("average_and_step")(optimizer) is None
    assert one.tolist() == [-1.0, -1.0]
    assert make("average_and_step")(optimizer, closure=lambda: torch.tensor(7.0)).item() == 7.0


def average_in_two_processes(rank: int, dist: Any) -> None:
    """Against the mean of both processes' gradients, for the shapes and types that occur."""
    values = [rank + 1.0, 10.0 * (rank + 1)]
    layouts = [
        torch.tensor(values),
        torch.tensor([values, values, values]).t(),
        torch.tensor(values).to(torch.bfloat16),
        None,
        torch.tensor(5.0 * rank),
    ]
    params = with_gradients(layouts[0], layouts[1])
    params.append(torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16)))
    params[-1].grad = layouts[2]
    params += with_gradients(layouts[3], layouts[4])
    optimizer = optimizer_of(*params)
    make("average_gradients")(optimizer)
    mean = [1.5, 15.0]
    assert params[0].grad.tolist() == mean
    assert params[1].grad.tolist() == [[m] * 3 for m in mean]
    assert params[2].grad.tolist() == mean
    assert params[3].grad is None
    assert params[4].grad.item() == 2.5
    # Averaging what is equal already, as under DistributedDataParallel, changes nothing.
    make("average_gradients")(optimizer)
    assert params[0].grad.tolist() == mean
    make("average_and_step")(optimizer)
    assert params[0].tolist() == [-m for m in mean]
    gradients = make("gradients_of")(optimizer)
    make("sum_gradients")(gradients, scale=1.0 / dist.get_world_size())
    assert params[0].grad.tolist() == mean
    # The whole step against the same model trained on both halves at once.
    torch.manual_seed(0)
    inputs, model = torch.rand(8, 4), torch.nn.Linear(4, 1)
    twin = torch.nn.Linear(4, 1)
    twin.load_state_dict(model.state_dict())
    mine, whole = (torch.optim.AdamW(m.parameters(), lr=0.1) for m in (model, twin))
    for _ in range(3):
        for net, opt, batch in ((model, mine, inputs[rank::2]), (twin, whole, inputs)):
            opt.zero_grad()
            net(batch).pow(2).mean().backward()
            make("average_and_step")(opt) if net is model else opt.step()
    for left, right in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(left, right, atol=1e-6)


def two_processes(rank: int, port: int, folder: str) -> None:
    """The body of one of two processes; raises where a helper answers wrongly."""
    import torch.distributed as dist

    # Both processes play a host of their own first, so that each is local rank 0.
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2"
    )
    dist.init_process_group("gloo")
    try:
        assert make("world_size")() == inline("world_size") == 2
        assert make("global_rank")() == inline("global_rank") == rank
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            make("master_print")("global")
            make("master_print")("local", local=True)
        assert printed.getvalue() == ("global\nlocal\n" if rank == 0 else "local\n")
        save_cpu = make("save_cpu")
        here = os.path.join(folder, str(rank))
        save_cpu({"rank": rank}, f"{here}-host.pt")
        save_cpu({"rank": rank}, f"{here}-global.pt", global_master=True)
        os.environ["LOCAL_RANK"] = str(rank)
        save_cpu({"rank": rank}, f"{here}-local.pt")
        # Behind a rank test, on one process only: there must be no barrier in it.
        if rank == 0:
            save_cpu({"rank": rank}, f"{here}-test.pt")
        answer = make("do_on_ordinals")(lambda t: t.item(), (torch.tensor(rank),), ordinals=(1,))
        assert answer == (1 if rank == 1 else None)
        average_in_two_processes(rank, dist)
        assert make("share_of_batch")(6) == 3
        with pytest.raises(ValueError, match="2 processes cannot share a batch of 7"):
            make("share_of_batch")(7)
        loss = torch.tensor(float(rank), requires_grad=True)
        mean = make("mean_over_processes")(loss)
        assert (mean.item(), loss.item(), mean.requires_grad) == (0.5, float(rank), False)
    finally:
        dist.destroy_process_group()
    end_worker()


def test_two_processes(tmp_path: Path) -> None:
    import torch.distributed as dist
    import torch.multiprocessing as mp

    if not dist.is_gloo_available():
        pytest.skip("torch was built without gloo")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    mp.spawn(two_processes, args=(port, str(tmp_path)), nprocs=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "0-global.pt",
        "0-host.pt",
        "0-local.pt",
        "0-test.pt",
        "1-host.pt",
    ]


# -- loops in place of single XLA operations ---------------------------------------------------


def test_scan_is_a_running_sum() -> None:
    scan = make("scan")
    values = torch.arange(6.0).reshape(3, 2).requires_grad_()
    last, totals = scan(lambda total, value: (total + value, total + value), torch.zeros(2), values)
    assert totals.tolist() == [[0.0, 1.0], [2.0, 4.0], [6.0, 9.0]]
    assert last.tolist() == totals[-1].tolist()
    totals.sum().backward()
    assert values.grad.tolist() == [[3.0, 3.0], [2.0, 2.0], [1.0, 1.0]]


def test_scan_takes_and_gives_structures() -> None:
    def step(carry: Any, given: Any) -> Any:
        kept = {"sum": carry["sum"] + given["a"] * given["b"][0], "steps": carry["steps"] + 1}
        return kept, (given["a"], [None, kept["sum"]])

    first, second = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    start = {"sum": torch.tensor(0.0), "steps": torch.tensor(0)}
    last, (copies, (nothing, sums)) = make("scan")(step, start, {"a": first, "b": (second,)})
    assert (last["sum"].item(), last["steps"].item()) == (11.0, 2)
    assert copies.tolist() == [1.0, 2.0]
    assert nothing is None
    assert sums.tolist() == [3.0, 11.0]


def test_scan_refuses_steps_of_different_number() -> None:
    with pytest.raises(ValueError, match="longer"):
        make("scan")(lambda c, x: (c, x[0]), torch.zeros(1), (torch.zeros(2), torch.zeros(3)))


def test_run_layers() -> None:
    run_layers = make("run_layers")
    layers = [torch.nn.Linear(2, 2) for _ in range(3)]
    value = torch.randn(4, 2)
    assert torch.equal(run_layers(layers, value), torch.nn.Sequential(*layers)(value))
    assert run_layers([], value) is value
    steps = [lambda x, y: (x + y, y), lambda x, y: (x * y, y)]
    assert run_layers(steps, (1, 2)) == (6, 2)


@pytest.mark.parametrize("length", [0, 1, 4, 6, 7, 9])
def test_repeat_to_length(length: int) -> None:
    values, repeats = [10, 20, 30, 40, 50], [0, 2, 0, 4, 0]
    every = [v for v, n in zip(values, repeats, strict=True) for _ in range(n)] + [50] * 9
    made = make("repeat_to_length")(torch.tensor(values), torch.tensor(repeats), length)
    assert made.tolist() == every[:length]


def test_segment_attention() -> None:
    attend = make("segment_attention")
    queries, keys = torch.tensor([[1, 1, 2]]), torch.tensor([[1, 2, 2, 3]])
    values = torch.eye(4).expand(1, 1, 4, 4)
    q, k = torch.zeros(1, 1, 3, 8), torch.zeros(1, 1, 4, 8)
    shares = attend(q, k, values, queries, keys)[0, 0]
    assert shares.tolist() == [[1, 0, 0, 0], [1, 0, 0, 0], [0, 0.5, 0.5, 0]]
    causal = attend(k, k, values, keys, keys, causal=True)[0, 0]
    assert causal.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 1]]
    every = attend(k, k, values, None, None)[0, 0]
    assert every.tolist() == [[0.25] * 4] * 4
    first, second, *_ = attend(k, k, values, None, None, causal=True)[0, 0].tolist()
    assert (first, second) == ([1, 0, 0, 0], [0.5, 0.5, 0, 0])
    q, k = torch.randn(2, 1, 1, 3, 8).unbind()
    scaled = attend(q, k, k, None, None, scale=0.3)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, k, scale=0.3)
    assert torch.equal(scaled, wanted)
