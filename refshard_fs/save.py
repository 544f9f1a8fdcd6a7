"""Write references as a parquet or a JSON set, or as chunk manifests, a partition at a time.

Memory does not grow with the number of references of a reference set; those of other sources are gathered first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from refshard_fs import policy, zarrmeta
from refshard_fs.catalog import beneath
from refshard_fs.collecting import Run, collect
from refshard_fs.compressed import Compressed, Streamed
from refshard_fs.edited import EditedKeySpace
from refshard_fs.errors import ManifestError
from refshard_fs.formats import OpenOptions, SetFormat
from refshard_fs.keys import join
from refshard_fs.keyspace import KeySpace
from refshard_fs.manifests import manifest_writing, writing
from refshard_fs.manifests.flat import FlatKeySpace
from refshard_fs.manifests.gathered import gather
from refshard_fs.manifests.hierarchy import Hierarchy
from refshard_fs.manifests.kerchunk_parquet import Layout, ParquetKeySpace, partition_name
from refshard_fs.manifests.manifest_view import ManifestView
from refshard_fs.manifests.partition import Partition, require_pyarrow
from refshard_fs.manifests.recognised import PARQUET
from refshard_fs.manifests.reference_stream import FlatStream, ParquetStream, ReferenceStream, Respell
from refshard_fs.manifests.resolving import resolver
from refshard_fs.model import Steps
from refshard_fs.shards.view import ShardView
from refshard_fs.targets.sink import Sink

__all__ = ["respelling", "save", "save_json"]

_ROOT: Final = "zarr.json"
JSON_ROWS: Final = 10_000  # references that become JSON at a time
TOGETHER: Final = 16  # partitions that are written at a time
FEW: Final = 100  # partitions of an array, of which those without references are written too


def save(
    keyspace: KeySpace,
    run: Run,
    url: str,
    format: SetFormat,
    record_size: int,
    overwrite: bool,
    respell: Respell,
    options: Mapping[str, Any],
    callback: Callback = DEFAULT_CALLBACK,
) -> None:
    """Write the references of ``keyspace``, their URLs respelled, to ``url``; ``run`` meets what it takes to load them.

    Raises ManifestError, which names the key, where the format cannot hold a reference: then
    nothing is written. FileExistsError if a parquet set would go where something is already.
    """
    sink = Sink(url, options)
    stream: ReferenceStream
    each = format == "chunk-manifest"  # entry says for itself what its target was
    if isinstance(keyspace, EditedKeySpace) and not len(keyspace.edits):
        keyspace = keyspace.base
    match _to_save(keyspace):
        case EditedKeySpace(base=base):
            match beneath(base):
                case ParquetKeySpace(root=root) | Hierarchy(url=root) if sink.is_at(root):
                    raise FileExistsError(f"{url} is where these references are read from: commit() writes to it")
            refs = collect(keyspace, run, respell)
            stream = FlatStream(refs, lambda written: written, pins_as_extras=each)
        case FlatKeySpace(refs=refs):
            stream = FlatStream(refs, respell, pins_as_extras=each)
        case ParquetKeySpace(root=root) as lazy:
            if sink.is_at(root):
                raise FileExistsError(f"{url} is where these references are read from: give another place to write to")
            stream = ParquetStream(lazy, respell)
        case other:
            match beneath(other):
                case Hierarchy(url=root) if sink.is_at(root):
                    raise FileExistsError(
                        f"{url} is where these references are read from: give another place to write to"
                    )
            refs, extras = run("", partial(gather, other))
            stream = FlatStream(
                refs, lambda found: None if found is None else respell(absolute(found)), extras, pins_as_extras=each
            )
    stream = _Counted(stream, callback, 2 if format == "parquet" and stream.is_at_hand else 1)
    match format:
        case "parquet":
            _save_parquet(stream, run, sink, record_size, overwrite)
        case "json":
            save_json(stream, run, Compressed(url, sink))
        case "chunk-manifest":
            _save_manifests(stream, run, sink, overwrite)
        case _:
            raise ValueError(f"format={format!r} is not known: there are 'parquet', 'json' and 'chunk-manifest'")


def _to_save(keyspace: KeySpace) -> KeySpace:
    """Return what has the references: chunk manifests are heeded, shards left whole."""
    match keyspace:
        case ShardView(base=base):
            return _to_save(base)
        case ManifestView(maps_anything=False):
            found = beneath(keyspace)
            return found if isinstance(found, FlatKeySpace | ParquetKeySpace) else keyspace
    return keyspace


def respelling(options: OpenOptions, source: str | None, url: str | None) -> Respell:
    """Return how URLs of the set at ``source`` (None: in memory) are to be spelled in one at ``url``.

    As written, where that means the same there; else, or without ``url``, absolute.
    """
    resolve = resolver(options, None if source is None else policy.directory_of(source.rstrip("/")))
    directory = None if url is None else policy.directory_of(absolute(url).rstrip("/"))

    def respell(written: str | None) -> str | None:
        if written is None:
            written = options.target
        if written is None or policy.protocol_of(written) is not None:
            return written
        if options.bare_as_is and options.base_url is None:
            return written
        whole = absolute(resolve(written))
        return written if directory and policy.resolve(written, directory, None) == whole else whole

    return respell


def absolute(url: str) -> str:
    return url if policy.protocol_of(url) is not None else os.path.abspath(os.path.expanduser(url))


def _partitions(stream: ReferenceStream, run: Run, size: int, few: int) -> Iterator[tuple[str, range, Partition]]:
    """Yield array, chunk numbers and references; of arrays of up to ``few`` partitions, also those that are empty."""
    for array in stream.grids:
        yield from _of_array(stream, run, array, size, few)


def _of_array(
    stream: ReferenceStream, run: Run, array: str, size: int = JSON_ROWS, few: int = 0
) -> Iterator[tuple[str, range, Partition]]:
    grid = stream.grids[array]
    if grid.size <= few * size:
        ranges = [range(i, min(i + size, grid.size)) for i in range(0, grid.size, size)]
    else:
        ranges = run(array, partial(stream.ranges, array, size))
    for numbers in ranges:
        yield array, numbers, run(array, partial(stream.partition, array, numbers))


def _save_parquet(stream: ReferenceStream, run: Run, sink: Sink, record_size: int, overwrite: bool) -> None:
    if record_size < 1:
        raise ValueError(f"record_size={record_size}: a partition has at least one row")
    require_pyarrow()
    if stream.pins() is not None:
        raise ManifestError(
            "these references are pinned (size, ETag and time of their targets), which a parquet set cannot hold: save "
            "them as JSON or as chunk manifests, or give them up with unpinned()"
        )
    document = writing.layout_document(stream.documents(), record_size)
    if stream.is_at_hand:
        for array, numbers, partition in _partitions(stream, run, record_size, 0):
            writing.parquet_partition(array, stream.grids[array], numbers, partition, dry=True)
    _make_room(sink, overwrite)
    try:
        files: dict[str, bytes] = {}
        for array, numbers, partition in _partitions(stream, run, record_size, FEW):
            data = writing.parquet_partition(array, stream.grids[array], numbers, partition)
            files[partition_name(array, numbers.start // record_size)] = data
            if len(files) == TOGETHER:
                sink.put(files)
                files = {}
        sink.put(files)
        sink.put({PARQUET: document})  # last: without it, what lies there is no set
    except BaseException:
        sink.remove()
        raise


def _make_room(sink: Sink, overwrite: bool) -> None:
    """See that nothing is in the way; only another parquet set is ever removed."""
    names = sink.names()
    if not names:
        return
    if not overwrite:
        raise FileExistsError(f"{sink.path} is not empty; overwrite=True replaces a parquet set")
    if PARQUET not in names:
        raise FileExistsError(f"{sink.path} is not empty, and no parquet set that could be replaced")
    try:
        Layout(sink.read(PARQUET), f"{sink.path}/{PARQUET}")
    except ManifestError as e:
        raise FileExistsError(f"{sink.path} is not empty, and no parquet set that could be replaced: {e}") from e
    sink.remove()


class _Counted:
    """A stream that tells a callback how many chunks it has gone through, ``times`` over."""

    def __init__(self, stream: ReferenceStream, callback: Callback, times: int) -> None:
        self.grids, self.is_at_hand = stream.grids, stream.is_at_hand
        self.pins, self.documents, self.ranges = stream.pins, stream.documents, stream.ranges
        self._stream, self._callback = stream, callback
        callback.set_size(times * sum(grid.size for grid in stream.grids.values()))

    def partition(self, array: str, numbers: range) -> Steps[Partition]:
        found = yield from self._stream.partition(array, numbers)
        self._callback.relative_update(len(numbers))
        return found


def save_json(stream: ReferenceStream, run: Run, sink: Streamed) -> None:
    """Write version 1, the only one that every reader takes; version 0 where a URL would be taken for a template."""
    try:
        _write_json(stream, run, sink, 1)
    except writing.LooksLikeTemplate as e:
        if stream.pins() is not None:
            raise ManifestError(
                f"the URL {e} looks like a template, which JSON with pins cannot hold: save it as chunk manifests, or "
                "give the pins up with unpinned()"
            ) from e
        _write_json(stream, run, sink, 0)


def _write_json(stream: ReferenceStream, run: Run, sink: Streamed, version: int) -> None:
    start, end = writing.FRAMES[version]
    with sink.stream() as file:
        file.write(start)
        comma = b""
        for key, value in stream.documents():
            file.write(comma + writing.member(key, value, version))
            comma = b","
        for array, numbers, partition in _partitions(stream, run, JSON_ROWS, 0):
            members = writing.chunk_members(array, stream.grids[array], numbers, partition, version)
            if members:
                file.write(comma + members)
                comma = b","
        pins = stream.pins()
        if pins is not None:
            file.write(b'},"refshard":{"pins":' + zarrmeta.dumps(pins) + b"}}")
        else:
            file.write(end)


def _save_manifests(stream: ReferenceStream, run: Run, sink: Sink, overwrite: bool) -> None:
    nodes = manifest_writing.hierarchy(stream.documents(), stream.grids)
    names = sink.names()
    if names and not (overwrite and _ROOT in names):
        raise FileExistsError(f"{sink.path} is not empty; overwrite=True replaces a hierarchy of zarr version 3")
    written: dict[str, bytes] = {}
    for array, grid in stream.grids.items():
        members: list[str] = []
        for _, numbers, partition in _of_array(stream, run, array):
            members += manifest_writing.manifest_members(grid, numbers, partition, array)
        written[join(array, manifest_writing.MANIFEST)] = ("{" + ",\n".join(members) + "}\n").encode()
        nodes[array] = manifest_writing.with_manifest(nodes[array])
    if names:
        sink.remove()
    try:
        sink.put(written)
        sink.put({join(path, _ROOT): zarrmeta.dumps(doc) for path, doc in nodes.items() if path})
        members_of = {path: doc for path, doc in nodes.items() if path}
        root = nodes[""]
        if root["node_type"] == "group":
            inline = {"kind": "inline", "must_understand": False, "metadata": members_of}
            root = {**root, "consolidated_metadata": inline}
        sink.put({_ROOT: zarrmeta.dumps(root)})  # last: without it, what lies there is no hierarchy
    except BaseException:
        sink.remove()
        raise
