"""The contract of formats, ours and those of other packages: how a source is recognised, and how it is opened.

A format of another package is a `Format` that an entry point of the group ``refshard.formats`` names:

    [project.entry-points."refshard.formats"]
    tiny = "tiny_format:FORMAT"

``recognises`` is called for every source, so the module of a `Format` should import little. An error of it is an error
of every source; a module that cannot be imported is left out with a warning. The module that opens sources is imported
when there is one to open; it may be the same one (``Format("tiny", begins_with(b"TINY"), __name__)``). Its function
``open_(probe, options)`` is a generator, which does no I/O: it yields what it needs to have read (`core.model.Load` and
others), is sent the answers, and returns a `core.keyspace.KeySpace`. Of a file with a header and chunks of arrays, this
is all:

    def open_(probe, options):
        source, size = probe.file("Tiny file")
        file = FileBytes(probe.url, source, size, probe.head)
        [header] = yield from file.load([(8, 100)])  # (start, size) of each range; no request if the head has them
        group = ArrayGroupBuilder(probe.url)  # of core.array_group
        group.add("air", ArrayDescription(...), AirChunks(file, header))  # a subclass of core.array_group.Chunks
        return group.keyspace(options.zarr_format, attributes={})

Formats of shards have a contract of their own: `sharding.layout.ShardFormat`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.metadata import EntryPoint, PathDistribution, distribution, distributions
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec

from refshard_fs.core.forks import fork_safe
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Facts, Inline, Load, Raw, Span, Steps
from refshard_fs.errors import DamagedIndex, ManifestError
from refshard_fs.security.admission import Admission

LEAST_HEAD = 4096  # bytes at the beginning of a document by which any format is recognised
HEAD = 64 << 10  # bytes that are read first: they often save the next request
IN_MEMORY = "<bytes>"  # in place of the URL of a document that the caller gave as bytes
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MANIFEST_BYTES = 8 << 30  # of a manifest, decompressed, at most


class Document(msgspec.Struct, frozen=True):
    """A small document in a directory, and what its target says about it."""

    data: bytes
    facts: Facts


class Probe(msgspec.Struct, frozen=True):
    """What is known about a source before it is opened.

    A document has ``facts`` and its first bytes, ``head``. A directory has ``names`` (everything in it or, if the
    target cannot list, those of all formats' ``markers`` that are in it) and, by name, those of all formats'
    ``documents`` that are in it. If nothing was listed, ``absent`` are the documents of a zarr hierarchy's root that
    were asked for in vain, and ``documents`` those that are there.
    """

    url: str
    facts: Facts | None = None
    head: bytes = b""
    names: frozenset[str] = frozenset()
    documents: Mapping[str, Document] = {}
    absent: frozenset[str] = frozenset()

    @property
    def is_directory(self) -> bool:
        return self.facts is None

    def document(self, most: int) -> Inline | Span:
        """Return the whole document, of the version that was seen; ManifestError if it has more than ``most`` bytes."""
        facts = self.facts or Facts(None)
        check_size(facts.size, most, self.url)
        return Inline(self.head) if facts.size == len(self.head) else Span(self.url, pin=facts.pin)

    def file(self, what: str) -> tuple[Span | Inline, int]:
        """Return the bytes of a file and their number; ManifestError, which calls it ``what``, if that is unknown."""
        if self.facts is None or self.facts.size is None:
            found = "a directory" if self.is_directory else "a file whose size is not told"
            raise ManifestError(f"{self.url} is {found}, and no {what} that can be read")
        size = self.facts.size
        return Inline(self.head) if self.is_in_memory else Span(self.url, 0, size, pin=self.facts.pin), size

    @property
    def is_in_memory(self) -> bool:
        """Whether the caller gave the document as bytes: ``head`` is all of it, and it has no URL."""
        return self.url == IN_MEMORY


class FileBytes:
    """The bytes of a file while a format opens it: some are known, others are read, those of one call in one round.

    The file is ``source`` and has ``size`` bytes, the first of which, ``head``, are known.
    """

    def __init__(self, url: str, source: Span | Inline, size: int, head: bytes) -> None:
        self.url = url
        self.size = size
        self.source = source
        self._windows = [(0, head)]  # known bytes and their offsets; the head is the first

    def part(self, start: int, size: int) -> Entry:
        """Return the entry of some bytes; DamagedIndex if they are beyond the end of the file."""
        if start + size > self.size:
            reason = f"it is cut short, or damaged: what it names ends at byte {start + size} of {self.size}"
            raise DamagedIndex("", self.url, reason)
        return self.source.part(start, size)

    def known(self, start: int, size: int) -> bytes | None:
        """Return some bytes; None if they were not read."""
        for first, data in self._windows:
            if first <= start and start + size <= first + len(data):
                return data[start - first : start - first + size]
        return None

    def load(self, ranges: Sequence[tuple[int, int]], window: int = 0, ahead: Sequence[int] = ()) -> Steps[list[bytes]]:
        """Return the bytes of (start, size) ``ranges``. Those that are not known are read in one round.

        With a ``window``, that many bytes are read from each start, and from those ``ahead``, and stay known until the
        next windows are read.
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


class Version(msgspec.Struct, frozen=True):
    """Which version of a source is opened, where it keeps several; by default the last one of its main branch."""

    branch: str | None = None
    tag: str | None = None
    snapshot: str | None = None
    as_of: int | None = None  # microseconds since 1970: the last one that was written by then

    def __str__(self) -> str:
        given = {"branch": self.branch, "tag": self.tag, "snapshot": self.snapshot}
        if self.as_of is not None:
            given["as_of"] = (EPOCH + timedelta(microseconds=self.as_of)).isoformat()
        return ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)

    @property
    def reference(self) -> tuple[str, str]:
        """What names the version, unless a snapshot does, and the name."""
        return ("branch", self.branch or "main") if self.tag is None else ("tag", self.tag)

    def is_before(self, time: int) -> bool:
        """Whether a snapshot that was written at ``time`` (microseconds since 1970) is later than what is wanted."""
        return self.as_of is not None and time > self.as_of


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
    recalls: bool = True  # documents that are read to recognise a source answer its first reader, too
    head: int = HEAD  # bytes of a source that its first request reads
    version: Version = Version()
    # For sources that consist of others: how to open those, what each may reach, and how deep this one is nested.
    open_other: Callable[[str, OpenOptions], Steps[KeySpace]] | None = None
    rule_of: Callable[[str], Admission] | None = None
    depth: int = 0


