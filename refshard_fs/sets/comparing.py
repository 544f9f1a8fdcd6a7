"""What sets have in common and refer to in different places, read so as to be compared: small arrays, and no others.

Each file of an archive has its own ``crs`` or ``lat_bnds``. They must be the same in all sets that are joined, and
where references differ only the bytes can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from refshard_fs.errors import RefShardError
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.keys import join
from refshard_fs.manifests.fitting import has_same_references
from refshard_fs.manifests.variables import Named, digest
from refshard_fs.sets.taking import is_sharded

__all__ = ["with_compared"]

SMALL: Final = 1 << 20  # bytes of an array in one set
TOGETHER: Final = 16  # sets that are read at a time


def with_compared(
    parts: Sequence[Named],
    opened: Callable[[int], RefShardFileSystem],
    dims: Sequence[str | None],
    same: frozenset[str],
    places: Sequence[Sequence[int]] | None = None,
) -> list[Named]:
    """Return ``parts`` with digests of what several have, refer to differently, and must have in common.

    These are the arrays, but for those in ``same``, that are not along all of ``dims``: parts at different ``places``
    along the others (by default all are in a row) have copies. ``opened`` gives the filesystem of a part, by number.
    What cannot be read is left out: then it cannot be compared.
    """
    places = [(number,) for number in range(len(parts))] if places is None else places
    wanted: dict[int, list[str]] = {}
    for path in dict.fromkeys(path for part in parts for path in part.variables):
        if path in same:
            continue
        holders = [number for number, part in enumerate(parts) if path in part.variables]
        along = parts[holders[0]].variables[path].dims
        own = [axis for axis, dim in enumerate(dims) if dim is not None and dim in along]
        first: dict[tuple[int, ...], Named] = {}
        if all(
            has_same_references(first.setdefault(tuple(places[number][axis] for axis in own), part), part, path)
            for number, part in ((number, parts[number]) for number in holders)
        ):
            continue
        if all(_is_small(parts[number], path) for number in holders):
            for number in holders:
                wanted.setdefault(number, []).append(path)

    def read(number: int) -> Named:
        part, paths = parts[number], wanted.get(number, [])
        return part._replace(digests=_digests(part, opened(number), paths)) if paths else part

    with ThreadPoolExecutor(TOGETHER if wanted else 1) as pool:
        return list(pool.map(read, range(len(parts))))


def _is_small(part: Named, path: str) -> bool:
    table = part.refs.tables.get(path)
    if table is None or is_sharded(part.variables[path]):
        return False
    lengths = [row.length for _, row in table.rows()] if len(table) <= SMALL else [None]
    return all(length is not None for length in lengths) and sum(filter(None, lengths)) <= SMALL


def _digests(part: Named, fs: RefShardFileSystem, paths: Sequence[str]) -> Mapping[str, Mapping[int, bytes]]:
    keys: dict[str, tuple[str, int]] = {}
    for path in paths:
        table = part.refs.tables[path]
        keys |= {join(path, table.grid.tail(number)): (path, number) for number in table.present().tolist()}
    try:
        data = fs.cat(list(keys), on_error="return")
    except RefShardError:
        return {}
    found: dict[str, dict[int, bytes]] = {path: {} for path in paths}
    for key, (path, number) in keys.items():
        match data[key]:
            case bytes(chunk):
                found.get(path, {})[number] = digest(chunk)
            case _:
                found.pop(path, None)
    return found
