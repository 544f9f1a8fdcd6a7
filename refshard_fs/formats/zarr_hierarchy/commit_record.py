"""The record of a commit to a zarr hierarchy that is under way: which keys it changes, and where their old bytes are.

While it says ``replacing``, the state before the commit is the one that counts: `before_commit` shows it to readers,
and writers who find the record of a dead one put it back. FORMATS.md fixes the details. No I/O here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from refshard_fs.core.keys import normalise
from refshard_fs.errors import ManifestError, redacted

__all__ = ["CommitRecord", "Copy", "DIRECTORY", "NAME", "RecordIndex", "copy_name", "is_reserved"]

DIRECTORY: Final = ".refshard"  # at the root of a hierarchy; nothing in it is a key
NAME: Final = f"{DIRECTORY}/commit.json"
MOST: Final = 256 << 20  # bytes of a record
VERSION: Final = 1
_ID: Final = re.compile(r"[0-9a-f]{32}")


class Copy(NamedTuple):
    """Where the old bytes of a key are kept, and how many."""

    name: str
    size: int | None


class CommitRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One commit: ``kept`` are names and sizes of what it replaces or removes, ``absent`` names of what was not there.

    ``by`` tells the writer, ``renewed`` when it last said that it lives: seconds since 1970, by its own clock.
    """

    id: str
    by: str
    begun: float
    renewed: float
    state: Literal["begun", "replacing", "done"]
    kept: tuple[tuple[str, int | None], ...] = ()
    absent: tuple[str, ...] = ()
    refshard: Literal["commit"] = "commit"
    version: Literal[1] = 1

    @property
    def folder(self) -> str:
        """The directory in which it keeps what it replaces."""
        return f"{DIRECTORY}/{self.id}"

    def before(self) -> Mapping[str, Copy | None]:
        """Return, of each key that is not what it was, where its old bytes are; None if it was not there."""
        if self.state != "replacing":
            return {}
        kept = {name: Copy(copy_name(self, number), size) for number, (name, size) in enumerate(self.kept)}
        return kept | dict.fromkeys(self.absent)

    @property
    def concerns(self) -> frozenset[str]:
        """The names of all that it changes, as far as it has said so."""
        return frozenset(self.absent).union(name for name, _ in self.kept)

    def dumps(self) -> bytes:
        """Return the record as it is stored."""
        return msgspec.json.encode(self)


def copy_name(record: CommitRecord, number: int) -> str:
    """Return the name of the copy of ``record.kept[number]``."""
    return f"{record.folder}/{number}"


def is_reserved(key: str) -> bool:
    """Whether ``key`` lies where commits keep what they replace."""
    return key == DIRECTORY or key.startswith(DIRECTORY + "/")


class RecordIndex(msgspec.Struct, frozen=True):
    """Decodes the record at ``where``; None where that, not being ``listed``, is a page with which a server answers."""

    where: str
    listed: bool = True

    def decode(self, data: bytes) -> CommitRecord | None:
        if not self.listed and data.lstrip()[:1] == b"<":
            return None
        return self.record(data)

    def record(self, data: bytes) -> CommitRecord:
        """Return the record; ManifestError if it is damaged."""
        try:
            return _checked(data)
        except (ValueError, RecursionError) as e:  # msgspec's own are such
            raise ManifestError(
                f"{redacted(self.where)}, the record of a commit that is under way or was cut short, is damaged: {e}. "
                "What lies beside it are the old bytes of what that commit was to replace. Remove both if you know "
                "that none was going on"
            ) from e


class _Header(msgspec.Struct):
    refshard: Literal["commit"]
    version: int


def _checked(data: bytes) -> CommitRecord:
    if len(data) > MOST:
        raise ValueError(f"it has {len(data)} bytes, and at most {MOST} may be")
    version = msgspec.json.decode(data, type=_Header).version
    if version != VERSION:
        raise ValueError(f"it is of version {version}, which another version of this package reads")
    record = msgspec.json.decode(data, type=CommitRecord)
    if _ID.fullmatch(record.id) is None:
        raise ValueError(f"{record.id!r} is no id")
    names = [*(name for name, _ in record.kept), *record.absent]
    for name in names:
        if not _is_name(name):
            raise ValueError(f"{name!r} is no name below the hierarchy")
    if len({*names}) < len(names):
        raise ValueError("a name is in it twice")
    if any(size is not None and size < 0 for _, size in record.kept):
        raise ValueError("a size is less than 0")
    return record


def _is_name(name: str) -> bool:
    steps = name.split("/")
    return (
        name == normalise(name)
        and not {"", ".", ".."}.intersection(steps)
        and not is_reserved(name)
        and "\0" not in name
    )
