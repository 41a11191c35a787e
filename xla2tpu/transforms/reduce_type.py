"""The kinds of reductions, which torch_xla spells as strings."""

from __future__ import annotations

from xla2tpu.changes import Builder
from xla2tpu.sites import Change, Site


def reduce_type(site: Site, builder: Builder) -> Change | str:
    """Put the string in place of a constant: ``"sum"`` for ``xm.REDUCE_SUM``."""
    word = site.path.rpartition(".REDUCE_")[2].lower()
    return builder.replace(site, f'"{word}"')
