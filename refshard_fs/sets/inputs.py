"""The sources that are joined, and the place of each along the dimensions. No chunk is read here."""

from __future__ import annotations

import os
import reprlib
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from refshard_fs.errors import ManifestError
from refshard_fs.sets.expand import expand
from refshard_fs.sets.file_grid import FileGrid, list_some
from refshard_fs.sets.patterns import Pattern
from refshard_fs.sets.sources import OnError
from refshard_fs.sets.tables import convert_to_place, parse_placed_sources
from refshard_fs.source.in_memory_source import make_portable_source

Position = tuple[int, ...]  # the number of a set along each dimension


class Inputs(NamedTuple):
    """Sources, and the number of each along every dimension of ``dims``.

    ``grid`` is None unless a pattern with fields, a table or ``coords=`` gives the places.
    """

    dims: tuple[str | None, ...]
    positions: tuple[Position, ...]
    sources: tuple[Any, ...]
    grid: FileGrid | None = None

    @classmethod
    def find(
        cls,
        sets: Any,
        dims: tuple[str | None, ...] | None,
        options: Mapping[str, Any],
        *,
        on_error: OnError,
        coords: Mapping[str, Sequence[Any]] | None,
        assets: Sequence[str] | None,
    ) -> Inputs:
        """Return the sources among ``sets``, as `concat` takes them.

        ``dims`` are None if fields, columns or, later, values of coordinates give the dimensions. ValueError if there
        are no sources; ManifestError if two sources have the same place.
        """
        order = (None,) if dims is None else dims
        rows = parse_placed_sources(sets, assets) if coords is None else None
        if rows is not None and not rows[0][1]:  # a table of URLs alone
            sets, rows = [url for url, _ in rows], None
        if rows is not None:
            grid: FileGrid | None = _place_rows(rows, dims, assets)
        elif coords is None:
            grid = _find_grid(sets, dims, on_error, options)
        else:
            grid = _make_nested_grid(sets, order, coords)
        if grid is not None:
            leaves: Iterable[tuple[Position, Any]] = sorted(grid.files.items())
            order = tuple(grid.dims)
        else:
            leaves = list(_iter_leaves(expand(sets, options) if len(order) == 1 else sets, len(order)))
        if not leaves:
            raise ValueError(f"expected at least one source, got {sets!r}")
        positions, sources = zip(*leaves, strict=True)
        return cls(order, positions, sources, grid)

    def drop_failed(self, failed: Container[int], dims: Container[str | None] | None, *, is_outer: bool) -> Inputs:
        """Return the inputs without the sources whose numbers are in ``failed``.

        Places without any source are removed along ``dims``, or along all dimensions if None. Unless the join
        ``is_outer``, ManifestError names the places that lack a source.
        """
        opened = [number for number in range(len(self.sources)) if number not in failed]
        positions, grid = tuple(self.positions[n] for n in opened), self.grid
        if grid is not None and len(opened) < len(self.sources):
            grid = grid._replace(files={at: grid.files[at] for at in positions})
            if not is_outer:
                grid.check_whole()
            grid = grid.drop_empty(dims)
            positions = tuple(sorted(grid.files))
        return Inputs(self.dims, positions, tuple(self.sources[n] for n in opened), grid)


def _place_rows(
    rows: Sequence[tuple[str, Mapping[str, Any]]], order: Sequence[str | None] | None, assets: Sequence[str] | None
) -> FileGrid:
    """Return the grid of the files in a table; ``order`` names the columns that are dimensions, None all columns."""
    found = list(rows[0][1])
    dims = found if order is None or not any(order) else [str(dim) for dim in order]
    if not set(dims).issubset(found):
        raise ValueError(f"expected URLs with places along {dims}, got URLs with places along {found}")
    files = [(url, {dim: places[dim] for dim in dims}) for url, places in rows]
    try:
        return FileGrid.of(files, dims, assets)
    except ManifestError:  # as for a pattern: the coordinate in which files with the same place differ orders them
        if order is not None:
            raise
        return FileGrid.of(files, dims, assets, is_numbered=True)


