"""The contract of formats, built-in ones and those of other packages: recognise a source, and open it.

A format of another package is a `Format` that an entry point of the group ``refshard.formats`` names:

    [project.entry-points."refshard.formats"]
    tiny = "tiny_format:FORMAT"

``recognises`` is called for every source, so the module of a `Format` should import little. If ``recognises`` raises an
error, no source can be opened. A module that cannot be imported, or whose format has the name of another one, is left
out with a warning. The module with ``open_`` is imported only when a source of the format is opened; it may be the same
module. ``open_(probe, options)`` is a generator that does no I/O: it yields needs (`core.model.Load` and others), is
sent the answers, and returns a `core.keyspace.KeySpace`. For a file with a header and chunks of arrays, this is enough:

    import numpy as np
    from refshard_fs.core.array_group import ArrayDescription, ArrayGroupBuilder, Chunks
    from refshard_fs.core.format import FileBytes, Format, begins_with

    def open_(probe, options):
        source, size = probe.file("Tiny file")
        file = FileBytes(probe.url, source, size, probe.head)
        [header] = yield from file.load([(4, 4)])  # (start, size) of each range; no request if the head has them
        count = int.from_bytes(header, "little")
        values = file.part(8, count * 292)  # if the file is shorter, the error names it
        air = ArrayDescription(f"'air' of {probe.url}", (count, 73), (1, 73), np.dtype("<f4"), ["time", "lat"])
        group = ArrayGroupBuilder(probe.url)
        group.add("air", air, AirChunks(values))
        return group.make_keyspace(options.zarr_format)

    class AirChunks(Chunks):
        def __init__(self, values):
            self._values = values

        def find_entry(self, number):  # of a chunk; see `Chunks.list_existing` if the file may lack it
            yield from ()  # or needs, if the place has to be read first
            return self._values.part(number * 292, 292)  # offset and size

    FORMAT = Format("tiny", begins_with(b"TINY"), __name__)  # the module that has open_

Formats of shards have another contract: `sharding.layout.ShardFormat`.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.metadata import EntryPoint, PathDistribution, distribution, distributions
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec

from refshard_fs.core.forks import fork_safe
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Facts, Head, Inline, Load, Raw, Span, Steps
from refshard_fs.errors import DamagedIndex, ManifestError
from refshard_fs.security.admission import Admission

LEAST_HEAD = 4096  # bytes at the beginning of a document that are enough to recognise any format
HEAD = 64 << 10  # bytes of the first request: with so many, opening often needs no second request
DOCUMENT_HEAD = 1 << 20  # bytes that are requested of each document: most consolidated metadata are smaller
IN_MEMORY = "<bytes>"  # stands for the URL of a document that the caller passed as bytes
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MANIFEST_BYTES = 8 << 30  # the most bytes of a manifest after decompression


class Document(msgspec.Struct, frozen=True):
    """A small document in a directory, and the facts about it from its target."""

    data: bytes
    facts: Facts


class Probe(msgspec.Struct, frozen=True):
    """Facts about a source, by which formats recognise it.

    A file has ``facts`` and its first bytes, ``head``. A directory has ``names`` (all names in it or, if the target
    cannot list, the existing ``markers`` of all formats) and, by name, the existing ``documents`` of all formats. If
    the source is probably a zarr hierarchy, only some documents of its root, and of a node below, were requested:
    ``documents`` are the existing ones by key, ``names`` their keys, and ``absent`` the keys of others that are absent.
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
        """Return the entry of the whole file, pinned to its version; ManifestError if it exceeds ``most`` bytes."""
        facts = self.facts or Facts(None)
        check_size(facts.size, most, self.url)
        return Inline(self.head) if facts.size == len(self.head) else Span(self.url, pin=facts.pin)

    def file(self, what: str) -> tuple[Span | Inline, int]:
        """Return the file's entry and its size; ManifestError, which calls it ``what``, if the size is unknown."""
        if self.facts is None or self.facts.size is None:
            found = "a directory"
            if not self.is_directory:
                found = "a file whose size the server does not report: put 'simplecache::' before its URL to copy it"
            raise ManifestError(f"{self.url}: expected a {what} with a known size, found {found}")
        size = self.facts.size
        return Inline(self.head) if self.is_in_memory else Span(self.url, 0, size, pin=self.facts.pin), size

    @property
    def is_in_memory(self) -> bool:
        """Whether the caller passed the document as bytes: ``head`` is the whole document, which has no URL."""
        return self.url == IN_MEMORY


