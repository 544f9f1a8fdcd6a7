"""A set that grows by another one, in place: what is new is written as edits of the set, and committed whole."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ChunkTable, Row
from refshard_fs.core.dtypes import dtype_of
from refshard_fs.core.edits import REMOVED, Edit
from refshard_fs.core.keys import join
from refshard_fs.core.model import Inline, Span
from refshard_fs.errors import ConflictError, ManifestError, NoSuchSource, told
from refshard_fs.formats.virtual_concat.document import ConcatDocument
from refshard_fs.formats.virtual_concat.keyspace import ConcatKeySpace
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.references.key_table import Value
from refshard_fs.references.keyspace import FlatKeySpace
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import decode
from refshard_fs.session.in_memory_source import source_of
from refshard_fs.session.overlay import Base
from refshard_fs.session.recognition import beneath
from refshard_fs.sets.common_units import with_common_units
from refshard_fs.sets.compatibility import with_digests
from refshard_fs.sets.concat import concat_document, length_along, relative_urls, url_of_set
from refshard_fs.sets.concatenation import (
    Overlap,
    arrange,
    check_order,
    concatenate,
    coordinate_values,
    shown_value,
)
from refshard_fs.sets.cutting import trimmed
from refshard_fs.sets.outer import nothing
from refshard_fs.sets.patterns import stacked_along, stacked_as
from refshard_fs.sets.scanning import with_coordinates
from refshard_fs.sets.sources import read_sets
from refshard_fs.sets.variables import ChangedSet, Named, VariableReader, with_metadata
from refshard_fs.targets.objects import Document
from refshard_fs.tools.views import progress


def append(
    target: str | os.PathLike[str],
    fo: Any,
    dim: str,
    *,
    same: Iterable[str] = (),
    on_duplicate: OnDuplicate = "error",
    any_order: bool = False,
    callback: Callback = DEFAULT_CALLBACK,
    **options: Any,
) -> int:
    """Add the set ``fo`` to the set at ``target``, along ``dim``, as if both had been given to `concat`.

    ``target`` is the URL of a JSON or parquet set, of a hierarchy with chunk manifests, or of a document that `concat`
    made with ``lazy=True``: that gets one line more, and ``fo`` is a URL then. ``same`` is as `concat` takes it, and
    ``options`` are further arguments of `RefShardFileSystem` for both.
    The set does not change until it has all of the new one, whatever happens.

    It is safe to repeat: values of the coordinate ``dim`` that the set has already are an error; with
    ``on_duplicate="skip"`` what is new is appended, and ``"replace"`` takes the new set's elements instead of the last
    ones of the old set. What comes late takes its place in the gap that a document has there (``freq=`` of `concat`). A
    set that is in order stays so, unless ``any_order`` allows otherwise. Returns how many elements the set has more, or
    a gap has less; 0 means that it was left as it is, unless some were replaced.

    Raises SourceNotReachable if there is no set yet, ManifestError where the two do not fit, ConflictError if somebody
    else wrote the target meanwhile, and ReadOnlyError where it cannot be written: then nothing is changed.
    ``callback`` counts what is written.

    >>> import fsspec, json, refshard_fs
    >>> meta = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "|u1", "order": "C",
    ...         "fill_value": None, "filters": None, "compressor": None}
    >>> def day(url):
    ...     return {"a/.zarray": json.dumps(meta), "a/.zattrs": '{"_ARRAY_DIMENSIONS": ["time"]}', "a/0": [url, 0, 2]}
    >>> refshard_fs.RefShardFileSystem(day("memory://one")).save("memory://grows.json")
    >>> refshard_fs.append("memory://grows.json", day("memory://two"), "time")
    2
    >>> refshard_fs.RefShardFileSystem("memory://grows.json").references["a/1"]
    ['memory://two', 0, 2]
    """
    url = source_of(os.fspath(target), options.get("target_protocol"), None, True)
    fs = RefShardFileSystem(
        str(url), **{**options, "mode": "a", "shards": "whole", "index_cache": False, "skip_instance_cache": True}
    )
    base = fs._writing("append").base()
    how = _How(on_duplicate, any_order)
    with _conflicts_told(str(url)):
        match beneath(base.keyspace):
            case ConcatKeySpace() as joined:
                added = _append_line(fs, base, joined, fo, dim, frozenset(same), options, how)
                with progress("append", callback) as shown:
                    shown.set_size(1)
                    shown.relative_update(1)
                return added
            case keyspace:
                holds_pins = isinstance(keyspace, FlatKeySpace)
        try:
            whole = _Joined.of(fs, str(url), fo, dim, frozenset(same), options, how, holds_pins=holds_pins)
            if whole is None:
                fs.discard()
                return 0
            edits = dict(whole.edits())
            with progress("append", callback) as shown:
                shown.set_size(len(edits))
                for key, edit in edits.items():
                    fs._writing("append").overlay.put(key, edit)
                    shown.relative_update(1)
                fs.commit()
        except BaseException:
            fs.discard()
            raise
        return whole.added


@contextmanager
def _conflicts_told(url: str) -> Iterator[None]:
    """Raise a ConflictError that says to append again: nothing is left to be committed."""
    try:
        yield
    except ConflictError as e:
        raise ConflictError(f"somebody else wrote {told(url)} meanwhile. Nothing was appended: append again") from e


OnDuplicate = Literal["error", "skip", "replace"]  # what is done with values that the set has already


class _How(NamedTuple):
    on_duplicate: OnDuplicate
    any_order: bool


class _Kept(NamedTuple):
    """What of both sets is joined: the old one up to ``old``, and the new one from ``start`` to ``stop``.

    Where the new one replaces the beginning of the old one, ``old`` is 0.
    """

    old: int
    start: int
    stop: int


def _kept(old: Named, new: Named, dim: str, how: _How) -> _Kept | None:
    """Return what of both sets is joined; None where nothing is new. ManifestError where that is not allowed."""
    values = coordinate_values([old, new], dim)
    if values is None:
        return _Kept(length_along(old, dim), 0, length_along(new, dim))
    before, coming = values
    known = np.isin(coming, before)
    if known.all() and how.on_duplicate == "skip":
        return None
    kept = _Kept(len(before), 0, len(coming))
    if known.any():
        if how.on_duplicate == "error":
            raise ManifestError(
                f"{old.name} has {dim} = {shown_value(coming[known][0], old, dim)} already: on_duplicate='skip' "
                "appends what is new, on_duplicate='replace' takes the new elements"
            )
        overlap: Overlap = "first" if how.on_duplicate == "skip" else "last"
        pieces = {piece.number: piece for piece in arrange([old, new], dim, overlap=overlap) or []}
        if 0 not in pieces or pieces[0].start != 0 or 1 not in pieces:
            return _Kept(0, 0, len(coming))
        kept = _Kept(pieces[0].stop, pieces[1].start, pieces[1].stop)
    if not how.any_order:
        check_order(before[: kept.old], coming[kept.start : kept.stop], new.name, dim)
    return kept


class _Joined(NamedTuple):
    """The set at a URL as it is, and as it is to be."""

    before: ReferenceSet
    whole: ReferenceSet
    along: frozenset[str]  # paths of the arrays that grow
    kept: int  # URLs of the set as it is, which come first
    added: int
    holds_pins: bool

    @classmethod
    def of(
        cls,
        fs: RefShardFileSystem,
        url: str,
        fo: Any,
        dim: str,
        same: frozenset[str],
        options: Mapping[str, Any],
        how: _How,
        *,
        holds_pins: bool,
    ) -> _Joined | None:
        """Return what the set of ``fs``, at ``url``, is to be with ``fo``; None where that has nothing new."""
        before = fs._collect()
        if not len(before):
            raise NoSuchSource(f"there is no set at {url} that could go on: concat writes one")
        name = f"the set at {url}"
        held = Named(name, before, VariableReader().read(before, name), fo=fs)
        old = fs._session.run("", lambda: with_coordinates(held))
        (new,) = read_sets([fo], options, _ignore)
        new = msgspec.structs.replace(new, name=new.name.replace("set 0", "the set to append", 1))
        new = stacked_as(new, dim, old)
        if new.refs.pins is not None and not holds_pins:
            raise ManifestError(f"{new.name} is pinned, which {url} cannot hold: give the pins up with unpinned()")
        old, new = with_common_units([old, new], dim).parts
        kept = _kept(old, new, dim, how)
        if kept is None:
            return None
        if not kept.old:
            raise ManifestError(f"{new.name} replaces the beginning of {old.name}, which append cannot: make it anew")
        pieces = [trimmed(old, dim, 0, kept.old), trimmed(new, dim, kept.start, kept.stop)]
        parts = with_digests(pieces, [dim], same)
        whole = concatenate(parts, dim, same)
        along = frozenset(path for path, variable in old.variables.items() if dim in variable.dims)
        added = length_along(whole, dim) - length_along(old, dim)
        return cls(before, whole.refs, along, len(before.urls), added, holds_pins)

    def edits(self) -> Iterator[tuple[str, Edit]]:
        """Yield what the set is to have or to lose, by key."""
        before, whole = self.before, self.whole
        for path, table in whole.tables.items():
            known = before.tables.get(path)
            if known is not None and path in self.along:
                yield from _removed(path, known, whole, before)
            part = table.part()
            chosen = part.ranges.targets >= (0 if known is None else self.kept)  # targets of the new set come last
            for number in part.numbers[chosen].tolist():
                row = table.row(number)
                if row is not None:
                    key = join(path, table.grid.tail(number))
                    yield key, _span(whole, row, key)
        for key, value in whole.side.items():
            if key == ".zmetadata" and not self.holds_pins:
                continue  # a parquet set has its own
            if type(value) is Row:
                if value.target >= self.kept:
                    yield key, _span(whole, value, key)
            elif not _is_same(before.side.get(key), value):
                yield key, Inline(decode(value))


def _removed(path: str, known: ChunkTable, whole: ReferenceSet, before: ReferenceSet) -> Iterator[tuple[str, Edit]]:
    """Yield the chunks of an array that are no longer there: those of a coordinate that is now in one."""
    if len(whole.tables[path]) and whole.tables[path].grid.size >= known.grid.size:
        return  # references go on where they are
    keys = {join(path, known.grid.tail(number)) for number in known.present().tolist()}
    keys |= {key for key in before.side if key.startswith(path + "/") and not zarrmeta.is_metadata(key)}
    yield from ((key, REMOVED) for key in sorted(keys) if key not in whole.side)


def _span(refs: ReferenceSet, row: Row, key: str) -> Span:
    url = refs.urls[row.target]
    if url is None:
        raise ManifestError(f"{key!r} is a reference without a URL, which cannot be appended: give target=")
    pin = None if refs.pins is None else refs.pins.pin(row.target)
    return Span(url, row.offset, None if row.length is None else row.offset + row.length, pin=pin)


def _is_same(before: Value | None, now: Value) -> bool:
    if before is None or type(before) is Row or type(now) is Row:
        return False
    if isinstance(before, dict) and isinstance(now, dict):
        return before == now
    return decode(before) == decode(now)


def _append_line(
    fs: RefShardFileSystem,
    base: Base,
    joined: ConcatKeySpace,
    fo: Any,
    dim: str,
    same: frozenset[str],
    options: Mapping[str, Any],
    how: _How,
) -> int:
    document = joined.document
    if document.dim != dim:
        raise ManifestError(f"{base.url} joins its sets along {document.dim!r}, not {dim!r}")
    is_by_name = bool(document.stacked) and document.coordinate not in document.stacked
    if any(part.document is not None for part in document.parts) or is_by_name:
        raise ManifestError(
            f"{base.url} joins sets along several dimensions, or by their names, and nothing is appended to such: make "
            "it anew (concat(..., resume=) remembers what was found of each file)"
        )
    if document.unions:
        raise ManifestError(
            f"{base.url} joins sets with several values of {', '.join(map(repr, document.unions))}, and nothing is "
            "appended to such: make it anew (concat(..., resume=) remembers what was found of each file)"
        )
    url = url_of_set(fo, options, base.url)
    lead = document.parts[document.first]
    urls = [joined.resolve(lead.url), url]
    first, new = [stacked_along(part, dim, document.stacked) for part in read_sets(urls, options, _ignore)]
    shown = with_metadata(first, document.metadata)
    if length_along(first, dim) != lead.length:
        raise ManifestError(
            f"{lead.url!r} of {base.url} has the length {length_along(first, dim)} now, not {lead.length}: make the "
            "document anew"
        )
    units = {path: variable.attributes.get("units") for path, variable in shown.variables.items()}
    times = with_common_units([first, new], dim, lazy=True, fixed=units)
    first, new = times.parts
    values, coming = _values_of(document, shown), coordinate_values([new], dim)
    gap = None
    if values is not None and coming is not None:
        gap = _gap_for(document, values, coming[0])
        if gap is not None:
            _check_chunks(document, new, gap, base.url)
        else:
            if np.isin(coming[0], _missing(document, values)).any():
                raise ManifestError(
                    f"{url} has values in gaps of {base.url}, and not all of it lies in one of them, in its order: "
                    "append one set for each gap"
                )
            kept = _kept(nothing(shown, dim, values, base.url), new, dim, how)
            if kept is None:
                return 0
            document = _whole(document, kept, new, base.url)
            values = values[: kept.old]
    # All of the old sets are taken for one, as the first of them is.
    total = document.starts[-1]
    first, new = with_digests([first, new], [dim], same)
    old = _lengthened(first, document, values, base.url)
    found, _ = concat_document(
        [urls[0], urls[0], url],
        [first, old, new],
        dim,
        same,
        known=document.chunks,
        is_outer=document.is_outer,
        shown={**document.metadata, **times.shown},
        bounds={**document.bounds, **times.bounds},
    )
    if found.unions:
        raise ManifestError(
            f"{url} has other values of {', '.join(map(repr, found.unions))} than {base.url}, to which it cannot be "
            "appended: make it anew"
        )
    if found.axes != document.axes or found.coordinate != document.coordinate:
        raise ManifestError(
            f"{base.url} joins {sorted(document.axes)} (coordinate {document.coordinate!r}), and its sets now have "
            f"{sorted(found.axes)} (coordinate {found.coordinate!r}) along {dim!r}: make the document anew"
        )
    replaced = joined.document.starts[-1] - total
    line = msgspec.structs.replace(found.parts[-1], url=relative_urls(base.url)(url))
    document = msgspec.structs.replace(
        document.with_values(found.parts[1].values).with_parts([line]),
        chunks={**found.chunks, **document.chunks},
        metadata=found.metadata,
        bounds=found.bounds,
    )
    if gap is not None:
        document = _filled(document, gap)
    Document(base.url, fs._session.given(base.url), base.facts).put(document.dumps())
    return line.length - replaced


def _lengthened(first: Named, document: ConcatDocument, values: npt.NDArray[Any] | None, name: str) -> Named:
    """Return a set like the ``first`` one, but as long as all of a document, without chunks along its dimension."""
    changed = ChangedSet(msgspec.structs.replace(first, name=name))
    for path, axis in document.axes.items():
        variable = first.variables.get(path)
        if variable is not None and path == document.coordinate and values is not None:
            changed.put_values(variable, values)
        elif variable is not None and axis < len(variable.dims):
            shape = list(variable.meta.shape)
            shape[axis] = document.starts[-1]
            changed.put(variable, {**variable.meta.raw, "shape": shape})
    return changed.named(keeps_digests=True)


def _missing(document: ConcatDocument, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return those of the coordinate's ``values`` that lie in gaps."""
    pieces = np.split(values, document.starts[1:-1])
    return np.concatenate([values[:0], *(v for v, part in zip(pieces, document.parts, strict=True) if part.is_gap)])


