"""What a filesystem's arguments say of writing."""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from refshard_fs.security.policy import protocol_of
from refshard_fs.session.in_memory_source import InMemorySource
from refshard_fs.session.overlay import Overlay, OverlayCopy, overlay_of

RECORD_SIZE = 10_000  # references in a partition of a parquet set that is written
INLINE = 512  # bytes; larger values become objects
MODES = ("r", "a", "w")
_TAKE_NONE = ("http", "https", "data", "github", "zip", "tar")  # protocols that nothing is written to


SetFormat = Literal["parquet", "json", "chunk-manifest"]  # what references are written as
# How the formats that a commit can make are called, and as what each is read.
READ_AS: Final = {"json": "kerchunk-json", "parquet": "kerchunk-parquet", "chunk-manifest": "zarr-hierarchy"}


_JSON: Final = re.compile(r"\.json(?:\.(?:gz|bz2|xz|zst|zstd))?\Z")


def format_named(url: str) -> SetFormat:
    """Return what a set at ``url`` is written as where nobody says it: its name does.

    >>> format_named("s3://b/refs.json.gz"), format_named("refs.zarr"), format_named("refs.parq")
    ('json', 'chunk-manifest', 'parquet')
    """
    name = url.rstrip("/").rpartition("/")[2].lower()
    if _JSON.search(name):
        return "json"
    return "chunk-manifest" if name.endswith(".zarr") else "parquet"


class WriteOptions(msgspec.Struct, frozen=True):
    """Where values go: ``data_url`` None keeps them all in memory.

    ``format``, and the ``record_size`` of a parquet set, are those of a source that is to be made.
    """

    data_url: str | None
    inline_threshold: int = INLINE
    content_addressed: bool = False
    format: str | None = None
    record_size: int = RECORD_SIZE


def data_url_of(source: str | InMemorySource, given: str | None) -> str | None:
    """Return the directory of new objects: ``given``, or one beside the source, named after it; None if there is none.

    ``s3://bucket/refs.json`` has its data in ``s3://bucket/refs.json.data``.
    """
    if given is not None:
        return given.rstrip("/")
    if not isinstance(source, str) or "::" in source or protocol_of(source) in _TAKE_NONE:
        return None
    beside = source.rstrip("/") + ".data"
    return f"file://{beside}" if protocol_of(source) is None else beside


def overlay_for(mode: str, identity: str | OverlayCopy | None, source: str | InMemorySource) -> Overlay | None:
    """Return what a filesystem of this ``mode`` writes to; "w" begins with nothing, whatever the source holds."""
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}: it is 'r', 'a' (reads and writes) or 'w' (begins with an empty source)")
    if mode == "r":
        return None
    overlay = overlay_of(identity, str(source), is_durable=isinstance(source, str))
    if mode == "w" and not overlay.begun and overlay.worker is None:
        overlay.begun = True
        overlay.edits.remove_below("")
    return overlay


def takes_objects(url: str) -> bool:
    """Whether objects can be put below ``url``, as far as its protocol tells."""
    return "::" not in url and protocol_of(url) not in _TAKE_NONE
