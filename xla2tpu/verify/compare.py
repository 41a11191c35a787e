"""Compare two records: exit status, printed lines, losses, parameters, files. Nothing is run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from xla2tpu.verify.record import Event, Record

_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?(?![\w])|\b(?:nan|inf)\b"
)
_DEVICE = re.compile(r"\b(?:xla|tpu)(?::\d+)?\b", re.IGNORECASE)
_HALVES = ("torch.bfloat16", "torch.float16")
# What is left of a relative tolerance in 8 bits of mantissa.
_HALF_RTOL = 2e-2
# Settings of optimizers that change how a step is computed, and not its result.
_ONLY_SPEED = ("foreach", "fused", "capturable", "differentiable")
# A printed number with fewer significant digits is a setting rather than a measurement.
_FEWEST_DIGITS = 3


class Tolerance(NamedTuple):
    """Two numbers agree if they differ by at most ``atol + rtol * size``."""

    rtol: float = 1e-3
    atol: float = 1e-5

    def agree(self, a: float, b: float, size: float | None = None, count: int = 1) -> bool:
        """Whether two numbers agree; ``size`` and ``count`` are those of what was added up."""
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        if math.isinf(a) or math.isinf(b):
            return a == b
        size = max(abs(a), abs(b)) if size is None else size
        return abs(a - b) <= count * (self.atol + self.rtol * size)


class Ignored(NamedTuple):
    """What does not count: in printed lines and in text files, lines in which one of ``lines`` is
    found, and what of the other lines matches one of ``text``, both regular expressions; and the
    ``files`` of these globs.
    """

    lines: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    def counts(self, line: str) -> bool:
        """Whether a line is compared."""
        return not any(re.search(pattern, line) for pattern in self.lines)

    def kept(self, line: str) -> str:
        """What is compared of it."""
        for pattern in self.text:
            line = re.sub(pattern, "", line)
        return line


DEFAULT = Tolerance()
NOTHING = Ignored()


class Difference(NamedTuple):
    """One place where the runs differ, with the places in the programs where known."""

    what: str
    original: str | None
    migrated: str | None


class Row(NamedTuple):
    """One loss of the two runs, for the listing."""

    number: int
    rank: int
    original: float
    migrated: float
    at: str | None
    agree: bool


@dataclass
class Part:
    """One of the things that are compared: how many of it, and what differs."""

    name: str
    compared: int = 0
    differences: list[Difference] = field(default_factory=list)


@dataclass
class Comparison:
    """What came out. ``open_ends`` say what could not be compared, and from where on; ``notes``
    what one should know who reads the result.
    """

    parts: list[Part]
    losses: list[Row]
    open_ends: list[str]
    notes: list[str]
    # Parameters that only rounding moves: their gradients are zero but for that.
    noise: set[str] = field(default_factory=set)

    @property
    def first(self) -> tuple[str, Difference] | None:
        """The first difference and the name of its part."""
        for part in self.parts:
            for difference in part.differences:
                return part.name, difference
        return None

    @property
    def verdict(self) -> str:
        """``same``, ``differs``, or ``not comparable`` if only a part could be compared."""
        if self.first is not None:
            return "differs"
        nothing = not any(part.compared for part in self.parts if part.name != "exit status")
        return "not comparable" if self.open_ends or nothing else "same"

    @property
    def exit_status(self) -> int:
        """0 for the same, else 1."""
        return int(self.verdict != "same")


class _Side(NamedTuple):
    """The events of a rank that count, and why what follows them does not."""

    events: list[Event]
    end: Event | None


# A gradient this much smaller than the largest is what float32 rounding leaves of zero.
_ROUNDING_NOISE = 1e-6


def compare(
    original: Record,
    migrated: Record,
    tolerance: Tolerance = DEFAULT,
    ignored: Ignored = NOTHING,
) -> Comparison:
    """Compare two runs, but for what is ``ignored`` of their lines.

    A single-process ``original`` stands for each rank of a ``migrated`` run with several: the
    parameters of all must agree with it, and the mean of their losses.
    """
    found = Comparison([], [], [], [])
    # A run of which nothing was heard did nothing, which the other one may not have.
    original, migrated = (replace(r, ranks=r.ranks or {0: []}) for r in (original, migrated))
    found.parts.append(_exit_status(original, migrated, found))
    if len(migrated.ranks) > 1:
        found.parts.append(agreement(migrated, tolerance))
    alike = set(original.ranks) == set(migrated.ranks)
    if alike or len(original.ranks) == 1:
        _compare_ranks(original, migrated, tolerance, ignored, found)
    else:
        found.open_ends.append(
            f"the original ran with {len(original.ranks)} processes and the migrated program "
            f"with {len(migrated.ranks)}"
        )
    if not any(event["event"] == "open" for events in original.ranks.values() for event in events):
        found.parts.append(_files(original, migrated, tolerance, ignored, found))
    return found


def _exit_status(original: Record, migrated: Record, found: Comparison) -> Part:
    part = Part("exit status", 1)
    for name, record in (("original", original), ("migrated program", migrated)):
        if record.status is None:
            found.open_ends.append(f"the {name} did not end within the time limit")
    ends = [r.error for r in (original, migrated)]
    if original.status != migrated.status or _kind(ends[0]) != _kind(ends[1]):
        texts = [_ending(r) for r in (original, migrated)]
        part.differences.append(
            Difference(
                f"the original ends with {texts[0]}, the migrated program with {texts[1]}",
                *(None if end is None else end["at"] for end in ends),
            )
        )
    elif ends[0] is not None:
        found.open_ends.append(f"both runs end with {_ending(original)}, at {ends[0]['at']}")
    return part


def _kind(error: Event | None) -> str | None:
    return None if error is None else str(error["type"])


def _ending(record: Record) -> str:
    if record.status is None:
        return "the time limit"
    if record.error is not None:
        first = str(record.error["text"]).strip().partition("\n")[0]
        return f"{record.error['type']}: {first[:300]}"
    return f"status {record.status}"


def agreement(record: Record, tolerance: Tolerance) -> Part:
    """Whether the ranks have the same parameters after each step, as training in parallel on
    the parts of the data has.
    """
    part = Part("ranks")
    first, *others = sorted(record.ranks)
    steps = record.of_kind(first, "step")
    for rank in others:
        for number, (a, b) in enumerate(zip(steps, record.of_kind(rank, "step"), strict=False), 1):
            part.compared += 1
            wrong = next(_parameters(a, b, tolerance), None)
            if wrong is not None:
                part.differences.append(
                    Difference(
                        f"step {number}: ranks {first} and {rank} have different parameters "
                        f"({wrong}): gradients were not averaged over the processes",
                        None,
                        b["at"],
                    )
                )
                break
    return part


def _compare_ranks(
    original: Record,
    migrated: Record,
    tolerance: Tolerance,
    ignored: Ignored,
    found: Comparison,
) -> None:
    losses, steps, lines = Part("losses"), Part("parameters"), Part("printed lines")
    found.parts += [losses, steps, lines]
    several = len(migrated.ranks) > len(original.ranks)
    if several:
        _mean_losses(original, migrated, tolerance, losses, found)
    for rank in sorted(migrated.ranks):
        a = _cut(original.ranks[rank if rank in original.ranks else min(original.ranks)])
        b = _cut(migrated.ranks[rank])
        for end, name in ((a.end, "original"), (b.end, "migrated program")):
            if end is not None:
                found.open_ends.append(f"from {end['at']} of the {name} on: {end['why']}")
        cut = a.end is not None or b.end is not None
        if not several:
            _losses(a, b, rank, cut, tolerance, losses, found)
        _steps(a, b, cut, tolerance, steps, found)
        # With a reference of one process, the others may be silent.
        if not several or rank == min(migrated.ranks):
            _printed(a, b, cut, tolerance, ignored, lines)
    draws = {e["at"]: e["what"] for r in original.ranks for e in original.of_kind(r, "draw")}
    for at, what in draws.items():
        found.notes.append(
            f"{at} draws random numbers on the device ({what}): both runs had the same ones, "
            "from the CPU; a TPU draws others"
        )


def _cut(events: list[Event]) -> _Side:
    for number, event in enumerate(events):
        if event["event"] == "open":
            return _Side(events[:number], event)
    return _Side(events, None)


def _of(side: _Side, kind: str) -> list[Event]:
    return [event for event in side.events if event["event"] == kind]


def _losses(
    a: _Side, b: _Side, rank: int, cut: bool, tolerance: Tolerance, part: Part, found: Comparison
) -> None:
    ours, theirs = _of(a, "loss"), _of(b, "loss")
    for number, (x, y) in enumerate(zip(ours, theirs, strict=False), 1):
        agree = tolerance.agree(x["value"], y["value"])
        found.losses.append(Row(number, rank, x["value"], y["value"], y["at"], agree))
        part.compared += 1
        if not agree:
            text = f"loss {number}: {x['value']:.7g} became {y['value']:.7g}"
            part.differences.append(Difference(text, x["at"], y["at"]))
    _count("calls of backward", ours, theirs, cut, part)


def _mean_losses(
    original: Record, migrated: Record, tolerance: Tolerance, part: Part, found: Comparison
) -> None:
    ours = original.of_kind(min(original.ranks), "loss")
    theirs = [migrated.of_kind(rank, "loss") for rank in sorted(migrated.ranks)]
    for number, (x, ys) in enumerate(zip(ours, zip(*theirs, strict=False), strict=False), 1):
        mean = sum(y["value"] for y in ys) / len(ys)
        agree = tolerance.agree(x["value"], mean)
        found.losses.append(Row(number, 0, x["value"], mean, ys[0]["at"], agree))
        part.compared += 1
        if not agree:
            text = f"loss {number}: {x['value']:.7g}, but the mean of the ranks is {mean:.7g}"
            part.differences.append(Difference(text, x["at"], ys[0]["at"]))
    sides = [*original.ranks.values(), *migrated.ranks.values()]
    open_end = any(_cut(events).end is not None for events in sides)
    for rank, events in zip(sorted(migrated.ranks), theirs, strict=True):
        _count(f"calls of backward, rank {rank}", ours, events, open_end, part)


def _count(what: str, a: list[Event], b: list[Event], cut: bool, part: Part) -> None:
    if len(a) != len(b) and not cut:
        last = a[len(b)] if len(a) > len(b) else None
        more = b[len(a)] if len(b) > len(a) else None
        part.differences.append(
            Difference(
                f"the original has {len(a)} {what}, the migrated program {len(b)}",
                None if last is None else last["at"],
                None if more is None else more["at"],
            )
        )


def _steps(
    a: _Side, b: _Side, cut: bool, tolerance: Tolerance, part: Part, found: Comparison
) -> None:
    ours, theirs = _of(a, "step"), _of(b, "step")
    noise: set[int] = set()
    for number, (x, y) in enumerate(zip(ours, theirs, strict=False), 1):
        part.compared += 1
        for index in sorted(_noise(x, y) - noise):
            noise.add(index)
            name = str(y["parameters"][index]["name"])
            if name not in found.noise:
                found.noise.add(name)
                found.notes.append(
                    f"{name} is not compared from step {number} on: its gradient is zero but for "
                    "rounding, which an optimizer such as Adam makes as large as any other"
                )
        x, y = (
            {**s, "parameters": [p for i, p in enumerate(s["parameters"]) if i not in noise]}
            for s in (x, y)
        )
        for wrong in (_settings_differ(x, y), next(_parameters(x, y, tolerance), None)):
            if wrong is not None:
                text = f"after step {number} of {y['optimizer']}: {wrong}"
                part.differences.append(Difference(text, x["at"], y["at"]))
    _count("optimizer steps", ours, theirs, cut, part)


def _noise(a: Event, b: Event) -> set[int]:
    """The parameters whose gradients are zero but for rounding in both runs; older records
    have no gradients.
    """
    found: set[int] | None = None
    for step in (a, b):
        norms = [p.get("gradient") for p in step["parameters"]]
        largest = max((n for n in norms if n is not None), default=0.0)
        small = {i for i, n in enumerate(norms) if n is not None and n <= _ROUNDING_NOISE * largest}
        found = small if found is None else found & small
    still = {
        i
        for i in found or ()
        if a["parameters"][i].get("gradient") == b["parameters"][i].get("gradient") == 0.0
    }
    return (found or set()) - still


def _settings_differ(a: Event, b: Event) -> str | None:
    """The first setting of the optimizers that differs; older records have none."""
    if a["optimizer"] != b["optimizer"]:
        return f"the optimizer {a['optimizer']} became {b['optimizer']}"
    if "groups" not in a or "groups" not in b:
        return None
    if len(a["groups"]) != len(b["groups"]):
        return f"{len(a['groups'])} groups of parameters became {len(b['groups'])}"
    for number, (x, y) in enumerate(zip(a["groups"], b["groups"], strict=True)):
        # Releases of torch have settings of their own.
        for name in (n for n in x if n in y and n not in _ONLY_SPEED):
            if not _same_setting(x[name], y[name]):
                return f"{name} of group {number}: {x[name]!r} became {y[name]!r}"
    return None


def _same_setting(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same_setting, a, b))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=1e-6)
    return bool(a == b)


def _parameters(a: Event, b: Event, tolerance: Tolerance) -> Iterator[str]:
    """What differs between the parameters of two steps."""
    if len(a["parameters"]) != len(b["parameters"]):
        yield f"{len(a['parameters'])} parameters became {len(b['parameters'])}"
        return
    for x, y in zip(a["parameters"], b["parameters"], strict=True):
        wrong = tensors_differ(x, y, tolerance)
        if wrong is not None:
            yield f"{y['name']}: {wrong}"


def tensors_differ(a: dict[str, Any], b: dict[str, Any], tolerance: Tolerance) -> str | None:
    """How two tensors differ that `recorder.describe_tensor` told of, or None."""
    if a["shape"] != b["shape"]:
        return f"shape {a['shape']} became {b['shape']}"
    x, y = a["of"], b["of"]
    if {a.get("dtype"), b.get("dtype")} & set(_HALVES):
        tolerance = tolerance._replace(rtol=max(tolerance.rtol, _HALF_RTOL))
    if not tolerance.agree(x["norm"], y["norm"]):
        return f"norm {x['norm']:.7g} became {y['norm']:.7g}"
    count = math.prod(a["shape"])
    for i, (s, t) in enumerate(zip(x["slices"], y["slices"], strict=True)):
        size = max(x["mean"], y["mean"])
        if count <= len(x["slices"]):
            if not tolerance.agree(s, t, max(size, abs(s))):
                return f"element {i} of {count}: {s:.7g} became {t:.7g}"
        elif not tolerance.agree(s, t, size, -(-count // len(x["slices"]))):
            return f"norm {y['norm']:.7g} as before, but the elements are others"
    return None


# -- lines ---------------------------------------------------------------------------------------


def _shape(text: str) -> str:
    """A line without its numbers and the name of the device."""
    return _NUMBER.sub("#", _DEVICE.sub("<device>", text))


def lines_differ(a: str, b: str, tolerance: Tolerance) -> bool:
    """Whether two lines differ by more than the device's name and small changes of numbers."""
    if a == b:
        return False
    a, b = _DEVICE.sub("<device>", a), _DEVICE.sub("<device>", b)
    if _NUMBER.sub("#", a) != _NUMBER.sub("#", b):
        return True
    return not all(
        _close(x, y, tolerance) for x, y in zip(_NUMBER.findall(a), _NUMBER.findall(b), strict=True)
    )


