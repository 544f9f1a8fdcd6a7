"""A reference set whose targets have moved."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from refshard_fs.core.formatting import count_text
from refshard_fs.errors import redacted
from refshard_fs.security.policy import LOCAL, longest_prefix, protocol_of
from refshard_fs.session.collect import respelled
from refshard_fs.sets.made_set import MadeSet, made, opened

__all__ = ["rebase"]


def rebase(
    fo: Any, prefixes: Mapping[str, str], *, missing: Literal["raise", "ignore"] = "raise", **options: Any
) -> MadeSet:
    """Return the set ``fo`` with URL prefixes replaced: the longest that fits wins, and a prefix ends at a slash.

    ``fo`` is whatever `RefShardFileSystem` takes (``options`` are its further arguments), or such a filesystem.
    Relative URLs become absolute before they are compared, and ``file:///data`` is ``/data``; chunk data are not read.
    ValueError if a prefix is empty, or no URL begins with it (``missing="ignore"`` lets that be).
    Of pinned targets (`refshard_fs.snapshot`) that move, the pin keeps the size alone, with a warning: another server
    gives other ETags and times. TargetNotAllowed where a set from elsewhere points to where it may not.

    >>> import refshard_fs
    >>> old = {"a/.zgroup": '{"zarr_format": 2}', "a/0": ["s3://old/x.nc", 0, 4], "a/1": ["s3://older/x.nc", 4, 4]}
    >>> new = refshard_fs.rebase(old, {"s3://old/": "file:///data/"})
    >>> new.references["a/0"], new.references["a/1"]
    (['file:///data/x.nc', 0, 4], ['s3://older/x.nc', 4, 4])
    """
    if not isinstance(prefixes, Mapping):
        raise TypeError(f"prefixes={prefixes!r}: it maps what URLs begin with to what they are to begin with")
    if not all(prefixes):
        raise ValueError("a prefix that is to be replaced is not empty")
    by_place = {_place(prefix): new for prefix, new in prefixes.items()}

    def respell(url: str | None) -> str | None:
        found = None if url is None else longest_prefix(by_place, _place(url))
        if url is None or found is None:
            return url
        stem, new = found
        rest = _place(url)[len(stem) :].removeprefix("/")
        base = new if new.endswith("://") else new.rstrip("/") + "/"
        return base + rest if rest else new.rstrip("/")

    fs = opened(fo, options)
    refs = fs._collect()
    fs._session.admit(url for url in refs.urls if respell(url) == url)
    if missing == "raise":
        _check_all_begin_some(prefixes, [url for url in refs.urls if url is not None])
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


def _place(url: str) -> str:
    """Return ``url``, or the path that it is of a file of this machine, which may be spelled as either."""
    return "/" + url.partition("://")[2].lstrip("/") if protocol_of(url) in LOCAL and "::" not in url else url


def _check_all_begin_some(prefixes: Iterable[str], urls: Sequence[str]) -> None:
    """Raise ValueError for a prefix that none of ``urls`` begins with: it is most likely misspelled."""
    for prefix in prefixes:
        place = {_place(prefix): None}
        if not any(longest_prefix(place, _place(url)) for url in urls):
            example = f", such as {redacted(urls[0])!r}" if urls else ""
            raise ValueError(
                f"{prefix!r} begins none of the set's {count_text(len(urls), 'URL')}{example}; a prefix ends at a "
                "slash. missing='ignore' passes over prefixes that are not there"
            )
