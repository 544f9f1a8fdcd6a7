"""Many reference sets as one, without copying a chunk."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import reprlib
import warnings
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple, overload

import msgspec
import numpy as np
import numpy.typing as npt
from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from refshard_fs.core import zarrmeta
from refshard_fs.core.dtypes import is_big_endian, plain
from refshard_fs.core.keys import join, parent
from refshard_fs.core.lru import LRU
from refshard_fs.core.stats import count_text
from refshard_fs.cubes.cf_times import is_time
from refshard_fs.cubes.choice import Choice
from refshard_fs.cubes.document import ConcatDocument, Piece
from refshard_fs.cubes.fit import fit
from refshard_fs.errors import ManifestError, sanitize
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.reading.loading import Heads
from refshard_fs.references.values import object_in
from refshard_fs.sets.changed_set import cut_chunks, gap, trim, with_metadata
from refshard_fs.sets.common_units import CommonUnits, with_common_units
from refshard_fs.sets.compatibility import array_facts, check_merged, roomier_encodings, with_digests
from refshard_fs.sets.concatenation import (
    Kept,
    Overlap,
    arrange,
    concatenate,
    coordinate_values,
    is_ordered,
    recut_shapes,
)
from refshard_fs.sets.dimensions import find_dimensions, named_by_files
from refshard_fs.sets.lazy_set import OTHERS, REMARK, LazySet, describe
from refshard_fs.sets.outer import Aligned, PlannedPiece, complete, fills_of, with_fills, with_gaps, with_gaps_of
from refshard_fs.sets.patterns import FileGrid, Pattern, Stacking, sets_of_grid, some_of
from refshard_fs.sets.preprocess import Preprocess, name_of, preprocessed
from refshard_fs.sets.rebase import MadeSet, made
from refshard_fs.sets.rounding import with_equal_coordinates
from refshard_fs.sets.scanning import REMEMBERED, opening_options
from refshard_fs.sets.sources import OnError, expand, read_sets, report_skipped
from refshard_fs.sets.tables import as_place, placed_sources
from refshard_fs.sets.variables import BOUNDS, DESCRIBING, NamedSet, named_in, with_type
from refshard_fs.source.collect import Unread
from refshard_fs.source.in_memory_source import source_of
from refshard_fs.source.options import for_sources
from refshard_fs.tools.views import progress

logger = logging.getLogger(__package__)
REASON: Final = 200  # characters of the error of a set that was left out, in the document

Join = Literal["exact", "outer"]  # whether sets must have the same variables and coordinates, or all have any


def url_of_set(fo: Any, options: Mapping[str, Any], who: str) -> str:
    """Return the URL of the set ``fo``; TypeError where it has none that ``who`` could name, or names a version."""
    for name in ("branch", "tag", "snapshot", "as_of"):
        if options.get(name) is not None:
            raise TypeError(f"{who} saves URLs of its parts, without {name}={options[name]!r}: leave lazy=True out")
    is_path = isinstance(fo, str | os.PathLike)
    url = source_of(os.fspath(fo), options.get("target_protocol"), None, True) if is_path else fo
    if not isinstance(url, str):
        raise TypeError(
            f"{who} saves the URLs of its parts: expected a URL or a path, got {reprlib.repr(fo)}; save it first"
        )
    return url


class Rules(msgspec.Struct, frozen=True):
    """The arguments of `concat`, and ``regular``, the step between the values of a coordinate, by dimension."""

    same: frozenset[str] = frozenset()
    sort: bool = False
    overlap: Overlap = "error"
    freq: str | float | None = None
    regular: Mapping[str, str | float] = {}
    chunks: Mapping[str, int] = {}
    subchunks: Mapping[str, int] = {}
    is_outer: bool = False
    is_rectilinear: bool = False
    lazy: bool = False
    select: tuple[Choice, ...] = ()  # of each set, for documents
    own: Mapping[str, tuple[Choice, ...]] = {}  # of sets, by URL, what `preprocess` takes of each
    union: Mapping[str, npt.NDArray[Any]] = {}  # by dimension, values of a coordinate that all have: others are gaps


class SetRow(msgspec.Struct, frozen=True):
    """Sets in a row along ``dim``, which become references or a document.

    A part's source is its URL or document; an empty one is a gap, with the length or the coordinate of the part.
    For the document: ``metadata`` (by key) are shown in place of the first set's, ``bounds`` are arrays in the units of
    a coordinate, and arrays in ``recut`` are shown in chunks of that shape already.
    """

    dim: str | None
    sources: Sequence[Any]
    parts: Sequence[NamedSet]
    rules: Rules
    metadata: Mapping[str, dict[str, Any]] = {}
    bounds: Mapping[str, str] = {}
    recut: Mapping[str, tuple[int, ...]] = {}
    stacking: Stacking | None = None

    def references(self) -> NamedSet:
        """Return all as one set of references; ManifestError if they do not fit."""
        parts = self._complete(self.parts).parts
        return concatenate(parts, self.dim, self.rules.same, is_rectilinear=self.rules.is_rectilinear)

    def document(self) -> tuple[ConcatDocument, NamedSet]:
        """Return the document that joins the sources, and the set that it shows; ManifestError if they do not fit."""
        dim = str(self.dim)
        first = next(number for number, source in enumerate(self.sources) if source)
        stored = self.parts[first]
        own = stored.coordinate(dim)  # the document holds its values as they are stored
        shown = {key: doc for key, doc in self.metadata.items() if own is None or key != own.key}
        with_lead = [*self.parts[:first], with_metadata(stored, shown), *self.parts[first + 1 :]]
        parts, places, unions = self._complete(with_lead)
        lead = parts[first]
        axes, variables = lead.along(dim), lead.variables
        metadata = {**self.metadata, **_changed_documents(lead, stored)}
        recut = {**recut_shapes(parts, dim, self.rules.chunks, self.rules.subchunks, places), **self.recut}
        whole = concatenate(parts, dim, self.rules.same, recut=recut)
        whole = msgspec.structs.replace(whole, units=stored.units)
        lengths = [part.length(dim) for part in parts]
        if 0 in lengths:
            raise ManifestError(f"{parts[lengths.index(0)].name} has length 0 along {dim!r}: leave it out")
        coordinate = lead.coordinate(dim)
        given = None if self.stacking is None else self.stacking.values
        values: Sequence[bytes | None] = given or [None] * len(lengths)
        joined = None if coordinate is None else whole.values(coordinate.path)
        if coordinate is not None and joined is not None and len(joined):
            meta = zarrmeta.array_meta(metadata.get(coordinate.key) or coordinate.meta.raw, repr(coordinate.path))
            if meta is not None and with_type(meta, joined.dtype) is not meta:
                metadata[coordinate.key] = dict(with_type(meta, joined.dtype).raw)
            pieces = np.split(joined, np.cumsum(lengths)[:-1])
            values = [plain(whole.variables[coordinate.path].meta, piece)[1] for piece in pieces]
        elif given is None:
            coordinate = None
        telling = coordinate or variables[min(axes)]  # a document tells the version in which all sets are to be opened,
        if telling.meta.zarr_format == 3 or is_big_endian(telling.meta):  # times, too: version 2 keeps their byte order
            metadata.setdefault(telling.key, dict(telling.meta.raw))
        lines = []
        for source, part, length, data, own_places in zip(self.sources, parts, lengths, values, places, strict=True):
            url, within = ("", source) if isinstance(source, ConcatDocument) else (source, None)
            chosen = self.rules.own.get(url, ())
            lines.append(Piece(url, length, data, within, own_places, part.take if source else None, chosen))
        held = {path: lead.inline[path][0] for path, v in variables.items() if v.is_coordinate and v.dims[0] in unions}
        metadata |= {variables[path].key: dict(variables[path].meta.raw) for path in held}
        document = ConcatDocument(
            dim=dim,
            axes=axes,
            coordinate=None if coordinate is None else coordinate.path,
            chunks=recut,
            join="outer" if self.rules.is_outer else "exact",
            metadata=metadata,
            bounds=dict(self.bounds),
            stacked=() if self.stacking is None else self.stacking.paths,
            unions={d: {path: axis for path, axis in lead.along(d).items() if path in axes} for d in unions},
            pieces=tuple(lines),
            held=held,
            select=self.rules.select if any(line.url for line in lines) else (),
        )
        return document, whole

    def _complete(self, given: Sequence[NamedSet]) -> Aligned:
        """Return the parts ready to be concatenated, gaps among them."""
        dim, rules = self.dim, self.rules
        sets = [part for source, part in zip(self.sources, given, strict=True) if source]
        has_gaps = len(sets) < len(given)
        aligned, fills = complete(sets, dim, rules.regular, lazy=rules.lazy, has_gaps=has_gaps, is_outer=rules.is_outer)
        parts = aligned.parts
        if rules.lazy:  # chunks of all others are recoded to the first one's
            parts[0] = with_fills(parts[0], fills)
            parts[0] = with_metadata(parts[0], roomier_encodings(parts, str(dim)))
        else:
            parts = [with_fills(part, fills) for part in parts]
        row, places = list(parts), list(aligned.places)
        for number, (source, extent) in enumerate(zip(self.sources, given, strict=True)):
            if not source:
                row.insert(number, gap(parts[0], str(dim), extent.name, extent.length(str(dim)), extent))
                places.insert(number, {})
        return Aligned(row, places, aligned.unions)


def _changed_documents(part: NamedSet, stored: NamedSet) -> dict[str, dict[str, Any]]:
    """Return the metadata documents of arrays, by key, in which a set differs from how it is ``stored``."""
    side, known = part.refs.side, stored.refs.side
    keys = [key for v in part.variables.values() for key in (v.key, join(v.path, ".zattrs")) if key in side]
    return {
        key: object_in(side[key], f"{key!r} of {part.name}")
        for key in keys
        if known.get(key) is not side[key] and known.get(key) != side[key]
    }


def remark_on(made: Sequence[tuple[ConcatDocument, Sequence[NamedSet]]]) -> str:
    """Return in one line why only this package reads what documents show of the sets that were read for each."""
    made_here = [
        f"chunks of {path!r} are joined while reading" for path in sorted({p for doc, _ in made for p in doc.chunks})
    ]
    recoded: Counter[str] = Counter()
    for document, read in made:
        shown = with_metadata(read[0], document.metadata)
        for path in document.axes.keys() - document.chunks.keys() - {document.coordinate}:
            one = array_facts(path, next(part for part in (shown, *read) if path in part.variables))
            known: dict[Any, bool] = {}  # sets that are alike share their variables
            for part in read:
                if path in part.variables:
                    like = id(part.variables[path]), str(part.units.get(path))
                    if like not in known:
                        known[like] = not fit(path, one, array_facts(path, part)).is_same
                    recoded[path] += known[like]
    total = count_text(sum(len(read) for _, read in made), "set")
    made_here += [
        f"{path!r} is converted while reading in {count} of {total}" for path, count in sorted(recoded.items()) if count
    ]
    if made_here:
        return f"{REMARK}: {', '.join(made_here)}. {OTHERS}"
    return f"{REMARK}; concat without lazy=True makes references that other programs read, too"


@overload
def concat(
    sets: str | Sequence[Any], dim: str | None = None, *, lazy: Literal[False] = False, **arguments: Any
) -> MadeSet: ...
@overload
def concat(sets: str | Sequence[Any], dim: str | None = None, *, lazy: Literal[True], **arguments: Any) -> LazySet: ...
def concat(
    sets: str | Sequence[Any],
    dim: str | None = None,
    *,
    dims: Sequence[str | None] | None = None,
    same: Iterable[str] = (),
    keep: Iterable[str] | str | None = None,
    drop: Iterable[str] | str = (),
    rename: Mapping[str, str] | None = None,
    attrs: Mapping[str, Mapping[str, Any]] | None = None,
    lazy: bool = False,
    sort: bool = False,
    overlap: Overlap = "error",
    join: Join = "exact",
    freq: str | float | None = None,
    grid: Literal["regular", "rectilinear"] = "regular",
    chunks: Mapping[str, int] | None = None,
    subchunks: Mapping[str, int] | None = None,
    on_error: OnError = "raise",
    tolerance: float = 0.0,
    coords: Mapping[str, Sequence[Any]] | None = None,
    preprocess: Preprocess | None = None,
    assets: Sequence[str] | None = None,
    executor: Executor | None = None,
    resume: str | os.PathLike[str] | None = None,
    callback: Callback = DEFAULT_CALLBACK,
    **options: Any,
) -> MadeSet | LazySet:
    """Join sources along a dimension, and merge everything else.

    >>> import json, refshard_fs
    >>> meta = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "|u1", "order": "C",
    ...         "fill_value": None, "filters": None, "compressor": None}
    >>> def day(url):
    ...     return {"a/.zarray": json.dumps(meta), "a/.zattrs": '{"_ARRAY_DIMENSIONS": ["time"]}', "a/0": [url, 0, 2]}
    >>> both = refshard_fs.concat([day("memory://one"), day("memory://two")], dim="time")
    >>> both.references["a/1"]
    ['memory://two', 0, 2]
    >>> refshard_fs.concat("s3://bucket/2024/*.nc", lazy=True).save("2024.refshard")  # doctest: +SKIP
    >>> refshard_fs.concat("s3://hub/{member}/tas_{time:%Y%m}.nc", lazy=True)  # doctest: +SKIP

    By default the result is a set of references, which other readers can use. Then the arrays of all sources must have
    the same types, codecs and chunks, and the length of each source along ``dim``, except the last, must be a multiple
    of the chunk's length.

    With ``lazy=True`` the result is a cube: a small document with the URLs of the sources, their lengths along ``dim``,
    and the values of this coordinate. A source is opened when one of its chunks is read. Its arrays may have other
    codecs, byte orders, types, texts, fill values, ``scale_factor`` and ``add_offset`` than the first one: their
    chunks are recoded when they are read, exactly, or reading one is an error that says why. Where ``scale_factor`` or
    ``add_offset`` differ, the array is shown as 64-bit floating-point numbers. Where chunks do not meet (months of 28
    to 31 days), the array is shown in chunks of the length that most sources have.

    An array is joined if it has the dimension, by ``_ARRAY_DIMENSIONS`` or ``dimension_names``. If no source has the
    dimension, but each has a scalar coordinate of this name (GRIB2 files of one time each), the dimension is made from
    it, as in xarray. All other variables must be equal, or be named in ``same``. Attributes are those of the first
    source; attributes that tell what values mean (``units``, ``scale_factor``) must be equal. CF times of one calendar,
    and their bounds, are converted to the units of the first source, or to finer units if these cannot hold all times:
    no instant changes.

    Coordinates are read, compared by value, and kept in the result. Variables without the dimension are compared too,
    up to 1 MiB of each. No other chunks are read, with one exception: chunks that no reference can describe (of TIFF
    with a predictor, of GRIB2, of compressed tiles of FITS) are copied into a set of references. A cube copies none of
    these.

    Parameters
    ----------
    sets:
        Sources as `RefShardFileSystem` takes them (files, sets of references, hierarchies), or such filesystems. A
        pattern (``"s3://bucket/2024/*.nc"``) stands for all sources that match, in natural order (``day2`` before
        ``day10``). A pattern with fields (``"{member}/{time:%Y%m%d}.nc"``; numbers: ``{member:d}``) tells where each
        source lies along the dimensions of these names; the sources need not have them.
    dim:
        The dimension. A cube finds it if neither ``dim`` nor ``dims`` is given.
    dims:
        Dimensions of nested lists, the outermost first: with ``("time", "x")``, ``sets`` is a list along ``time`` of
        lists along ``x``. None merges. `append` cannot extend such a cube.
    same:
        Variables without the dimension that are taken from the first source and not compared.
    keep, drop, rename, attrs:
        Select a part of each source before it is joined, as `RefShardFileSystem.select` does. The rest need not fit.
    lazy:
        Return a cube instead of a set of references.
    sort:
        Join sources in the order of their values along ``dim``. A source with values between those of another divides
        it.
    overlap:
        What happens to a value that two sources have: ``"error"``, or it is taken from the ``"first"`` or the
        ``"last"`` of them, in the order of joining.
    join:
        ``"outer"``: a source may lack variables, or values of the coordinates of other dimensions. Its chunks are
        missing there.
    freq:
        The step of the coordinate: ``"1D"``, ``"6h"``, ``"MS"``, or a number if the coordinate does not hold times.
        Steps that no source has become missing chunks; the arrays need a fill value that means missing. With ``dims``,
        it applies to the first dimension of times.
    grid:
        ``"rectilinear"``: in arrays of zarr version 3, the chunks of each source may have another length along the
        dimension. References stay as they are, but readers need support for such grids (zarr 3.4 with its option
        ``array.rectilinear_chunks``).
    chunks:
        Lengths of the chunks in which a cube is shown, by dimension.
    subchunks:
        Lengths (``{"time": 1}``) of smaller chunks in which chunks without a codec are shown. Each must be a range of a
        stored chunk; for compressed chunks it is an error.
    on_error:
        What happens to a source that cannot be opened: ``"raise"`` an error, ``"skip"`` it with a warning, or show a
        ``"hole"`` of missing chunks, where ``freq``, a pattern with fields or a table tells its place. A document keeps
        the reason, and `check` reports it.
    tolerance:
        The largest difference by rounding at which values of other coordinates count as those of the first source.
    coords:
        Values of dimensions that the sources lack, for nested lists: ``{"member": ["r1", "r2"]}``.
    preprocess:
        A named function that is called with the filesystem of each source, and returns a part of it, such as
        ``source.select(assign={"time": ...})``. A document keeps what the function selected, and its name for
        information: opening a document neither imports nor calls it.
    assets:
        The assets that are taken of STAC items; all by default.
    executor:
        Any executor of `concurrent.futures`, or ``client.get_executor()`` of dask: its workers open the sources, and
        must be able to reach them.
    resume:
        A file that keeps the result of each scan. A later run opens only sources that are new, or whose size,
        ETag or modification time differs.
    callback:
        Counts the sources that are opened.
    **options:
        Further arguments of `RefShardFileSystem` for the sources, or ``storage_options=`` for their filesystems.

    Raises
    ------
    ManifestError
        Sources do not fit together. It names the sources, the variable and what differs.
    TargetNotAllowed
        A source from elsewhere refers to what it may not reach.
    """
    options = for_sources(options, _urls_in(sets), concat)
    choice = Choice.of(drop, keep, rename, attrs).to_json()
    if choice:
        options = {**options, "select": [*(options.get("select") or ()), choice]}
    order = tuple(dims) if dims is not None else (dim,)
    finds = lazy and dim is None and dims is None  # the dimensions
    same = frozenset(same)
    if dims is not None and dim is not None:
        raise TypeError("give dim=, or dims= for nested lists")
    file_grid = _grid_of(sets, None if finds else order, join, on_error, options, assets)
    if coords is not None:
        file_grid = _grid_of_lists(sets, order, coords)
    if file_grid is not None:
        order = tuple(file_grid.dims)
        leaves = sorted(file_grid.files.items())
    else:
        leaves = list(_leaves(expand(sets, options) if len(order) == 1 else sets, len(order)))
    if not leaves:
        raise ValueError("there are no sets to concatenate")
    places, sources = zip(*leaves, strict=True)

    if chunks is not None and not lazy:
        raise ValueError("chunks= is for lazy=True: references cannot join chunks")
    _check_lengths("chunks", chunks)
    _check_lengths("subchunks", subchunks)
    if lazy and grid != "regular":
        raise TypeError("grid='rectilinear' keeps references as they are: leave lazy=True out")
    if lazy and not finds and None in order:
        raise TypeError("lazy=True joins along dimensions that have names: give dim=, or dims=")
    if freq is not None and order[0] is None and not finds:
        raise TypeError("freq= says how far values of a dimension are apart: name it, dim=")
    if not finds and len(order) != 1 and (sort or overlap != "error" or (on_error != "raise" and file_grid is None)):
        raise TypeError("sort=, overlap= and on_error= are for sets along one dimension, dim=")
    if lazy:
        sources = tuple(url_of_set(fo, options, "lazy=True") for fo in sources)
    if choice:
        sources = tuple(
            fo.select(keep=keep, drop=drop, rename=rename, attrs=attrs) if isinstance(fo, RefShardFileSystem) else fo
            for fo in sources
        )
    if on_error == "hole" and file_grid is None and freq is None:
        raise ValueError(
            "on_error='hole' shows sets that cannot be read as missing: expected freq=, or a pattern with fields or a "
            "table, which tell where they lie"
        )
    own: dict[str, tuple[Choice, ...]] = {}
    if preprocess is not None:
        if executor is not None or resume is not None:
            raise ValueError("preprocess= runs in this process for each set: leave executor= and resume= out")
        urls, given = sources, options.get("select") or ()
        sources = preprocessed(sources, options, preprocess)
        for url, fs in zip(urls, sources, strict=True):
            if isinstance(url, str) and isinstance(fs, RefShardFileSystem):
                own[url] = tuple(map(Choice.read, fs.storage_options.get("select", ())[len(given) :]))
    failed: dict[int, Exception] = {}
    heads: Heads | None = LRU(REMEMBERED) if lazy else None
    with progress("concat", callback) as shown:
        shown.set_size(len(sources))
        read = read_sets(
            sources,
            options,
            shown.relative_update,
            failed if on_error != "raise" else None,
            executor,
            resume,
            Unread(frozenset(filter(None, order)), same) if lazy else None,
            heads,
        )
    if preprocess is not None:
        sources = urls
    lost = {str(sources[number]): sanitize(str(error))[:REASON] for number, error in failed.items()}
    opened = [number for number in range(len(sources)) if number not in failed]
    sources, places = tuple(sources[n] for n in opened), tuple(places[n] for n in opened)
    if failed and file_grid is not None:
        file_grid = file_grid._replace(files={at: file_grid.files[at] for at in places})
        if on_error == "hole":
            file_grid = file_grid.without_empty(_dims(read))
            join = "outer"
        else:
            if join == "exact":
                file_grid.check_whole()
            file_grid = file_grid.without_empty()
        places = tuple(sorted(file_grid.files))
    report_skipped(failed, any_left=bool(sources))
    read, rounded = with_equal_coordinates(read, tolerance)
    if rounded:
        logger.info("%s", rounded)

    rules = Rules(
        same=same,
        sort=sort,
        overlap=overlap,
        freq=freq,
        is_outer=join == "outer",
        is_rectilinear=grid == "rectilinear",
        chunks=chunks or {},
        subchunks=subchunks or {},
        lazy=lazy,
        select=tuple(map(Choice.read, options.get("select") or ())),
        own=own,
    )
    if not finds:
        made_of = _join(rules, order, places, sources, read, file_grid)
    elif file_grid is not None:
        file_grid = named_by_files(file_grid, dict(zip(places, read, strict=True)))
        made_of = _join(rules, tuple(file_grid.dims), places, sources, read, file_grid)
    else:
        kinds = _by_variables(sources, read)
        every = [[part for _, parts in kinds[:n] + kinds[n + 1 :] for part in parts] for n in range(len(kinds))]
        groups = [
            _find_and_join(rules, sources_of, parts, others if rules.is_outer else ())
            for (sources_of, parts), others in zip(kinds, every, strict=True)
        ]
        made_of = groups[0] if len(groups) == 1 else _merge_documents(groups, same)
    opened_with = opening_options(sources, options)
    document = made_of.document
    if not isinstance(document, ConcatDocument):
        return made(made_of.whole.refs, opened_with)
    document = msgspec.structs.replace(
        document, lost=lost, preprocess="" if preprocess is None else name_of(preprocess)
    )
    data = document.dumps()
    remark = "; ".join(filter(None, [remark_on(made_of.made), rounded]))
    return LazySet(data, hashlib.sha256(data).hexdigest(), remark, describe(document), opened_with, heads)


class _Join(NamedTuple):
    """Sets as one: references, or the document that joins them; and the sets that were read, by document."""

    document: Any
    whole: NamedSet
    made: list[tuple[ConcatDocument, Sequence[NamedSet]]]


def _find_and_join(rules: Rules, sources: Sequence[Any], read: Sequence[NamedSet], others: Sequence[NamedSet]) -> _Join:
    """Join sets along the dimensions in which they differ, in the order of their values.

    `_join` says what ``others`` are.
    """
    found = find_dimensions(read, is_outer=rules.is_outer)
    logger.info("joining %s along %s: %s", count_text(len(read), "set"), found.dims, found.reason)
    in_order = sorted(zip(found.places, sources, read, strict=True), key=itemgetter(0))
    places, sources, read = zip(*in_order, strict=True)
    dim = found.dims[0]
    has_values = all(dim in part.variables and part.values(dim) is not None for part in read)
    rules = msgspec.structs.replace(rules, sort=len(found.dims) == 1 and has_values)
    if rules.sort and rules.overlap == "error":
        _check_order(read, dim)
    counts = [1 + max(along) for along in zip(*places, strict=True)]
    grid = None
    if len(read) < math.prod(counts):  # some are missing
        numbers: dict[str, list[Any]] = {d: list(range(n)) for d, n in zip(found.dims, counts, strict=True)}
        grid = FileGrid(found.dims, numbers, {at: part.name for at, part in zip(places, read, strict=True)})
    return _join(rules, found.dims, places, sources, read, grid, others)


def _check_order(read: Sequence[NamedSet], dim: str) -> None:
    """Raise ManifestError where the values of each set are in order, and those of all sets are not."""
    values = coordinate_values(with_common_units(read, dim, lazy=True).parts, dim)
    if values is None or not all(len(own) < 2 or is_ordered(own) for own in values):
        return
    filled = sorted((own for own in values if len(own)), key=lambda own: own[0])
    whole = [np.concatenate(some) for some in (filled, filled[::-1]) if some]
    if whole and len(np.unique(whole[0])) == len(whole[0]) > 1 and not any(map(is_ordered, whole)):
        raise ManifestError(
            f"the values of {dim!r} in {read[0].name} and others have no common order: dim={dim!r} joins sets in the "
            "order in which they are given"
        )


def _join(
    rules: Rules,
    order: Sequence[str | None],
    places: Sequence[Place],
    sources: Sequence[Any],
    read: Sequence[NamedSet],
    file_grid: FileGrid | None,
    others: Sequence[NamedSet] = (),
) -> _Join:
    """Join sets at ``places`` along the dimensions ``order``; ``file_grid`` if names of files give the places.

    Values of the coordinate that ``others`` have, sets of other variables, are gaps where these sets lack them.
    """
    lazy, dim = rules.lazy, order[0] if len(order) == 1 else None
    stored = read
    if file_grid is None and dim is not None:
        stacking = Stacking.by_scalar(dim, read)
        read = read if stacking is None else stacking.parts
    for along in order:
        read = with_common_units(read, along, lazy=lazy).parts
    if others and dim is not None:
        both = with_common_units([*read, *others], dim, lazy=lazy).parts
        values = coordinate_values(both, dim)
        if values is not None:
            read = both[: len(read)]
            rules = msgspec.structs.replace(rules, union={dim: np.unique(np.concatenate(values))})
    if dim is not None:
        kept = arrange(read, dim, sort=rules.sort, overlap=rules.overlap)
        if lazy and kept is None and all(part.along(dim) for part in read):  # a line of a document has a length
            every = [Kept(number, 0, part.length(dim)) for number, part in enumerate(read)]
            filled = [each for each in every if each.stop]
            kept = filled if 0 < len(filled) < len(every) else None
        if kept is not None:
            read = [trim(read[number], dim, start, stop, lazy=lazy) for number, start, stop in kept]
            if lazy:
                stored = [trim(stored[number], dim, start, stop, lazy=True) for number, start, stop in kept]
            sources = tuple(sources[number] for number, _, _ in kept)
            places, file_grid = tuple((place,) for place in range(len(kept))), None
    if rules.freq is not None:
        rules = msgspec.structs.replace(rules, regular={_regular_dimension(order, file_grid, read): rules.freq})
    units = {p: v.attributes.get("units") for p, v in read[0].variables.items() if len(order) > 1}
    if file_grid is not None:
        read = sets_of_grid(file_grid, dict(zip(places, read, strict=True)))
    read = with_digests(read, order, rules.same, places)
    if lazy:  # documents say which dimensions are made
        pairs = zip(stored, read, strict=True)
        read = [msgspec.structs.replace(part, digests=compared.digests) for part, compared in pairs]
    cube = _Cube(order, file_grid, units, rules)
    document, whole = cube.join(dict(zip(places, zip(sources, read, strict=True), strict=True)))
    return _Join(document, whole, cube.made)


def _by_variables(sources: Sequence[Any], read: Sequence[NamedSet]) -> list[tuple[list[Any], list[NamedSet]]]:
    """Return sets that have variables in common, each group apart: a folder may have a file for each variable."""
    groups: list[tuple[set[str], list[Any], list[NamedSet]]] = []
    for source, part in zip(sources, read, strict=True):
        every = {path for path, v in part.variables.items() if not v.is_coordinate and v.dims}
        own = every - named_in(part.variables, DESCRIBING) or every
        near = [group for group in groups if not own or not group[0] or own & group[0]]
        names, theirs, parts = near[0] if near else (set(), [], [])
        for group in near[1:]:
            names |= group[0]
            theirs += group[1]
            parts += group[2]
            groups.remove(group)
        if not near:
            groups.append((names, theirs, parts))
        names |= own
        theirs.append(source)
        parts.append(part)
    return [(theirs, parts) for _, theirs, parts in groups]


def _merge_documents(groups: Sequence[_Join], same: frozenset[str]) -> _Join:
    """Return documents of different variables as one; ManifestError where they differ in what they have in common.

    Bounds of a coordinate are the same if the coordinate is: these alone are not compared.
    """
    first, *others = groups
    joined = {path for group in groups for document, _ in group.made for path in document.axes}
    counts = Counter(path for group in groups for path in group.whole.variables)
    common = {path for path, count in counts.items() if count > 1} - same
    firsts = with_digests([group.made[0][1][0] for group in groups], [], same, only=common - joined)
    for number in range(1, len(groups)):
        for earlier in range(number):
            wholes = [groups[n].whole for n in (earlier, number)]
            bounds = named_in(wholes[0].variables, BOUNDS) & joined
            for path in common.intersection(*(whole.variables for whole in wholes)) - bounds:
                check_merged(path, *(wholes if path in joined else (firsts[earlier], firsts[number])))
    documents = [group.document for group in others]
    return first._replace(
        document=msgspec.structs.replace(first.document, beside=tuple(documents)),
        made=[entry for group in groups for entry in group.made],
    )


Leaf = tuple[Any, NamedSet]  # the URL or document of a set, and the set
Place = tuple[int, ...]  # the number of a set along each dimension


class _Cube(msgspec.Struct, frozen=True):
    """Joins sets one dimension after the other, the last one first: to references, or to documents in documents."""

    dims: Sequence[str | None]
    grid: FileGrid | None  # where names of files give their places
    units: Mapping[str, Any]  # of coordinates of the first set, by path: all sets get them
    rules: Rules
    made: list[tuple[ConcatDocument, Sequence[NamedSet]]] = []
    examples: dict[tuple[str | None, int], NamedSet] = {}  # a set at each number along dimensions that sets have

    def join(self, leaves: Mapping[Place, Leaf]) -> Leaf:
        """Return all ``leaves``, sets by their places, as one set, with the document that joins them if it is lazy."""
        rules = self.rules
        parts = {place: part for place, (_, part) in leaves.items()}
        if rules.subchunks:
            for place, part in parts.items():
                parts[place] = cut_chunks(part, rules.subchunks, lazy=rules.lazy)
        if self.grid is not None:
            known = _dims(parts.values())
            for place, part in parts.items():
                for dim, number in zip(self.dims, place, strict=True):
                    if dim in known:
                        self.examples.setdefault((dim, number), part)
            if self.grid.holes and not rules.lazy:
                variables = [item for part in parts.values() for item in part.variables.items()]
                spread = {p for p, v in variables if not v.is_coordinate and not set(self.dims).isdisjoint(v.dims)}
                fills = fills_of(list(parts.values()), spread)
                parts = {place: with_fills(part, fills) for place, part in parts.items()}
        sources = {place: source if rules.lazy else parts[place].name for place, (source, _) in leaves.items()}
        return self._join_below((), {place: (sources[place], parts[place]) for place in sorted(leaves)})

    def _join_below(self, start: Place, leaves: Mapping[Place, Leaf]) -> Leaf:
        """Return ``leaves``, whose places begin with ``start``, as one set."""
        axis, dim = len(start), self.dims[len(start)]
        groups: dict[int, dict[Place, Leaf]] = {}
        for place, leaf in leaves.items():
            groups.setdefault(place[axis], {})[place] = leaf
        below = [leaves.get((*start, n)) or self._join_below((*start, n), group) for n, group in groups.items()]
        sources: list[Any] = [source for source, _ in below]
        parts = [part for _, part in below]
        stacking = self._stacking(dim, parts, list(groups))
        parts = parts if stacking is None else stacking.parts
        holes = self._holes(start, groups, parts[0])
        # Holes come last: all are recoded to the units of the first set.
        times = CommonUnits([*parts, *holes.values()], {}, {})
        if self.rules.lazy:
            times = with_common_units(times.parts, dim, lazy=True, fixed=self.units)
        real = times.parts[: len(parts)]
        row = list(real)
        for number, hole in zip(holes, times.parts[len(parts) :], strict=True):
            sources.insert(number, "")
            row.insert(number, hole)
        if dim in self.rules.regular or dim in self.rules.union:
            sources, row = self._insert_gaps(sources, row, str(dim))
        if not self.rules.lazy:
            whole = SetRow(dim, sources, row, self.rules).references() if len(row) > 1 else row[0]
            return whole.name, whole
        metadata = {**times.metadata, **(stacking.metadata if stacking else {})}
        document, whole = SetRow(dim, sources, row, self.rules, metadata, times.bounds, stacking=stacking).document()
        self.made.append((document, real))
        return document, whole

    def _stacking(self, dim: str | None, parts: Sequence[NamedSet], numbers: Sequence[int]) -> Stacking | None:
        """Return sets with ``dim``, where they do not have it themselves."""
        known = _dims(parts)
        if dim is None or dim in known:
            return None
        if self.grid is None:
            return Stacking.by_scalar(dim, parts)
        return Stacking.of(self.grid, dim, parts, numbers, [name for name in self.dims if name in known])

    def _holes(self, start: Place, numbers: Container[int], like: NamedSet) -> dict[int, NamedSet]:
        """Return what stands where a grid has no file, by number: sets that only tell the length or coordinate."""
        axis, dim = len(start), self.dims[len(start)]
        if self.grid is None or dim is None:
            return {}
        holes: dict[int, NamedSet] = {}
        for number in range(self.grid.shape[axis]):
            if number in numbers:
                continue
            name = f"what is missing at {self.grid.describe((*start, number))}"
            example = self.examples.get((dim, number))
            if example is None:
                holes[number] = self.grid.coordinate(dim, number, like, name)
                continue
            along = {path: example.variables[path] for path in example.along(dim)}
            coordinates = {path: v for path, v in along.items() if v.is_coordinate}
            holes[number] = NamedSet(name, example.refs, coordinates or dict(list(along.items())[:1]))
        return holes

    def _insert_gaps(
        self, sources: Sequence[Any], parts: Sequence[NamedSet], dim: str
    ) -> tuple[list[Any], list[NamedSet]]:
        """Return sources and sets with gaps between them, where values of the coordinate are missing."""
        rules = self.rules
        regular, union = rules.regular.get(dim), rules.union.get(dim)
        pieces = [PlannedPiece(number, part) for number, part in enumerate(parts)]
        if regular is not None:
            pieces = with_gaps(parts, dim, regular, lazy=rules.lazy)
        if union is not None:
            numbers = [piece.number for piece in pieces]
            divided = with_gaps_of([piece.part for piece in pieces], dim, union, lazy=rules.lazy)
            pieces = [PlannedPiece(None if p.number is None else numbers[p.number], p.part) for p in divided]
        return ["" if p.number is None else sources[p.number] for p in pieces], [piece.part for piece in pieces]


def _dims(parts: Iterable[NamedSet]) -> set[str | None]:
    return {dim for part in parts for variable in part.variables.values() for dim in variable.dims}


def _regular_dimension(dims: Sequence[str | None], grid: FileGrid | None, parts: Sequence[NamedSet]) -> str:
    """Return along which of ``dims`` values are regular: the first whose coordinate is of times, else the first."""
    first = parts[0].variables
    for dim in dims:
        coordinates = (v for v in first.values() if v.dims in ((dim,), ()) and parent(v.path)[1] == dim)
        if (grid is not None and grid.is_of_times(str(dim))) or any(is_time(v.attributes) for v in coordinates):
            return str(dim)
    return str(dims[0])


def _grid_of(
    sets: Any,
    order: Sequence[str | None] | None,
    join: Join,
    on_error: OnError,
    options: Mapping[str, Any],
    assets: Sequence[str] | None,
) -> FileGrid | None:
    """Return the grid of files that a pattern with fields, or a table, stands for; None for other ``sets``.

    ``order`` are its dimensions; None where the fields, or the columns, tell.
    """
    rows = placed_sources(sets, assets)
    if rows is not None:
        dims = list(rows[0][1])
        if order is not None and any(order) and set(order) != set(dims):
            raise ValueError(f"URLs come with their places along {dims}, and the dimensions are {list(order)}")
        grid = FileGrid.of(rows, dims if order is None or not any(order) else [str(dim) for dim in order], assets)
        if join == "exact":
            grid.check_whole()
        return grid
    pattern = Pattern.of(os.fspath(sets), order) if isinstance(sets, str | os.PathLike) else None
    if pattern is None:
        return None
    dims = list(pattern.fields) if order is None else [str(dim) for dim in order]
    grid, others = FileGrid.by_names(pattern, expand(pattern.glob, options), dims)
    if others:
        misnamed = f"{some_of(others)} are not named as {pattern.text!r} says"
        if on_error == "raise" or not grid.files:
            raise ManifestError(f"{misnamed}: on_error='skip' leaves them out")
        warnings.warn(f"{misnamed}, and left out", UserWarning, stacklevel=3)
    if join == "exact":
        grid.check_whole()
    return grid


def _grid_of_lists(sets: Any, order: Sequence[str | None], coords: Mapping[str, Sequence[Any]]) -> FileGrid:
    """Return the grid of sets in nested lists; ``coords`` has the values of dimensions that the sets lack."""
    unknown = coords.keys() - set(order)
    if unknown:
        raise ValueError(f"coords= names {', '.join(sorted(unknown))}: expected dimensions of dims={list(order)}")
    dims = [str(dim) for dim in order]
    files = dict(_leaves(sets, len(order)))
    places: dict[str, list[Any]] = {}
    for axis, dim in enumerate(dims):
        count = 1 + max(at[axis] for at in files)
        places[dim] = [as_place(value, dim, "coords=") for value in coords.get(dim, range(count))]
        if len(places[dim]) != count:
            raise ValueError(f"coords={{{dim!r}: ...}} has {len(places[dim])} values for {count} lists of sets")
    grid = FileGrid(dims, places, files)
    grid.check_whole()
    return grid


def _check_lengths(argument: str, lengths: Mapping[str, Any] | None) -> None:
    for dim, length in (lengths or {}).items():
        if not isinstance(length, (int, np.integer)) or length < 1:
            raise ValueError(
                f"{argument}={{{dim!r}: {length!r}}}: expected {{dimension: length}}, with lengths of at least 1"
            )


def _urls_in(sets: Any) -> Iterator[str]:
    """Yield the URLs among ``sets``, which may be nested lists."""
    if isinstance(sets, str | os.PathLike):
        yield os.fspath(sets)
    elif isinstance(sets, Sequence) and not isinstance(sets, bytes):
        for each in sets:
            yield from _urls_in(each)


def _leaves(nested: Any, depth: int, place: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Yield each set and its place along each dimension."""
    if depth == 0:
        yield place, nested
        return
    if isinstance(nested, (str, bytes, Mapping)) or not isinstance(nested, Sequence):
        raise TypeError(
            f"for dims=, expected lists of sets, nested once for each dimension, got {reprlib.repr(nested)}"
        )
    for number, member in enumerate(nested):
        yield from _leaves(member, depth - 1, (*place, number))
