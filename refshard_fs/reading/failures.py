"""What a failed read means to the reader of a key: FileNotFoundError is for keys that do not exist, and them alone."""

from __future__ import annotations

from typing import Final

from refshard_fs.core.model import Entry, Head, Inline, Load, Names, Need, Packed, Span, Stat, Tree
from refshard_fs.errors import (
    DamagedIndex,
    ReferenceNotReachable,
    RefShardError,
    SourceNotReachable,
    TargetNotAllowed,
    sanitize,
    sanitize_cause,
)
from refshard_fs.security.admission import ANONYMOUS
from refshard_fs.security.policy import place_of, protocol_of
from refshard_fs.targets.failures import (
    ABSENT,
    EXPIRED,
    WITHOUT,
    ConnectionLost,
    Denied,
    HttpStatus,
    TooLarge,
    Unfit,
    transient,
)

# ----------------------------------------------------------------------------------------------------
# What a failed read means to somebody who has never seen this package: what happened, and what can be done. No I/O.


READING: Final = "on reading "  # a note on an error that begins so says where, not what

_SIGNED: Final = "The URL was signed for a time that is over: have the references written anew"
_SIGNED_SOURCE: Final = "The URL was signed for a time that is over: ask for a new one where you have it from"
_TOKEN: Final = "The credentials are of a time that is over: log in again, and open the source anew"
_GONE: Final = (
    "The object is gone, or was never there: `refshard check` finds all that are missing, `refshard rebase` follows "
    "those that have moved"
)
_OTHER: Final = (
    "The object is not the one that the references were made for, or they are wrong: `refshard check` compares all"
)
_HOST: Final = "Is the host right, up, and reachable from here?"
_BUSY: Final = "The server may be overloaded: allow more with retries= and timeout=, or ask for less with concurrency="
_RANGES: Final = (
    "The server or a proxy before it answers ranges wrongly: read the object from another server, or put "
    "'simplecache::' before its URL"
)
_BUCKET: Final = "Are the names of the bucket and of its store (endpoint_url=) right?"
_PROTOCOL: Final = "Is the package installed that adds this protocol to fsspec?"


def explain(error: BaseException, where: str = "", *, of_source: bool = False) -> str:
    """Return what happened at ``where``, and what to do, as one line; ``of_source``: to the source, no target of it."""
    is_ours = type(error).__module__.startswith("refshard_fs.")  # its name says no more than its text
    text = f"{error}" if is_ours and str(error) else f"{type(error).__name__}: {error}".rstrip(": ")
    notes: list[str] = getattr(error, "__notes__", [])
    reason = "; ".join([text, *(note for note in notes if not note.startswith(READING))])
    advice = _advice(error, where, reason, of_source=of_source)
    return f"{reason.rstrip('.')}. {advice}" if advice else reason


def _advice(error: BaseException, where: str, reason: str, *, of_source: bool) -> str:
    text = str(error)
    match error:
        case Denied() if EXPIRED in text:
            return _SIGNED_SOURCE if of_source else _SIGNED
        case HttpStatus(code="ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired"):
            return _TOKEN
        case HttpStatus(code="NoSuchBucket"):
            return _BUCKET
        case Denied() | PermissionError():
            return _credentials(where, reason)
        case IsADirectoryError():
            return "" if of_source else "It is a directory, and references point to files"
        case FileNotFoundError():
            return "" if of_source else _GONE
        case TooLarge(most=most):
            return f"Documents of unknown length are read up to max_manifest_bytes={most}: more if you trust it"
        case Unfit() if "the object has" in text:
            return "" if of_source else _OTHER
        case HttpStatus(status=416):
            return "" if of_source else _OTHER
        case ConnectionLost():
            return _HOST
        case OSError() if transient(error):
            return _BUSY
        case Unfit():
            return _RANGES
        case ValueError() if "Protocol not known" in text:
            return _PROTOCOL
        case ValueError():  # bytes that cannot be decoded
            return "" if of_source else _OTHER
    if "NoCredentialsError" in text:
        return _credentials(where, reason)
    return _HOST if "Cannot connect to host" in text else ""


def _credentials(where: str, reason: str) -> str:
    """Return the option that would help, to be pasted, with the bucket or server in it."""
    if WITHOUT in reason:  # the hint says so already
        return ""
    place = place_of(where.partition(" [")[0]) if where else "s3://BUCKET/"
    if place is None:  # a local file
        return "May this user read it? `ls -l` shows who may"
    if place.startswith(("http://", "https://")):
        return f"Credentials go into options={{{place!r}: {{'headers': {{...}}}}}}"
    advice = f"Credentials go into options={{{place!r}: {{...}}}}"
    without = ANONYMOUS.get(protocol_of(place) or "")
    return f"{advice}; if it is public: options={{{place!r}: {without}}}" if without else advice


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
        case Stat(url) | Head(url) | Names(url) | Tree(url):
            where = url
    error.add_note(READING + sanitize(where))


def blame(key: str, error: Exception) -> Exception:
    """Return ``error`` as one that names ``key``, and is never taken for a missing key."""
    if isinstance(error, (DamagedIndex, ReferenceNotReachable)):
        named = type(error)(key, error.target, error.reason)
        named.__cause__ = sanitize_cause(error.__cause__ or error)
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


def note_decoding(error: Exception, key: str, entry: Entry | None) -> None:
    """Note on ``error``, which a codec raised, which bytes it was to decode, and what may be wrong with them."""
    where = "" if entry is None else f" ({describe(entry)})"
    error.add_note(sanitize(f"while {key!r}{where} was decoded. {_OTHER}"))


def source_failed(source: object, error: Exception) -> SourceNotReachable:
    """Return what it means that ``source``, a URL or one in memory, cannot be opened."""
    reason = explain(error, source if isinstance(source, str) else "", of_source=True)
    return SourceNotReachable(f"{source} cannot be opened: {reason}")


def fail(key: str, entry: Entry, error: Exception) -> Exception:
    """Return what a failed read of ``entry`` means to the reader of ``key``."""
    if isinstance(error, ABSENT) and isinstance(entry, Span) and entry.optional:
        return FileNotFoundError(key)
    if isinstance(error, (ReferenceNotReachable, TargetNotAllowed)):
        return blame(key, error)
    return _unreachable(key, describe(entry), error)


def cause_of(error: Exception) -> Exception:
    """Return ``error`` as the cause of another: its like, if its text may not be shown."""
    return sanitize_cause(error)


def too_large(where: str, most: int) -> str:
    """Return what is wrong with a document that has more than ``most`` bytes."""
    return f"{where} has more than {most} bytes, and max_manifest_bytes={most}: more if you trust it"


def _unreachable(key: str, where: str, error: Exception) -> ReferenceNotReachable:
    named = ReferenceNotReachable(key, where, explain(error, where))
    named.__cause__ = sanitize_cause(error)
    return named
