"""What a format promises the catalog: how it is recognised, and how it is opened. No I/O here."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Literal

import msgspec

from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Facts, Steps
from refshard_fs.errors import ManifestError
from refshard_fs.security.admission import Admission

__all__ = [
    "Document",
    "Format",
    "HEAD",
    "HELD",
    "MANIFEST_BYTES",
    "OpenOptions",
    "Probe",
    "RECORD_SIZE",
    "Raw",
    "SetFormat",
    "by_head",
    "check_size",
    "reader",
    "registered",
]

HELD = "<bytes>"  # stands for the URL of a document that the caller gave as bytes
HEAD = 4096  # bytes of a document that a format may look at to recognise it
MANIFEST_BYTES = 8 << 30  # that a manifest may have, decompressed
RECORD_SIZE = 10_000  # references in a partition of a parquet set that is written

SetFormat = Literal["parquet", "json", "chunk-manifest"]  # what references are written as
_JSON = re.compile(r"\.json(?:\.(?:gz|bz2|xz|zst|zstd))?\Z")


def format_named(url: str) -> SetFormat:
    """Return what a set at ``url`` is written as where nobody says it: its name does.

    >>> format_named("s3://b/refs.json.gz"), format_named("refs.zarr"), format_named("refs.parq")
    ('json', 'chunk-manifest', 'parquet')
    """
    name = url.rstrip("/").rpartition("/")[2].lower()
    if _JSON.search(name):
        return "json"
    return "chunk-manifest" if name.endswith(".zarr") else "parquet"


class OpenOptions(msgspec.Struct, frozen=True):
    """What the user said about how a source is to be read; each format takes what concerns it."""

    template_overrides: tuple[tuple[str, str], ...] = ()
    simple_templates: bool = True
    base_url: str | None = None
    target: str | None = None
    protocol: str | None = None  # of bare URLs
    bare_as_is: bool = False  # bare URLs are paths of the filesystem that the user gave
    shards: str = "inner"  # or "whole"
    shard_options: tuple[tuple[str, Any], ...] = ()
    whole: frozenset[str] = frozenset()  # arrays whose shards are left as they are
    cache_size: int = 128
    zarr_format: int = 2  # of the metadata shown for sources that have none of zarr's own
    verify: bool = False  # checksums of chunks, where the source has them
    max_manifest_bytes: int = MANIFEST_BYTES
    extra: tuple[tuple[str, Any], ...] = ()
    # What documents need that are made of others: how those are opened, what each may reach, and how deep this one is.
    open_other: Callable[[str, OpenOptions], Steps[KeySpace]] | None = None
    rule_of: Callable[[str], Admission] | None = None
    depth: int = 0


def check_size(size: int | None, most: int, where: str) -> None:
    """Raise ManifestError where the manifest called ``where`` is of more than ``most`` bytes."""
    if size is not None and size > most:
        raise ManifestError(f"{where} has {size} bytes or more, and max_manifest_bytes={most}: more if you trust it")


class Document(msgspec.Struct, frozen=True):
    """A small document that lies in a directory, whole, and what its target says of it."""

    data: bytes
    facts: Facts


class Probe(msgspec.Struct, frozen=True):
    """What is known of a source before it is opened.

    A document has ``facts`` and its first bytes, ``head``; a directory has ``names`` (what
    lies in it, or which of all formats' ``markers`` do, where the target cannot list) and,
    by name, those of all formats' ``documents`` that it holds.
    """

    url: str
    facts: Facts | None = None
    head: bytes = b""
    names: frozenset[str] = frozenset()
    documents: Mapping[str, Document] = {}

    @property
    def is_directory(self) -> bool:
        return self.facts is None

    @property
    def is_held(self) -> bool:
        """Whether the document is at hand as a whole and lies nowhere: ``head`` is all of it."""
        return self.url == HELD


class Format(msgspec.Struct, frozen=True):
    """One kind of source.

    ``markers`` are the names that tell a directory of this format, for targets that cannot
    list; ``documents``, the markers whose content tells as well: each is read once for all
    formats, before ``recognises`` is asked. ``open`` returns the key space; ManifestError or
    DamagedIndex if it cannot.
    """

    name: str
    recognises: Callable[[Probe], bool]
    open: Callable[[Probe, OpenOptions], Steps[KeySpace]]
    markers: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()


def by_head(tells: Callable[[bytes], bool]) -> Callable[[Probe], bool]:
    """Return what recognises documents, and no directories, by their first bytes."""
    return lambda probe: not probe.is_directory and tells(probe.head)


def reader(module: str) -> Callable[[Probe, OpenOptions], Steps[KeySpace]]:
    """Return the ``open_`` of a module that is imported when there is a source to open."""

    def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
        opened: Steps[KeySpace] = importlib.import_module(module).open_(probe, options)
        return opened

    return open_


def registered(group: str) -> Iterator[Any]:
    """Yield what third parties have registered in a group of entry points."""
    for entry in _entry_points().select(group=group):
        yield entry.load()


_entry_points = cache(entry_points)  # which takes milliseconds: the files of every package that is installed


class Raw(msgspec.Struct, frozen=True):
    """An index that is the bytes themselves."""

    def decode(self, data: bytes) -> bytes:
        return data
