"""Read and write kerchunk's JSON reference sets, versions 0 and 1. No I/O here.

Specification: "References specification" of fsspec/kerchunk. A set may be compressed. Its first bytes determine
the compression; the name of the file does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import Chunks
from refshard_fs.core.columns import NO_TARGET, WHOLE
from refshard_fs.core.compression import MAGIC, DamagedStream, Inflate
from refshard_fs.core.format import MANIFEST_BYTES, OpenOptions, Probe, check_size
from refshard_fs.core.keys import ChunkGrid, join
from refshard_fs.core.keyspace import KeySpace, make_tails
from refshard_fs.core.model import Load, Steps
from refshard_fs.errors import ManifestError, TargetNotAllowed, contains_credentials, redact
from refshard_fs.formats.kerchunk_json.blocks import Reader
from refshard_fs.formats.templates.templates import Templates, expand_gen
from refshard_fs.references import binary as compiled
from refshard_fs.references.builder import BATCH, ReferenceBuilder
from refshard_fs.references.keyspace import FlatKeySpace
from refshard_fs.references.pins import Pins
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.stream import check_representable, make_open_end_error
from refshard_fs.references.values import encode, make_resolver
from refshard_fs.security import policy
from refshard_fs.security.admission import Admission
from refshard_fs.security.origins import read_member

PIECE: Final = 1 << 23  # bytes: a set in memory is decoded in pieces of this size


class JsonIndex(msgspec.Struct, frozen=True):
    """Decode a reference set. ``where`` names it in errors."""

    where: str
    overrides: tuple[tuple[str, str], ...] = ()  # the user's templates, which replace templates of the set
    simple: bool = True  # expand templates without jinja2
    most: int = MANIFEST_BYTES  # the most bytes of the decompressed set

    def decode(self, data: bytes) -> ReferenceSet:
        decoder = self.make_decoder()
        view = memoryview(data)
        for start in range(0, len(view), PIECE):
            decoder.feed(view[start : start + PIECE])
        return decoder.finish()

    def make_decoder(self) -> Decoder:
        """Return a decoder that takes the bytes of the set in pieces, as they arrive."""
        return Decoder(self)

    def make_identity(self) -> bytes:
        return repr((compiled.VERSION, self.overrides, self.simple)).encode("utf-8", "surrogatepass")

    def pack(self, value: ReferenceSet) -> list[bytes | memoryview]:
        if contains_credentials(value.urls.data.tobytes()):
            raise ValueError("its URLs contain signatures or passwords, which are never written to the index cache")
        return compiled.pack(value)

    def unpack(self, data: memoryview) -> ReferenceSet:
        return compiled.unpack(data)


class Decoder:
    """Decode a reference set, which arrives in pieces, to columns."""

    def __init__(self, index: JsonIndex) -> None:
        self._index = index
        self._inflate: Inflate | None = None  # None: the compression is not known yet
        self._head = b""
        self._reader = Reader(index.where)
        self._size = 0  # bytes after decompression

    def feed(self, data: bytes | memoryview) -> None:
        """Decode the next bytes of the set. Raise ManifestError if they are damaged."""
        if self._inflate is None:
            self._head += data
            if len(self._head) < MAGIC:
                return
            self._inflate, data, self._head = Inflate(self._head), self._head, b""
        self._parse_pieces(self._inflate.feed(data))

    def finish(self) -> ReferenceSet:
        """Return the reference set, when all bytes were fed. Raise ManifestError if it is damaged."""
        if self._inflate is None:
            self._inflate = Inflate(self._head)
        self._parse_pieces(self._inflate.feed(self._head, is_last=True))
        # The reader holds the parsed members: release it, so that they do not stay in memory as long as this decoder.
        reader, self._reader = self._reader, Reader(self._index.where)
        reader.finish()
        return _make_reference_set(reader, self._index)

    def _parse_pieces(self, pieces: Iterator[bytes | memoryview]) -> None:
        """Parse decompressed bytes; ManifestError if they are damaged, or too many."""
        try:
            for piece in pieces:
                self._size += len(piece)
                check_size(self._size, self._index.most, self._index.where)
                self._reader.feed(piece)
        except DamagedStream as e:
            raise ManifestError(f"{self._index.where} is compressed and damaged: {e}") from e


def parse(data: bytes, where: str, overrides: Mapping[str, str], *, simple: bool = True) -> ReferenceSet:
    """Parse the reference set in ``data``. Raise ManifestError, which names ``where`` and the key, if it is damaged."""
    return JsonIndex(where, tuple(overrides.items()), simple).decode(data)


def parse_document(
    document: Mapping[str, Any], where: str, overrides: Mapping[str, str], *, simple: bool = True
) -> ReferenceSet:
    """Make a reference set of ``document``, a dict in the form of version 0 or 1. The dict is not changed."""
    reader = Reader(where)
    reader.add_members(document)
    return _make_reference_set(reader, JsonIndex(where, tuple(overrides.items()), simple))


def _make_reference_set(reader: Reader, index: JsonIndex) -> ReferenceSet:
    """Make a reference set of parsed members: check the version, expand templates and "gen", and read pins."""
    where, header = index.where, reader.header
    version = header.get("version")
    if version is None or isinstance(version, (str, list, dict)):
        found = 'no "version"' if version is None else f'the "version" {version!r:.40}'
        if reader.refs is not None:
            raise ManifestError(f'{where} has "refs" and {found}: expected "version": 1')
        match header.get("refshard"):
            case {"pins": _} | {"from": _}:
                raise ManifestError(f'{where} has pins or origins, and {found}: expected "version": 1')
        reader.top.add_members(header)
        return msgspec.structs.replace(reader.top.finish(), version=0)  # without templates: braces belong to URLs
    if version != 1 or isinstance(version, bool):
        raise ManifestError(f'{where} is of version {version!r}: expected 1, or no "version" in a set of version 0')
    templates, gen = header.get("templates") or {}, header.get("gen") or []
    if reader.refs is None and "refs" not in header and not gen and not reader.top.is_empty:
        raise ManifestError(f'{where} is of version 1, but its keys are outside of "refs": move them into "refs"')
    for name, part, kind, expected in (
        ("refs", header.get("refs", {}), Mapping, "an object"),
        ("templates", templates, Mapping, "an object"),
        ("gen", gen, list, "a list"),
    ):
        if not isinstance(part, kind):
            raise ManifestError(f"{name!r} of {where} is a {type(part).__name__}: expected {expected}")
    try:
        expander = Templates(templates, dict(index.overrides), simple=index.simple)
    except ManifestError as e:
        raise type(e)(f"{where}: {e}") from e
    builder = reader.refs or ReferenceBuilder(where)
    builder.expand(expander.expand)
    _add_generated(builder, gen, expander, where)
    refs = msgspec.structs.replace(builder.finish(), version=1)
    extension = header.get("refshard")
    match extension:
        case {"pins": pins}:
            refs = msgspec.structs.replace(refs, pins=Pins.read(pins, refs.urls, where))
    return msgspec.structs.replace(refs, origins=read_member(extension, where))


def _add_generated(builder: ReferenceBuilder, entries: list[object], templates: Templates, where: str) -> None:
    """Expand the ``entries`` of "gen", and add the references to ``builder``."""
    try:
        generated = iter(expand_gen(entries, templates))
        while batch := list(islice(generated, BATCH)):
            builder.add_members({k: [u] if size is None else [u, start or 0, size] for k, u, start, size in batch})
    except ManifestError as e:
        raise type(e)(f"{where}: {e}") from e


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a JSON reference set. Raise TargetNotAllowed if jinja2 would run templates of a set that is not trusted."""
    where = redact(probe.url)
    rule = Admission() if options.rule_of is None else options.rule_of(probe.url)
    if not options.simple_templates and not rule.trusts_source:
        raise TargetNotAllowed(
            probe.url,
            "with simple_templates=False, jinja2 would run the templates of this set, which is not trusted",
            "Add the set's own URL to allow= if you trust it, or leave simple_templates=False out",
        )
    index = JsonIndex(where, options.template_overrides, options.simple_templates, options.max_manifest_bytes)
    refs: ReferenceSet = yield Load(probe.document(options.max_manifest_bytes), index)
    return FlatKeySpace(refs, make_resolver(options, policy.directory_of(probe.url)), probe.url)


