"""Append to a set in place: new elements are written as edits of the set, and committed together."""

from __future__ import annotations

import os
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from refshard_fs.cubes.document import ConcatDocument, Piece
from refshard_fs.cubes.keyspace import ConcatKeySpace
from refshard_fs.errors import ConflictError, ManifestError, NoSuchSource, sanitize
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.references.key_table import Value
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import decode
from refshard_fs.sets.arrange import Overlap, arrange
from refshard_fs.sets.changed_set import coordinate_set, gap, in_version_3, trim, with_metadata
from refshard_fs.sets.collect_references import collect_references
from refshard_fs.sets.common_units import comparable, with_common_units
from refshard_fs.sets.compatibility import check_merged, with_digests
from refshard_fs.sets.concatenation import concatenate
from refshard_fs.sets.coordinates import check_one_coordinate, check_order, format_value, get_coordinate_values
from refshard_fs.sets.cube import open
from refshard_fs.sets.inputs import get_set_url
from refshard_fs.sets.lazy_set import relative_urls
from refshard_fs.sets.scanning import with_coordinates
from refshard_fs.sets.set_row import Rules, SetRow
from refshard_fs.sets.sources import expand, read_sets
from refshard_fs.sets.stacking import stack_along, stack_like
from refshard_fs.sets.variables import NamedSet, VariableReader
from refshard_fs.source.collect import Unread
from refshard_fs.source.in_memory_source import source_of
from refshard_fs.source.options import for_sources
from refshard_fs.source.transaction import Base
from refshard_fs.stores.document import Document
from refshard_fs.tools.views import progress


