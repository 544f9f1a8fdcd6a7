"""Which format a commit writes: that of the source, or the one in which a source is to be made."""

from __future__ import annotations

from typing import Final

from refshard_fs.catalog import beneath
from refshard_fs.errors import ReadOnlyError
from refshard_fs.formats import format_named
from refshard_fs.held import Held
from refshard_fs.keyspace import KeySpace
from refshard_fs.manifests.flat import FlatKeySpace
from refshard_fs.manifests.hierarchy import Hierarchy
from refshard_fs.manifests.kerchunk_parquet import ParquetKeySpace
from refshard_fs.manifests.manifest_view import ManifestView
from refshard_fs.overlay import Base
from refshard_fs.shards.view import ShardView
from refshard_fs.writes.options import READ_AS, WriteOptions

__all__ = ["HIERARCHY", "format_of", "manifests_of", "waits"]

HIERARCHY: Final = "zarr-hierarchy"


def format_of(source: str | Held, base: Base, options: WriteOptions) -> str:
    """Return the name of the source's format, or of that in which it is to be made."""
    found = beneath(base.keyspace)
    if _is_new(source, base):
        return _new_format(str(source), options.format)
    match found:
        case FlatKeySpace():
            return "kerchunk-json"
        case ParquetKeySpace():
            return "kerchunk-parquet"
        case Hierarchy():
            return HIERARCHY
    raise ReadOnlyError(
        f"{source} takes no writes, being neither a reference set nor a zarr hierarchy: fs.save(url) writes it, and "
        "what you have written, as a set of references"
    )


def _is_new(source: str | Held, base: Base) -> bool:
    """Whether there was nothing at the source's URL."""
    return base.facts is None and base.url == source and not isinstance(beneath(base.keyspace), Hierarchy)


def waits(source: str | Held, base: Base, options: WriteOptions) -> bool:
    """Whether values are kept until the commit, which has a place for them: that of a hierarchy without manifests."""
    view = manifests_of(base.keyspace)
    is_hierarchy = isinstance(beneath(base.keyspace), Hierarchy)
    if _is_new(source, base):
        is_hierarchy = _new_format(str(source), options.format) == HIERARCHY
    return is_hierarchy and not (view is not None and view.maps_anything)


def manifests_of(keyspace: KeySpace) -> ManifestView | None:
    """Return what heeds the chunk manifests of an opened source; None if nothing does."""
    while isinstance(keyspace, ShardView):
        keyspace = keyspace.base
    return keyspace if isinstance(keyspace, ManifestView) else None


_NAMES: Final = READ_AS | {name: name for name in READ_AS.values()} | {"chunk-manifest": "chunk-manifest"}


def _new_format(url: str, given: str | None) -> str:
    if given is None:
        return READ_AS[format_named(url)]
    if given not in _NAMES:
        raise ReadOnlyError(f"format={given!r} cannot be made: there are {', '.join(_NAMES)}")
    return _NAMES[given]
