"""Many reference sets as one, without copying a chunk."""

from __future__ import annotations

import hashlib
import os
import reprlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, Literal, NamedTuple, overload

import msgspec
import numpy as np
from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from refshard_fs.core import zarrmeta
from refshard_fs.core.dtypes import plain
from refshard_fs.core.keys import join, parent
from refshard_fs.core.stats import count_text
from refshard_fs.errors import ManifestError
from refshard_fs.formats.virtual_concat.cf_times import is_time
from refshard_fs.formats.virtual_concat.document import ConcatDocument, Part, recoding_of
from refshard_fs.formats.virtual_concat.recutting import Placement, Recut
from refshard_fs.references.values import object_in
from refshard_fs.security.policy import directory_of, protocol_of
from refshard_fs.session.in_memory_source import InMemorySource, source_of
from refshard_fs.sets.common_units import CommonUnits, with_common_units
from refshard_fs.sets.compatibility import described, roomier, with_digests
from refshard_fs.sets.concatenation import Overlap, arrange, concatenate, recut_shapes
from refshard_fs.sets.cutting import subchunked, trimmed
from refshard_fs.sets.outer import completed, filled, fills_of, gap_of, with_fills
from refshard_fs.sets.patterns import FileGrid, Pattern, Stacking, in_grid
from refshard_fs.sets.rebase import MadeSet, made
from refshard_fs.sets.sources import OnError, expanded, read_sets, skipped
from refshard_fs.sets.variables import Named, with_metadata, with_type
from refshard_fs.targets.objects import Objects
from refshard_fs.tools.views import folded, progress, table, view

Join = Literal["exact", "outer"]  # whether sets must have the same variables and coordinates, or all have any

# ----------------------------------------------------------------------------------------------------
# Sets joined by a document that names them: what it says is looked at when it is made, and opened when it is read.


class LazySet(InMemorySource, frozen=True, eq=False, weakref=True):
    """A document that joins sets: an ``fo`` for `RefShardFileSystem`. Immutable; URLs in it are absolute.

    ``remark`` says why other software does not read what it shows, ``joined`` what it joins.
    """

    remark: str
    joined: str

    @property
    def title(self) -> str:
        """What it joins, in a few words."""
        return self.joined

    @property
    def document(self) -> ConcatDocument:
        """What the document says."""
        assert isinstance(self.content, bytes), "a document that joins sets is bytes"
        return ConcatDocument.read(self.content, repr(self))

    def __len__(self) -> int:
        """Number of parts."""
        return self.document.count

    def save(self, url: str, **storage_options: Any) -> str:
        """Write the document to ``url``, parts that lie below its directory relative to it; it appears whole.

        Returns in one line why only this package reads it.
        """
        data = self.document.dumps(relative_urls(url))
        Objects(url, storage_options).put("", (data,))
        return self.remark

    def _repr_html_(self) -> str:
        document = self.document
        dim, total = document.dim, len(document.parts)
        starts = document.starts
        parts = ((part.name, f"{starts[i]:,}", f"{part.length:,}") for i, part in enumerate(document.parts))
        arrays = ((path or "/", str(axis)) for path, axis in sorted(document.axes.items()))
        return view(
            self.joined,
            f"{dim} {starts[-1]:,}",
            table(("set", "starts at", "length"), parts, right=["starts at", "length"], most=10, total=total),
            folded(
                count_text(len(document.axes), "joined array"),
                table(("array", "axis"), arrays, right=["axis"], total=len(document.axes)),
            ),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return LazySet, (self.content, self.digest, self.remark, self.joined)


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


def url_of_set(fo: Any, options: Mapping[str, Any], who: str) -> str:
    """Return the URL of the set ``fo``; TypeError where it has none that ``who`` could name."""
    is_path = isinstance(fo, str | os.PathLike)
    url = source_of(os.fspath(fo), options.get("target_protocol"), None, True) if is_path else fo
    if not isinstance(url, str):
        raise TypeError(f"{who} names its parts: {reprlib.repr(fo)} is no URL or path; save it first")
    return url


class _Row(NamedTuple):
    """Sets and gaps in a row along a dimension, such that they can be joined.

    ``places`` say of sets, by number, where their elements lie along other dimensions: see `completed`.
    """

    parts: list[Named]
    places: dict[int, dict[str, Placement]]
    unions: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        sets: Sequence[object],
        read: Sequence[Named],
        dim: str | None,
        regular: Mapping[str, str | float],
        *,
        is_outer: bool,
        lazy: bool,
    ) -> _Row:
        """Return the row of ``sets``, as they were ``read``; of empty ones, which are gaps, the coordinate was."""
        real = [number for number, of in enumerate(sets) if of]
        has_gaps = len(real) < len(sets)
        found = [read[number] for number in real]
        aligned, fills = completed(found, dim, regular, lazy=lazy, has_gaps=has_gaps, is_outer=is_outer)
        parts = aligned.parts
        if lazy:  # chunks of all others are recoded to the first one's
            parts[0] = with_fills(parts[0], fills)
            parts[0] = with_metadata(parts[0], roomier(parts, str(dim)))
        else:
            parts = [with_fills(part, fills) for part in parts]
        by_number = dict(zip(real, parts, strict=True))
        if has_gaps:
            of_gap = partial(gap_of, parts[0], str(dim))
            by_number |= {n: of_gap(length_along(read[n], str(dim)), read[n]) for n, of in enumerate(sets) if not of}
        places = dict(zip(real, aligned.places, strict=True))
        return cls([by_number[number] for number in range(len(sets))], places, aligned.unions)