def _close(a: str, b: str, tolerance: Tolerance) -> bool:
    """Whether two printed numbers agree; whole numbers are counts and agree exactly."""
    if a == b:
        return True
    whole = [not any(c in text for c in ".eni") for text in (a, b)]
    if any(whole):
        return all(whole) and int(a) == int(b)
    slack = max(_rounding(a), _rounding(b))
    return tolerance._replace(atol=max(tolerance.atol, slack)).agree(float(a), float(b))


def _rounding(number: str) -> float:
    """Half a unit of the last printed digit; with too few digits, none."""
    digits, _, exponent = number.lower().partition("e")
    whole, _, places = digits.lstrip("+-").partition(".")
    if not places or len((whole + places).lstrip("0")) < _FEWEST_DIGITS:
        return 0.0
    return float(0.5 * 10.0 ** (int(exponent or 0) - len(places)))


def _printed(
    a: _Side,
    b: _Side,
    cut: bool,
    tolerance: Tolerance,
    ignored: Ignored,
    part: Part,
) -> None:
    def kept(side: _Side) -> list[Event]:
        return [
            {**event, "text": ignored.kept(event["text"])}
            for event in _of(side, "line")
            if ignored.counts(event["text"])
        ]

    ours, theirs = kept(a), kept(b)
    if cut:
        shorter = min(len(ours), len(theirs))
        ours, theirs = ours[:shorter], theirs[:shorter]
    part.differences += _line_differences(ours, theirs, tolerance, part)


