"""Write references as a parquet or a JSON set, or as chunk manifests, a partition at a time.

Memory does not grow with the number of references of a reference set; those of other sources are gathered first.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, BinaryIO, Final

from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import Row
from refshard_fs.core.compression import zstd
from refshard_fs.core.consolidated import in_step
from refshard_fs.core.edits import EditedKeySpace, unedited
from refshard_fs.core.format import OpenOptions
from refshard_fs.core.hierarchy import Hierarchy
from refshard_fs.core.keys import join
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Span
from refshard_fs.core.stats import bytes_text, count_text
from refshard_fs.errors import ManifestError
from refshard_fs.formats.chunk_manifest import manifest as manifest_writing
from refshard_fs.formats.chunk_manifest.view import root_with
from refshard_fs.formats.kerchunk_json import source as json_writing
from refshard_fs.formats.kerchunk_parquet import PARQUET
from refshard_fs.formats.kerchunk_parquet import writing as parquet_writing
from refshard_fs.formats.kerchunk_parquet.partition import require_pyarrow
from refshard_fs.formats.kerchunk_parquet.source import Layout, ParquetKeySpace, partition_name
from refshard_fs.formats.kerchunk_parquet.writing import ParquetStream
from refshard_fs.references.keyspace import FlatKeySpace
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.stream import FlatStream, ReferenceStream, Respell
from refshard_fs.references.values import resolver
from refshard_fs.security import policy
from refshard_fs.security.origins import MEMBER, Adoption, Origins
from refshard_fs.session.collect import Extras, collect, gather, walked
from refshard_fs.session.options import SetFormat, data_url_of
from refshard_fs.session.recognition import beneath, references_in, stored
from refshard_fs.session.session import Session
from refshard_fs.stores.document import Document
from refshard_fs.stores.objects import Objects

_PACKING: Final[dict[str, Callable[[BinaryIO], Any]]] = {
    "gz": lambda file: gzip.GzipFile(fileobj=file, mode="wb", mtime=0),
    "bz2": lambda file: bz2.BZ2File(file, "wb"),
    "xz": lambda file: lzma.LZMAFile(file, "wb"),  # noqa: SIM115  # the caller closes it
    **dict.fromkeys(("zst", "zstd"), lambda file: zstd().ZstdFile(file, "wb", level=3)),
}


@contextlib.contextmanager
def _compressing(url: str, file: BinaryIO) -> Iterator[BinaryIO]:
    """Give a file whose content goes to ``file``, compressed as the name at the end of ``url`` says, or as it is."""
    suffix = url.rpartition(".")[2].lower()
    if suffix in _PACKING:
        with _PACKING[suffix](file) as packed:
            yield packed
    else:
        yield file


_ROOT: Final = "zarr.json"
JSON_ROWS: Final = 10_000  # references that become JSON at a time
TOGETHER: Final = 16  # partitions that are written at a time
FEW: Final = 100  # partitions of an array, of which those without references are written too


def save(
    keyspace: KeySpace,
    session: Session,
    url: str,
    format: SetFormat,
    record_size: int,
    overwrite: bool,
    options: Mapping[str, Any],
    callback: Callback = DEFAULT_CALLBACK,
) -> str | None:
    """Write the references of ``keyspace``, URLs with the meaning that they have in ``session``, to ``url``.

    Returns in one line what was copied into an object beside the set, if anything was. Raises ManifestError, which
    names the key, where the format cannot hold a reference: then nothing is written. FileExistsError if a parquet set
    would go where something is already.
    """
    sink = Objects(url, options)
    spell = partial(respelling, session.options.open, session.options.source)
    whole, spelled = spell(), spell(None if format == "chunk-manifest" else url)
    adoption = Adoption(session.admission)  # what is written here is the user's own

    def respell(written: str | None) -> str | None:
        adoption.add(whole(written))
        return spelled(written)

    found = stored(unedited(keyspace))  # shards are left whole
    found = references_in(found) or found
    match beneath(found):
        case ParquetKeySpace(root=root) | Hierarchy(url=root) if sink.is_at(root):
            raise FileExistsError(f"{url} is where these references are read from: give another place, or commit()")
    folder = data_url_of(absolute(url), None)
    with contextlib.nullcontext() if folder is None else CopiesBeside(folder, options, callback) as copies:
        if isinstance(found, EditedKeySpace):
            for edit in found.edits.changes().values():
                if isinstance(edit, Span) and not edit.origin:
                    adoption.add_own(edit.url)
        stream = _stream_of(found, session, respell, copies, pins_as_extras=format == "chunk-manifest")
        times = 2 if format == "parquet" and stream.in_memory else 1  # once to see whether a parquet set can hold it
        callback.set_size(times * sum(grid.size for grid in stream.grids.values()))
        stream.tell = callback.relative_update

        def origins() -> Origins:  # of all that was gone through
            if copies is not None and copies.remark is not None:
                adoption.add_own(copies.url)
            return adoption.origins(stream.origins)

        match format:
            case "parquet":
                _save_parquet(stream, sink, record_size, overwrite, origins)
            case "json":
                save_json(stream, url, sink, origins)
            case "chunk-manifest":
                _save_manifests(stream, sink, overwrite, origins)
            case _:
                raise ValueError(f"format={format!r} is not known: there are 'parquet', 'json' and 'chunk-manifest'")
    return None if copies is None else copies.remark


def _stream_of(
    keyspace: KeySpace, session: Session, respell: Respell, copies: CopiesBeside | None, *, pins_as_extras: bool
) -> ReferenceStream:
    """Return the references of ``keyspace``; chunks that none can stand for go to ``copies`` if they are many.

    With ``pins_as_extras``, each reference has the pin of its target.
    """
    match keyspace:
        case EditedKeySpace():
            return FlatStream(collect(keyspace, session.run, respell), as_written, pins_as_extras=pins_as_extras)
        case FlatKeySpace(refs=refs):
            return FlatStream(refs, respell, pins_as_extras=pins_as_extras)
        case ParquetKeySpace():
            return ParquetStream(keyspace, respell, session.run)
    if copies is None:
        refs, extras = session.run("", partial(gather, keyspace))
    else:
        refs, extras = _gather_copying(keyspace, session, copies)

    def spelled(url: str | None) -> str | None:
        is_own = url is None or (copies is not None and url == copies.url)
        return url if is_own else respell(absolute(url or ""))

    return FlatStream(refs, spelled, extras, pins_as_extras=pins_as_extras)


def _gather_copying(keyspace: KeySpace, session: Session, copies: CopiesBeside) -> tuple[ReferenceSet, Extras]:
    """Return references to all keys of ``keyspace``, as `gather` does; more bytes than `INLINED` go to ``copies``."""
    walk = session.run("", partial(walked, keyspace))
    is_much = walk.too_much() is not None
    if is_much:
        copies.begin(len(walk.made))
        target = walk.urls.setdefault(copies.url, len(walk.urls))
    for batch in walk.batches():
        read = session.wait(session.read_entries, {made.key: made.entry for made in batch})
        for made, data in zip(batch, read, strict=True):
            walk.keep(made, Row(target, copies.add(data), len(data)) if is_much else data)
    copies.finish()
    return walk.found()


class CopiesBeside:
    """An object in ``folder`` with copies of chunks that are made from other bytes: no reference can say how.

    It is complete before the set that refers to it appears. Its name is new, so that readers of a set that is replaced
    keep theirs. It is removed if the set is not written. ``callback`` counts the chunks.
    """

    def __init__(self, folder: str, options: Mapping[str, Any], callback: Callback) -> None:
        self._folder = Objects(folder, options)
        self._name = uuid.uuid4().hex
        self.url = self._folder.url_of(self._name)
        self._callback = callback
        self._opened = contextlib.ExitStack()
        self._file: BinaryIO | None = None
        self._count = self._size = 0

    def begin(self, count: int) -> None:
        """Prepare for ``count`` chunks."""
        self._file = self._opened.enter_context(self._folder.stream(self._name))
        self._callback.set_size(count)

    def add(self, data: bytes) -> int:
        """Append the bytes of one more chunk; return where they begin."""
        assert self._file is not None, "begin() comes first"
        start = self._size
        self._file.write(data)
        self._count += 1
        self._size += len(data)
        self._callback.relative_update(1)
        return start

    def finish(self) -> None:
        """Put the object in its place."""
        self._opened.close()
        self._callback.absolute_update(0)  # writing the set counts from zero

    @property
    def remark(self) -> str | None:
        """What was copied, in one line; None where nothing was."""
        if self._file is None:
            return None
        what = f"{count_text(self._count, 'chunk')}, {bytes_text(self._size)}"
        return f"{what}, are in no form that zarr decodes, and were copied to {self.url}: keep it with the set"

    def __enter__(self) -> CopiesBeside:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._opened.__exit__(kind, error, trace)
        if kind is not None and self._file is not None:
            self._folder.remove(self._name)
            self._folder.tidy([self._name])


def respelling(options: OpenOptions, source: object, url: str | None = None) -> Respell:
    """Return how URLs of the set ``source`` (its URL, or what is held in memory) are spelled in a set at ``url``.

    As written, where that means the same there; else, or without ``url``, absolute.
    """
    resolve = resolver(options, policy.directory_of(source.rstrip("/")) if isinstance(source, str) else None)
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


def as_written(url: str | None) -> str | None:
    """Spell a URL as it is."""
    return url


def absolute(url: str) -> str:
    """Return a URL, or a path of this machine, as one that means the same from everywhere."""
    return url if policy.protocol_of(url) is not None else os.path.abspath(os.path.expanduser(url))


def _save_parquet(
    stream: ReferenceStream, sink: Objects, record_size: int, overwrite: bool, origins: Callable[[], Origins]
) -> None:
    if record_size < 1:
        raise ValueError(f"record_size={record_size}: a partition has at least one row")
    require_pyarrow()
    if stream.pins() is not None:
        raise ManifestError(
            "these references are pinned (size, ETag and time of their targets), which a parquet set cannot hold: save "
            "them as JSON or as chunk manifests, or give them up with unpinned()"
        )
    document = parquet_writing.layout_document(stream.documents(), record_size)  # ManifestError before any is written
    if stream.in_memory:
        for array, grid in stream.grids.items():
            for numbers, partition in stream.partitions(array, record_size):
                parquet_writing.parquet_partition(array, grid, numbers, partition, dry=True)
    with sink.directory(replaces=_is_to_replace(sink, overwrite)) as made:
        files: dict[str, bytes] = {}
        for array, grid in stream.grids.items():
            for numbers, partition in stream.partitions(array, record_size, FEW):
                data = parquet_writing.parquet_partition(array, grid, numbers, partition)
                files[partition_name(array, numbers.start // record_size)] = data
                if len(files) == TOGETHER:
                    made.put_all(files)
                    files = {}
        made.put_all(files)
        document = parquet_writing.with_origins(document, origins())
        made.put_all({PARQUET: document})  # last: without it, there is no set


def _is_to_replace(sink: Objects, overwrite: bool) -> bool:
    """Whether there is something already; FileExistsError unless it is a parquet set that is to be replaced."""
    names = sink.names()
    if not names:
        return False
    if not overwrite:
        raise FileExistsError(f"{sink.url} is not empty; overwrite=True replaces a parquet set")
    if PARQUET not in names:
        raise FileExistsError(f"{sink.url} is not empty, and no parquet set that could be replaced")
    try:
        Layout(sink.read([PARQUET])[PARQUET], f"{sink.url}/{PARQUET}")
    except ManifestError as e:
        raise FileExistsError(f"{sink.url} is not empty, and no parquet set that could be replaced: {e}") from e
    return True


def save_json(
    stream: ReferenceStream, url: str, sink: Objects | Document, origins: Callable[[], Origins] | None = None
) -> None:
    """Write version 1, the only one that every reader takes; version 0 where a URL would be taken for a template."""
    found = origins or (lambda: stream.origins)
    try:
        _write_json(stream, url, sink, 1, found)
    except json_writing.LooksLikeTemplate as e:
        if stream.pins() is not None:
            raise ManifestError(
                f"the URL {e} looks like a template, which JSON with pins cannot hold: save it as chunk manifests, or "
                "give the pins up with unpinned()"
            ) from e
        _write_json(stream, url, sink, 0, found)


def _write_json(
    stream: ReferenceStream, url: str, sink: Objects | Document, version: int, origins: Callable[[], Origins]
) -> None:
    start, end = json_writing.FRAMES[version]
    with sink.stream() as whole, _compressing(url, whole) as file:
        file.write(start)
        comma = b""
        others = in_step({key: value for key, value in stream.documents() if zarrmeta.is_metadata(key)})
        for key, value in stream.documents():
            value = others.get(key, value)
            file.write(comma + json_writing.member(key, value, version))
            comma = b","
        for array, grid in stream.grids.items():
            for numbers, partition in stream.partitions(array, JSON_ROWS):
                members = json_writing.chunk_members(array, grid, numbers, partition, version)
                if members:
                    file.write(comma + members)
                    comma = b","
        pins, found = stream.pins(), origins()
        ours = ({} if pins is None else {"pins": pins}) | ({MEMBER: found.spelled()} if found else {})
        if ours and not version:
            raise ManifestError(
                "a URL looks like a template, which JSON that says where its URLs came from cannot hold: save the set "
                "as parquet or as chunk manifests"
            )
        file.write(b'},"refshard":' + zarrmeta.dumps(ours) + b"}" if ours else end)


def manifest_of(stream: ReferenceStream, array: str) -> bytes:
    """Return the chunk manifest of an array."""
    members: list[str] = []
    for numbers, partition in stream.partitions(array, JSON_ROWS):
        members += manifest_writing.manifest_members(stream.grids[array], numbers, partition, array)
    return ("{" + ",\n".join(members) + "}\n").encode()


def _save_manifests(stream: ReferenceStream, sink: Objects, overwrite: bool, origins: Callable[[], Origins]) -> None:
    nodes = manifest_writing.hierarchy(stream.documents(), stream.grids)
    names = sink.names()
    if names and not (overwrite and _ROOT in names):
        raise FileExistsError(f"{sink.url} is not empty; overwrite=True replaces a hierarchy of zarr version 3")
    written: dict[str, bytes] = {}
    for array in stream.grids:
        written[join(array, manifest_writing.MANIFEST)] = manifest_of(stream, array)
    found = origins()
    nodes |= {array: manifest_writing.with_manifest(nodes[array], found) for array in stream.grids}
    with sink.directory(replaces=bool(names)) as made:
        made.put_all(written)
        made.put_all({join(path, _ROOT): zarrmeta.dumps(doc) for path, doc in nodes.items() if path})
        made.put_all({_ROOT: zarrmeta.dumps(root_with(nodes, [], [], []))})  # last: without it, there is no hierarchy