def concat_document(
    sets: Sequence[str | ConcatDocument],
    read: Sequence[Named],
    dim: str,
    same: frozenset[str],
    chunks: Mapping[str, int] | None = None,
    subchunks: Mapping[str, int] | None = None,
    known: Mapping[str, tuple[int, ...]] = {},
    is_outer: bool = False,
    regular: Mapping[str, str | float] = {},
    shown: Mapping[str, dict[str, Any]] = {},
    bounds: Mapping[str, str] = {},
    coordinate_values: Sequence[bytes] | None = None,
) -> tuple[ConcatDocument, Named]:
    """Return the document that joins ``sets``, that were ``read``, and what it shows; ManifestError if they do not fit.

    A set is a URL or a document itself, or empty for a gap, of which the coordinate or the length is known. Arrays in
    ``known`` are recut already, in chunks of that shape; ``shown`` and ``bounds`` are the document's already.
    ``regular`` says, by dimension, how far values of a coordinate are apart where sets are joined as ``is_outer``.
    ``coordinate_values`` are given where sets have none.
    """
    bounds = dict(bounds)
    first = next(number for number, of in enumerate(sets) if of)
    stored = read[first]
    own = next((v.key for v in stored.variables.values() if v.is_coordinate and v.dims == (dim,)), None)
    # The values of the coordinate are held by the set as it is.
    lead = with_metadata(stored, {key: doc for key, doc in shown.items() if key != own})
    row = _Row.of(sets, [*read[:first], lead, *read[first + 1 :]], dim, regular, is_outer=is_outer, lazy=True)
    parts, lead, places = list(row.parts), row.parts[first], row.places
    metadata = {**shown, **_documents(lead, stored)}
    recut = {**recut_shapes(parts, dim, chunks or {}, subchunks or {}, places), **known}
    whole = concatenate(parts, dim, same, recut=recut)
    variables = lead.variables
    axes = {path: variable.dims.index(dim) for path, variable in variables.items() if dim in variable.dims}
    lengths = [length_along(part, dim) for part in parts]
    coordinate = next((path for path in axes if variables[path].is_coordinate), None)
    values: Sequence[bytes | None] = coordinate_values or [None] * len(lengths)
    known_values = None if coordinate is None else whole.values(coordinate)
    if coordinate is not None and known_values is not None and len(known_values):
        key, stored_as = variables[coordinate].key, whole.variables[coordinate].meta
        meta = zarrmeta.array_meta(metadata.get(key) or variables[coordinate].meta.raw, repr(coordinate))
        if meta is not None and with_type(meta, known_values.dtype) is not meta:
            metadata[key] = dict(with_type(meta, known_values.dtype).raw)
        values = [plain(stored_as, some)[1] for some in np.split(known_values, np.cumsum(lengths)[:-1])]
    elif coordinate_values is None:
        coordinate = None
    lines = []
    for number, (of, length, value) in enumerate(zip(sets, lengths, values, strict=True)):
        url, within = ("", of) if isinstance(of, ConcatDocument) else (of, None)
        lines.append(Part(url, length, value, within, places.get(number, {})))
    recut_documents = {}
    for path, shape in recut.items():
        meta = variables[path].meta
        full = [*meta.shape[: axes[path]], sum(lengths), *meta.shape[axes[path] + 1 :]]
        recut_documents[variables[path].key] = Recut.of(meta, full, shape, f"{path!r} of {lead.name}").meta.raw
    whole = msgspec.structs.replace(with_metadata(whole, recut_documents), units=stored.units)
    unions = {
        name: {p: variables[p].dims.index(name) for p in axes if name in variables[p].dims} for name in row.unions
    }
    held = {path: lead.inline[path][0] for path, v in variables.items() if v.is_coordinate and v.dims[0] in unions}
    metadata |= {variables[path].key: dict(variables[path].meta.raw) for path in held}
    document = ConcatDocument(
        dim, axes, tuple(lines), coordinate, recut, is_outer, metadata, bounds, unions=unions, held=held
    )
    return document, whole