def _gap_for(document: ConcatDocument, values: npt.NDArray[Any], coming: npt.NDArray[Any]) -> tuple[int, int] | None:
    """Return the number of the gap that has the values ``coming`` in a row, and where they begin in it."""
    first = np.flatnonzero(np.isin(values, coming[:1]))
    if len(first) != 1:
        return None
    start, stop = int(first[0]), int(first[0]) + len(coming)
    number = bisect_right(document.starts, start) - 1
    begin, end = document.starts[number], document.starts[number + 1]
    is_in_gap = document.parts[number].is_gap and stop <= end and np.array_equal(values[start:stop], coming)
    return (number, start - begin) if is_in_gap else None


def _check_chunks(document: ConcatDocument, new: Named, gap: tuple[int, int], name: str) -> None:
    """Refuse by name what begins or ends within a chunk of the document."""
    start, length = gap[1], length_along(new, document.dim)
    for path, axis in document.axes.items():
        variable = new.variables.get(path)
        size = None if variable is None or variable.meta.chunks is None else variable.meta.chunks[axis]
        if size and path not in (document.coordinate, *document.chunks) and (start % size or length % size):
            raise ManifestError(
                f"{new.name} fills elements {start} to {start + length} of a gap of {name}, and {path!r} has chunks of "
                f"{size} along {document.dim!r}: make the document anew, with chunks="
            )


