"""Join many sources to one: a set of references, or a cube, which is joined when it is read."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from numbers import Real
from typing import Any, Final, Literal, get_args, overload

import msgspec
import numpy as np
from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from refshard_fs.cubes.choice import VERSION_3, Choice, check_mapping, list_names
from refshard_fs.cubes.document import ConcatDocument
from refshard_fs.errors import ManifestError
from refshard_fs.reading.read_ranges import ReadRanges
from refshard_fs.sets.arrange import Overlap
from refshard_fs.sets.chosen_names import check_chosen_names
from refshard_fs.sets.common_version import convert_to_common_version
from refshard_fs.sets.grid_join import find_dims
from refshard_fs.sets.inputs import Inputs, get_set_url, iter_urls
from refshard_fs.sets.join import find_and_join, join_sets
from refshard_fs.sets.lazy_set import LazySet
from refshard_fs.sets.made_set import MadeSet, make_set
from refshard_fs.sets.opened_set import is_open
from refshard_fs.sets.preprocess import Preprocess, get_import_path, read_selected
from refshard_fs.sets.remark import explain_document
from refshard_fs.sets.rounding import equalize_coordinates
from refshard_fs.sets.scanning import REMEMBERED, add_sources, choose_opening_options
from refshard_fs.sets.set_row import Rules
from refshard_fs.sets.sources import OnError, describe_error, read_sets, report_skipped
from refshard_fs.sets.variables import NamedSet
from refshard_fs.source.collect import UnreadArrays
from refshard_fs.source.normalizing import list_sources
from refshard_fs.source.options import prepare_keywords
from refshard_fs.tools.progress import show_progress

logger = logging.getLogger(__package__)
# The most sources of a cube whose first bytes are kept for its readers: `REMEMBERED` leaves 8 KiB for each of so many.
KEPT: Final = 4096

# "exact": all sources have the same variables along the joined dimension, and equal coordinates of other dimensions
Join = Literal["exact", "outer"]
Grid = Literal["regular", "rectilinear"]
CHOICES: Final = {
    "join": get_args(Join),
    "overlap": get_args(Overlap),
    "on_error": get_args(OnError),
    "grid": get_args(Grid),
}
IN_XARRAY: Final = {  # arguments of `xarray.open_mfdataset`, and the argument here
    "combine": "coordinates give the order; dim= or dims= keep the order of the list",
    "combine_attrs": "attributes are those of the first source; attrs= changes them",
    "compat": "variables must be equal; same= names those that are taken from the first source",
    "concat_dim": "give dim=, or dims= for nested lists",
    "data_vars": "variables with the dimension are joined; all others must be equal",
    "parallel": "executor= takes the workers",
}


@overload
def concat(
    sets: str | Sequence[Any], dim: str | None = None, *, lazy: Literal[False] = False, **arguments: Any
) -> MadeSet: ...
@overload
def concat(sets: str | Sequence[Any], dim: str | None = None, *, lazy: Literal[True], **arguments: Any) -> LazySet: ...
@overload
def concat(sets: str | Sequence[Any], dim: str | None = None, *, lazy: bool, **arguments: Any) -> MadeSet | LazySet: ...
def concat(
    sets: str | Sequence[Any],
    dim: str | None = None,
    *,
    dims: Sequence[str | None] | str | None = None,
    same: Iterable[str] | str = (),
    keep: Iterable[str] | str | None = None,
    drop: Iterable[str] | str = (),
    rename: Mapping[str, str] | None = None,
    attrs: Mapping[str, Mapping[str, Any]] | None = None,
    lazy: bool = False,
    sort: bool = False,
    overlap: Overlap = "error",
    join: Join = "exact",
    freq: str | float | None = None,
    grid: Grid = "regular",
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
    codecs, byte orders, types, texts, fill values, ``scale_factor`` and ``add_offset`` than the first source: chunks
    are recoded exactly when they are read. If a chunk cannot be recoded exactly, reading it raises an error with the
    reason. If ``scale_factor`` or ``add_offset`` differ, the array is shown as 64-bit floating-point numbers. If the
    length of a source is not a multiple of its chunks (months of 28 to 31 days), the array is shown in chunks of the
    length that most sources have.

    An array is joined if it has the dimension, by ``_ARRAY_DIMENSIONS`` or ``dimension_names``. If no source has the
    dimension, but each has a scalar coordinate of this name (GRIB2 files of one time each), the dimension is made from
    it, as in xarray. All other variables must be equal, or be named in ``same``. Attributes are those of the first
    source; attributes that tell what values mean (``units``, ``scale_factor``) must be equal. CF times of one calendar,
    and their bounds, are converted to the units of the first source, or to finer units if these cannot hold all times:
    no instant changes.

    Coordinates are read, compared by value, and kept in the result. Variables without the dimension are compared too,
    up to 1 MiB of each. No other chunks are read, with one exception: chunks that no reference can describe (of TIFF
    with a predictor, of GRIB2, of compressed tiles of FITS) are copied into a set of references, but not into a cube.

    Parameters
    ----------
    sets:
        Sources as `RefShardFileSystem` takes them (files, sets of references, hierarchies), or such filesystems. A
        pattern (``"s3://bucket/2024/*.nc"``) stands for all sources that match, in natural order (``day2`` before
        ``day10``). A pattern with fields (``"{member}/{time:%Y%m%d}.nc"``; numbers: ``{member:d}``) says where each
        source lies along the dimensions of these names; the sources need not have them.
    dim:
        The dimension. A cube finds it if neither ``dim`` nor ``dims`` is given.
    dims:
        Dimensions of nested lists, the outermost first: with ``("time", "x")``, ``sets`` is a list along ``time`` of
        lists along ``x``. None merges. `append` cannot extend such a cube.
    same:
        Variables without the dimension that are taken from the first source and not compared.
    keep, drop, rename, attrs:
        Select a part of each source before it is joined, as `RefShardFileSystem.select` does. Only this part is
        compared. A source may lack names that others have.
    lazy:
        Return a cube instead of a set of references.
    sort:
        Join sources in the order of their values along ``dim``. A source is divided if another source has values
        between its values.
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
        ``"hole"`` of missing chunks, where ``freq``, a pattern with fields or a table gives its place. A document keeps
        the reason, and `check` reports it.
    tolerance:
        The largest difference between coordinates that counts as rounding: such a coordinate is shown with the values
        of the first source.
    coords:
        Values of dimensions that the sources lack, for nested lists: ``{"member": ["r1", "r2"]}``.
    preprocess:
        A named function that is called with the filesystem of each source, and returns a part of it, such as
        ``source.select(assign={"time": ...})``. A document keeps what the function selected, and its name for
        information: opening a document neither imports nor calls it. `append` takes the same function. The workers of
        ``executor`` call it, and ``resume`` keeps what it chose until the source or the function changes.
    assets:
        The assets that are taken of STAC items; by default those with the role "data", or all if none has it.
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
        The sources cannot be joined. The error names the sources, the variable and what differs.
    TargetNotAllowed
        A source that is not your own points to a URL that it may not point to.
    """
    sets = list_sources(sets)
    _check_choices(join=join, overlap=overlap, on_error=on_error, grid=grid)
    _check_types(dim, coords, tolerance, executor)
    _check_combination(dim, dims, chunks, grid, options, lazy=lazy)
    finds_dims = lazy and dim is None and dims is None
    options = prepare_keywords(options, iter_urls(sets), concat)
    choice = Choice.of(drop, keep, rename, attrs)
    selecting = options if choice == Choice() else {**options, "select": _list_selections(options, choice)}
    rules = Rules(
        same=frozenset(list_names("same", same)),
        sort=sort,
        overlap=overlap,
        freq=freq,
        is_outer=join == "outer",
        is_rectilinear=grid == "rectilinear",
        chunks=_check_lengths("chunks", chunks),
        subchunks=_check_lengths("subchunks", subchunks),
        lazy=lazy,
        select=tuple(map(Choice.read, selecting.get("select") or ())),
    )
    order = None if finds_dims else (dim,) if dims is None else tuple([dims] if isinstance(dims, str) else dims)
    inputs = Inputs.find(sets, order, selecting, on_error=on_error, coords=coords, assets=assets)
    if inputs.grid is not None and not rules.is_outer:
        inputs.grid.check_whole()
    _check_dimensions(inputs, rules, on_error, finds_dims=finds_dims)
    if lazy:
        inputs = inputs._replace(sources=tuple(get_set_url(fo, selecting, "lazy=True") for fo in inputs.sources))
        # The URLs have their protocol.
        selecting = {name: value for name, value in selecting.items() if name != "target_protocol"}
    whole_sources = inputs.sources
    if choice != Choice():
        selected = [
            fo.select(keep=keep, drop=drop, rename=rename, attrs=attrs) if is_open(fo) else fo for fo in whole_sources
        ]
        inputs = inputs._replace(sources=tuple(selected))
    failed: dict[int, Exception] = {}
    ranges: ReadRanges | None = ReadRanges(REMEMBERED) if lazy and len(inputs.sources) <= KEPT else None
    unread = UnreadArrays(frozenset(filter(None, inputs.dims)), rules.same) if lazy else None
    with show_progress("concat", callback) as shown:
        shown.set_size(len(inputs.sources))
        count, errors = shown.relative_update, failed if on_error != "raise" else None
        if preprocess is None:
            read = read_sets(inputs.sources, selecting, count, errors, executor, resume, unread, ranges)
        else:
            read, own = read_selected(inputs.sources, selecting, preprocess, count, errors, executor, resume, unread)
            rules = msgspec.structs.replace(rules, own=own)
    lost = {str(inputs.sources[number]): describe_error(error) for number, error in failed.items()}
    if failed:
        inputs, rules = _leave_out(failed, inputs, read, rules, on_error)
    if choice != Choice():
        opened = [fo for number, fo in enumerate(whole_sources) if number not in failed]
        check_chosen_names(choice, read, opened, options)
    if preprocess is None:
        again = partial(_read_again, executor=executor, unread=unread)
        read, converted = convert_to_common_version(read, selecting, again)
        own = {read[number].fo: (VERSION_3,) for number in converted if isinstance(read[number].fo, str)}
        rules = msgspec.structs.replace(rules, own=own)
    _check_names(read, rules, inputs.dims)
    read, rounded = equalize_coordinates(read, tolerance)
    if rounded:
        logger.info("%s", rounded)
    joined = find_and_join(inputs, read, rules) if finds_dims else join_sets(inputs, read, rules)
    opened_with = choose_opening_options(inputs.sources, selecting)
    if selecting.get("allow") is not None:
        opened_with["allow"] = add_sources(selecting["allow"], inputs.sources)
    document = joined.document
    if not isinstance(document, ConcatDocument):
        return make_set(joined.whole.refs, opened_with)
    recorded = "" if preprocess is None else get_import_path(preprocess)
    data = msgspec.structs.replace(document, lost=lost, preprocess=recorded).dumps()
    remark = "; ".join(filter(None, [explain_document(joined.documents), rounded]))
    return LazySet(data, hashlib.sha256(data).hexdigest(), remark, document.summary, opened_with, ranges)