def decode_text(data: bytes) -> str:
    """Decode a text as UTF-8; if it is not UTF-8, as Latin-1, which older writers of several formats used."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


class FileBytes:
    """Read bytes of a file while a format opens it: all ranges of one call in one round, except those in memory.

    The file is ``source`` and has ``size`` bytes; its first bytes, ``head``, are in memory.
    """

    def __init__(self, url: str, source: Span | Inline, size: int, head: bytes) -> None:
        self.url = url
        self.size = size
        self.source = source
        self._windows = [(0, head)]  # bytes in memory and their offsets; the head comes first

    def make_error(self, reason: str) -> DamagedIndex:
        """Make an error that names the file."""
        return DamagedIndex("", self.url, reason)

    def check_range(self, start: int, size: int) -> None:
        """Raise DamagedIndex if ``size`` bytes at ``start`` do not lie in the file."""
        if start < 0 or size < 0 or start + size > self.size:
            raise self.make_error(
                f"it is cut short or damaged: expected {size} bytes at byte {start}, found {self.size} bytes in all"
            )

    def part(self, start: int, size: int) -> Entry:
        """Return the entry of ``size`` bytes at ``start``; DamagedIndex if they do not lie in the file."""
        self.check_range(start, size)
        return self.source.part(start, size)

    def peek(self, start: int, size: int) -> bytes | None:
        """Return ``size`` bytes at ``start`` if all of them are in memory; else None."""
        for first, data in self._windows:
            if first <= start and start + size <= first + len(data):
                return data[start - first : start - first + size]
        return None

    def load(self, ranges: Sequence[tuple[int, int]], window: int = 0, ahead: Sequence[int] = ()) -> Steps[list[bytes]]:
        """Return the bytes of (start, size) ``ranges``; all ranges that are not in memory are read in one round.

        With a ``window``, at least so many bytes are read at the start of each of these ranges, and at the offsets
        ``ahead``. They stay in memory until the next call with a window.
        """
        found = {r: self.peek(*r) for r in ranges}
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
    """The version of a source to open, if the source has several; by default, the last one of its main branch."""

    branch: str | None = None
    tag: str | None = None
    snapshot: str | None = None
    as_of: int | None = None  # microseconds since 1970: the last version that was written by this time

    def __str__(self) -> str:
        options = {"branch": self.branch, "tag": self.tag, "snapshot": self.snapshot}
        if self.as_of is not None:
            options["as_of"] = (EPOCH + timedelta(microseconds=self.as_of)).isoformat()
        return ", ".join(f"{name}={value!r}" for name, value in options.items() if value is not None)

    @property
    def branch_or_tag(self) -> tuple[str, str]:
        """The kind ("branch" or "tag") and the name of the reference to follow; not used if ``snapshot`` is given."""
        return ("branch", self.branch or "main") if self.tag is None else ("tag", self.tag)

    def is_before(self, time: int) -> bool:
        """Return whether ``as_of`` is before ``time`` (microseconds since 1970), the time of a snapshot."""
        return self.as_of is not None and time > self.as_of


class OpenOptions(msgspec.Struct, frozen=True):
    """The user's options for reading a source; each format uses the ones that it needs."""

    template_overrides: tuple[tuple[str, str], ...] = ()
    simple_templates: bool = True
    base_url: str | None = None
    target: str | None = None
    protocol: str | None = None  # protocol of URLs without one
    bare_as_is: bool = False  # URLs without a protocol are paths of the filesystem that the user gave
    shards: str = "inner"  # or "whole"
    shard_options: tuple[tuple[str, Any], ...] = ()
    whole: frozenset[str] = frozenset()  # arrays whose shards are left as they are
    cache_size: int = 128
    zarr_format: int = 2  # version of the metadata shown for sources without zarr's metadata
    group: str = ""  # the only group that is used; a format may leave out other groups
    verify: bool = False  # verify checksums of chunks or HDUs, if the source has them
    max_manifest_bytes: int = MANIFEST_BYTES
    root_documents: tuple[str, ...] = ()  # requested first, because the source is probably a hierarchy with these
    awaited: tuple[str, ...] = ()  # the metadata documents of a node that are read as soon as the source is open
    recalls: bool = True  # documents that were read to recognise a source also answer its first look-ups
    head: int = HEAD  # bytes of the first request for a source
    version: Version = Version()
    # For sources that contain others: a function that opens another source; a function that returns the rule for the
    # targets of a set, by its server; and how deep this source is nested in others.
    open_other: Callable[[str, OpenOptions], Steps[KeySpace]] | None = None
    rule_of: Callable[[str], Admission] | None = None
    depth: int = 0