def append(
    target: str | os.PathLike[str],
    fo: Any,
    dim: str | None = None,
    *,
    same: Iterable[str] = (),
    on_duplicate: OnDuplicate = "error",
    any_order: bool = False,
    create: bool = False,
    message: str | None = None,
    callback: Callback = DEFAULT_CALLBACK,
    **options: Any,
) -> int:
    """Add the set ``fo`` to the set at ``target``, along ``dim``, as if both had been given to `concat`.

    ``fo`` may also be a pattern or a list of URLs: these are appended one after the other, in natural order; those that
    a document names already are not opened again. So a job that runs every day costs what is new. If a document joins
    files of different variables, the new files of all variables are given together, and are written together. With
    ``create``, a document is made by `open` if there is none at ``target``. A document tells ``dim``; other sets need
    it.

    ``target`` is the URL of a JSON or parquet set, of an Icechunk repository, or of a document that `concat`
    made with ``lazy=True``: that gets one line more, and ``fo`` is a URL then. ``same`` is as `concat` takes it, and
    ``options`` are further arguments of `RefShardFileSystem` for both. To a repository it is one commit with
    ``message``, to the branch ``branch=``.
    The set does not change until it has all of the new one, whatever happens.

    It is safe to repeat: values of the coordinate ``dim`` that the set has already are an error; with
    ``on_duplicate="skip"`` what is new is appended, and ``"replace"`` takes the new set's elements instead of the last
    ones of the old set; in a document, also instead of one part anywhere that has the same values, which may be damaged
    or gone, unless it is the document's first.
    What comes late takes its place in the gap that a document has there (``freq=`` of `concat`). A
    set that is in order stays so, unless ``any_order`` allows otherwise. Returns how many elements the set has more, or
    a gap has less; 0 means that it was left as it is, unless some were replaced.

    Raises SourceNotReachable if there is no set yet, ManifestError where the two do not fit, ConflictError if somebody
    else wrote the target meanwhile, and ReadOnlyError where it cannot be written: then nothing is changed.
    ``callback`` counts the written keys.

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
    rules = _Rules(dim or "", frozenset(same), on_duplicate, any_order, message)
    if create:
        made = _create(target, fo, dim, same, options)
        if made is not None:
            return made
    if isinstance(fo, list) or (isinstance(fo, str | os.PathLike) and "*" in os.fspath(fo)):
        new, are_together = _find_new(target, fo, options, knows_names=on_duplicate != "replace")
        groups = [new] if are_together else [[each] for each in new]
        return sum(_append(target, group, rules, callback, options) for group in groups if group)
    return _append(target, [fo], rules, callback, options)


def _append(
    target: str | os.PathLike[str], sets: Sequence[Any], rules: _Rules, callback: Callback, options: Mapping[str, Any]
) -> int:
    """Append ``sets`` in one commit; return by how much the target is longer. Only a document takes several."""
    urls = [os.fspath(each) for each in (target, *sets) if isinstance(each, str | os.PathLike)]
    options = for_sources(options, urls, append)
    url = source_of(os.fspath(target), options.get("target_protocol"), None, True)
    fs = RefShardFileSystem(
        str(url), **{**options, "mode": "a", "shards": "whole", "index_cache": False, "skip_instance_cache": True}
    )
    options = {name: value for name, value in options.items() if name != "branch"}  # which is the target's
    base = fs.require_writer("append").base()
    joined = base.keyspace.cube
    if not rules.dim and joined is None:
        raise TypeError(f"append needs dim= for {sanitize(str(url))}, which is not the document of a cube")
    try:
        if joined is not None:
            if rules.message is not None:
                raise ValueError(f"message=: {sanitize(str(url))} keeps no messages, as Icechunk repositories do")
            rules = rules if rules.dim else rules._replace(dim=joined.document.dim)
            added = _append_lines(fs, base, joined, sets, rules, options)
            with progress("append", callback) as shown:
                shown.set_size(len(sets))
                shown.relative_update(len(sets))
            return added
        (fo,) = sets
        whole = _Grown.of(fs, str(url), fo, rules, options, holds_pins=base.keyspace.source.references is not None)
        if whole is None:
            fs.discard()
            return 0
        edits = dict(whole.edits())
        with progress("append", callback) as shown:
            shown.set_size(len(edits))
            for key, edit in edits.items():
                fs.require_writer("append").overlay.put(key, edit)
                shown.relative_update(1)
            fs.commit(rules.message)
        if whole.remark:
            warnings.warn(whole.remark, UserWarning, stacklevel=3)
        return whole.added
    except BaseException as e:
        fs.discard()  # nothing is left to be committed
        if isinstance(e, ConflictError):
            done = "Nothing was appended" if e.is_certain else "What was to be appended may be there, or not"
            conflict = ConflictError(f"somebody else wrote {sanitize(str(url))} meanwhile. {done}: append again")
            conflict.is_certain = e.is_certain
            raise conflict from e
        raise


def _create(
    target: str | os.PathLike[str], fo: Any, dim: str | None, same: Iterable[str], options: Mapping[str, Any]
) -> int | None:
    """Write a document of ``fo`` to ``target``, and return its length; None where there is something already."""
    try:
        RefShardFileSystem(os.fspath(target), **for_sources(options, [os.fspath(target)], append)).source.open()
    except NoSuchSource:
        made = open(fo, dim, same=same, **options)
        made.save(os.fspath(target))
        return made.document.starts[-1]
    return None


def _find_new(
    target: str | os.PathLike[str], fo: Any, options: Mapping[str, Any], *, knows_names: bool
) -> tuple[list[Any], bool]:
    """Return several sets, and whether they are appended in one commit.

    If it ``knows_names``, sets that the target names already are left out.
    """
    urls = [os.fspath(each) for each in (target, *(fo if isinstance(fo, list) else [fo])) if not isinstance(each, dict)]
    found = expand(fo, for_sources(options, urls, append))
    joined = RefShardFileSystem(os.fspath(target), **options).source.open().cube
    known = set() if joined is None or not knows_names else {joined.resolve(url) for url in joined.document.urls}
    new = [each for each in found if not isinstance(each, str) or source_of(each, None, None, True) not in known]
    return new, joined is not None


OnDuplicate = Literal["error", "skip", "replace"]  # how values are treated that the set has already


class _Rules(NamedTuple):
    """The arguments of `append`."""

    dim: str
    same: frozenset[str]
    on_duplicate: OnDuplicate
    any_order: bool
    message: str | None


class _Kept(NamedTuple):
    """The elements that are joined: of the old set the first ``old``, of the new one those from ``start`` to ``stop``.

    Where the new set replaces the beginning of the old one, ``old`` is 0.
    """

    old: int
    start: int
    stop: int


def _find_kept(old: NamedSet, new: NamedSet, rules: _Rules) -> _Kept | None:
    """Return the elements that are joined; None where nothing is new. ManifestError where that is not allowed."""
    dim = rules.dim
    values = get_coordinate_values([old, new], dim)
    if values is None:
        return _Kept(old.length(dim), 0, new.length(dim))
    before, coming = values
    known = np.isin(coming, before)
    if known.any() and rules.on_duplicate != "error":
        check_one_coordinate([old, new], dim)
    if known.all() and rules.on_duplicate == "skip":
        return None
    kept = _Kept(len(before), 0, len(coming))
    if known.any():
        if rules.on_duplicate == "error":
            raise ManifestError(
                f"{old.name} has {dim} = {format_value(coming[known][0], old, dim)} already: on_duplicate='skip' "
                "appends what is new, on_duplicate='replace' takes the new elements"
            )
        overlap: Overlap = "first" if rules.on_duplicate == "skip" else "last"
        arranged = arrange([old, new], dim, overlap=overlap) or []
        pieces = {piece.number: piece for piece in arranged}
        if len(pieces) < len(arranged):
            raise ManifestError(
                f"some values of {dim!r} of {new.name}, between others, are in {old.name} already: append what is new "
                "as a set of its own"
            )
        if 0 not in pieces or pieces[0].start != 0 or 1 not in pieces:
            return _Kept(0, 0, len(coming))
        kept = _Kept(pieces[0].stop, pieces[1].start, pieces[1].stop)
    if not rules.any_order:
        check_order(before[: kept.old], coming[kept.start : kept.stop], new.name, dim)
    return kept


# ----------------------------------------------------------------------------------------------------
# A set of references that grows: what differs from the longer set is written as edits.


class _Grown(NamedTuple):
    """A set as it is, and with the new one at its end."""

    before: ReferenceSet
    whole: ReferenceSet
    along: frozenset[str]  # paths of the arrays that grow
    added: int
    holds_pins: bool
    remark: str  # what there is to say of where the new set leads

    @classmethod
    def of(
        cls, fs: RefShardFileSystem, url: str, fo: Any, rules: _Rules, options: Mapping[str, Any], *, holds_pins: bool
    ) -> _Grown | None:
        """Return the set of ``fs``, at ``url``, with ``fo``; None where that has nothing new."""
        dim = rules.dim
        before = collect_references(fs)
        if not len(before):
            raise NoSuchSource(f"there is no set at {url} to append to: concat makes one")
        name = f"the set at {url}"
        stored = NamedSet(name, before, VariableReader().read(before, name), fo=fs)
        old = fs.source.run("", lambda: with_coordinates(stored))
        (new,) = read_sets([fo], options, _ignore)
        new = msgspec.structs.replace(new, name=new.name.replace("set 0", "the set to append", 1))
        new = stack_like(new if "zarr.json" not in before.side else in_version_3(new), dim, old)
        if new.refs.pins is not None and not holds_pins:
            raise ManifestError(f"{new.name} has pinned versions, which {url} cannot hold: remove them with unpinned()")
        old, new = with_common_units([old, new], dim).parts
        kept = _find_kept(old, new, rules)
        if kept is None:
            return None
        if not kept.old:
            raise ManifestError(
                f"{new.name} would replace the beginning of {old.name}: append replaces only the end. Make the set anew"
            )
        pieces = [trim(old, dim, 0, kept.old), trim(new, dim, kept.start, kept.stop)]
        whole = concatenate(with_digests(pieces, [dim], rules.same), dim, rules.same)
        added = whole.length(dim) - old.length(dim)
        return cls(before, whole.refs, frozenset(old.along(dim)), added, holds_pins, new.refs.origins.remark)

    def edits(self) -> Iterator[tuple[str, Edit]]:
        """Yield the keys that change, each with its new content."""
        before, whole, first_new = self.before, self.whole, len(self.before.urls)  # URLs of the new set come last
        for path, table in whole.tables.items():
            known = before.tables.get(path)
            if known is not None and path in self.along:
                yield from _find_removed(path, known, whole, before)
            part = table.part()
            is_new = part.ranges.targets >= (0 if known is None else first_new)
            for number in part.numbers[is_new].tolist():
                row = table.row(number)
                if row is not None:
                    key = join(path, table.grid.tail(number))
                    yield key, _span(whole, row, key)
        for key, value in whole.side.items():
            if key == ".zmetadata" and not self.holds_pins:
                continue  # a parquet set has its own
            if type(value) is Row:
                if value.target >= first_new:
                    yield key, _span(whole, value, key)
            elif not _is_same(before.side.get(key), value):
                yield key, Inline(decode(value))


def _find_removed(
    path: str, known: ChunkTable, whole: ReferenceSet, before: ReferenceSet
) -> Iterator[tuple[str, Edit]]:
    """Yield the chunks of an array to remove: a coordinate is now in one chunk."""
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
    stop = None if row.length is None else row.offset + row.length
    return Span(url, row.offset, stop, pin=pin, origin=refs.origins.of(url))


def _is_same(before: Value | None, now: Value) -> bool:
    if before is None or type(before) is Row or type(now) is Row:
        return False
    if isinstance(before, dict) and isinstance(now, dict):
        return before == now
    return decode(before) == decode(now)


# ----------------------------------------------------------------------------------------------------
# A document that grows by a line: only its first part and the new one are opened.


def _append_lines(
    fs: RefShardFileSystem,
    base: Base,
    joined: ConcatKeySpace,
    sets: Sequence[Any],
    rules: _Rules,
    options: Mapping[str, Any],
) -> int:
    """Append sets to the document, each to the one that has its variables; return by how much it is longer."""
    document = joined.document
    before = [document, *document.beside]
    for each in before:
        _check_growable(each, document, rules.dim, base.url)
    if document.select:
        options = {**options, "select": [choice.to_json() for choice in document.select]}
    urls = [get_set_url(fo, options, base.url) for fo in sets]
    leads = list(dict.fromkeys(each.pieces[each.first].url for each in before))
    unread = Unread(frozenset([rules.dim]), rules.same)
    read = read_sets([*map(joined.resolve, leads), *urls], options, _ignore, unread=unread)
    lines = [relative_urls(base.url)(url) for url in urls]  # as the document has them
    by_url = dict(zip([*leads, *lines], read, strict=True))
    after, wholes = list(before), dict[int, NamedSet]()
    added = [0 for _ in before]
    for url in lines:
        number = _find_cube(after, by_url[url], base.url)
        found = _add_line(after[number], base.url, by_url, url, rules)
        if found is not None:
            after[number], wholes[number] = found.document, found.whole
            added[number] += found.added
    if not wholes:
        return 0
    _check_together(before, after, wholes, base.url)
    lost = {url: why for url, why in document.lost.items() if url not in lines}
    document = msgspec.structs.replace(after[0], beside=tuple(after[1:]), lost=lost)
    Document(base.url, fs.source.stores, base.facts).put(document.dumps())
    return max(added)


def _check_growable(document: ConcatDocument, whole: ConcatDocument, dim: str, name: str) -> None:
    """Raise ManifestError unless ``document``, a part of the ``whole`` at ``name``, can get another line."""
    if document.dim != dim:
        raise ManifestError(f"{name} joins its sets along {document.dim!r}, not {dim!r}")
    is_by_name = bool(document.stacked) and document.coordinate not in document.stacked
    has_documents = any(part.document is not None for part in document.pieces)
    kinds = "along several dimensions, or by their names," if is_by_name or has_documents else ""
    if document.unions:
        kinds = f"with several values of {', '.join(map(repr, document.unions))},"
    if document.preprocess:
        kinds = f"of each of which {document.preprocess} selects a part,"
    if any(dim in choice.isel or choice.squeeze for choice in document.view):
        kinds = f"of which it shows a part along {dim!r},"
    if document is not whole and (document.beside or document.select != whole.select):
        kinds = "that documents beside others select,"
    if kinds:
        raise ManifestError(
            f"{name} joins sets {kinds} and append cannot extend these: make it anew (concat(..., resume=) "
            "remembers what was found of each file)"
        )


def _find_cube(cubes: Sequence[ConcatDocument], new: NamedSet, name: str) -> int:
    """Return the number of the document that joins the variables of the set ``new``."""
    if len(cubes) == 1:
        return 0
    counts = Counter(path for document in cubes for path in document.axes)
    only = [{path for path in document.axes if counts[path] == 1} for document in cubes]
    found = [number for number, paths in enumerate(only) if paths & new.variables.keys()]
    if len(found) != 1:
        known = ", ".join(map(repr, sorted(set().union(*only))))
        has = "variables of several of these" if found else "none of these"
        raise ManifestError(
            f"{name} joins files of different variables ({known}), and {new.name} has {has}: expected a file for each, "
            "as the files that it was made of; or make it anew"
        )
    return found[0]


def _check_together(
    before: Sequence[ConcatDocument], after: Sequence[ConcatDocument], wholes: Mapping[int, NamedSet], name: str
) -> None:
    """Raise ManifestError unless documents of different variables are as long as one another, at the same places."""
    grown = [n for n, (old, new) in enumerate(zip(before, after, strict=True)) if _extent(old) != _extent(new)]
    if not grown:
        return
    first, whole = after[grown[0]], wholes[grown[0]]
    for number, document in enumerate(after):
        if number not in grown or document.starts[-1] != first.starts[-1]:
            some = [min(each.axes.keys() - {each.coordinate}) for each in (first, document)]
            raise ManifestError(
                f"{name} would have {first.starts[-1]} elements of {some[0]!r} along {first.dim!r}, and "
                f"{document.starts[-1]} of {some[1]!r}: append the files of all variables together, as a list or a "
                "pattern"
            )
        if document.coordinate in whole.variables:
            check_merged(str(document.coordinate), whole, wholes[number])


def _extent(document: ConcatDocument) -> tuple[int, bytes]:
    """Return the length of a document, and the values of its coordinate."""
    return document.starts[-1], b"".join(part.values or b"" for part in document.pieces)


class _Longer(NamedTuple):
    """A document with a line more, the set that it shows, and by how much it is longer."""

    document: ConcatDocument
    whole: NamedSet
    added: int


def _add_line(
    document: ConcatDocument, name: str, by_url: Mapping[str, NamedSet], url: str, rules: _Rules
) -> _Longer | None:
    """Append the set at ``url`` to the document at ``name``; None if nothing is new. The sets are given ``by_url``."""
    dim, length = rules.dim, document.starts[-1]
    lead = document.pieces[document.first]
    first, new = (stack_along(by_url[each], dim, document.stacked) for each in (lead.url, url))
    shown = with_metadata(first, document.metadata)
    if first.length(dim) != lead.total:
        raise ManifestError(
            f"{lead.url!r} of {name} has the length {first.length(dim)} now, not {lead.total}: make the document anew"
        )
    if not new.length(dim):
        return None
    units = {path: variable.attributes.get("units") for path, variable in shown.variables.items()}
    times = with_common_units([first, new], dim, lazy=True, fixed=units)
    first, new = times.parts
    values, coming = _values_of(document, shown), get_coordinate_values([new], dim)
    extent, place = None, None  # the coordinate of the document, and where the new set lies in a gap
    replaced_part = 0  # the length of a part that the new set takes the place of
    if values is not None and document.coordinate is not None:
        extent = coordinate_set(shown.variables[document.coordinate], values, shown, name)
    if values is not None and extent is not None and coming is not None:
        known = comparable(shown.variables[str(document.coordinate)], values)
        if rules.on_duplicate == "replace":
            document, replaced_part = _without_part(document, known, coming[0])
        place = _gap_for(document, known, coming[0])
        if place is not None:
            _check_chunks(document, new, place[1], name)
        else:
            if np.isin(coming[0], _missing(document, known)).any():
                raise ManifestError(
                    f"{url} has values in several gaps of {name}, or in one and outside of it: "
                    "append one set for each gap"
                )
            kept = _find_kept(extent, new, rules)
            if kept is None:
                return None
            if not kept.old:
                raise ManifestError(
                    f"{new.name} would replace the beginning of {name}: append replaces only its "
                    "end. Make the document anew"
                )
            document = _cut_off(document, kept.old)
            new = trim(new, dim, kept.start, kept.stop, lazy=True)
            extent = coordinate_set(shown.variables[str(document.coordinate)], values[: kept.old], shown, name)
    first, new = with_digests([first, new], [dim], rules.same)
    # One set without chunks stands for all that the document has, the first among them: all are encoded as that, and
    # documents of metadata, which have the first one's length, get its own.
    metadata = {**document.metadata, **times.metadata}
    old = gap(with_metadata(first, metadata), dim, name, document.starts[-1], extent, with_others=True)
    metadata |= {v.key: dict(v.meta.raw) for v in old.variables.values() if v.key in metadata and not v.is_coordinate}
    found, whole = SetRow(
        dim,
        [lead.url, url],
        [old, new],
        Rules(rules.same, is_outer=document.join == "outer", lazy=True),
        metadata,
        {**document.bounds, **times.bounds},
        document.chunks,
    ).make_document()
    if found.unions:
        raise ManifestError(
            f"{url} has other values of {', '.join(map(repr, found.unions))} than {name}, to which it cannot be "
            "appended: make it anew"
        )
    if found.axes != document.axes or found.coordinate != document.coordinate:
        raise ManifestError(
            f"{name} joins {sorted(document.axes)} (coordinate {document.coordinate!r}), and its sets now have "
            f"{sorted(found.axes)} (coordinate {found.coordinate!r}) along {dim!r}: make the document anew"
        )
    replaced = length - document.starts[-1]
    line = msgspec.structs.replace(found.pieces[-1], url=url)
    document = document.with_values(found.pieces[0].values)
    document = msgspec.structs.replace(
        document,
        pieces=(*document.pieces, line),
        chunks={**found.chunks, **document.chunks},
        metadata=found.metadata,
        bounds=found.bounds,
    )
    if place is not None:
        document = _fill_gap(document, place)
    return _Longer(document, whole, line.length - replaced - replaced_part)


def _without_part(
    document: ConcatDocument, values: npt.NDArray[Any], coming: npt.NDArray[Any]
) -> tuple[ConcatDocument, int]:
    """Return a document with a gap in place of the part that has the values ``coming``, and its length, or 0."""
    first = np.flatnonzero(np.isin(values, coming[:1]))
    number = bisect_right(document.starts, int(first[0])) - 1 if len(first) == 1 else 0
    start, stop = document.starts[number : number + 2]
    part = document.pieces[number]
    is_first = number == document.first  # whose metadata stand for all
    if len(first) != 1 or is_first or part.is_gap or not np.array_equal(values[start:stop], coming):
        return document, 0
    gap_there = Piece("", part.length, part.values)
    parts = [*document.pieces[:number], gap_there, *document.pieces[number + 1 :]]
    return msgspec.structs.replace(document, pieces=tuple(parts)), part.length


def _missing(document: ConcatDocument, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return those of the coordinate's ``values`` that lie in gaps."""
    pieces = np.split(values, document.starts[1:-1])
    return np.concatenate([values[:0], *(v for v, part in zip(pieces, document.pieces, strict=True) if part.is_gap)])


