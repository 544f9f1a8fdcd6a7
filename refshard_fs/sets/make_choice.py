"""Make the selection that the arguments of ``select`` describe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from refshard_fs.cubes.choice import Choice, check_mapping
from refshard_fs.source.source import Source


def make_choice(
    source: Source,
    opened: Any,
    *,
    drop: Iterable[str] | str = (),
    keep: Iterable[str] | str | None = None,
    rename: Mapping[str, str] | None = None,
    attrs: Mapping[str, Mapping[str, Any]] | None = None,
    isel: Mapping[str, int | slice] | None = None,
    sel: Mapping[str, Any] | None = None,
    squeeze: Iterable[str] | str | bool = (),
    assign: Mapping[str, Any] | None = None,
) -> Choice:
    """Return the selection of a part of ``source``; labels in ``sel`` become positions.

    xarray opens ``opened``, which shows the source, to find the labels. The other arguments are those of
    `RefShardFileSystem.select`.
    """
    check_mapping("sel", sel)
    check_mapping("isel", isel)
    if sel:
        from refshard_fs.labels import find_positions  # needs xarray

        isel = {**(isel or {}), **find_positions(source, opened, sel)}
    return Choice.of(drop, keep, rename, attrs, isel, squeeze, assign)
