"""Which programs of SPMD are rewritten as one unit, and what is told of those that are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from xla2tpu.engine import apply_edits, run_source
from xla2tpu.model import Applicability, FileResult, Mode, Settings, Status

PROGRAMS = Path(__file__).resolve().parent.parent / "fixtures" / "programs"
CURVES = (PROGRAMS / "spmd_data_parallel_2024/before/train_curves.py").read_text(encoding="utf-8")
POINTS = (PROGRAMS / "spmd_data_parallel_2024/before/sort_points.py").read_text(encoding="utf-8")
MIXER = (PROGRAMS / "fsdpv2_2024/before/train_mixer.py").read_text(encoding="utf-8")

POLICY = """    policy = functools.partial(
        transformer_auto_wrap_policy,
        transformer_layer_cls={Block},
    )
"""
POLICY_IMPORT = "from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy\n"


def migrate(source: str, **settings: Any) -> FileResult:
    given = replace(Settings(mode=Mode.MIGRATE, unsafe=True, root="/nonexistent"), **settings)
    result = run_source(source.encode(), "/nonexistent/program.py", given)
    assert result.error is None
    return result


def output(result: FileResult) -> str:
    return (result.output or b"").decode()


def changed(source: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


@pytest.mark.parametrize("source", [CURVES, POINTS, MIXER], ids=["curves", "points", "mixer"])
def test_whole_program(source: str) -> None:
    result = migrate(source)
    assert result.status is Status.DONE
    assert "torch_xla" not in output(result)
    assert "DistributedSampler(" in output(result)


REFUSED = [
    # The mesh and what it shards.
    (POINTS, "(num_devices, 1)", "(num_devices // 2, 2)", "more than one dimension"),
    (POINTS, "(num_devices, 1)", "(8, 1)", "a fixed size"),
    (POINTS, "lr=0.1", "lr=0.1 * num_devices", "before there is a process group"),
    (POINTS, "np.arange(num_devices)", "np.arange(num_devices)[::-1]", "in their order"),
    (POINTS, "points, mesh, ('data', None)", "points, mesh, ('data', 'model')", "more or another"),
    (POINTS, "points, mesh, ('data', None)", "points, mesh, ('model', None)", "more or another"),
    (POINTS, "points, mesh, ('data', None)", "points, mesh, (1, None)", "more or another"),
    (POINTS, "xs.mark_sharding(points, ", "xs.mark_sharding(model[0].weight, ", "not a batch"),
    (POINTS, "xs.mark_sharding(points, ", "xs.mark_sharding(scores, ", "not a batch"),
    (POINTS, "xr.use_spmd()", "xr.use_spmd(auto=True)", "the compiler chooses"),
    (POINTS, "xr.use_spmd()", "if torch.cuda.is_available():\n    xr.use_spmd()",
     "under a condition"),
    (CURVES, '("data", None))', '("data", None), minibatch=True)', "that of one host"),
    (CURVES, "input_sharding=spec", 'input_sharding={"x": spec}', "not one ShardingSpec"),
    (CURVES, "device, input_sharding=spec", "device", "not sharded"),
    (CURVES, "    spec = ", "    print(mesh.shape())\n    spec = ", "used for more than"),
    # Loaders.
    (CURVES, "drop_last=True, ", "", "drop_last=True"),
    (POINTS, "shuffle=True", "shuffle=len(data) > 3", "not literal"),
    (POINTS, "shuffle=True", "collate_fn=list", "has an argument"),
    (POINTS, "shuffle=True", "sampler=range(100)", "has an argument"),
    (CURVES, "DataLoader(train_set,", "DataLoader(curves(200, 1),", "no name that a sampler"),
    (CURVES, "len(loader)}", "len(loader.dataset)}", "more is asked of the loader"),
    # What a process has of a batch must not be taken for the whole.
    (CURVES, "loss_fn = nn.MSELoss()", 'loss_fn = nn.MSELoss(reduction="sum")', "may weigh"),
    (POINTS, "F.cross_entropy(scores, labels)", "F.cross_entropy(scores, labels, weight=w)",
     "weigh"),
    (POINTS, "F.cross_entropy(scores, labels)", "scores.sum()", "a mean over the samples"),
    (POINTS, "F.cross_entropy(scores, labels)", "score_loss(scores, labels)", "a mean over"),
    (CURVES, "losses.append(loss.item())", "losses.append(y.sum().item())", "`y` is of the part"),
    (CURVES, "            optimizer.zero_grad()\n",
     "            optimizer.zero_grad()\n            seen = x.shape[0]\n", "what it makes of"),
    (CURVES, "loss.backward()", "print(loss.item())\n            loss.backward()", "before it is"),
    (CURVES, "loss.backward()", "loss.backward(retain_graph=True)", "no statement of a plain"),
    (CURVES, "            nn.utils.clip",
     "            scale_gradients(model)\n            nn.utils.clip",
     "is not followed by"),
    (CURVES, "            optimizer.step()\n",
     "            if step % 2:\n                optimizer.step()\n",
     "steps no optimizer"),
    (CURVES, "torch.optim.Adam(", "torch.optim.LBFGS(", "steps no optimizer"),
    # Models that mix the samples of a batch, or draw at random.
    (CURVES, "nn.LayerNorm(width)", "nn.BatchNorm1d(width)", "`BatchNorm1d` may depend"),
    (CURVES, "nn.LayerNorm(width)", "nn.Dropout(0.1)", "draws at random"),
    (CURVES, "x + torch.tanh(block(x))", "x - x.mean(0)", "`mean` may depend"),
    (CURVES, "x + torch.tanh(block(x))", "x - x.mean()", "`mean` may depend"),
    (CURVES, "x + torch.tanh(block(x))", "x @ x.T @ x", "mix the samples"),
    (CURVES, "x + torch.tanh(block(x))", "x @ block(x)", "mix the samples"),
    (CURVES, "x + torch.tanh(block(x))", "x / x.size(0)", "how large the batch is"),
    (CURVES, "x + torch.tanh(block(x))", "x - x[0]", "pick samples"),
    (CURVES, "x + torch.tanh(block(x))", "x.softmax(0)", "`softmax` may depend"),
    (CURVES, "x + torch.tanh(block(x))", "F.normalize(x)", "may depend"),
    (CURVES, "        return self.last", "        self.seen = x\n        return self.last",
     "keeps something"),
    (CURVES, "x + torch.tanh(block(x))", "(x.unsqueeze(1) - x).sum(1)", "may pair the samples"),
    (CURVES, "x + torch.tanh(block(x))", "(x[:, None] - x).sum(1)", "may pair the samples"),
    (CURVES, "x + torch.tanh(block(x))", "torch.stack([r for r in x], 1)", "run over the samples"),
    (CURVES, "for block in self.blocks:", "for block in x:", "run over the samples"),
    (CURVES, "x + torch.tanh(block(x))", "self.blocks[0](x)\n            first, second = x",
     "take the batch apart"),
    (CURVES, "Net(args.width, depth=2)", "make_net(args.width)", "is not in sight"),
    (POINTS, "nn.ReLU()", "nn.BatchNorm1d(32)", "`BatchNorm1d` may depend"),
    (CURVES, "self, width, depth):", "self, width, depth, norm=nn.BatchNorm1d):", "who calls it"),
    (CURVES, "self.norm = nn.LayerNorm(", "kind = getattr(nn, 'BatchNorm1d')\n"
     "        self.norm = kind(", "which layer or function"),
    (CURVES, "loss_fn(model(x), y)", "loss_fn(model(x).squeeze(-1).softmax(-1), y)",
     "may be that of the batch"),
    (CURVES, "x + torch.tanh(block(x))", "x / x.size(dim=0)", "how large the batch is"),
    (CURVES, "x + torch.tanh(block(x))", "x / x.size(-2)", "how large the batch is"),
    (CURVES, "x + torch.tanh(block(x))", "x / len(block(x))", "how large the batch is"),
    (CURVES, "x + torch.tanh(block(x))", "x / block(x).shape[0]", "how large the batch is"),
    (CURVES, "x + torch.tanh(block(x))", "(x[:, None].float() - x).sum(1)", "may pair the samples"),
    (CURVES, "x + torch.tanh(block(x))", "(block(x[:, None]) - x).sum(1)", "may pair the samples"),
    (CURVES, "            loss = loss_fn(model(x), y)",
     "            zeros = torch.zeros(32, 1)\n            loss = loss_fn(model(x) - y, zeros)",
     "as large as the whole batch"),
    (POINTS, "self.x[:, :4].argmax(1)", "self.x[:, nn.CrossEntropyLoss().ignore_index :].argmax(1)",
     "-100"),
    (POINTS, "model = model.to(device)", "model = torch.compile(model).to(device)", "not in sight"),
    (CURVES, "        self.norm = nn.LayerNorm(width)",
     "        self.norm = lambda x: x - x.mean(0)",
     "is not followed"),
    (CURVES, "        self.norm = nn.LayerNorm(width)", "        self.norm = torch.mean",
     "who calls it"),
    (CURVES, "        self.norm = nn.LayerNorm(width)", "        self.norm = evaluate",
     "not followed"),
    (CURVES, "        return self.last", "        self.seen.copy_(x)\n        return self.last",
     "keeps something"),
    (CURVES, "    loss_fn = nn.MSELoss()", "    model.first = make(3)\n    loss_fn = nn.MSELoss()",
     "more is done with the model"),
    (POINTS, "    model = model.to(device)",
     "    model = model.to(device)\n    model[0] = model[2]",
     "a part of the model"),
    (POINTS, "cross_entropy(scores, labels)", "cross_entropy(scores, labels, ignore_index=-100)",
     "-100"),
    # A loader that is sampled has a part of the data in each process.
    (POINTS, "    for _ in range(3):",
     "    for x, y in loader:\n        x.sum()\n    for _ in range(3):",
     "more is asked of the loader"),
    (CURVES,
     "DataLoader(curves(50, seed=2), batch_size=25)\n"
     "    test_loader = pl.MpDeviceLoader(test_loader,",
     "None\n    test_loader = pl.MpDeviceLoader(loader,", "more is asked of the loader"),
    (CURVES, "    loader = DataLoader(", "    other = loader = DataLoader(", "cannot be told"),
    (POINTS, "for _ in range(3):", "for rate in (0.1, 0.2):", "count them by `range`"),
    (POINTS, "xm.master_print('loss', ", "print(_, ", "no free name"),
    # What processes would do differently, or each for itself.
    (CURVES, "    torch.manual_seed(args.seed)\n",
     "    test = DataLoader(curves(9, 3), shuffle=True)\n",
     "call torch.manual_seed() before"),
    (CURVES, "            optimizer.zero_grad()\n",
     "            optimizer.zero_grad()\n            x = x + torch.randn(3, generator=made)\n",
     "`randn` may depend"),
    (POINTS, "return self.x[index],", "return self.x[index] + torch.randn(8, generator=self.g),",
     "would draw the same"),
    (CURVES, "    torch.manual_seed(args.seed)\n",
     "    print(os.environ['LOCAL_RANK'])\n", "another one in each"),
    (POINTS, "torch.manual_seed(11)\n", "nn.init.normal_(torch.zeros(3))\ntorch.manual_seed(11)\n",
     "call torch.manual_seed() before"),
    (POINTS, "torch.manual_seed(11)\n", "", "call torch.manual_seed() before"),
    (POINTS, "torch.manual_seed(11)", "torch.manual_seed(os.getpid())", "os.getpid"),
    (POINTS, "    data = Points(100)", "    os.makedirs('out')\n    data = Points(100)",
     "os.makedirs"),
    (POINTS, "    data = Points(100)", "    log = open('log')\n    data = Points(100)",
     "`open` does"),
    (POINTS, "    data = Points(100)", "    list(map(print, 'ab'))\n    data = Points(100)", "map"),
    (CURVES, "error = evaluate(model, test_loader)",
     "print(evaluate(model, test_loader))\n        error = 0.0",
     "give it a name before"),
    (CURVES, "        losses = []\n",
     "        losses = []\n        if time.time() > 5:\n            break\n",
     "by their clocks"),
    (CURVES, "    xr.use_spmd()\n",
     "    xr.use_spmd()\n    torch.set_default_dtype(torch.float64)\n",
     "under the main guard"),
    (CURVES, "def evaluate", "print('made')\n\n\ndef evaluate", "in each process that imports"),
    (POINTS, "        return self.x[index], self.y[index]",
     "        print(index)\n        return self.x[index], self.y[index]", "a worker of a loader"),
    (CURVES, "def main(args):", "BEST = curves(3, 1)\n\n\ndef main(args):",
     "that imports the file"),
    (CURVES, "    torch.manual_seed(args.seed)\n",
     "    if os.environ.get('LOCAL_RANK') == 0:\n        return\n",
     "another one in each"),
    (POINTS, "        return self.x[index], self.y[index]",
     "        return self.x[index] + torch.randn(8), self.y[index]", "would draw the same"),
    (POINTS, "    device = torch_xla.device()\n",
     "    device = torch_xla.device()\n    first = torch.load('points.pt')\n",
     "before the first has"),
    (CURVES, "{name: value.cpu() for name, value in model.state_dict().items()}", "model",
     "whole objects"),
    (CURVES, "{name: value.cpu() for name, value in model.state_dict().items()}", "{'net': model}",
     "whole objects"),
    (CURVES, "torch.save({name: value.cpu() for name, value in model.state_dict().items()}, ",
     "xm.save(model, ", "whole objects"),
    (CURVES, "        error = evaluate(model, test_loader)\n",
     "        error = 0.0\n        if time.time() > 5:\n"
     "            error = evaluate(model, test_loader)\n",
     "by their clocks"),
    (CURVES, "        scheduler.step()\n",
     "        spent = time.time()\n        late = spent + 1\n        scheduler.step(late)\n",
     "by their clocks"),
    (POINTS, "        return self.x[index],", "        self.n += 1\n        return self.x[index],",
     "its own samples"),
    (CURVES, "Net(args.width, depth=2)", "Net(args.batch_size, depth=2)", "size of the whole"),
    (CURVES, "        self.norm = nn",
     "        self.blocks[1].weight = self.blocks[0].weight\n        self.norm = nn", "tied"),
    (CURVES, "    loss_fn = nn", "    net = model\n    loss_fn = nn", "another name"),
    (CURVES, "    main(parser.parse_args())", "    main(open('x'))", "under the main guard"),
    (CURVES, '"--output")', '"--output", type=argparse.FileType("wb"))', "open files"),
    (POINTS, "    optimizer = ", "    for w in model.parameters():\n"
     "        xs.mark_sharding(w, mesh, ('data', None))\n    optimizer = ", "not a batch"),
    # The structure of the file.
    (CURVES, "    main(parser.parse_args())", "    print(main(parser.parse_args()))",
     "not a function"),
    (CURVES, "def main(args):", "@torch.no_grad()\ndef main(args):", "the file alone"),
    (CURVES, "def main(args):", "def main(args=None):", "not plain"),
    (CURVES, "device = xm.xla_device()", "device = xm.xla_device(n=1)", "is not part of"),
    (CURVES, "            xm.mark_step()", "            xm.rendezvous('step')",
     "rendezvous` is not part"),
    (CURVES, "def evaluate(",
     "def unused(w):\n    xs.mark_sharding(w, xs.mesh, (0,))\n\n\ndef evaluate(", "not part of"),
    # FSDPv2.
    (MIXER, '("fsdp", "model"))', '("data", "model"))', '"fsdp"'),
    (MIXER, "auto_wrap_policy=policy", "auto_wrap_policy=policy, shard_output=None", "no place"),
    (MIXER, "{Block}", "{Block, Tagger}", "over one class"),
    (MIXER, "{Block}", "{Tagger}", "the model itself"),
    (MIXER, "        transformer_auto_wrap_policy,\n        transformer_layer_cls={Block},",
     "        lambda m, **k: True,", "over one class"),
    (MIXER, "    return model\n", "    print(model.module)\n", "more is done with"),
    (MIXER, "    return model\n", "    torch.save(model.state_dict(), 'm.pt')\n",
     "`state_dict` by hand"),
    (MIXER, "        self.head = nn.Linear(dim, words)\n",
     "        self.head = nn.Linear(dim, words)\n        self.head.weight = self.embed.weight\n",
     "tied"),
    (MIXER, "    model = FSDPv2(model, mesh=mesh, auto_wrap_policy=policy)\n"
     "    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)\n",
     "    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)\n"
     "    model = FSDPv2(model, mesh=mesh, auto_wrap_policy=policy)\n", "after the optimizer"),
    (MIXER, "depth=2).to(device)", "depth=2)", "is not moved to the device"),
    (MIXER, "torch.no_grad()", "torch.inference_mode()", "inference mode"),
    (MIXER, "mesh=mesh, auto", "mesh=other_mesh(), auto", "comes from elsewhere"),
    (MIXER, "    return model\n",
     "    total = sum(p.sum() for p in model.parameters())\n    print(total.item())\n",
     "a part of the parameters"),
    (MIXER, "(model(tokens.to", "(model.forward(tokens.to", "parts of the model"),
    (MIXER, "AdamW(", "Muon(", "may need whole parameters"),
    (MIXER, "            x = block(x)\n",
     "            x = block(x)\n        x = self.blocks[0].norm(x)\n", "parts of a block"),
    (MIXER, "        self.head = nn",
     "        self.scale = nn.Parameter(torch.tensor(1.0))\n        self.head = nn",
     "without dimensions"),
]  # fmt: skip

CALLED = (
    "def told(i):\n    print(i)\n    return i\n\n\ndef noisy(x):\n    return x + torch.randn(8)\n"
)


@pytest.mark.parametrize("new", ["self.x[told(index)]", "noisy(self.x[index])"])
def test_left_where_a_dataset_calls_it(new: str) -> None:
    text = changed(POINTS, ("class Points", f"{CALLED}\n\nclass Points"), ("self.x[index]", new))
    told = [f.message for f in migrate(text).findings if f.rule == "XLA801"]
    assert "a loader, or who else calls it, would do so for each sample" in told[0]


def test_left_where_a_function_saves_the_whole_model() -> None:
    text = changed(
        CURVES,
        ("def evaluate",
         "def save(net, path):\n    torch.save({'net': net}, path)\n\n\ndef evaluate"),
        ("torch.save({name: value.cpu() for name, value in model.state_dict().items()}, ",
         "save(model, "),
    )  # fmt: skip
    told = [f.message for f in migrate(text).findings if f.rule == "XLA801"]
    assert "whole objects" in told[0]


@pytest.mark.parametrize(("source", "old", "new", "why"), REFUSED, ids=lambda v: str(v)[:24])
def test_is_left_as_it_is(source: str, old: str, new: str, why: str) -> None:
    head = "import os\nimport time\n" if "time.time" in new or "os.env" in new else ""
    result = migrate(head + changed(source, (old, new)), todo=False)
    assert result.status is not Status.DONE
    text = output(result) or source
    for word in ("DistributedSampler", "init_process_group", "fully_shard(", "share_of_batch"):
        assert word not in text
    assert "use_spmd(" in text
    told = [f.message for f in result.findings if f.rule == "XLA801"]
    assert len(told) == 1
    assert "not rewritten as one unit: line " in told[0]
    assert why in told[0].rpartition("one unit: ")[2], told[0]


# Other ways to write the same, and what the new text then has in it.
TAKEN = [
    (POINTS,
     [("xs.Mesh(np.arange(num_devices), mesh_shape, ('data', 'model'))", "xs.get_1d_mesh('data')"),
      ("num_devices = xr.global_runtime_device_count()\nmesh_shape = (num_devices, 1)\n", "")],
     "sampler.set_epoch(epoch)"),
    (POINTS,
     [("(num_devices, 1)", "(1, num_devices)"), ("('data', 'model')", "('model', 'data')"),
      ("(0,))", "(1,))")],
     "sampler.set_epoch(epoch)"),
    (POINTS, [("shuffle=True", "shuffle=False")], "for _ in range(3):\n        for points"),
    (POINTS,
     [("            loss = F.cross_entropy(scores, labels)\n            loss.backward()",
       "            F.cross_entropy(scores, labels).backward()"),
      ("        xm.master_print('loss', loss.item())\n", "")],
     "F.cross_entropy(scores, labels).backward()\n            # the step"),
    (POINTS, [("'__main__':\n    train()", "'__main__':\n    train()  # all")],
     "launch(train)  # all"),
    (CURVES,
     [("DataLoader(train_set, batch_size=args.batch_size, drop_last=True, num_workers=0)\n"
       "    loader = pl.MpDeviceLoader(loader, device, input_sharding=spec)\n",
       "pl.MpDeviceLoader(\n        DataLoader(train_set, 8, drop_last=True),\n"
       "        device,\n        input_sharding=spec,\n    )\n")],
     "loader = DataLoader(train_set, share_of_batch(8), sampler=sampler, drop_last=True)"),
    (CURVES,
     [("for step, (x, y) in enumerate(loader):", "for step, batch in enumerate(loader):\n"
       "            x, y = batch")],
     "x, y = batch"),
    (CURVES, [("loss = loss_fn(model(x), y)", "loss = (model(x) - y).pow(2).mean()")], ".mean()"),
    (CURVES,
     [("    xr.use_spmd()\n", ""), ("    device = xm.x", "    xr.use_spmd()\n    device = xm.x")],
     "    torch.manual_seed(args.seed)\n    device ="),
    (MIXER, [(", auto_wrap_policy=policy", ""), (POLICY, ""), (POLICY_IMPORT, "")],
     'mesh_dim_names=("fsdp",))\n    broadcast_model(model)\n    fully_shard(model, mesh=mesh)\n'),
    (MIXER,
     [("FSDPv2(model, mesh=mesh,", "FSDPv2(Tagger(16, args.dim, depth=2).to(device),"),
      ("    model = Tagger(16, args.dim, depth=2).to(device)\n", "")],
     "    model = Tagger(16, args.dim, depth=2).to(device)\n    mesh = init_device_mesh("),
]  # fmt: skip


@pytest.mark.parametrize(("source", "pairs", "text"), TAKEN, ids=lambda v: str(v)[:24])
def test_is_taken_in_other_words(source: str, pairs: list[tuple[str, str]], text: str) -> None:
    result = migrate(changed(source, *pairs))
    told = [f.message for f in result.findings if f.rule == "XLA801"]
    assert result.status is Status.DONE, told
    assert text in output(result)


def test_each_fix_is_that_of_the_whole() -> None:
    checked = migrate(MIXER, mode=Mode.CHECK, with_fixes=True)
    whole = [f for f in checked.findings if f.rule.startswith("XLA8") or f.rule == "XLA503"]
    assert {f.rule for f in whole} == {
        "XLA503", "XLA801", "XLA803", "XLA806", "XLA813", "XLA816", "XLA852",
    }  # fmt: skip
    assert all(f.applicability is Applicability.UNSAFE for f in whole)
    results = {apply_edits(MIXER.encode(), f.fix.edits) for f in whole if f.fix is not None}
    assert len(results) == 1
    text = results.pop().decode()
    compile(text, "program.py", "exec")
    assert "torch_xla" not in text


def test_safe_fixes_alone_leave_the_step() -> None:
    result = migrate(POINTS, unsafe=False, todo=False)
    text = output(result)
    assert "xm.optimizer_step(optimizer)" in text
    again = migrate(text, unsafe=False, todo=False)
    assert output(again) in ("", text)


def test_nothing_without_unsafe_fixes() -> None:
    text = output(migrate(CURVES, unsafe=False, todo=False))
    assert "xs.Mesh(" in text
    assert "def main(args):" in text


@pytest.mark.parametrize(
    "word", ["    xr.use_spmd()", "    mesh = xs.Mesh(device_ids, (num_devices,), "]
)
def test_nothing_where_a_part_is_suppressed(word: str) -> None:
    line = next(x for x in CURVES.splitlines() if x.startswith(word))
    text = output(migrate(changed(CURVES, (line, f"{line}  # noqa: XLA801, XLA803")), todo=False))
    assert "def main(args):" in text
    assert "share_of_batch" not in text


def test_nothing_where_a_single_process_is_configured() -> None:
    result = migrate(CURVES, processes="single")
    told = next(f.message for f in result.findings if f.rule == "XLA801")
    assert "the configuration says that there is a single process" in told


@pytest.mark.parametrize("name", ["mesh", "train"])
def test_nothing_where_another_file_imports_what_changes(name: str, tmp_path: Path) -> None:
    (tmp_path / "sort_points.py").write_text(POINTS, encoding="utf-8")
    (tmp_path / "other.py").write_text(f"from sort_points import {name}\n", encoding="utf-8")
    settings = Settings(mode=Mode.MIGRATE, unsafe=True, root=str(tmp_path))
    result = run_source(POINTS.encode(), str(tmp_path / "sort_points.py"), settings)
    assert "share_of_batch" not in output(result)
    told = next(f.message for f in result.findings if f.rule == "XLA801")
    assert "not rewritten as one unit: line " in told


def test_helpers_may_go_to_a_module() -> None:
    text = output(migrate(POINTS, helpers_module="house.tpu"))
    assert "from house.tpu import" in text
    assert "def share_of_batch" not in text


def test_line_ends_and_tabs_are_kept() -> None:
    source = changed(CURVES.replace("    ", "\t")).replace("\n", "\r\n")
    text = output(migrate(source))
    assert text.count("\n") == text.count("\r\n")
    assert "\r\n\t\tif rank == 0:\r\n\t\t\tprint(" in text


def with_call(module: str, call: str) -> str:
    return changed(
        CURVES,
        ("import torch_xla.runtime as xr\n", f"import torch_xla.runtime as xr\nimport {module}\n"),
        ("    train_set = curves", f"    {call}\n    train_set = curves"),
    )


def test_calls_that_go_do_not_stand_against_a_unit() -> None:
    result = migrate(with_call("torch_xla.debug.metrics as met", "met.clear_all()"))
    assert result.status is Status.DONE
    assert "met" not in output(result).split()


def test_what_a_first_run_clears_is_taken_by_the_next() -> None:
    first = migrate(with_call("torch_xla.utils.utils as xu", 'xu.eprint("start")'))
    assert first.status is Status.NEEDS_WORK
    (told,) = (f.message for f in first.findings if f.rule == "XLA801")
    assert "`torch_xla.utils.utils.eprint` is not part of a known form" in told
    second = migrate(output(first))
    assert second.status is Status.DONE
    assert migrate(output(second)).output is None