def _find_grid(
    sets: Any, order: Sequence[str | None] | None, on_error: OnError, options: Mapping[str, Any]
) -> FileGrid | None:
    """Return the grid of files that a pattern with fields stands for; None for other ``sets``.

    ``order`` names the dimensions; None if the fields name them.
    """
    pattern = Pattern.of(os.fspath(sets), order) if isinstance(sets, str | os.PathLike) else None
    if pattern is None:
        return None
    dims = list(pattern.fields) if order is None else [str(dim) for dim in order]
    files = expand(pattern.glob, options)
    try:
        grid, others = FileGrid.by_names(pattern, files, dims)
    except ManifestError:  # several files have the same place: the coordinate in which they differ orders them
        if order is not None:
            raise
        grid, others = FileGrid.by_names(pattern, files, dims, is_numbered=True)
    if others and not grid.files:
        raise ManifestError(f"no file has a name like {pattern.text!r}: found {list_some(others)}")
    if others:
        misnamed = f"expected files with names like {pattern.text!r}, found {list_some(others)}"
        if on_error == "raise":
            raise ManifestError(f"{misnamed}: on_error='skip' leaves files with other names out")
        warnings.warn(f"{misnamed}: files with other names are left out", UserWarning, stacklevel=4)
    return grid


def _make_nested_grid(sets: Any, order: Sequence[str | None], coords: Mapping[str, Sequence[Any]]) -> FileGrid:
    """Return the grid of sets in nested lists; ``coords`` has the values of dimensions that the sets lack."""
    unknown = coords.keys() - set(order)
    if unknown:
        raise ValueError(f"coords= names {', '.join(sorted(unknown))}: expected dimensions of dims={list(order)}")
    dims = [str(dim) for dim in order]
    files = dict(_iter_leaves(sets, len(order)))
    if not files:
        raise ValueError(f"expected at least one source, got {sets!r}")
    places: dict[str, list[Any]] = {}
    for axis, dim in enumerate(dims):
        count = 1 + max(at[axis] for at in files)
        places[dim] = [convert_to_place(value, dim, "coords=") for value in coords.get(dim, range(count))]
        if len(places[dim]) != count:
            raise ValueError(
                f"coords={{{dim!r}: ...}} has {len(places[dim])} values: expected {count}, one for each list"
            )
    grid = FileGrid(dims, places, files)
    grid.check_whole()
    return grid


def get_set_url(fo: Any, options: Mapping[str, Any], owner: str) -> str:
    """Return the URL of the set ``fo``, as the document of a cube names it.

    TypeError, which names the document or argument ``owner``, if the set has no URL, or if options choose a version.
    """
    for name in ("branch", "tag", "snapshot", "as_of"):
        if options.get(name) is not None:
            raise TypeError(
                f"{owner}: the document of a cube names sets by URLs alone, without {name}={options[name]!r}: leave "
                f"{name}= out, or join without lazy=True"
            )
    is_path = isinstance(fo, str | os.PathLike)
    url = make_portable_source(os.fspath(fo), options.get("target_protocol"), None, True) if is_path else fo
    if isinstance(url, list | tuple):
        raise TypeError(
            f"nested lists need dims=, the names of their dimensions, the outermost first, got {reprlib.repr(fo)}"
        )
    if not isinstance(url, str):
        raise TypeError(
            f"each of several sources needs a URL or a path, got {reprlib.repr(fo)}: pass the path of a file in place "
            f"of the open file, or save a source in memory first ({owner} saves the URLs)"
        )
    return url


def iter_urls(sets: Any) -> Iterator[str]:
    """Yield the URLs among ``sets``, which may be nested lists."""
    if isinstance(sets, str | os.PathLike):
        yield os.fspath(sets)
    elif isinstance(sets, Sequence) and not isinstance(sets, bytes):
        for member in sets:
            yield from iter_urls(member)


def _iter_leaves(nested: Any, depth: int, position: Position = ()) -> Iterator[tuple[Position, Any]]:
    """Yield each set of ``nested`` lists, and its number in the list of each level."""
    if depth == 0:
        yield position, nested
        return
    if isinstance(nested, (str, bytes, Mapping)) or not isinstance(nested, Sequence):
        if depth == 1 and not position:
            raise TypeError(f"expected a pattern or a list of sets, got {reprlib.repr(nested)}")
        raise TypeError(
            f"for dims=, expected lists of sets, nested once for each dimension, got {reprlib.repr(nested)}"
        )
    for number, member in enumerate(nested):
        yield from _iter_leaves(member, depth - 1, (*position, number))
