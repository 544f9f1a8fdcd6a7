"""Kerchunk's JSON reference sets, versions 0 and 1, read into columns. No I/O here.

Spec: "References specification" of fsspec/kerchunk. Bytes may be compressed; what with is
told by their first bytes, whatever the name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import Chunks
from refshard_fs.core.columns import ABSENT, WHOLE
from refshard_fs.core.compression import MAGIC, DamagedStream, Inflate
from refshard_fs.core.format import MANIFEST_BYTES, OpenOptions, Probe, check_size
from refshard_fs.core.keys import ChunkGrid, join
from refshard_fs.core.keyspace import KeySpace, tails
from refshard_fs.core.model import Load, Steps
from refshard_fs.errors import ManifestError, TargetNotAllowed, gives_access, redact
from refshard_fs.formats.kerchunk_json.blocks import Reader
from refshard_fs.formats.templates.templates import Templates, expand_gen
from refshard_fs.references import binary as compiled
from refshard_fs.references.builder import BATCH, ReferenceBuilder
from refshard_fs.references.keyspace import FlatKeySpace
from refshard_fs.references.pins import Pins
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.stream import check_representable, open_end
from refshard_fs.references.values import resolver, spelled
from refshard_fs.security import policy
from refshard_fs.security.admission import Admission
from refshard_fs.security.origins import read_member

PIECE: Final = 1 << 23  # bytes that are decoded at a time


class JsonIndex(msgspec.Struct, frozen=True):
    """Decodes a reference set's bytes; ``where`` names it in errors."""

    where: str
    overrides: tuple[tuple[str, str], ...] = ()
    simple: bool = True
    most: int = MANIFEST_BYTES  # that it may have, decompressed

    def decode(self, data: bytes) -> ReferenceSet:
        decoder = self.decoder()
        view = memoryview(data)
        for start in range(0, len(view), PIECE):
            decoder.feed(view[start : start + PIECE])
        return decoder.finish()

    def decoder(self) -> Decoder:
        """Return what decodes the same bytes as they come."""
        return Decoder(self)

    def identity(self) -> bytes:
        return repr((compiled.VERSION, self.overrides, self.simple)).encode("utf-8", "surrogatepass")

    def pack(self, value: ReferenceSet) -> list[bytes | memoryview]:
        if gives_access(value.urls.data.tobytes()):
            raise ValueError("its URLs hold signatures or passwords, which are not to be kept in a file")
        return compiled.pack(value)

    def unpack(self, data: memoryview) -> ReferenceSet:
        return compiled.unpack(data)


