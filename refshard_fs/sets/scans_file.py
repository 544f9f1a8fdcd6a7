"""Keep scans of sources in a file (``resume=``), so that a later run opens only new and changed sources.

The file begins with a line that names its format. Records follow: the length and the CRC-32 of the record (four bytes
each, little-endian), and the record as msgpack: URL, size, ETag and time of the source, and its packed references. If
sources are alike, only the first record has the references: the others name its place in the file, the object to which
they refer, and their own inline data. Records are only added, and the last record of a URL counts. The last record of a
run that was killed may be cut short.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final

import msgspec

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import Texts
from refshard_fs.core.model import Facts
from refshard_fs.errors import ManifestError
from refshard_fs.references.binary import pack_compressed, unpack_compressed
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.shared_members import SharedMembers
from refshard_fs.security.policy import LOCAL, protocol_of
from refshard_fs.sets.scanning import Known, SameVersion, ScanResult
from refshard_fs.source.collect import UnreadArrays
from refshard_fs.stores.links import resolve_path_to_write

_MAGIC: Final = b"refshard scans 1\n"
_HEAD: Final = struct.Struct("<II")


class _Record(msgspec.Struct, frozen=True, array_like=True):
    url: str
    facts: Facts
    refs: bytes = b""
    like: tuple[int, int] = (0, 0)  # offset and length of the record whose references are used, if ``refs`` is empty
    target: str = ""
    data: dict[str, bytes] = {}
    select: list[Any] = []  # the part of the source that a function selected


class ScansFile:
    """The scans in the file at ``path``, which is created if it does not exist. For one writer at a time.

    A scan is found only with the arguments on which it depends: the ``unread`` arrays; ``function``, a text that
    identifies the code of ``preprocess``; and three ``options`` of the filesystem: ``select``, ``allow`` and the
    prefixes in ``options``.
    """

    def __init__(
        self, path: str, options: Mapping[str, Any], unread: UnreadArrays | None = None, function: str = ""
    ) -> None:
        if protocol_of(path) not in (None, *LOCAL):
            raise ValueError(f"resume={path!r}: expected a path on this machine")
        self._path = path = os.path.expanduser(path)
        self._conditions = (
            f" select={zarrmeta.dumps(list(select)).decode()}" if (select := options.get("select")) else ""
        )
        rule = options.get("allow"), sorted(options.get("options") or ())
        if rule != (None, []):  # as a digest, since prefixes may be long or private
            self._conditions += f" rule={sha256(zarrmeta.dumps(rule)).hexdigest()}"
        self._kind = "" if unread is None else f" without {[*map(sorted, unread)]}"  # such a scan is incomplete
        self._function = f" by {function}" if function else ""
        self._places: dict[str, tuple[Facts, int, int]] = {}  # version, offset and length of a record, by its place
        self._whole: tuple[tuple[int, int], ReferenceSet] | None = (
            None  # the last record with references: place, references
        )
        descriptor = os.open(
            resolve_path_to_write(path), os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600
        )  # URLs may have tokens
        self._file = os.fdopen(descriptor, "r+b")
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise

    def _read(self) -> None:
        start = self._file.read(len(_MAGIC))
        if not _MAGIC.startswith(start):
            raise ManifestError(
                f"{self._path} is not a file of scans: resume= expects a new path, or a file that resume= wrote"
            )
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

    def find_versions(self, urls: Iterable[str]) -> dict[str, Facts]:
        """Return the version of each of ``urls`` that has a scan in the file, with or without the unread arrays."""
        known = {url: self._find_place(url) for url in urls}
        return {url: place[0] for url, place in known.items() if place is not None}

    def _find_place(self, url: str) -> tuple[Facts, int, int] | None:
        """Return the version in the scan of ``url``, and the offset and length of its record; None without a scan."""
        whole = url + self._function + self._conditions
        return self._places.get(url + self._function + self._kind + self._conditions) or self._places.get(whole)

    def find(self, url: str) -> ScanResult | Exception:
        """Return the scan of ``url``, or an error if its record is damaged; KeyError if the file has none."""
        place = self._find_place(url)
        if place is None:
            raise KeyError(url)
        facts, start, length = place
        try:
            record = self._read_record(start, length)
            if record.refs:
                return ScanResult(unpack_compressed(record.refs), facts, record.select)
            base = self._read_references(*record.like)
        except (ValueError, msgspec.MsgspecError) as e:
            return ManifestError(f"{self._path} is damaged at {url}: {e}. Delete it, or give another path")
        members = SharedMembers(base.members, record.data)
        refs = msgspec.structs.replace(base, urls=Texts.of([record.target]), members=members)
        return ScanResult(refs, facts, record.select)

    def _read_record(self, start: int, length: int) -> _Record:
        self._file.seek(start)
        data = self._file.read(length)
        self._file.seek(0, os.SEEK_END)
        return msgspec.msgpack.decode(data, type=_Record)

    def _read_references(self, start: int, length: int) -> ReferenceSet:
        """Return the references of a record; similar sources share its columns."""
        if self._whole is None or self._whole[0] != (start, length):
            refs = unpack_compressed(self._read_record(start, length).refs)
            refs = msgspec.structs.replace(refs, chunks=refs.tables, members=dict(refs.side.items()))
            self._whole = (start, length), refs
        return self._whole[1]

    def add(self, url: str, scanned: ScanResult) -> None:
        """Add the scan of ``url``, unless its version is unknown: no ETag and no time."""
        facts, refs, select = scanned.facts, scanned.refs, list(scanned.select)
        url += self._function + self._kind + self._conditions
        if facts is None or (facts.etag is None and facts.last_modified is None):
            return
        own = None if self._whole is None else _find_own_data(self._whole[1], refs)
        if self._whole is not None and own is not None:
            target = str(refs.urls[0])
            self._write(_Record(url, facts, like=self._whole[0], target=target, data=own, select=select))
        else:
            self._whole = self._write(_Record(url, facts, pack_compressed(refs), select=select)), refs

    def _write(self, record: _Record) -> tuple[int, int]:
        """Add a record; return where it lies."""
        packed = msgspec.msgpack.encode(record)
        start = self._file.tell() + _HEAD.size
        self._file.write(_HEAD.pack(len(packed), zlib.crc32(packed)) + packed)
        self._file.flush()
        return start, len(packed)

    def close(self) -> None:
        self._file.close()


# Called with the URL and the result of a scan; returns the result, or for an unchanged source the scan in the file.
Resolve = Callable[[str, ScanResult | Exception | SameVersion], ScanResult | Exception]


@contextlib.contextmanager
def open_scans(
    path: str | os.PathLike[str] | None,
    urls: Iterable[str],
    options: Mapping[str, Any],
    unread: UnreadArrays | None,
    function: str = "",
) -> Iterator[tuple[Known, Resolve]]:
    """Open the file of scans at ``path``; yield the known versions of ``urls``, and a function that adds results.

    Without a path, no version is known, and no result is kept.
    """
    file = None if path is None else ScansFile(os.fspath(path), options, unread, function)

    def resolve(url: str, result: ScanResult | Exception | SameVersion) -> ScanResult | Exception:
        if isinstance(result, SameVersion):
            assert file is not None, "only a known source is unchanged"
            return file.find(url)
        if file is not None and url and isinstance(result, ScanResult):
            file.add(url, result)
        return result

    try:
        yield {} if file is None else file.find_versions(urls), resolve
    finally:
        if file is not None:
            file.close()


def _find_own_data(base: ReferenceSet, refs: ReferenceSet) -> dict[str, bytes] | None:
    """Return the inline data of ``refs`` that ``base`` lacks; None if they differ in more than these and one URL."""
    if refs.chunks != base.chunks or list(refs.members) != list(base.members) or len(refs.urls) != 1:
        return None
    if len(base.urls) != 1 or None in (refs.urls[0], base.urls[0]) or refs.pins is not None or base.pins is not None:
        return None
    if (refs.version, refs.origins) != (base.version, base.origins):
        return None
    own = {key: value for key, value in refs.members.items() if value is not base.members[key]}
    are_bytes = all(isinstance(value, bytes) for value in own.values())
    return own if are_bytes else None  # type: ignore[return-value]  # mypy does not see that all are bytes