def _line_differences(
    ours: list[Event], theirs: list[Event], tolerance: Tolerance, part: Part
) -> Iterator[Difference]:
    shapes = [[_shape(e["text"]) for e in side] for side in (ours, theirs)]
    part.compared += max(len(ours), len(theirs))
    if shapes[0] != shapes[1] and sorted(shapes[0]) == sorted(shapes[1]):
        at = next(i for i, (x, y) in enumerate(zip(*shapes, strict=True)) if x != y)
        yield Difference(
            f"the same lines come in another order, from line {at + 1} on: "
            f"{_quoted(ours[at])} was printed where now stands {_quoted(theirs[at])}",
            ours[at]["at"],
            theirs[at]["at"],
        )
        return
    matcher = SequenceMatcher(None, shapes[0], shapes[1], autojunk=False)
    for kind, i, j, k, m in matcher.get_opcodes():
        for x, y in zip(ours[i:j], theirs[k:m], strict=False):
            if kind != "equal" or lines_differ(x["text"], y["text"], tolerance):
                yield Difference(f"{_quoted(x)} became {_quoted(y)}", x["at"], y["at"])
        for x in ours[i + (m - k) : j]:
            yield Difference(f"{_quoted(x)} is no longer printed", x["at"], None)
        for y in theirs[k + (j - i) : m]:
            yield Difference(f"{_quoted(y)} is printed in addition", None, y["at"])