def _documents(part: Named, stored: Named) -> dict[str, dict[str, Any]]:
    """Return the metadata documents of arrays, by key, that a set has otherwise than it is ``stored``."""
    keys = [key for v in part.variables.values() for key in (v.key, join(v.path, ".zattrs"))]
    side, known = part.refs.side, stored.refs.side
    return {
        key: object_in(side[key], f"{key!r} of {part.name}")
        for key in keys
        if key in side and known.get(key) is not side[key] and known.get(key) != side[key]
    }


def remark_on(made: Sequence[tuple[ConcatDocument, Sequence[Named]]]) -> str:
    """Return in one line why only this package reads what documents show of the sets that were read for each."""
    made_here = [f"{path!r} is cut into other chunks" for path in sorted({p for doc, _ in made for p in doc.chunks})]
    recoded: Counter[str] = Counter()
    for document, read in made:
        shown = with_metadata(read[0], document.metadata)
        for path in document.axes.keys() - document.chunks.keys() - {document.coordinate}:
            one = described(path, next(part for part in (shown, *read) if path in part.variables))
            known: dict[Any, bool] = {}  # sets that are alike share their variables
            for part in read:
                if path in part.variables:
                    like = id(part.variables[path]), str(part.units.get(path))
                    if like not in known:
                        known[like] = recoding_of(path, one, described(path, part)) is not None
                    recoded[path] += known[like]
    total = count_text(sum(len(read) for _, read in made), "set")
    made_here += [f"{path!r} is recoded in {count} of {total}" for path, count in sorted(recoded.items()) if count]
    if made_here:
        return f"only refshard reads it: {', '.join(made_here)} when it is read"
    return "only refshard reads it; concat without lazy=True makes references that others read, too"


def length_along(part: Named, dim: str) -> int:
    """Return how long a set is along ``dim``; ManifestError where its variables do not agree."""
    found = {path: v.meta.shape[v.dims.index(dim)] for path, v in part.variables.items() if dim in v.dims}
    if len(set(found.values())) != 1:
        raise ManifestError(f"{part.name} has variables of several lengths along {dim!r}: {found}")
    return next(iter(found.values()))