def _list_selections(options: Mapping[str, Any], choice: Choice) -> list[Mapping[str, Any]]:
    """Return the selections of each source: those in ``options``, then ``choice``, whose names a source may lack."""
    return [*(options.get("select") or ()), msgspec.structs.replace(choice, lenient=True).to_json()]


def _read_again(
    sets: Sequence[Any], options: Mapping[str, Any], *, executor: Executor | None, unread: UnreadArrays | None
) -> Sequence[NamedSet]:
    return read_sets(sets, options, lambda _: None, executor=executor, unread=unread)


def _leave_out(
    failed: Mapping[int, Exception], inputs: Inputs, read: Sequence[NamedSet], rules: Rules, on_error: OnError
) -> tuple[Inputs, Rules]:
    """Return the inputs without the ``failed`` ones, and the rules for them; warn of each failed input."""
    dims_of_sets = None
    if on_error == "hole" and inputs.grid is not None:
        dims_of_sets, rules = find_dims(read), msgspec.structs.replace(rules, is_outer=True)
    inputs = inputs.drop_failed(failed, dims_of_sets, is_outer=rules.is_outer)
    report_skipped(failed, any_left=bool(inputs.sources))
    return inputs, rules


def _check_combination(
    dim: str | None,
    dims: Sequence[str | None] | str | None,
    chunks: Mapping[str, int] | None,
    grid: Grid,
    options: Mapping[str, Any],
    *,
    lazy: bool,
) -> None:
    """Raise TypeError or ValueError for arguments that exclude each other, or that only xarray has."""
    if dims is not None and dim is not None:
        raise TypeError("expected dim= or dims=, got both: dims= is for nested lists")
    if chunks is not None and not lazy:
        raise ValueError("chunks= is for lazy=True: references cannot join chunks")
    if lazy and grid != "regular":
        raise TypeError("grid='rectilinear' keeps references as they are: leave lazy=True out")
    for name in options.keys() & IN_XARRAY.keys():
        raise TypeError(f"concat has no argument {name}=, as xarray.open_mfdataset has: {IN_XARRAY[name]}")


