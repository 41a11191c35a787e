"""What becomes of one requirement: torch_xla, what is pinned beside it, what only it needs.

`packaging` reads the requirements. Without it (the extra ``files``) they are told by their names
and left as they are.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from xla2tpu.model import Applicability

try:
    from packaging import markers, requirements, specifiers
    from packaging import version as versions
except ImportError:  # the extra is not installed
    _PACKAGING = False
else:
    _PACKAGING = True

NEEDS_PACKAGING = "Install xla2tpu[files], then run again; or write torch_tpu by hand."
TORCH_XLA = "torch-xla"
_FIRST = "torch_tpu>=0.2.0"
# The releases of torch that torch_tpu 0.2.0 takes, and those of the packages made with them.
_FLOORS = {
    "torch": ("2.11", ("2.11.0", "2.11.1", "2.12.0", "2.12.1", "2.13.0", "2.14.0", "2.15.0")),
    "torchvision": ("0.26", ("0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0")),
    "torchaudio": ("2.11", ("2.11.0", "2.11.1", "2.12.0", "2.13.0")),
    "numpy": ("2", ("2.0.0", "2.1.0", "2.2.0", "2.3.0", "2.4.0", "2.5.0")),
}
COMPANIONS = frozenset(_FLOORS)
# Nothing but torch_xla and jax[tpu] asks for these by name.
_RUNTIME = frozenset(("libtpu", "libtpu-nightly", "cloud-tpu-client"))
_CUDA = re.compile(r"torch[-_.]xla[-_.]cuda[-_.]plugin\Z", re.I)
_PYTHONS = ("3.11", "3.12", "3.13", "3.14")
_WHEEL = re.compile(
    r"(?:https?|gs)://\S*/(?P<name>torch_xla|torchvision|torchaudio|torch|libtpu_nightly|libtpu)-"
    r"[^/\s]*\.whl(?:#\S*)?\Z"
)
_BUCKETS = re.compile(r"pytorch-xla-releases|tpu-pytorch|libtpu-releases|libtpu-wheels")
_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[^\]]*\])?")
_INDEX = re.compile(
    r"https?://storage\.googleapis\.com/(?:libtpu-(?:releases|wheels)|pytorch-xla-releases"
    r"|tpu-pytorch)(?:/\S*)?\Z"
)
_JAX_INDEX = re.compile(
    r"https?://(?:storage\.googleapis\.com/jax-releases|us-python\.pkg\.dev/"
    r"ml-oss-artifacts-published)/\S*\Z"
)


class Verdict(NamedTuple):
    """What becomes of a requirement. ``new`` is its new text, empty where it goes."""

    detector: str
    api: str
    applicability: Applicability
    new: str = ""
    also: str | None = None
    reason: str | None = None
    advice: str | None = None


def canonical(name: str) -> str:
    """A project's name as indices compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(text: str) -> str:
    """The canonical name of a requirement or of a wheel's address; empty where there is none."""
    wheel = _WHEEL.match(text.strip())
    if wheel:
        return canonical(wheel["name"])
    found = _NAME.match(text)
    return canonical(found[1]) if found else ""


def is_torch_xla(text: str) -> bool:
    """Whether a requirement asks for torch_xla, by name or as a wheel."""
    return name_of(text) == TORCH_XLA


def asks(text: str) -> bool:
    """Whether a requirement brings in torch_xla, or torch_tpu where that has been done."""
    return name_of(text) in (TORCH_XLA, "torch-tpu")


