"""Many reference sets as one, without copying a chunk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from refshard_fs.columns import ChunkTable
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.keys import join
from refshard_fs.manifests.chunk_values import dtype_of
from refshard_fs.manifests.concatenation import Named, Variable, concatenate, variables
from refshard_fs.manifests.reference_set import ReferenceSet
from refshard_fs.policy import LOCAL, protocol_of
from refshard_fs.sets.made import MadeSet, made
from refshard_fs.sets.rebasing import opened

__all__ = ["concat"]

TOGETHER: Final = 16  # sets that are opened at a time
LONGEST: Final = 1 << 20  # elements of a coordinate that is read and kept in the set


def concat(
    sets: Sequence[Any],
    dim: str | None = None,
    *,
    dims: Sequence[str | None] | None = None,
    same: Iterable[str] = (),
    callback: Callback = DEFAULT_CALLBACK,
    **options: Any,
) -> MadeSet:
    """Return one set of references: arrays along ``dim`` joined in the order of ``sets``, all others merged.

    ``sets`` are what `RefShardFileSystem` takes (``options`` are its further arguments), or such filesystems. With
    ``dims=("time", "x")`` they are nested lists, a list for each place along ``time`` of those along ``x``; a dimension
    of None merges. An array is along the dimensions that it names (``_ARRAY_DIMENSIONS``, ``dimension_names``). Types,
    codecs, chunks and the other lengths must be the same, and lengths multiples of the chunks, but in the last set.
    Variables without the dimension must be equal, or named in ``same``: then they are the first set's. Coordinates
    (arrays of their dimension's name) are read, compared by value and kept inline; no other chunk is read. Attributes
    are the first set's; those that say what values mean (``units``, ``scale_factor``, ...) must be equal.

    Raises ManifestError, which names the sets, the variable and the field, where they do not fit. ``callback`` counts
    the sets that are opened.

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
    leaves = list(_leaves(sets, len(order)))
    if not leaves:
        raise ValueError("there are no sets to concatenate")
    callback.set_size(len(leaves))

    def read(numbered: tuple[int, Any]) -> Named:
        number, fo = numbered
        name = f"set {number} ({fo})" if isinstance(fo, str) else f"set {number}"
        part = _read(opened(fo, options), name)
        callback.relative_update(1)
        return part

    # Threads help to wait for the network; what is at hand takes the interpreter, which has one at a time.
    far = any(isinstance(fo, str) and protocol_of(fo) not in (None, *LOCAL) for fo in leaves)
    with ThreadPoolExecutor(TOGETHER if far else 1) as pool:
        parts = iter(list(pool.map(read, enumerate(leaves))))
    unchecked = frozenset(same)

    def joined(nested: Any, depth: int) -> Named:
        if depth == len(order):
            return next(parts)
        found = [joined(member, depth + 1) for member in nested]
        if len(found) == 1:
            return found[0]
        name = f"{found[0].name} to {found[-1].name}"
        refs = concatenate(found, order[depth], unchecked)
        return Named(name, refs, variables(refs, name))

    return made(joined(sets, 0).refs)


def _leaves(nested: Any, depth: int) -> Iterable[Any]:
    if depth == 0:
        yield nested
        return
    if isinstance(nested, (str, bytes, Mapping)) or not isinstance(nested, Sequence):
        raise TypeError(f"sets are nested as many times as there are dimensions: {nested!r} is no list of them")
    for member in nested:
        yield from _leaves(member, depth - 1)


def _read(fs: RefShardFileSystem, name: str) -> Named:
    refs = fs.collect()
    found = variables(refs, name)
    tables, side = dict(refs.tables), dict(refs.side)
    for variable in found.values():
        path = variable.path
        if variable.is_coordinate and path in tables and len(tables[path]) and _is_small(variable):
            grid = tables[path].grid
            keys = [join(path, grid.tail(number)) for number in tables[path].present().tolist()]
            side.update(_chunks(fs, keys))
            tables[path] = ChunkTable.from_parts(grid, [])
    return Named(name, ReferenceSet(refs.urls, tables, side), found)


def _chunks(fs: RefShardFileSystem, keys: list[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = fs.cat(keys)
    return found


def _is_small(variable: Variable) -> bool:
    meta = variable.meta
    return meta.shape[0] <= LONGEST and dtype_of(meta) is not None and not _is_sharded(variable)


def _is_sharded(variable: Variable) -> bool:
    codecs = variable.meta.raw.get("codecs") or ()
    return "shards" in variable.meta.raw or any(
        isinstance(codec, Mapping) and codec.get("name") == "sharding_indexed" for codec in codecs
    )