def _check_choices(**arguments: Any) -> None:
    """Raise ValueError if the value of an argument is not one of its `CHOICES`."""
    for name, value in arguments.items():
        if value not in CHOICES[name]:
            more = ". In place of 'inner', use 'outer' and select(sel=); of 'override', tolerance="
            more = more if name == "join" else ""
            raise ValueError(f"{name}={value!r}: expected {' or '.join(map(repr, CHOICES[name]))}{more}")


def _check_types(dim: Any, coords: Any, tolerance: Any, executor: Any) -> None:
    """Raise TypeError if an argument has another type than its description says."""
    if dim is not None and not isinstance(dim, str):
        raise TypeError(f"dim={dim!r:.200}: expected the name of one dimension; dims= takes several")
    if coords is not None and not isinstance(coords, Mapping):
        raise TypeError(f"coords={coords!r:.200}: expected values by dimension, such as {{'member': ['r1', 'r2']}}")
    if not isinstance(tolerance, Real):
        raise TypeError(
            f"tolerance={tolerance!r:.200}: expected a number, the largest difference that counts as rounding"
        )
    if executor is not None and not hasattr(executor, "submit"):
        raise TypeError(
            f"executor={executor!r:.200}: expected an executor of concurrent.futures, such as ThreadPoolExecutor(4), "
            "or client.get_executor() of dask"
        )


