"""Sets joined by a document that names them: what it says is looked at when it is made, and opened when it is read."""

from __future__ import annotations

import hashlib
import os
import reprlib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from refshard_fs.core.dtypes import plain_document
from refshard_fs.core.keys import join
from refshard_fs.errors import ManifestError
from refshard_fs.formats.virtual_concat.document import ConcatDocument, Part
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.security.policy import directory_of, protocol_of
from refshard_fs.session.in_memory_source import InMemorySource, source_of
from refshard_fs.sets.compatibility import with_digests
from refshard_fs.sets.concatenation import concatenate
from refshard_fs.sets.made_set import opened
from refshard_fs.sets.sources import read_sets
from refshard_fs.sets.variables import Named, Variable
from refshard_fs.targets.document import Sink

__all__ = ["LazySet", "relative_urls", "concat_lazily", "concat_document", "url_of_set"]


class LazySet(InMemorySource, frozen=True, eq=False, weakref=True):
    """A document that joins sets: an ``fo`` for `RefShardFileSystem`. Immutable; URLs in it are absolute."""

    @property
    def document(self) -> ConcatDocument:
        """What the document says."""
        assert isinstance(self.content, bytes), "a document that joins sets is bytes"
        return ConcatDocument.read(self.content, repr(self))

    def __len__(self) -> int:
        """Number of parts."""
        return len(self.document.parts)

    def save(self, url: str, **storage_options: Any) -> None:
        """Write the document to ``url``, parts that lie below its directory relative to it; it appears whole."""
        data = self.document.dumps(relative_urls(url))
        with Sink(url, storage_options).stream() as file:
            file.write(data)

    def __reduce__(self) -> tuple[Any, ...]:
        return LazySet, (self.content, self.digest)


def relative_urls(url: str) -> Callable[[str], str]:
    """Return how URLs are spelled in a document at ``url``."""
    absolute = url if protocol_of(url) is not None else os.path.abspath(os.path.expanduser(url))
    directory = directory_of(absolute)
    stem = directory if directory.endswith("/") else directory + "/"

    def respell(part: str) -> str:
        rest = part.removeprefix(stem)
        plain = rest != part and "::" not in part and protocol_of(rest) is None and not rest.startswith("/")
        return rest if plain else part

    return respell


def concat_lazily(
    sets: Sequence[Any], dim: str, same: frozenset[str], options: Mapping[str, Any], count: Callable[[int], object]
) -> LazySet:
    """Return the document that joins the sets at URLs ``sets`` along ``dim``, seen to fit as those of `concat` must."""
    urls = [url_of_set(fo, options, "lazy=True") for fo in sets]
    data = concat_document(urls, dim, same, options, count).dumps()
    return LazySet(data, hashlib.sha256(data).hexdigest())


def url_of_set(fo: Any, options: Mapping[str, Any], who: str) -> str:
    """Return the URL of the set ``fo``; TypeError where it has none that ``who`` could name."""
    is_path = isinstance(fo, str | os.PathLike)
    url = source_of(os.fspath(fo), options.get("target_protocol"), None, True) if is_path else fo
    if not isinstance(url, str):
        raise TypeError(f"{who} names its parts: {reprlib.repr(fo)} is no URL or path; save it first")
    return url


def concat_document(
    urls: Sequence[str], dim: str, same: frozenset[str], options: Mapping[str, Any], count: Callable[[int], object]
) -> ConcatDocument:
    """Return the document that joins the sets at ``urls``, as they are now; ManifestError where they do not fit."""
    read = read_sets(urls, options, count)
    parts = with_digests(read, lambda number: opened(urls[number], options), [dim], same)
    refs = concatenate(parts, dim, same).refs
    first = parts[0].variables
    axes = {path: variable.dims.index(dim) for path, variable in first.items() if dim in variable.dims}
    lengths = [_length(part, axes, dim) for part in parts]
    coordinate = next((path for path in axes if first[path].is_coordinate), None)
    data = None if coordinate is None else _values(refs, first[coordinate], sum(lengths))
    if data is None:
        return ConcatDocument(dim, axes, tuple(map(Part, urls, lengths)))
    ends = (np.cumsum([0, *lengths]) * (len(data) // sum(lengths))).tolist()
    values = [data[start:stop] for start, stop in pairwise(ends)]
    return ConcatDocument(dim, axes, tuple(map(Part, urls, lengths, values)), coordinate)


def _values(refs: ReferenceSet, variable: Variable, total: int) -> bytes | None:
    """Return the bytes of a coordinate that `concatenate` has put into one plain chunk."""
    path = variable.path
    if total == 0 or refs.side.get(variable.key) != plain_document(variable.meta, total):
        return None
    found = refs.side.get(join(path, refs.tables[path].grid.tail(0)))
    return found if isinstance(found, bytes) else None


def _length(part: Named, axes: Mapping[str, int], dim: str) -> int:
    lengths = {path: part.variables[path].meta.shape[axis] for path, axis in axes.items()}
    if len(set(lengths.values())) != 1:
        raise ManifestError(f"{part.name} has variables of several lengths along {dim!r}: {lengths}")
    return next(iter(lengths.values()))