class Format(msgspec.Struct, frozen=True):
    """A format of sources; ``module`` is the full name of the module with ``open_``.

    ``markers`` are names by which a directory of this format is recognised if the target cannot list. ``documents`` are
    markers whose content ``recognises`` needs, too: each is read once for all formats, before ``recognises`` is called.
    ``open_`` raises ManifestError, which names the source, or DamagedIndex if the source does not have the format.

    - ``is_general``: a source that another format recognises, too, is opened by the other format.
    - ``has_versions``: sources keep several versions, and the options may select one.
    - ``opens_unseen``: if the user names the format, ``open_`` gets only the URL, and nothing is probed.
    """

    name: str
    recognises: Callable[[Probe], bool]
    module: str
    markers: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()
    is_general: bool = False
    has_versions: bool = False
    opens_unseen: bool = False

    def open(self, probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
        """Return the steps that open the probed source."""
        steps: Steps[KeySpace] = importlib.import_module(self.module).open_(probe, options)
        return steps


def begins_with(*magics: bytes) -> Callable[[Probe], bool]:
    """Return a function that recognises files by their first bytes: any of ``magics``."""
    return lambda probe: probe.head.startswith(magics)


def load_plugins(group: str, kind: type[Any], built_in: Iterable[Any]) -> dict[str, Any]:
    """Return ``built_in`` and the objects of class ``kind`` that other packages registered in ``group``, by name.

    An object that cannot be loaded, or has the name of another one, is left out with a warning.
    """
    known = {found.name: found for found in built_in}
    for entry in _list_entry_points():
        if entry.group != group:
            continue
        try:
            plugin = entry.load()
            if not isinstance(plugin, kind):
                found = plugin.__name__ if isinstance(plugin, type) else f"an object of {type(plugin).__name__}"
                raise TypeError(f"expected an object of {kind.__name__}, got {found}")
            if known.setdefault(plugin.name, plugin) is not plugin:
                raise ValueError(f"its name {plugin.name!r} is taken: expected none of {', '.join(known)}")
        except Exception as e:  # noqa: BLE001  # code of other packages must not prevent opening other sources
            warnings.warn(
                f"the entry point {entry.name!r} of {group}, {entry.value}, cannot be loaded and is left out: "
                f"{type(e).__name__}: {e}",
                RuntimeWarning,
                stacklevel=2,
            )
    return known


def start_finding_plugins() -> None:
    """Find the plug-ins of other packages in a thread, so that the first request for a source need not wait."""
    if not _find_entry_points.cache_info().currsize:
        threading.Thread(target=_list_entry_points, name="refshard-plugins", daemon=True).start()


def _list_entry_points() -> list[EntryPoint]:
    with _finding:
        return _find_entry_points()


_finding = fork_safe(threading.Lock())


@cache
def _find_entry_points() -> list[EntryPoint]:
    """Return the entry points of all packages that register plug-ins.

    `importlib.metadata.entry_points` takes four times as long, which would be most of the time of opening a source.
    """
    names = dict.fromkeys(name for place in sys.path for name in list_packages_with_plugins(place or "."))
    return [
        entry for name in names for entry in distribution(name).entry_points
    ]  # the first of several installed versions


def list_packages_with_plugins(place: str) -> list[str]:
    """Return the names of packages in a directory of ``sys.path`` whose entry points name this package."""
    try:
        directories = [name for name in os.listdir(place) if name.endswith((".dist-info", ".egg-info"))]
    except OSError:  # ``place`` is an archive, or does not exist
        found = distributions(path=[place])
        return [package.name for package in found if "refshard." in (package.read_text("entry_points.txt") or "")]
    names = []
    for directory in directories:
        path = os.path.join(place, directory, "entry_points.txt")
        try:  # there may be hundreds of packages, and `open` takes twice as long
            file = os.open(path, os.O_RDONLY)
        except OSError:  # the package has no entry points
            continue
        text = b""
        try:
            while part := os.read(file, 1 << 16):
                text += part
        finally:
            os.close(file)
        if b"refshard." in text:
            names.append(PathDistribution(Path(place, directory)).name)
    return names


def read_documents(urls: Sequence[str], most: int) -> Steps[list[Document | None]]:
    """Read documents together, in their current versions; None for those that do not exist.

    ManifestError if one has more than ``most`` bytes.
    """
    answers = yield tuple(Head(url, min(DOCUMENT_HEAD, most)) for url in urls)
    found: list[Document | None] = []
    for url, answer in zip(urls, answers, strict=True):
        if answer is None:
            found.append(None)
            continue
        facts, data = answer
        check_size(facts.size, most, url)
        if facts.size != len(data):
            data = yield Load(Span(url, pin=facts.pin), Raw())
        found.append(Document(data, facts))
    return found


def check_size(size: int | None, most: int, where: str) -> None:
    """Raise ManifestError if the manifest called ``where`` has more than ``most`` bytes."""
    if size is not None and size > most:
        raise ManifestError(
            f"{where} has {size} bytes or more, but max_manifest_bytes={most}: pass a larger number if you trust it"
        )


def parse_xml(text: str) -> ElementTree.Element:
    """Parse an XML text; return its root. ValueError if it is damaged, or defines entities, which may be bombs."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError("its XML defines a document type or entities: these are never read")
    try:
        return ElementTree.fromstring(text)  # noqa: S314  # without a document type there are no entities
    except ElementTree.ParseError as e:
        raise ValueError(f"its XML is damaged: {e}") from e
