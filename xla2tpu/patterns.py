"""Globs of the configuration, matched against paths."""

from __future__ import annotations

from fnmatch import fnmatchcase


def matches(path: str, pattern: str, above: int = 0) -> bool:
    """Whether a glob names the file at ``path`` or a folder that it lies in.

    ``path`` is relative to the folder of the configuration and has slashes. A glob without a
    slash is held against each part by itself, one with a slash against the path from its start.
    The first ``above`` parts, which the user named on the command line, are not tested.
    """
    # `legacy/**` and `**/legacy` are how some write `legacy`; `a/**/b` is to match `a/b` too.
    pattern = pattern.removeprefix("./").rstrip("/").removesuffix("/**")
    while pattern.startswith("**/"):
        pattern = pattern[3:]
    parts = path.split("/")
    if "/" not in pattern:
        return any(fnmatchcase(part, pattern) for part in parts[above:])
    forms = {pattern, pattern.replace("/**/", "/")}
    return any(
        fnmatchcase("/".join(parts[:end]), form)
        for end in range(above + 1, len(parts) + 1)
        for form in forms
    )