# The text before and after the members of a JSON set, by version.
FRAMES: Final = {0: (b"{", b"}"), 1: (b'{"version":1,"refs":{', b"}}")}


class LooksLikeTemplate(Exception):
    """A URL contains ``{{``, which readers of version 1 would expand as a template: write the set in version 0."""


def encode_member(key: str, value: Any, version: int) -> bytes:
    """Encode one member of a JSON set. ``value`` is a JSON object, a text, bytes, or a reference as a list."""
    match value:
        case [_, offset, None]:
            raise make_open_end_error(key, offset)
        case [url, *_]:
            _encode_url(url, version)
        case dict():
            value = zarrmeta.dumps(value).decode()
        case bytes():
            value = encode(value)
    return zarrmeta.dumps(key) + b":" + zarrmeta.dumps(value)


def encode_chunk_members(array: str, grid: ChunkGrid, numbers: range, partition: Chunks, version: int) -> bytes:
    """Encode the existing chunks of an array as members of a JSON set, with commas between them.

    ``partition`` has the references of the chunks ``numbers``.
    """
    check_representable(array, grid, numbers, partition)
    rows = partition.list_present()
    stem = zarrmeta.dumps(join(array, "x")).decode()[:-2]
    keys = make_tails(grid, np.array(rows, np.uint64) + np.uint64(numbers.start))
    urls = [_encode_url(url, version) for url in partition.urls]
    values = zip(*(column.tolist() for column in partition.ranges.take(rows)), strict=True)
    members = []
    for row, tail, (target, offset, length) in zip(rows, keys, values, strict=True):
        if target == NO_TARGET:
            members.append(f'{stem}{tail}":{zarrmeta.dumps(encode(partition.inline[row])).decode()}')
        elif length == WHOLE:
            members.append(f'{stem}{tail}":[{urls[target]}]')
        else:
            members.append(f'{stem}{tail}":[{urls[target]},{offset},{length}]')
    return ",".join(members).encode()


def _encode_url(url: str | None, version: int) -> str:
    """Encode a URL as JSON. Raise LooksLikeTemplate if readers of version 1 would expand it."""
    if version and url is not None and "{{" in url:
        raise LooksLikeTemplate(url)
    return zarrmeta.dumps(url).decode()