def _gap_for(document: ConcatDocument, values: npt.NDArray[Any], coming: npt.NDArray[Any]) -> tuple[int, int] | None:
    """Return the number of the gap that has the values ``coming`` in a row, and where they begin in it."""
    first = np.flatnonzero(np.isin(values, coming[:1]))
    if len(first) != 1:
        return None
    start, stop = int(first[0]), int(first[0]) + len(coming)
    number = bisect_right(document.starts, start) - 1
    begin, end = document.starts[number], document.starts[number + 1]
    is_in_gap = document.pieces[number].is_gap and stop <= end and np.array_equal(values[start:stop], coming)
    return (number, start - begin) if is_in_gap else None


def _check_chunks(document: ConcatDocument, new: NamedSet, start: int, name: str) -> None:
    """Raise ManifestError where the new set begins or ends within a chunk of the gap that it fills from ``start``."""
    length = new.length(document.dim)
    for path, axis in document.axes.items():
        variable = new.variables.get(path)
        size = None if variable is None or variable.meta.chunks is None else variable.meta.chunks[axis]
        if size and path not in (document.coordinate, *document.chunks) and (start % size or length % size):
            raise ManifestError(
                f"{new.name} fills elements {start} to {start + length} of a gap of {name}, and {path!r} has chunks of "
                f"{size} along {document.dim!r}: make the document anew, with chunks="
            )


