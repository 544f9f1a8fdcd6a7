"""What a format is: how a source is recognised, and how it is opened. Formats of other packages follow it, too.

A format of another package is a `Format` that an entry point of the group ``refshard.formats`` names:

    [project.entry-points."refshard.formats"]
    tiny = "tiny_format:FORMAT"

``recognises`` is asked of every source, so the module of a `Format` should import little. The module that opens
sources is imported when there is one to open. Its function ``open_(probe, options)`` is a generator: it yields what it
needs to have read (`core.model.Load` and others), is sent the answers, and returns a `core.keyspace.KeySpace`. It does
no I/O. Ways of packing chunks into shards have a contract of their own: `sharding.layout.ShardFormat`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Any
from xml.etree import ElementTree

import msgspec

from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Facts, Inline, Load, Raw, Span, Steps
from refshard_fs.errors import DamagedIndex, ManifestError
from refshard_fs.security.admission import Admission

LEAST_HEAD = 4096  # bytes of them that formats are recognised by
HEAD = 64 << 10  # bytes of a document that are read with its size, to recognise it: most of what some files say first
IN_MEMORY = "<bytes>"  # stands for the URL of a document that the caller gave as bytes
MANIFEST_BYTES = 8 << 30  # that a manifest may have, decompressed


class Document(msgspec.Struct, frozen=True):
    """A small document in a directory, whole, and what its target says of it."""

    data: bytes
    facts: Facts


class Probe(msgspec.Struct, frozen=True):
    """What is known of a source before it is opened.

    A document has ``facts`` and its first bytes, ``head``. A directory has neither, but ``names`` (all that lies in it
    or, where the target cannot list, which of all formats' ``markers`` do) and, by name, those of all formats'
    ``documents`` that it has.
    """

    url: str
    facts: Facts | None = None
    head: bytes = b""
    names: frozenset[str] = frozenset()
    documents: Mapping[str, Document] = {}

    @property
    def is_directory(self) -> bool:
        return self.facts is None

    def document(self, most: int) -> Inline | Span:
        """Return the whole document, as it was seen; ManifestError if it is of more than ``most`` bytes."""
        facts = self.facts or Facts(None)
        check_size(facts.size, most, self.url)
        return Inline(self.head) if facts.size == len(self.head) else Span(self.url, pin=facts.pin)

    def file(self, what: str) -> tuple[Span | Inline, int]:
        """Return the bytes of a file that is ``what``, and their number; ManifestError where that is unknown."""
        if self.facts is None or self.facts.size is None:
            found = "a directory" if self.is_directory else "a file whose size is not told"
            raise ManifestError(f"{self.url} is {found}, and no {what} that can be read")
        size = self.facts.size
        return Inline(self.head) if self.is_in_memory else Span(self.url, 0, size, pin=self.facts.pin), size

    @property
    def is_in_memory(self) -> bool:
        """Whether the caller gave the document as bytes: ``head`` is all of it, and it lies nowhere."""
        return self.url == IN_MEMORY


class FileBytes:
    """The bytes of a file while a format opens it: known ones cost no read, others are read in one round.

    It is ``source``, has ``size`` bytes, and its first ones, ``head``, are known.
    """

    def __init__(self, url: str, source: Span | Inline, size: int, head: bytes) -> None:
        self.url = url
        self.size = size
        self.source = source
        self._windows = [(0, head)]  # where known bytes begin, and they; the head first

    def part(self, start: int, size: int) -> Entry:
        """Return where bytes of the file lie; DamagedIndex where that is outside."""
        if start + size > self.size:
            reason = f"it is cut short, or damaged: what it names ends at byte {start + size} of {self.size}"
            raise DamagedIndex("", self.url, reason)
        return self.source.part(start, size)

    def known(self, start: int, size: int) -> bytes | None:
        """Return bytes of the file; None where they were not read."""
        for first, data in self._windows:
            if first <= start and start + size <= first + len(data):
                return data[start - first : start - first + size]
        return None

    def load(self, ranges: Sequence[tuple[int, int]], window: int = 0, ahead: Sequence[int] = ()) -> Steps[list[bytes]]:
        """Return the bytes of (start, size) ``ranges``: those that are not known are read in one round.

        With a ``window``, so many bytes are read where the file has them, also at places ``ahead``, and known until
        the next windows are read.
        """
        found = {r: self.known(*r) for r in ranges}
        missing = [r for r, data in found.items() if data is None]
        if missing:
            missing += [(start, 1) for start in ahead]
            longer = [(start, max(size, min(window, self.size - start))) for start, size in missing]
            answers: Sequence[bytes] = yield tuple(Load(self.part(*r), Raw()) for r in longer)
            if window:
                self._windows[1:] = [(start, data) for (start, _), data in zip(missing, answers, strict=True)]
            found |= {(start, size): data[:size] for (start, size), data in zip(missing, answers, strict=True)}
        return [found[r] or b"" for r in ranges]


class OpenOptions(msgspec.Struct, frozen=True):
    """The user's options for reading a source; each format takes those that concern it."""

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
    head: int = HEAD  # bytes of a source that its first request reads
    # What documents need that are made of others: how those are opened, what each may reach, and how deep this one is.
    open_other: Callable[[str, OpenOptions], Steps[KeySpace]] | None = None
    rule_of: Callable[[str], Admission] | None = None
    depth: int = 0


class Format(msgspec.Struct, frozen=True):
    """One kind of source; ``module`` is the name of the one that has ``open_``.

    ``markers`` are the names that tell a directory of this format, for targets that cannot list. ``documents`` are the
    markers whose content tells as well: each is read once for all formats, before ``recognises`` is asked. ``open_``
    raises ManifestError or DamagedIndex where the source is not what it seemed.
    """

    name: str
    recognises: Callable[[Probe], bool]
    module: str
    markers: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()
    is_general: bool = False  # whatever another format recognises as well is that other one's

    def open(self, probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
        """Return the steps that open a source."""
        steps: Steps[KeySpace] = importlib.import_module(self.module).open_(probe, options)
        return steps


def plugins(group: str) -> Iterator[Any]:
    """Yield what other packages have registered in a group of entry points."""
    for entry in _entry_points().select(group=group):
        yield entry.load()


# Finding them reads a file of every package that is installed, which takes milliseconds: once for all groups.
_entry_points = cache(entry_points)


def check_size(size: int | None, most: int, where: str) -> None:
    """Raise ManifestError where the manifest called ``where`` is of more than ``most`` bytes."""
    if size is not None and size > most:
        raise ManifestError(f"{where} has {size} bytes or more, and max_manifest_bytes={most}: more if you trust it")


def xml(text: str) -> ElementTree.Element:
    """Return the root of an XML text; ValueError where it is none, or defines entities, which can be bombs."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError("its XML has a document type, which is not read")
    try:
        return ElementTree.fromstring(text)  # noqa: S314  # without a document type there are no entities
    except ElementTree.ParseError as e:
        raise ValueError(f"its XML is damaged: {e}") from e
