"""Binding the arguments of a call to parameters, by the signatures of the releases."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import libcst as cst

from xla2tpu.rulemodel import Api, Signature


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter; ``kind``: positional, keyword, args or kwargs."""

    name: str
    kind: str
    required: bool
    annotation: str | None


@dataclass(frozen=True, slots=True)
class Bound:
    """The arguments of one call by parameter; variadic ones in the order of the source."""

    args: dict[str, cst.Arg]
    variadic: tuple[cst.Arg, ...] = ()
    keywords: tuple[cst.Arg, ...] = ()

    def named(self) -> dict[str, int]:
        """Parameter to argument, comparable between signatures."""
        return {name: id(arg) for name, arg in self.args.items()}


@functools.cache
def parse(source: str) -> tuple[Parameter, ...]:
    """The parameters of a signature such as ``(wait=False)``; raises SyntaxError."""
    function = ast.parse(f"def f{source}: pass").body[0]
    assert isinstance(function, ast.FunctionDef)
    args = function.args
    found: list[Parameter] = []
    positional = [*args.posonlyargs, *args.args]
    required = len(positional) - len(args.defaults)
    for index, arg in enumerate(positional):
        found.append(Parameter(arg.arg, "positional", index < required, _note(arg)))
    if args.vararg is not None:
        found.append(Parameter(args.vararg.arg, "args", False, None))
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        found.append(Parameter(arg.arg, "keyword", default is None, _note(arg)))
    if args.kwarg is not None:
        found.append(Parameter(args.kwarg.arg, "kwargs", False, None))
    return tuple(found)


def _note(arg: ast.arg) -> str | None:
    return ast.unparse(arg.annotation) if arg.annotation is not None else None


def bind(
    source: str, args: Sequence[cst.Arg], is_device: Callable[[cst.BaseExpression], bool]
) -> Bound | str:
    """Bind a call's arguments to one signature, or the reason why that is not possible.

    An argument known to be a device does not fit a parameter that is annotated ``bool``.
    """
    parameters = parse(source)
    positional = [p for p in parameters if p.kind == "positional"]
    by_name = {p.name: p for p in parameters if p.kind in ("positional", "keyword")}
    takes_args = any(p.kind == "args" for p in parameters)
    takes_kwargs = any(p.kind == "kwargs" for p in parameters)
    bound: dict[str, cst.Arg] = {}
    variadic: list[cst.Arg] = []
    keywords: list[cst.Arg] = []
    index = 0
    for arg in args:
        if arg.star == "*":
            if index < len(positional) or not takes_args:
                return "starred-arguments"
            variadic.append(arg)
        elif arg.star == "**":
            # The mapping may hold any parameter that is not given by position.
            free = [p for p in by_name.values() if p.name not in bound]
            if free or not takes_kwargs:
                return "starred-arguments"
            keywords.append(arg)
        elif arg.keyword is not None:
            name = arg.keyword.value
            if name in bound:
                return "arguments-do-not-bind"
            if name in by_name:
                bound[name] = arg
            elif takes_kwargs:
                keywords.append(arg)
            else:
                return "arguments-do-not-bind"
        elif index < len(positional):
            bound[positional[index].name] = arg
            index += 1
        elif takes_args:
            variadic.append(arg)
        else:
            return "arguments-do-not-bind"
    for parameter in by_name.values():
        if parameter.required and parameter.name not in bound:
            return "arguments-do-not-bind"
        given = bound.get(parameter.name)
        if parameter.annotation == "bool" and given is not None and is_device(given.value):
            return "arguments-do-not-bind"
    return Bound(bound, tuple(variadic), tuple(keywords))


def release(text: str) -> tuple[int, ...]:
    """A release as numbers, for comparing: ``"2.10"`` is after ``"2.9"``."""
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def _holds(signature: Signature, version: str) -> bool:
    at = release(version)
    if signature.since is not None and at < release(signature.since):
        return False
    return signature.removed is None or at < release(signature.removed)


def bind_api(
    api: Api,
    args: Sequence[cst.Arg],
    version: str | None,
    is_device: Callable[[cst.BaseExpression], bool],
) -> Bound | str:
    """Bind a call to the signatures of a name, or the reason why it cannot be done.

    Without a ``version``, all releases that accept the call must agree on each argument given.
    """
    signatures = list(api.signatures)
    if version is not None:
        signatures = [s for s in signatures if _holds(s, version)] or signatures[-1:]
    results = [bind(s.source, args, is_device) for s in signatures]
    fits = [r for r in results if isinstance(r, Bound)]
    if not fits:
        reasons = [r for r in results if isinstance(r, str)]
        if "starred-arguments" in reasons:
            return "starred-arguments"
        return reasons[-1] if reasons else "arguments-do-not-bind"
    newest = fits[-1]
    for other in fits[:-1]:
        if other.named() != newest.named() or len(other.variadic) != len(newest.variadic):
            return "signature-by-release"
    return newest