@overload
def concat(
    sets: str | Sequence[Any],
    dim: str | None = None,
    *,
    dims: Sequence[str | None] | None = None,
    same: Iterable[str] = (),
    lazy: Literal[False] = False,
    sort: bool = False,
    overlap: Overlap = "error",
    join: Join = "exact",
    freq: str | float | None = None,
    grid: Literal["regular", "rectilinear"] = "regular",
    subchunks: Mapping[str, int] | None = None,
    on_error: OnError = "raise",
    executor: Executor | None = None,
    resume: str | os.PathLike[str] | None = None,
    callback: Callback = DEFAULT_CALLBACK,
    **options: Any,
) -> MadeSet: ...
@overload
def concat(
    sets: str | Sequence[Any],
    dim: str | None = None,
    *,
    dims: Sequence[str | None] | None = None,
    same: Iterable[str] = (),
    lazy: Literal[True],
    sort: bool = False,
    overlap: Overlap = "error",
    join: Join = "exact",
    freq: str | float | None = None,
    chunks: Mapping[str, int] | None = None,
    subchunks: Mapping[str, int] | None = None,
    on_error: OnError = "raise",
    executor: Executor | None = None,
    resume: str | os.PathLike[str] | None = None,
    callback: Callback = DEFAULT_CALLBACK,
    **options: Any,
) -> LazySet: ...
def concat(
    sets: str | Sequence[Any],
    dim: str | None = None,
    *,
    dims: Sequence[str | None] | None = None,
    same: Iterable[str] = (),
    lazy: bool = False,
    sort: bool = False,
    overlap: Overlap = "error",
    join: Join = "exact",
    freq: str | float | None = None,
    grid: Literal["regular", "rectilinear"] = "regular",
    chunks: Mapping[str, int] | None = None,
    subchunks: Mapping[str, int] | None = None,
    on_error: OnError = "raise",
    executor: Executor | None = None,
    resume: str | os.PathLike[str] | None = None,
    callback: Callback = DEFAULT_CALLBACK,
    **options: Any,
) -> MadeSet | LazySet:
    """Return one set of references: arrays along ``dim`` joined in the order of ``sets``, all others merged.

    ``sets`` are what `RefShardFileSystem` takes (``options`` are its further arguments), or such filesystems: sets of
    references, files, hierarchies. A pattern (``"s3://bucket/2024/*.nc"``) stands for all that it matches, in natural
    order (``day2`` before ``day10``). One with fields (``"{member}/{time:%Y%m%d}.nc"``; numbers: ``{member:d}``)
    says where a file lies along the dimensions of these names, which sets need not have themselves. With
    ``dims=("time", "x")`` they are nested lists, a list for each place along ``time`` of those along ``x``; a dimension
    of None merges. A dimension that sets lack, and of which each has one value, a scalar coordinate of its name (GRIB2
    files of one time each), is made, as xarray does. An array is along the dimensions that it names
    (``_ARRAY_DIMENSIONS``, ``dimension_names``). Types, codecs, chunks and the other lengths must be the same, and
    lengths multiples of the chunks, but in the last set. Variables without the dimension must be equal, or named in
    ``same``: then they are the first set's. Coordinates (arrays of their dimension's name) are read, compared by value
    and kept inline. Of a variable that is not along all dimensions, and for which sets refer to different places, up to
    1 MiB are read to be compared; no other chunk is.
    Attributes are the first set's; those that say what values mean (``units``, ``scale_factor``, ...) must be equal,
    but for CF times of one calendar: these, and the bounds of such a coordinate, become numbers of the first set's
    units, or of finer ones where these do not hold all; no instant changes.

    With ``sort`` sets are joined in the order of their first values along ``dim``. A value that two sets have is an
    error, unless ``overlap`` says whose is taken: that of the ``"first"`` or of the ``"last"`` of them, in that order.
    With ``join="outer"`` a set need not have all variables along the dimension, nor all values of the coordinates of
    other dimensions: chunks that it lacks are missing. ``freq`` (``"1D"``, ``"6h"``, ``"MS"``, or a number where the
    coordinate is none of times) puts values between those that are further apart, with missing chunks; of ``dims``,
    along the first that is of times. Arrays need a fill value then that means so.
    ``on_error="skip"`` leaves out sets that cannot be opened, with a warning that names each.

    Files and documents are looked at together, and each takes few requests. ``executor`` (any of `concurrent.futures`,
    or ``client.get_executor()`` of dask) spreads that over its workers, which have to reach the sets. ``resume`` is a
    file in which is kept what was found of each: a run that failed, or one with more sets, looks only at those that are
    new, or of which size, ETag or time are others now.

    With ``lazy`` the result is a small document that names its parts, which are URLs then, with their lengths and the
    values of the coordinate ``dim``: parts are opened when chunks of theirs are read. All are looked at once, now.
    With ``dims`` a line of it joins the parts of the next dimension; such a cube does not grow.
    Arrays along ``dim`` may be encoded otherwise there (codecs, byte order, type, scale_factor, add_offset, fill
    value): their chunks are recoded when they are read, exactly, or reading one is an error that says why. Where
    scale_factor or add_offset differ, the numbers that are meant are shown, as 64-bit floating-point ones.
    Where chunks do not meet (months of 28 to 31 days, or parts of other chunks) the array is shown in chunks of the
    length that most have, or that ``chunks`` (by dimension) says: these are joined from pieces of others.
    With ``subchunks`` (by dimension: ``{"time": 1}``) chunks without a codec are shown in smaller pieces, which are
    ranges of them; of others, and where a piece is no range, this is an error.

    With ``grid="rectilinear"`` chunks of arrays of version 3 may have another length along the dimension in each set
    (months): references stay as they are. Readers must know such grids: zarr 3.4 does, with its option
    ``array.rectilinear_chunks``.

    Raises TargetNotAllowed where a set from elsewhere points to where it may not (what is made of it is your own, and
    may point anywhere), and ManifestError, which names the sets, the variable and the field, where they do not fit.
    ``callback`` counts the sets that are opened.

    >>> import json, refshard_fs
    >>> meta = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "|u1", "order": "C",
    ...         "fill_value": None, "filters": None, "compressor": None}
    >>> def day(url):
    ...     return {"a/.zarray": json.dumps(meta), "a/.zattrs": '{"_ARRAY_DIMENSIONS": ["time"]}', "a/0": [url, 0, 2]}
    >>> both = refshard_fs.concat([day("memory://one"), day("memory://two")], dim="time")
    >>> both.references["a/1"]
    ['memory://two', 0, 2]
    """
    order = tuple(dims) if dims is not None else (dim,)
    if dims is not None and dim is not None:
        raise TypeError("give dim=, or dims= for nested lists")
    by_name = _grid_of(sets, order, join, on_error, options)
    if by_name is not None:
        found = sorted(by_name.files.items())
    else:
        found = list(_leaves(expanded(sets, options) if len(order) == 1 else sets, len(order)))
    if not found:
        raise ValueError("there are no sets to concatenate")
    places, leaves = zip(*found, strict=True)

    unchecked = frozenset(same)
    if chunks is not None and (not lazy or min(chunks.values(), default=1) < 1):
        raise ValueError("chunks= are lengths of 1 and more, by dimension, of chunks that lazy=True joins")
    if lazy and grid != "regular":
        raise TypeError("grid='rectilinear' keeps references as they are: leave lazy=True out")
    if lazy and None in order:
        raise TypeError("lazy=True joins along dimensions that have names: give dim=, or dims=")
    if subchunks is not None and min(subchunks.values(), default=1) < 1:
        raise ValueError("subchunks= are lengths of 1 and more, by dimension")
    if freq is not None and order[0] is None:
        raise TypeError("freq= says how far values of a dimension are apart: name it, dim=")
    if len(order) != 1 and (sort or overlap != "error" or (on_error != "raise" and by_name is None)):
        raise TypeError("sort=, overlap= and on_error= are for sets along one dimension, dim=")
    if lazy:
        leaves = tuple(url_of_set(fo, options, "lazy=True") for fo in leaves)
    failed: dict[int, Exception] | None = {} if on_error == "skip" else None
    with progress("concat", callback) as shown:
        shown.set_size(len(leaves))
        read = read_sets(leaves, options, shown.relative_update, failed, executor, resume)
    leaves = tuple(fo for number, fo in enumerate(leaves) if not failed or number not in failed)
    places = tuple(place for number, place in enumerate(places) if not failed or number not in failed)
    if failed and by_name is not None:
        left_files = by_name._replace(files={at: by_name.files[at] for at in places})
        if join == "exact":
            left_files.check_whole()
        by_name = left_files.without_empty()
        places = tuple(sorted(by_name.files))
    skipped(failed or {}, any_left=bool(leaves))
    stored = read
    stacking = None if by_name is not None or len(order) > 1 or dim is None else Stacking.by_scalar(dim, read)
    if stacking is not None:
        read = stacking.parts
    for along in order:
        read = with_common_units(read, along, lazy=lazy).parts
    if len(order) == 1 and dim is not None:
        kept = arrange(read, dim, sort=sort, overlap=overlap)
        if kept is not None:
            leaves = tuple(leaves[number] for number, _, _ in kept)
            places, by_name = tuple((place,) for place in range(len(kept))), None
            chosen = [trimmed(read[number], dim, start, stop) for number, start, stop in kept]
            cut = [part.name for part, k in zip(chosen, kept, strict=True) if part.refs is not read[k.number].refs]
            if lazy and cut:
                raise ManifestError(
                    f"lazy=True joins whole sets, and of {cut[0]} a part is taken along {dim!r} (overlap=): leave "
                    "lazy=True out"
                )
            read, stored = chosen, [stored[number] for number, _, _ in kept]
    joining = _Joining(
        order,
        by_name,
        unchecked,
        chunks,
        subchunks or {},
        regular={} if freq is None else {_regular_dimension(order, by_name, read): freq},
        units={p: v.attributes.get("units") for p, v in read[0].variables.items() if len(order) > 1},
        is_outer=join == "outer",
        is_rectilinear=grid == "rectilinear",
        lazy=lazy,
    )
    if by_name is not None:
        read = in_grid(by_name, dict(zip(places, read, strict=True)))
    read = with_digests(read, order, unchecked, places)
    if lazy:  # documents say which dimensions are made
        pairs = zip(stored, read, strict=True)
        read = [msgspec.structs.replace(part, digests=found.digests) for part, found in pairs]
    document, whole = joining.joined(dict(zip(places, zip(leaves, read, strict=True), strict=True)))
    if not isinstance(document, ConcatDocument):
        return made(whole.refs)
    data = document.dumps()
    title = f"{count_text(document.count, 'set')} joined along {' and '.join(map(str, order))}"
    return LazySet(data, hashlib.sha256(data).hexdigest(), remark_on(joining.made), title)