class Format(msgspec.Struct, frozen=True):
    """One kind of source; ``module`` is the full name of the module that has ``open_``.

    ``markers`` are names by which a directory of this format is recognised if the target cannot list. ``documents`` are
    those markers whose content is needed, too: each is read once for all formats, before ``recognises`` is called.
    ``open_`` raises ManifestError, which names the source, or DamagedIndex if the source is not what it seemed to be.
    """

    name: str
    recognises: Callable[[Probe], bool]
    module: str
    markers: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()
    is_general: bool = False  # a source that another format recognises, too, is of that format
    has_versions: bool = False  # sources keep several versions, of which the options may name one
    opens_unseen: bool = False  # where the user names the format, ``open_`` is given nothing but the URL

    def open(self, probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
        """Return the steps that open a source."""
        steps: Steps[KeySpace] = importlib.import_module(self.module).open_(probe, options)
        return steps


def begins_with(*magics: bytes) -> Callable[[Probe], bool]:
    """Return what recognises files by their first bytes, which are one of ``magics``."""
    return lambda probe: probe.head.startswith(magics)


def plugins(group: str, kind: type[Any]) -> Iterator[Any]:
    """Yield the ``kind`` of objects that other packages have registered in a group; a warning names one that fails."""
    for entry in _entry_points():
        if entry.group != group:
            continue
        try:
            plugin = entry.load()
            if not isinstance(plugin, kind):
                found = plugin.__name__ if isinstance(plugin, type) else f"an object of {type(plugin).__name__}"
                raise TypeError(f"expected an object of {kind.__name__}, got {found}")
        except Exception as e:  # noqa: BLE001  # of a third party: other sources can still be opened
            warnings.warn(
                f"the entry point {entry.name!r} of {group}, {entry.value}, cannot be loaded, and is left out: "
                f"{type(e).__name__}: {e}",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            yield plugin


def find_plugins() -> None:
    """Find the plug-ins of other packages in a thread, while the first bytes of a source are on their way."""
    if not _found.cache_info().currsize:
        threading.Thread(target=_entry_points, name="refshard-plugins", daemon=True).start()


def _entry_points() -> list[EntryPoint]:
    with _finding:
        return _found()


_finding = fork_safe(threading.Lock())


@cache
def _found() -> list[EntryPoint]:
    """Return the entry points of packages that have any for this one.

    `importlib.metadata` takes four times as long to read the same files, which is most of what opening a source takes.
    """
    names = dict.fromkeys(name for place in sys.path for name in packages_with_plugins(place or "."))
    return [entry for name in names for entry in distribution(name).entry_points]  # of several versions, the first's


def packages_with_plugins(place: str) -> list[str]:
    """Return the names of packages in a directory of ``sys.path`` whose entry points name this package."""
    try:
        directories = [name for name in os.listdir(place) if name.endswith((".dist-info", ".egg-info"))]
    except OSError:  # an archive, or nothing
        found = distributions(path=[place])
        return [package.name for package in found if "refshard." in (package.read_text("entry_points.txt") or "")]
    names = []
    for directory in directories:
        with (
            contextlib.suppress(OSError),  # it has none
            open(os.path.join(place, directory, "entry_points.txt"), "rb") as file,
        ):
            if b"refshard." in file.read():
                names.append(PathDistribution(Path(place, directory)).name)
    return names


def check_size(size: int | None, most: int, where: str) -> None:
    """Raise ManifestError if the manifest called ``where`` has more than ``most`` bytes."""
    if size is not None and size > most:
        raise ManifestError(f"{where} has {size} bytes or more, and max_manifest_bytes={most}: more if you trust it")


def xml(text: str) -> ElementTree.Element:
    """Return the root of an XML text; ValueError if it is none, or defines entities, which can be bombs."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError("its XML has a document type, which is not read")
    try:
        return ElementTree.fromstring(text)  # noqa: S314  # without a document type there are no entities
    except ElementTree.ParseError as e:
        raise ValueError(f"its XML is damaged: {e}") from e