def _check_names(read: Sequence[NamedSet], rules: Rules, dims: Sequence[str | None]) -> None:
    """Raise ManifestError if an argument names a variable or a dimension that no set has or gets."""
    variables = {path: variable for part in read for path, variable in part.variables.items()}
    scalars = {path for path, variable in variables.items() if not variable.meta.shape}  # may become dimensions
    known = {dim for dim in find_dims(read) if dim is not None}
    for argument, names, kind, existing, others in (
        ("same", rules.same, "variables", variables.keys(), ()),
        ("chunks", rules.chunks, "dimensions", known, {*dims, *scalars}),
        ("subchunks", rules.subchunks, "dimensions", known, {*dims, *scalars}),
    ):
        unknown = sorted(set(names).difference(existing, others))
        if unknown and existing:
            raise ManifestError(
                f"{argument}= names {unknown[0]!r}, which no set has: the {kind} are {', '.join(sorted(existing))}"
            )


def _check_dimensions(inputs: Inputs, rules: Rules, on_error: OnError, *, finds_dims: bool) -> None:
    """Raise TypeError or ValueError if arguments need dimensions that the inputs lack."""
    dims = inputs.dims
    if rules.lazy and not finds_dims and None in dims:
        raise TypeError("lazy=True joins along dimensions that have names: give dim=, or dims=")
    if rules.freq is not None and dims[0] is None and not finds_dims:
        raise TypeError("freq= is the step between values of a dimension: give the dimension, dim=")
    orders = rules.sort or rules.overlap != "error" or (on_error != "raise" and inputs.grid is None)
    if len(dims) != 1 and not finds_dims and orders:
        raise TypeError("sort=, overlap= and on_error= need sets along one dimension: give dim=")
    if on_error == "hole" and inputs.grid is None and rules.freq is None:
        raise ValueError(
            "on_error='hole' shows missing chunks for a set that cannot be read, and needs its place along the "
            "dimension: expected freq=, a pattern with fields or a table"
        )


def _check_lengths(argument: str, lengths: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return ``lengths``; ValueError, which names the ``argument``, if one is not an integer of at least 1."""
    check_mapping(argument, lengths)
    for dim, length in (lengths or {}).items():
        if not isinstance(length, (int, np.integer)) or length < 1:
            raise ValueError(
                f"{argument}={{{dim!r}: {length!r}}}: expected {{dimension: length}}, with lengths of at least 1"
            )
    return lengths or {}