def _fill_gap(document: ConcatDocument, place: tuple[int, int]) -> ConcatDocument:
    """Return a document with its last part moved into a gap, by the number of that and an offset in it."""
    number, start = place
    *parts, new = document.pieces
    old = parts[number]
    split = [old.cut(0, start), new, old.cut(start + new.length, old.length)]
    parts[number : number + 1] = [part for part in split if part.length]
    return msgspec.structs.replace(document, pieces=tuple(parts))


def _cut_off(document: ConcatDocument, stop: int) -> ConcatDocument:
    """Return a document that ends before the element ``stop``."""
    parts = [
        part.cut(0, min(part.length, stop - start))
        for part, start in zip(document.pieces, document.starts, strict=False)
        if start < stop
    ]
    return msgspec.structs.replace(document, pieces=tuple(parts))


def _values_of(document: ConcatDocument, first: NamedSet) -> npt.NDArray[Any] | None:
    """Return the values of the coordinate that a document holds, of all its parts."""
    if document.coordinate is None or any(part.values is None for part in document.pieces):
        return None
    meta = first.variables[document.coordinate].meta
    dtype = dtype_of(meta)
    if dtype is None:
        return None
    values = b"".join(part.values or b"" for part in document.pieces)
    return np.frombuffer(values, dtype if meta.zarr_format == 2 else dtype.newbyteorder("<"))


def _ignore(count: int) -> None:
    """Do nothing: the number of opened sets is not shown."""
