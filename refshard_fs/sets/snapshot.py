"""Make references to all keys of a store, pinned to the present versions of its objects."""

from __future__ import annotations

from typing import Any, Literal

from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from refshard_fs.errors import UnknownSource
from refshard_fs.references.reference_set import adopt
from refshard_fs.sets.join_sources import join_if_many
from refshard_fs.sets.made_set import MadeSet, make_set
from refshard_fs.sets.opened_set import FileSystemLike, open_set
from refshard_fs.source.collect import pin
from refshard_fs.tools.progress import show_progress
from refshard_fs.writing.save import make_speller
from refshard_fs.writing.shards import make_stored_keyspace

INLINE = 1 << 16  # the most bytes of a metadata document that is kept in the set


def snapshot(
    fo: Any,
    *,
    shards: Literal["whole", "inner"] = "whole",
    inline_threshold: int = INLINE,
    callback: Callback = DEFAULT_CALLBACK,
    **options: Any,
) -> MadeSet:
    """Return a set of references to every key of ``fo`` as it is now, each pinned to size, ETag and time of its object.

    ``fo`` is the URL of a zarr hierarchy or of any other directory; or any source that `RefShardFileSystem` takes
    (``options`` are its further arguments), whose targets are pinned. Metadata of up to ``inline_threshold`` bytes are
    kept in the set. ``shards="inner"`` makes references to the inner chunks of sharded arrays, so that no index is read
    later, and other software reads them.

    Reading an object that was replaced since then raises TargetChanged; if it had an ETag, requests have the header
    If-Match. Directories are listed; over plain HTTP, the keys come from consolidated metadata, and a request for each
    key gets its version. JSON sets, pickles and chunk manifests keep the pins; an Icechunk repository keeps the ETag or
    the time of each. NotListable if the keys cannot be found. ``callback`` counts the objects.

    >>> import fsspec, refshard_fs
    >>> store = fsspec.filesystem("memory")
    >>> store.pipe({"/snapped/.zgroup": b'{"zarr_format": 2}', "/snapped/notes": b"first"})
    >>> now = refshard_fs.snapshot("memory://snapped")
    >>> fs = refshard_fs.RefShardFileSystem(now)
    >>> fs.cat_file("notes")
    b'first'
    >>> store.pipe("/snapped/notes", b"second")
    >>> refshard_fs.RefShardFileSystem(now, skip_instance_cache=True).cat_file("notes")
    Traceback (most recent call last):
    ...
    refshard_fs.errors.TargetChanged: 'notes' exists, but its bytes at memory://snapped/notes cannot be read: it is \
not the object that the manifest was made for: its size is 6 bytes, not 5; make the references again; `refshard check` \
names all replaced objects
    """
    if shards not in ("whole", "inner"):
        raise ValueError(f"shards={shards!r}: expected 'whole' or 'inner'")
    flatten = shards == "inner"
    try:
        opened = open_set(*join_if_many(fo, {**options, "shards": "whole"}))
        return _snapshot(opened, inline_threshold, callback, flatten=flatten)
    except UnknownSource:
        if not isinstance(fo, str) or "format" in options:
            raise
    opened = open_set(fo, {**options, "format": "zarr-hierarchy"})
    return _snapshot(opened, inline_threshold, callback, flatten=flatten)


def _snapshot(opened: FileSystemLike, threshold: int, callback: Callback, *, flatten: bool) -> MadeSet:
    """Pin all references of a set to the current versions of their targets."""
    source = opened.source
    shard_options = source.options.open.shard_options if flatten else None
    respell = make_speller(source.options.open, source.options.source)
    with show_progress("snapshot", callback) as shown:
        keys = make_stored_keyspace(source, opened.writer)
        refs = pin(keys, source.run, respell, threshold, shard_options, shown.relative_update)
    return make_set(adopt(refs, source.admission))