Leaf = tuple[Any, Named]  # what a set was read from, and the set


class _Joining(msgspec.Struct, frozen=True):
    """How sets in a grid are joined, a dimension after the other: to references, or to documents within documents."""

    dims: Sequence[str | None]
    grid: FileGrid | None  # if their names say where they lie
    same: frozenset[str]
    chunks: Mapping[str, int] | None
    subchunks: Mapping[str, int]
    regular: Mapping[str, str | float]
    units: Mapping[str, Any]  # of coordinates of the first set, by path, in which all are
    is_outer: bool
    is_rectilinear: bool
    lazy: bool
    made: list[tuple[ConcatDocument, Sequence[Named]]] = []
    beside: dict[tuple[str | None, int], Named] = {}  # a set at each place along dimensions that sets have themselves

    def joined(self, leaves: Mapping[tuple[int, ...], Leaf]) -> Leaf:
        """Return the document that joins ``leaves``, sets by their places, if it is ``lazy``, and all as one set."""
        parts = {place: part for place, (_, part) in leaves.items()}
        if self.subchunks:
            for place, part in parts.items():
                parts[place] = subchunked(part, self.subchunks, lazy=self.lazy)
        known = {name for part in parts.values() for v in part.variables.values() for name in v.dims}
        inside = [name for name in self.dims if name in known]
        if self.grid is not None:
            for place, part in parts.items():
                for dim, number in zip(self.dims, place, strict=True):
                    if dim in known:
                        self.beside.setdefault((dim, number), part)
            if self.grid.holes and not self.lazy:
                variables = [item for part in parts.values() for item in part.variables.items()]
                spread = {
                    path for path, v in variables if not v.is_coordinate and not set(self.dims).isdisjoint(v.dims)
                }
                fills = fills_of(list(parts.values()), spread)
                parts = {place: with_fills(part, fills) for place, part in parts.items()}
        of = {place: leaf[0] if self.lazy else parts[place].name for place, leaf in leaves.items()}
        return self._level((), sorted(leaves), {place: (of[place], parts[place]) for place in leaves}, inside)

    def _level(
        self,
        place: tuple[int, ...],
        below: Sequence[tuple[int, ...]],
        leaves: Mapping[tuple[int, ...], Leaf],
        known: list[str | None],
    ) -> Leaf:
        """Return what joins the sets whose places begin with ``place``.

        ``known`` are the dimensions that sets have; those that were made within are added.
        """
        axis = len(place)
        dim = self.dims[axis]
        by_number: dict[int, list[tuple[int, ...]]] = {}
        for each in below:
            by_number.setdefault(each[axis], []).append(each)
        numbers = sorted(by_number)
        found: list[Leaf] = []
        inside = list(known)
        for number in numbers:
            at = (*place, number)
            inside = list(known)
            found.append(leaves[at] if at in leaves else self._level(at, by_number[number], leaves, inside))
        known[:] = inside
        sets = [of for of, _ in found]
        parts = [part for _, part in found]
        stacking = None
        if dim is not None and dim not in known:
            if self.grid is not None:
                stacking = Stacking.by_name(self.grid, dim, parts, numbers, known)
            else:
                stacking = Stacking.by_scalar(dim, parts)
            parts = parts if stacking is None else stacking.parts
            known.append(dim)
        holes = self._holes(place, numbers, parts[0])
        # Gaps come last, for the first set says what others are recoded to.
        times = CommonUnits([*parts, *holes.values()], {}, {})
        if self.lazy:
            times = with_common_units(times.parts, dim, lazy=True, fixed=self.units)
        real, gaps = times.parts[: len(parts)], times.parts[len(parts) :]
        parts = list(real)
        for number, gap in zip(holes, gaps, strict=True):
            sets.insert(number, "")
            parts.insert(number, gap)
        if dim in self.regular:
            sets, parts = self._filled(sets, parts, str(dim))
        if not self.lazy:
            if len(parts) > 1:
                parts = _Row.of(sets, parts, dim, self.regular, is_outer=self.is_outer, lazy=False).parts
                parts = [concatenate(parts, dim, self.same, is_rectilinear=self.is_rectilinear)]
            return parts[0].name, parts[0]
        document, whole = concat_document(
            sets,
            parts,
            str(dim),
            self.same,
            self.chunks,
            self.subchunks,
            is_outer=self.is_outer,
            regular=self.regular,
            shown={**times.shown, **(stacking.shown if stacking else {})},
            bounds=times.bounds,
            coordinate_values=stacking.values if stacking else None,
        )
        if stacking is not None:
            document = msgspec.structs.replace(document, stacked=stacking.paths)
        self.made.append((document, real))
        return document, whole

    def _holes(self, place: tuple[int, ...], numbers: Sequence[int], like: Named) -> dict[int, Named]:
        """Return what stands where a grid has no file, by number: sets that say no more than how long they are."""
        axis, dim = len(place), self.dims[len(place)]
        if self.grid is None or dim is None:
            return {}
        found: dict[int, Named] = {}
        for number in sorted(set(range(self.grid.shape[axis])).difference(numbers)):
            said = f"what is missing at {self.grid.said((*place, number))}"
            beside = self.beside.get((dim, number))
            if beside is None:
                found[number] = self.grid.coordinate(dim, number, like, said)
                continue
            along = {path: v for path, v in beside.variables.items() if dim in v.dims}
            coordinates = {path: v for path, v in along.items() if v.is_coordinate}
            found[number] = Named(said, beside.refs, coordinates or dict(list(along.items())[:1]))
        return found

    def _filled(self, sets: Sequence[Any], parts: Sequence[Named], dim: str) -> tuple[list[Any], list[Named]]:
        """Return the sets with gaps between them, where values of a regular coordinate are missing."""
        pieces = filled(parts, dim, self.regular[dim])
        numbers = [piece.number for piece in pieces if piece.number is not None]
        if self.lazy and numbers != list(range(len(parts))):
            twice = next(number for number in numbers if numbers.count(number) > 1)
            raise ManifestError(
                f"{parts[twice].name} has a gap along {dim!r}, and lazy=True joins whole sets: leave lazy=True out"
            )
        return ["" if p.number is None else sets[p.number] for p in pieces], [piece.part for piece in pieces]