def _quoted(event: Event) -> str:
    text = str(event["text"])
    return repr(text if len(text) <= 120 else text[:117] + "...")


# -- files ---------------------------------------------------------------------------------------


def _files(
    original: Record,
    migrated: Record,
    tolerance: Tolerance,
    ignored: Ignored,
    found: Comparison,
) -> Part:
    part = Part("files")
    for name in sorted(original.files.keys() | migrated.files.keys()):
        if any(fnmatchcase(name, pattern) for pattern in ignored.files):
            continue
        a, b = original.files.get(name), migrated.files.get(name)
        if a is None or b is None:
            text = "is no longer written" if b is None else "is written in addition"
            part.differences.append(Difference(f"{name} {text}", None, None))
            continue
        part.compared += 1
        if a["kind"] != b["kind"]:
            text = f"{name}: {_contents(a)} became {_contents(b)}"
            part.differences.append(Difference(text, None, None))
        elif a["kind"] == "bytes":
            if a["sha256"] != b["sha256"]:
                why = a["unread"] or "the format is unknown"
                found.open_ends.append(f"{name} has other bytes, and cannot be read: {why}")
        else:
            if a["kind"] == "values":
                texts = _values(a, b, tolerance, found)
            else:
                texts = _text(a, b, tolerance, ignored)
            part.differences += [Difference(f"{name}: {text}", None, None) for text in texts]
    return part


