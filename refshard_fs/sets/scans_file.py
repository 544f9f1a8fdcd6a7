"""What sources refer to, kept in a file as they are scanned: a run that failed goes on where it ended.

A line that names the format; then records, each the length and the CRC-32 of what follows (little-endian, four bytes
each), and that as msgpack: URL, size, ETag and time of the source, what the user is to know, the packed references.
Records are only ever added; the last one of a URL counts. What a run that was killed wrote last may be cut short.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from refshard_fs.core.model import Facts
from refshard_fs.errors import ManifestError
from refshard_fs.security.policy import LOCAL, protocol_of
from refshard_fs.sets.scanning import Scanned, packed, unpacked

_MAGIC: Final = b"refshard scans 1\n"
_HEAD: Final = struct.Struct("<II")


class _Record(msgspec.Struct, frozen=True, array_like=True):
    url: str
    facts: Facts
    adopted: str
    refs: bytes


class ScansFile:
    """The scans in the file at ``path``, which is made where there is none. For one writer at a time."""

    def __init__(self, path: str) -> None:
        if protocol_of(path) not in (None, *LOCAL):
            raise ValueError(f"resume={path!r}: it is a file of this machine")
        self._path = path = os.path.expanduser(path)
        self._places: dict[str, tuple[Facts, int, int]] = {}  # by URL: version, offset and length of the record
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)  # URLs may have tokens
        self._file = os.fdopen(descriptor, "r+b")
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise

    def _read(self) -> None:
        start = self._file.read(len(_MAGIC))
        if not _MAGIC.startswith(start):
            raise ManifestError(f"{self._path} is no file of scans, and is left as it is: resume= takes a new path")
        if start != _MAGIC:
            self._file.seek(0)
            self._file.write(_MAGIC)
        end = len(_MAGIC)
        size = os.fstat(self._file.fileno()).st_size
        while len(head := self._file.read(_HEAD.size)) == _HEAD.size:
            length, checksum = _HEAD.unpack(head)
            data = self._file.read(length) if length <= size - end - _HEAD.size else b""
            if len(data) < length or zlib.crc32(data) != checksum:
                break
            with contextlib.suppress(msgspec.MsgspecError):
                record = msgspec.msgpack.decode(data, type=_Record)
                self._places[record.url] = record.facts, end + _HEAD.size, length
            end += _HEAD.size + length
        self._file.seek(end)
        self._file.truncate()

    def facts(self, urls: Iterable[str]) -> dict[str, Facts]:
        """Return the versions of those of ``urls`` that were scanned."""
        return {url: self._places[url][0] for url in urls if url in self._places}

    def scanned(self, url: str) -> Scanned | Exception:
        """Return what was kept of ``url``."""
        facts, start, length = self._places[url]
        self._file.seek(start)
        record: Any = msgspec.msgpack.decode(self._file.read(length), type=_Record)
        self._file.seek(0, os.SEEK_END)
        try:
            return unpacked((record.refs, facts, record.adopted))
        except ValueError as e:
            return ManifestError(f"{self._path} is damaged at {url}: {e}. Delete it, or give another path")

    def keep(self, url: str, scanned: Scanned) -> None:
        """Add what was found of ``url``, if anything tells its version."""
        facts = scanned.facts
        if facts is None or (facts.etag is None and facts.last_modified is None):
            return
        data = msgspec.msgpack.encode(_Record(url, facts, scanned.adopted, packed(scanned)[0]))
        self._file.write(_HEAD.pack(len(data), zlib.crc32(data)) + data)
        self._file.flush()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