def _regular_dimension(dims: Sequence[str | None], grid: FileGrid | None, parts: Sequence[Named]) -> str:
    """Return along which of ``dims`` values are regular: the first whose coordinate is of times, else the first."""
    first = parts[0].variables
    for dim in dims:
        coordinates = (v for v in first.values() if v.dims in ((dim,), ()) and parent(v.path)[1] == dim)
        if (grid is not None and grid.is_of_times(str(dim))) or any(is_time(v.attributes) for v in coordinates):
            return str(dim)
    return str(dims[0])


def _grid_of(
    sets: Any, order: Sequence[str | None], join: Join, on_error: OnError, options: Mapping[str, Any]
) -> FileGrid | None:
    """Return the grid of files that a pattern with fields stands for; None where ``sets`` are no such pattern."""
    pattern = Pattern.of(os.fspath(sets), order) if isinstance(sets, str | os.PathLike) else None
    if pattern is None:
        return None
    grid, others = FileGrid.of(pattern, expanded(pattern.glob, options), [str(dim) for dim in order])
    if others:
        said = f"{', '.join(others[:3])}{f' and {len(others) - 3:,} others' if len(others) > 3 else ''} are not named"
        if on_error == "raise" or not grid.files:
            raise ManifestError(f"{said} as {pattern.text!r} says: on_error='skip' leaves them out")
        warnings.warn(f"{said} as {pattern.text!r} says, and left out", UserWarning, stacklevel=3)
    if join == "exact":
        grid.check_whole()
    return grid


def _leaves(nested: Any, depth: int, place: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Yield each set and its place along each dimension."""
    if depth == 0:
        yield place, nested
        return
    if isinstance(nested, (str, bytes, Mapping)) or not isinstance(nested, Sequence):
        raise TypeError(
            f"sets are a list, for dims= nested as many times as there are dimensions: {reprlib.repr(nested)} is none"
        )
    for number, member in enumerate(nested):
        yield from _leaves(member, depth - 1, (*place, number))
