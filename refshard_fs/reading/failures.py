"""What a failed read means to the reader of a key: FileNotFoundError is for keys that do not exist, and them alone."""

from __future__ import annotations

from refshard_fs.errors import DamagedIndex, ReferenceNotReachable, RefShardError, TargetNotAllowed, redacted
from refshard_fs.model import Entry, Inline, Load, Names, Need, Packed, Span, Stat
from refshard_fs.reading.advice import READING, said

__all__ = ["ABSENT", "blame", "describe", "fail", "note", "too_large"]

ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


def describe(entry: Entry) -> str:
    """Return where the bytes of ``entry`` lie, for errors."""
    match entry:
        case Inline():
            return "the manifest itself"
        case Packed(source):
            return describe(source)
        case Span(url, start, stop):
            return url if start == 0 and stop is None else f"{url} [{start}:{'' if stop is None else stop}]"


def note(error: Exception, need: Need) -> None:
    """Note on ``error`` what was read on the way to a key, for `blame`."""
    match need:
        case Load(entry):
            where = describe(entry)
        case Stat(url) | Names(url):
            where = url
    error.add_note(READING + redacted(where))


def blame(key: str, error: Exception) -> Exception:
    """Return ``error`` as one that names ``key``, and is never taken for a missing key."""
    if isinstance(error, (DamagedIndex, ReferenceNotReachable)):
        named = type(error)(key, error.target, error.reason)
        named.__cause__ = error.__cause__ or error
        return named
    if isinstance(error, TargetNotAllowed):
        return TargetNotAllowed(error.url, error.rule, error.remedy, key)
    if isinstance(error, RefShardError) and not isinstance(error, OSError):
        return error
    notes: list[str] = getattr(error, "__notes__", [])
    where = next(
        (text.removeprefix(READING) for text in notes if text.startswith(READING)), "a place that is not known"
    )
    return _unreachable(key, where, error)


def fail(key: str, entry: Entry, error: Exception) -> Exception:
    """Return what a failed read of ``entry`` means to the reader of ``key``."""
    source = entry.source if isinstance(entry, Packed) else entry
    if isinstance(error, ABSENT) and isinstance(source, Span) and source.optional:
        return FileNotFoundError(key)
    if isinstance(error, (ReferenceNotReachable, TargetNotAllowed)):
        return blame(key, error)
    return _unreachable(key, describe(entry), error)


def too_large(where: str, most: int) -> str:
    """Return what is wrong with a document that has more than ``most`` bytes."""
    return f"{redacted(where)} has more than {most} bytes, and max_manifest_bytes={most}: more if you trust it"


def _unreachable(key: str, where: str, error: Exception) -> ReferenceNotReachable:
    named = ReferenceNotReachable(key, where, said(error))
    named.__cause__ = error
    return named
