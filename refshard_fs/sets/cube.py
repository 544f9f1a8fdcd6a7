"""Open many files, by a pattern, a list or a table, as one source."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from refshard_fs.core.model import Load, Raw, Span, Stat, Steps
from refshard_fs.sets.concat import concat
from refshard_fs.sets.lazy_set import LazySet
from refshard_fs.sets.opened_set import open_set
from refshard_fs.sets.scanning import choose_reading_options
from refshard_fs.sets.tables import adopt_rows, move_credentials, read_parquet_table
from refshard_fs.source.in_memory_source import make_portable_source
from refshard_fs.source.normalizing import TABLES, is_many_sources, list_sources, parse_options
from refshard_fs.source.options import prepare_keywords
from refshard_fs.source.source import Source


def open(  # shadows the built-in, like zarr.open and fsspec.open
    sources: Any,
    dim: str | None = None,
    *,
    isel: Mapping[str, int | slice] | None = None,
    sel: Mapping[str, Any] | None = None,
    squeeze: Iterable[str] | str | bool = (),
    assign: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> LazySet:
    """Open many files as one source, a cube: `concat` with ``lazy=True``, which finds the dimension of the join.

    xarray, zarr and fsspec open the cube (``xr.open_dataset(cube, engine="refshard")``). `LazySet.select` shows a part
    of it. `LazySet.save` writes it as a small document, which this function opens again.

    Parameters
    ----------
    sources:
        A pattern (``"s3://bucket/2024/*.nc"``), one with fields that name dimensions
        (``"{member}/tas_{time:%Y%m}.nc"``), a list of URLs, or a table that says where each lies: pairs
        ``(url, {"time": ..., "band": ...})``, a DataFrame with a column ``url`` and one for each dimension (if it has
        further columns, ``dims`` names the dimensions; without other columns, it is a list of URLs), items of
        STAC (pystac's, or JSON), whose dimensions are ``time`` and, if they have several assets, ``asset``; or the path
        of a Parquet file with such a table or such items. A saved document is opened as it is. A table or a document
        from elsewhere may only name sources on its own server or bucket, and those that ``options`` or ``allow`` name.
    dim:
        The dimension. By default it is the dimension whose coordinate differs from file to file, or several, if files
        form a grid along them; else a scalar coordinate that differs, such as the time of a file with one time; else a
        dimension without a coordinate whose length differs, or that is unlimited. Of a single file, it is the dimension
        of its times; else its unlimited one; else any of its dimensions. Sets are joined in the order of their values.
        A field that only distinguishes files (``{year}``, if ``time`` differs) makes no dimension, and may be ``*``, or
        be left out of a table.
    isel, sel, squeeze, assign:
        The part of the cube that is shown, as in `RefShardFileSystem.select`.
    arguments:
        Other arguments of `concat`, such as ``keep``, ``drop``, ``rename``, ``attrs``, ``join``, ``freq``, ``overlap``,
        ``chunks``, ``on_error``, ``executor``, ``resume``, or ``assets``, the names of assets of STAC to take; and
        arguments of `RefShardFileSystem`.

    Raises
    ------
    ManifestError
        No dimension is found, or more than one fits: the error names the choices. Or files do not fit together: it
        names them, the variable and the field.
    TargetNotAllowed
        A table or a document from elsewhere names a source that it may not name.

    Examples
    --------
    >>> import tempfile, xarray, refshard_fs
    >>> folder = tempfile.mkdtemp()
    >>> for day in range(3):
    ...     ds = xarray.Dataset({"sst": ("day", [20.0 + day])}, {"day": [day]})
    ...     ds.to_netcdf(f"{folder}/{day}.nc", engine="h5netcdf")
    >>> cube = refshard_fs.open(f"{folder}/*.nc")
    >>> xarray.open_dataset(cube, engine="refshard")["sst"].values
    array([20., 21., 22.])

    """
    sources = list_sources(sources)
    words = {"isel": isel, "sel": sel, "squeeze": squeeze, "assign": assign}
    if isinstance(sources, str | PurePath) and not is_many_sources(sources):
        options = {name: value for name, value in arguments.items() if name not in _OF_CONCAT}
        options = prepare_keywords(options, [os.fspath(sources)], open)
        dims = arguments.get("dims") or (None if dim is None else (dim,))
        rows = _read_table(os.fspath(sources), options, dims, arguments.get("assets"))
        saved = None if rows is not None else LazySet.of(open_set(sources, options))
        if saved is not None:
            return _open_part(saved, words | {name: arguments[name] for name in _OF_PARTS if name in arguments})
        if rows is not None:
            of_concat = {name: value for name, value in arguments.items() if name in _OF_CONCAT}
            arguments = of_concat | move_credentials([url for url, _ in rows], os.fspath(sources), options)
            sources = rows
    return _open_part(concat(sources, dim, lazy=True, **arguments), words)


cube = open  # for programs that use the built-in `open`, too

_OF_CONCAT = inspect.signature(concat).parameters.keys() - {"options"}
_OF_PARTS = ("keep", "drop", "rename", "attrs")


def _open_part(made: LazySet, words: Mapping[str, Any]) -> LazySet:
    given = {name: value for name, value in words.items() if value}
    return made.select(**given) if given else made


def _read_table(
    url: str, options: Mapping[str, Any], dims: Iterable[str] | None, assets: Sequence[str] | None
) -> list[Any] | None:
    """Return the sources that a Parquet file lists, with their places; None if there is no Parquet file at ``url``.

    TargetNotAllowed if the file is not the user's own, and names a URL that the user may not take over.
    """
    if not url.endswith(TABLES):
        return None
    place = str(make_portable_source(url, options.get("target_protocol"), None, True))
    reading = Source.of(parse_options({}, choose_reading_options([place], options)))
    data: bytes = reading.run("", lambda: _read_file(place))
    if not data:
        return None
    rows = read_parquet_table(data, url, None if dims is None else list(dims))
    return adopt_rows(rows, place, Source.of(parse_options(place, options)).admission, assets)


def _read_file(url: str) -> Steps[bytes]:
    """Return the bytes of a Parquet file; empty if nothing exists at ``url``, or another kind of file."""
    facts = yield Stat(url)
    start = b"" if facts is None else (yield Load(Span(url, 0, min(facts.size, 4)), Raw()))
    data: bytes = (yield Load(Span(url, 0, facts.size), Raw())) if start == b"PAR1" else b""
    return data