def verdict(text: str, pinned: bool = True) -> Verdict | None:
    """What becomes of a requirement of a file that asks for torch_xla; None where it stays.

    ``pinned``: the place is a declaration, where versions are given; else a command, in which
    torch_tpu brings the right ones along.
    """
    text = text.strip()
    name = name_of(text)
    if _CUDA.match(name):
        return _manual("runtime-package", name, "other-hardware", "Remove it: use plain torch.")
    if name in _RUNTIME:
        return Verdict("runtime-package", name, Applicability.SAFE)
    wheel = _WHEEL.match(text)
    if wheel:
        return _wheel(text, name, pinned)
    if name != TORCH_XLA and name not in COMPANIONS:
        return None
    detector = "requirement" if name == TORCH_XLA else "pin"
    if not _PACKAGING:
        if name != TORCH_XLA:
            return None
        return _manual(detector, name, "parser-missing", NEEDS_PACKAGING)
    try:
        parsed = requirements.Requirement(text)
    except requirements.InvalidRequirement:
        if name in COMPANIONS and _is_bare(text):
            return None
        return _manual(detector, name, "unsupported-form") if name == TORCH_XLA else None
    if name == TORCH_XLA:
        return _torch_xla(parsed, text, pinned)
    return _companion(parsed, text, name, pinned)


