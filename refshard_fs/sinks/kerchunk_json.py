"""Kerchunk's references as one JSON document, compressed if its name ends with .gz, .bz2, .xz, .zst or .zstd."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final

from refshard_fs.core import zarrmeta
from refshard_fs.core.compression import import_zstd
from refshard_fs.core.consolidated import update_consolidated
from refshard_fs.errors import ManifestError
from refshard_fs.formats.kerchunk_json.source import FRAMES, LooksLikeTemplate, encode_chunk_members, encode_member
from refshard_fs.references.stream import ReferenceStream
from refshard_fs.references.values import decode
from refshard_fs.security.origins import MEMBER
from refshard_fs.sinks.sink import Destination, Sink

ROWS: Final = 10_000  # references that are encoded as JSON at a time
_PACKING: Final[dict[str, Callable[[BinaryIO], Any]]] = {
    "gz": lambda file: gzip.GzipFile(fileobj=file, mode="wb", mtime=0),
    "bz2": lambda file: bz2.BZ2File(file, "wb"),
    "xz": lambda file: lzma.LZMAFile(file, "wb"),  # noqa: SIM115  # the caller closes it
    **dict.fromkeys(("zst", "zstd"), lambda file: import_zstd().ZstdFile(file, "wb", level=3)),
}


class JsonSink(Sink):
    """Write one document, which replaces an existing document.

    The document has version 1, which all readers support; or version 0 if a URL contains text that version 1 reads as a
    template.
    """

    name = "json"
    holds_relative_urls = True

    def write(self, references: ReferenceStream, destination: Destination) -> None:
        try:
            _write(references, destination, 1)
        except LooksLikeTemplate as e:
            if references.pins() is not None:
                raise ManifestError(
                    f"the URL {e} looks like a template, which JSON with pins cannot hold: save the set as chunk "
                    "manifests, or without pins: refshard_fs.rebase(source, {}).unpinned()"
                ) from e
            _write(references, destination, 0, template=str(e))


def _write(references: ReferenceStream, destination: Destination, version: int, template: str = "") -> None:
    """Write the document in ``version``; ``template`` is a URL that version 1 would take for a template."""
    start, end = FRAMES[version]
    with destination.objects.stream() as whole, _compress_into(destination.url, whole) as file:
        file.write(start)
        comma = b""
        metadata = ((key, value) for key, value in references.documents() if zarrmeta.is_metadata(key))
        others = update_consolidated(
            {key: decode(value) if isinstance(value, str) else value for key, value in metadata}
        )
        for key, value in references.documents():
            file.write(comma + encode_member(key, others.get(key, value), version))
            comma = b","
        for array, grid in references.grids.items():
            for numbers, partition in references.partitions(array, ROWS):
                members = encode_chunk_members(array, grid, numbers, partition, version)
                if members:
                    file.write(comma + members)
                    comma = b","
        pins, origins = references.pins(), destination.origins()
        ours = ({} if pins is None else {"pins": pins}) | ({MEMBER: origins.to_json()} if origins else {})
        if ours and not version:
            raise ManifestError(
                f"the URL {template} looks like a template. JSON cannot hold such a URL together with the origins of "
                "URLs, which this set must record: save the set as parquet or as chunk manifests"
            )
        file.write(b'},"refshard":' + zarrmeta.dumps(ours) + b"}" if ours else end)


@contextlib.contextmanager
def _compress_into(url: str, file: BinaryIO) -> Iterator[BinaryIO]:
    """Yield a file whose content is written to ``file``, compressed by the suffix of ``url``, or unchanged."""
    suffix = url.rpartition(".")[2].lower()
    if suffix in _PACKING:
        with _PACKING[suffix](file) as packed:
            yield packed
    else:
        yield file