class Decoder:
    """Reads one reference set as its bytes come; nothing is kept of them but columns."""

    def __init__(self, index: JsonIndex) -> None:
        self._index = index
        self._inflate: Inflate | None = None  # None: not known yet
        self._head = b""
        self._reader = Reader(index.where)
        self._taken = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Read on in ``data``; ManifestError if that cannot be."""
        if self._inflate is None:
            self._head += data
            if len(self._head) < MAGIC:
                return
            self._inflate, data, self._head = Inflate(self._head), self._head, b""
        self._take(self._inflate.feed(data))

    def finish(self) -> ReferenceSet:
        """Return the reference set; ManifestError if it is none."""
        if self._inflate is None:
            self._inflate = Inflate(self._head)
        self._take(self._inflate.feed(self._head, is_last=True))
        # What was read lies in it as well: nobody who still has the decoder shall keep that in memory.
        reader, self._reader = self._reader, Reader(self._index.where)
        reader.finish()
        return _reference_set(reader, self._index)

    def _take(self, pieces: Iterator[bytes | memoryview]) -> None:
        try:
            for piece in pieces:
                self._taken += len(piece)
                check_size(self._taken, self._index.most, self._index.where)
                self._reader.feed(piece)
        except DamagedStream as e:
            raise ManifestError(f"{self._index.where} is compressed and damaged: {e}") from e


def parse(data: bytes, where: str, overrides: Mapping[str, str], *, simple: bool = True) -> ReferenceSet:
    """Return the reference set in ``data``; ManifestError naming ``where`` and the key if it is none."""
    return JsonIndex(where, tuple(overrides.items()), simple).decode(data)


def parse_document(
    document: Mapping[str, Any], where: str, overrides: Mapping[str, str], *, simple: bool = True
) -> ReferenceSet:
    """Return the reference set that ``document`` (of either version) spells; it is not changed."""
    reader = Reader(where)
    reader.take(document)
    return _reference_set(reader, JsonIndex(where, tuple(overrides.items()), simple))


def _reference_set(reader: Reader, index: JsonIndex) -> ReferenceSet:
    where, header = index.where, reader.header
    version = header.get("version")
    if version is None or isinstance(version, (str, list, dict)):
        if reader.refs is not None:
            raise ManifestError(f'{where} has "refs" and no "version": add "version": 1 to it')
        match header.get("refshard"):
            case {"pins": _} | {"from": _}:
                raise ManifestError(f'{where} has pins, or origins, and no "version": only version 1 can have them')
        reader.top.add_members(header)
        return msgspec.structs.replace(reader.top.finish(), version=0)  # it has no templates: braces are the URL's own
    if version != 1 or isinstance(version, bool):
        raise ManifestError(f"{where} is of version {version!r}; versions 0 and 1 are known")
    templates, gen = header.get("templates") or {}, header.get("gen") or []
    if reader.refs is None and "refs" not in header and not gen and not reader.top.is_empty:
        raise ManifestError(f'{where} is of version 1, and has its keys outside of "refs"')
    for name, part, kind in (
        ("refs", header.get("refs", {}), Mapping),
        ("templates", templates, Mapping),
        ("gen", gen, list),
    ):
        if not isinstance(part, kind):
            raise ManifestError(f"{name!r} of {where} is a {type(part).__name__}, no {kind.__name__.lower()}")
    try:
        known = Templates(templates, dict(index.overrides), simple=index.simple)
    except ManifestError as e:
        raise type(e)(f"{where}: {e}") from e
    builder = reader.refs or ReferenceBuilder(where)
    builder.expand(known.expand)
    _generate(builder, gen, known, where)
    refs = msgspec.structs.replace(builder.finish(), version=1)
    ours = header.get("refshard")
    match ours:
        case {"pins": pins}:
            refs = msgspec.structs.replace(refs, pins=Pins.read(pins, refs.urls, where))
    return msgspec.structs.replace(refs, origins=read_member(ours, where))


def _generate(builder: ReferenceBuilder, entries: list[object], templates: Templates, where: str) -> None:
    """Add the references that the entries of "gen" stand for."""
    try:
        generated = iter(expand_gen(entries, templates))
        while batch := list(islice(generated, BATCH)):
            builder.add_members({k: [u] if size is None else [u, start or 0, size] for k, u, start, size in batch})
    except ManifestError as e:
        raise type(e)(f"{where}: {e}") from e


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a JSON reference set."""
    where = redact(probe.url)
    rule = Admission() if options.rule_of is None else options.rule_of(probe.url)
    if not options.simple_templates and not rule.trusts_source:
        raise TargetNotAllowed(
            probe.url,
            "simple_templates=False has jinja2 run the templates of this set, which lies elsewhere",
            "Add the set's own URL to allow= if you trust it, or leave simple_templates=False out",
        )
    index = JsonIndex(where, options.template_overrides, options.simple_templates, options.max_manifest_bytes)
    refs: ReferenceSet = yield Load(probe.document(options.max_manifest_bytes), index)
    return FlatKeySpace(refs, resolver(options, policy.directory_of(probe.url)), probe.url)


# ----------------------------------------------------------------------------------------------------
# References as the bytes of a JSON set, piece by piece. No I/O here.


# What goes around the members of a JSON set, by its version.
FRAMES: Final = {0: (b"{", b"}"), 1: (b'{"version":1,"refs":{', b"}}")}


class LooksLikeTemplate(Exception):
    """A URL holds what version 1 of JSON sets expands: the set has to be of version 0."""


def member(key: str, value: Any, version: int) -> bytes:
    """Return one member of a JSON set; ``value`` is an object, text, data or a list."""
    match value:
        case [_, offset, None]:
            raise open_end(key, offset)
        case [url, *_]:
            _url(url, version)
        case dict():
            value = zarrmeta.dumps(value).decode()
        case bytes():
            value = spelled(value)
    return zarrmeta.dumps(key) + b":" + zarrmeta.dumps(value)


def chunk_members(array: str, grid: ChunkGrid, numbers: range, partition: Chunks, version: int) -> bytes:
    """Return the members of a JSON set for all chunks in ``partition``, which are among ``numbers``."""
    check_representable(array, grid, numbers, partition)
    rows = partition.present()
    stem = zarrmeta.dumps(join(array, "x")).decode()[:-2]
    keys = tails(grid, np.array(rows, np.uint64) + np.uint64(numbers.start))
    urls = [_url(url, version) for url in partition.urls]
    values = zip(*(column.tolist() for column in partition.ranges.take(rows)), strict=True)
    out = []
    for row, tail, (target, offset, length) in zip(rows, keys, values, strict=True):
        if target == ABSENT:
            out.append(f'{stem}{tail}":{zarrmeta.dumps(spelled(partition.inline[row])).decode()}')
        elif length == WHOLE:
            out.append(f'{stem}{tail}":[{urls[target]}]')
        else:
            out.append(f'{stem}{tail}":[{urls[target]},{offset},{length}]')
    return ",".join(out).encode()


def _url(url: str | None, version: int) -> str:
    if version and url is not None and "{{" in url:
        raise LooksLikeTemplate(url)
    return zarrmeta.dumps(url).decode()