def _contents(file: dict[str, Any]) -> str:
    why = file.get("unread")
    return str(file["kind"]) + (f" that cannot be read ({why})" if why else "")


def _values(a: Any, b: Any, tolerance: Tolerance, found: Comparison) -> Iterator[str]:
    x, y = a["values"], b["values"]
    for name in [*x, *(n for n in y if n not in x)]:
        if name.endswith(".running_var") and name in x and name in y:
            note = (
                "running_var of BatchNorm is not compared: torch_xla keeps the variance divided "
                "by n, torch by n - 1"
            )
            found.notes += [] if note in found.notes else [note]
            continue
        if any(name == noise or name.endswith(f".{noise}") for noise in found.noise):
            continue
        if name not in x or name not in y:
            yield f"{name} {'is missing' if name in x else 'is new'}"
            continue
        wrong = _value_differs(x[name], y[name], tolerance)
        if wrong is not None:
            yield f"{name}: {wrong}"


def _value_differs(a: Any, b: Any, tolerance: Tolerance) -> str | None:
    if isinstance(a, dict) and isinstance(b, dict):
        if a["dtype"] != b["dtype"]:
            return f"{a['dtype']} became {b['dtype']}"
        return tensors_differ(a, b, tolerance)
    if type(a) is float and type(b) is float:
        same = tolerance.agree(a, b)
    elif isinstance(a, str) and isinstance(b, str):
        same = not lines_differ(a, b, tolerance)
    else:
        same = type(a) is type(b) and a == b
    return None if same else f"{a!r} became {b!r}"


def _text(a: Any, b: Any, tolerance: Tolerance, ignored: Ignored) -> Iterator[str]:
    ours, theirs = (
        [ignored.kept(line) for line in side["lines"] if ignored.counts(line)] for side in (a, b)
    )
    if len(ours) != len(theirs):
        yield f"{len(ours)} lines became {len(theirs)}"
    for number, (x, y) in enumerate(zip(ours, theirs, strict=False), 1):
        if lines_differ(x, y, tolerance):
            yield f"line {number}: {x!r} became {y!r}"