def _filled(document: ConcatDocument, gap: tuple[int, int]) -> ConcatDocument:
    """Return a document whose last part lies in a gap instead, of which what is left lies before and after it."""
    number, start = gap
    *parts, new = document.parts
    old = parts[number]
    left = [old.cut(0, start), new, old.cut(start + new.length, old.length)]
    parts[number : number + 1] = [part for part in left if part.length]
    return msgspec.structs.replace(document, parts=tuple(parts))


def _whole(document: ConcatDocument, kept: _Kept, new: Named, name: str) -> ConcatDocument:
    """Return a document with those of its sets that are kept; ManifestError where one would be taken in part."""
    if (kept.start, kept.stop) != (0, length_along(new, document.dim)):
        raise ManifestError(f"{name} has some values of {new.name} already, and joins whole sets: it takes all or none")
    if kept.old not in document.starts[1:]:
        raise ManifestError(
            f"{name} names whole sets, and {new.name} replaces a part of one, or the first: make the document anew"
        )
    return msgspec.structs.replace(document, parts=document.parts[: document.starts.index(kept.old)])


def _values_of(document: ConcatDocument, first: Named) -> npt.NDArray[Any] | None:
    """Return the values of the coordinate that a document holds, of all its parts."""
    if document.coordinate is None or any(part.values is None for part in document.parts):
        return None
    meta = first.variables[document.coordinate].meta
    dtype = dtype_of(meta)
    if dtype is None:
        return None
    values = b"".join(part.values or b"" for part in document.parts)
    return np.frombuffer(values, dtype if meta.zarr_format == 2 else dtype.newbyteorder("<"))


def _ignore(count: int) -> None:
    """Do nothing: the number of opened sets is not shown."""
