"""A reference set whose targets have moved."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import msgspec

from refshard_fs.collecting import respelled
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.policy import longest_prefix
from refshard_fs.sets.made import MadeSet, made

__all__ = ["opened", "rebase"]


def rebase(fo: Any, prefixes: Mapping[str, str], **options: Any) -> MadeSet:
    """Return the set ``fo`` with URL prefixes replaced: the longest that fits wins, and a prefix ends at a slash.

    ``fo`` is whatever `RefShardFileSystem` takes (``options`` are its further arguments), or such a filesystem.
    Relative URLs become absolute before they are compared; chunk data are not read. ValueError if a prefix is empty.
    Of pinned targets (`refshard_fs.snapshot`) that move, the pin keeps the size alone, with a warning: another server
    gives other ETags and times. TargetNotAllowed where a set from elsewhere points to where it may not.

    >>> import refshard_fs
    >>> old = {"a/.zgroup": '{"zarr_format": 2}', "a/0": ["s3://old/x.nc", 0, 4], "a/1": ["s3://older/x.nc", 4, 4]}
    >>> new = refshard_fs.rebase(old, {"s3://old/": "file:///data/"})
    >>> new.references["a/0"], new.references["a/1"]
    (['file:///data/x.nc', 0, 4], ['s3://older/x.nc', 4, 4])
    """
    if not all(prefixes):
        raise ValueError("a prefix that is to be replaced is not empty")

    def respell(url: str | None) -> str | None:
        found = None if url is None else longest_prefix(prefixes, url)
        if url is None or found is None:
            return url
        stem, new = found
        rest = url[len(stem) :].removeprefix("/")
        base = new if new.endswith("://") else new.rstrip("/") + "/"
        return base + rest if rest else new.rstrip("/")

    fs = opened(fo, options)
    refs = fs.collect()
    fs.admit(url for url in refs.urls if respell(url) == url)
    new = respelled(refs, respell)
    if refs.pins is not None:
        moved = [respell(url) != url for url in refs.urls]
        pins = refs.pins.sizes_only(moved)
        lost = sum(1 for i, gone in enumerate(moved) if gone and pins.pin(i) != refs.pins.pin(i))
        if lost:
            warnings.warn(
                f"{lost} targets that moved are held to their sizes alone from now on: their ETags and times are those "
                "of the old place. Take a snapshot of the new set to pin them there",
                UserWarning,
                stacklevel=2,
            )
        new = msgspec.structs.replace(new, pins=pins)
    return made(new)


def opened(fo: Any, options: Mapping[str, Any]) -> RefShardFileSystem:
    """Return the filesystem of ``fo``, or ``fo`` itself where it is one."""
    return fo if isinstance(fo, RefShardFileSystem) else RefShardFileSystem(fo, **options)