def _is_bare(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def _torch_xla(parsed: Any, text: str, pinned: bool) -> Verdict:
    if parsed.marker is not None and not _on_some_python(parsed.marker):
        return _manual(
            "requirement", TORCH_XLA, "python-floor",
            "torch_tpu needs Python 3.11: raise the marker, then write torch_tpu.",
        )  # fmt: skip
    sign = "-" if "-" in parsed.name else "_"
    fixed = pinned and (parsed.specifier or parsed.url)
    new = (_FIRST if fixed else "torch_tpu").replace("_", sign)
    if _spaced(text):
        new = new.replace(">=", " >= ")
    extras = {canonical(e) for e in parsed.extras}
    also = "jax" if "pallas" in extras else None
    if "cuda" in extras:
        return _manual("requirement", TORCH_XLA, "other-hardware")
    return Verdict("requirement", TORCH_XLA, Applicability.SAFE, _with_marker(text, new), also)


def _on_some_python(marker: Any) -> bool:
    """Whether a marker holds on a Python that torch_tpu runs on, whatever the platform is."""
    environment = markers.default_environment()
    for version in _PYTHONS:
        here = environment | {"python_version": version, "python_full_version": f"{version}.0"}
        if "python_version" not in str(marker) and "python_full_version" not in str(marker):
            return True
        if marker.evaluate({k: str(v) for k, v in here.items()}):
            return True
    return False


def _companion(parsed: Any, text: str, name: str, pinned: bool) -> Verdict | None:
    floor, releases = _FLOORS[name]
    if parsed.url:
        if _BUCKETS.search(parsed.url):
            return Verdict("pin", name, Applicability.UNSAFE, _with_marker(text, parsed.name))
        return _manual("pin", name, "unsupported-form", f"Give {name} in a release from {floor}.")
    if _takes(parsed.specifier, releases):
        return None
    if parsed.marker is not None and not _on_some_python(parsed.marker):
        return None
    if _is_newer(parsed.specifier, releases[-1]):
        # Nothing is lowered.
        return _manual("pin", name, "unsupported-form", f"torch_tpu has no room for this {name}.")
    extras = f"[{','.join(sorted(parsed.extras))}]" if parsed.extras else ""
    space = " " if _spaced(text) else ""
    new = f"{parsed.name}{extras}"
    if pinned:
        new += f"{space}>={space}{floor}"
    return Verdict("pin", name, Applicability.UNSAFE, _with_marker(text, new))


def _spaced(text: str) -> bool:
    """Whether a requirement has spaces around its operator."""
    return re.match(r"[\w.-]+(\[[^\]]*\])?\s+[<>=!~]", text) is not None


def _takes(specifier: Any, releases: tuple[str, ...]) -> bool:
    """Whether a specifier takes one of the releases, or a later one than are known yet."""
    return any(specifier.contains(release) for release in releases)


def _is_newer(specifier: Any, last: str) -> bool:
    """Whether a specifier asks for more than the last release that torch_tpu goes with."""
    pinned = [s for s in specifier if s.operator in ("==", "~=")]
    newest = versions.Version(last)
    return specifier.contains("999.0") or any(
        versions.Version(s.version.removesuffix(".*")) > newest for s in pinned
    )


def _wheel(text: str, name: str, pinned: bool) -> Verdict | None:
    if name == TORCH_XLA:
        return Verdict("requirement", name, Applicability.SAFE, _FIRST if pinned else "torch_tpu")
    if not _BUCKETS.search(text):
        return _manual("pin", name, "unsupported-form", "Take it from PyPI, as torch_tpu needs it.")
    floor = f">={_FLOORS[name][0]}" if pinned else ""
    return Verdict("pin", name, Applicability.UNSAFE, f"{name}{floor}")


def _with_marker(text: str, new: str) -> str:
    """The new requirement with the environment marker of the old, as it was written."""
    marker = re.search(r"\s*;.*\Z", text, re.S)
    return new + (marker[0] if marker else "")


def is_libtpu_index(url: str) -> bool:
    """Whether an address of wheels is one that only torch_xla's installation needs."""
    return bool(_INDEX.match(url))


def is_jax_index(url: str) -> bool:
    """Whether an address of wheels is jax's, which torch_xla's Pallas kernels needed."""
    return bool(_JAX_INDEX.match(url))


def python_floor(specifier: str) -> str | None:
    """The new text of a Python requirement that takes releases below 3.11; None where it stays."""
    if not _PACKAGING:
        return None
    try:
        parsed = specifiers.SpecifierSet(specifier)
    except specifiers.InvalidSpecifier:
        return None
    if not any(parsed.contains(f"3.{minor}.9") for minor in range(5, 11)):
        return None
    upper = [s.strip() for s in specifier.split(",")]
    kept = [s for s in upper if s.startswith(("<", "!=")) and parsed.contains("3.11.4")]
    space = " " if re.search(r"[<>=]\s", specifier) else ""
    joiner = ", " if ", " in specifier else ","
    return joiner.join([f">={space}3.11", *kept])


def poetry(name: str, constraint: str) -> str | None:
    """The new text of poetry's constraint on a companion or on Python; None where it stays."""
    floor = "3.11" if name == "python" else _FLOORS[name][0]
    releases = ("3.11.4", "3.12.4", "3.13.2") if name == "python" else _FLOORS[name][1]
    plain = _without_carets(constraint)
    if plain is None or not _PACKAGING:
        return None
    try:
        parsed = specifiers.SpecifierSet(plain)
    except specifiers.InvalidSpecifier:
        return None
    if name == "python":
        low = any(parsed.contains(f"3.{minor}.9") for minor in range(5, 11))
        return f">={floor}" if low else None
    stays = _takes(parsed, releases) or _is_newer(parsed, releases[-1])
    return None if stays else f">={floor}"


def _without_carets(constraint: str) -> str | None:
    """Poetry's ``^1.2`` and ``~1.2`` as ranges that all know."""
    if "|" in constraint:
        return None
    parts = []
    for part in (p.strip() for p in constraint.split(",")):
        match = re.match(r"([\^~])\s*(\d+(?:\.\d+)*)\Z", part)
        if part == "*":
            continue
        if match is None:
            parts.append(f"=={part}" if re.match(r"\d", part) else part)
            continue
        numbers = [int(n) for n in match[2].split(".")]
        if match[1] == "^":
            at = next((i for i, n in enumerate(numbers) if n), len(numbers) - 1)
        else:
            at = min(1, len(numbers) - 1)
        upper = [*numbers[:at], numbers[at] + 1]
        parts.append(f">={match[2]},<{'.'.join(map(str, upper))}")
    return ",".join(parts)


def _manual(detector: str, api: str, reason: str, advice: str | None = None) -> Verdict:
    return Verdict(detector, api, Applicability.MANUAL, reason=reason, advice=advice)
