"""Many reference sets as one, without copying a chunk."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, overload

from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from refshard_fs.sets.compatibility import with_digests
from refshard_fs.sets.concatenation import concatenate
from refshard_fs.sets.lazy import LazySet, concat_lazily
from refshard_fs.sets.made_set import MadeSet, made, opened
from refshard_fs.sets.sources import read_sets
from refshard_fs.sets.variables import Named

__all__ = ["concat"]


@overload
def concat(
    sets: Sequence[Any],
    dim: str | None = None,
    *,
    dims: Sequence[str | None] | None = None,
    same: Iterable[str] = (),
    lazy: Literal[False] = False,
    callback: Callback = DEFAULT_CALLBACK,
    **options: Any,
) -> MadeSet: ...
@overload
def concat(
    sets: Sequence[Any],
    dim: str,
    *,
    same: Iterable[str] = (),
    lazy: Literal[True],
    callback: Callback = DEFAULT_CALLBACK,
    **options: Any,
) -> LazySet: ...
def concat(
    sets: Sequence[Any],
    dim: str | None = None,
    *,
    dims: Sequence[str | None] | None = None,
    same: Iterable[str] = (),
    lazy: bool = False,
    callback: Callback = DEFAULT_CALLBACK,
    **options: Any,
) -> MadeSet | LazySet:
    """Return one set of references: arrays along ``dim`` joined in the order of ``sets``, all others merged.

    ``sets`` are what `RefShardFileSystem` takes (``options`` are its further arguments), or such filesystems. With
    ``dims=("time", "x")`` they are nested lists, a list for each place along ``time`` of those along ``x``; a dimension
    of None merges. An array is along the dimensions that it names (``_ARRAY_DIMENSIONS``, ``dimension_names``). Types,
    codecs, chunks and the other lengths must be the same, and lengths multiples of the chunks, but in the last set.
    Variables without the dimension must be equal, or named in ``same``: then they are the first set's. Coordinates
    (arrays of their dimension's name) are read, compared by value and kept inline. Of a variable that is not
    along all dimensions, and for which sets refer to different places, up to 1 MiB are read to be compared; no other
    chunk is.
    Attributes are the first set's; those that say what values mean (``units``, ``scale_factor``, ...) must be equal,
    but for coordinates of CF times: these become numbers of the first set's units where whole numbers stay whole.

    With ``lazy`` the result is a small document that names its parts, which are URLs then, with their lengths and the
    values of the coordinate ``dim``: parts are opened when chunks of theirs are read. All are looked at once, now.

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
    found = list(_leaves(sets, len(order)))
    if not found:
        raise ValueError("there are no sets to concatenate")
    places, leaves = zip(*found, strict=True)
    callback.set_size(len(leaves))

    unchecked = frozenset(same)
    if lazy:
        if len(order) != 1 or dim is None:
            raise TypeError("lazy=True joins along one dimension, dim=: a part may be such a document itself")
        return concat_lazily(leaves, dim, unchecked, options, callback.relative_update)
    read = read_sets(leaves, options, callback.relative_update)
    parts = iter(with_digests(read, lambda number: opened(leaves[number], options), order, unchecked, places))

    def joined(nested: Any, depth: int) -> Named:
        if depth == len(order):
            return next(parts)
        found = [joined(member, depth + 1) for member in nested]
        return found[0] if len(found) == 1 else concatenate(found, order[depth], unchecked)

    return made(joined(sets, 0).refs)


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
