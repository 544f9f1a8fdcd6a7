"""Convert errors of reads to errors that name the key. FileNotFoundError always means that the key does not exist."""

from __future__ import annotations

from typing import Final

from fsspec import available_protocols

from refshard_fs.core.model import Entry, Head, Inline, Load, Names, Need, Packed, Span, Stat, Tree
from refshard_fs.errors import (
    DamagedIndex,
    ManifestError,
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
    EXPIRED,
    NOT_FOUND,
    WITHOUT,
    ConnectionLost,
    Denial,
    HttpStatus,
    TooLarge,
    Unfit,
    is_transient,
)

READING: Final = "on reading "  # the beginning of a note on an error that names what could not be read
OPENING: Final = "on opening "  # the beginning of a note that names a source, for example a piece of the opened cube

_SIGNED: Final = "The signature of the URL has expired: make the references again"
_SIGNED_SOURCE: Final = "The signature of the URL has expired: get a new URL"
_TOKEN: Final = "The credentials have expired: log in again, and open the source again"
_GONE: Final = (
    "The object was removed, or never existed: `refshard check` finds all missing objects, and `refshard rebase` "
    "changes references to objects that have moved"
)
_OTHER: Final = (
    "The object is damaged, or has changed since it was opened or since references to it were made: `refshard check` "
    "compares all chunks with their objects"
)
_INEXACT: Final = (
    "The encoding that the cube has from its first set cannot hold these values: read the object by itself, or join "
    "such objects to a cube of their own"
)
_HOST: Final = "Check that the host name is right, and that the host is running and reachable from here"
_BUSY: Final = "The server may be overloaded: increase retries= and timeout=, or reduce concurrency="
_RANGES: Final = (
    "The server, or a proxy before it, answers requests for ranges wrongly: read the object from another server, or "
    "put 'simplecache::' before its URL"
)
_BUCKET: Final = "Check the names of the bucket and of its store (endpoint_url=)"
_PROTOCOL: Final = "Install the package that adds this protocol to fsspec"


def explain(error: BaseException, where: str = "", *, of_source: bool = False) -> str:
    """Say in one line what happened at ``where``, and what to do; with ``of_source``, ``where`` is the source."""
    is_ours = type(error).__module__.startswith("refshard_fs.")  # names of our classes add nothing to the texts
    text = f"{error}" if is_ours and str(error) else f"{type(error).__name__}: {error}".rstrip(": ")
    notes: list[str] = getattr(error, "__notes__", [])
    reason = "; ".join([text, *(note for note in notes if not note.startswith((READING, OPENING)))])
    advice = _choose_advice(error, where, reason, of_source=of_source)
    return f"{reason.rstrip('.')}. {advice}" if advice else reason


def _choose_advice(error: BaseException, where: str, reason: str, *, of_source: bool) -> str:
    text = str(error)
    match error:
        case Denial() if EXPIRED in text:
            return _SIGNED_SOURCE if of_source else _SIGNED
        case HttpStatus(code="ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired"):
            return _TOKEN
        case HttpStatus(code="NoSuchBucket"):
            return _BUCKET
        case Denial() | PermissionError():
            return _advise_credentials(where, reason)
        case IsADirectoryError():
            return "" if of_source else "It is a directory, but references must point to files"
        case FileNotFoundError():
            return "" if of_source else _GONE
        case TooLarge(most=most):
            return (
                f"A document of unknown length may have at most max_manifest_bytes={most} bytes: pass a larger number "
                "if you trust this document"
            )
        case Unfit() if "the object has" in text:
            return "" if of_source else _OTHER
        case HttpStatus(status=416):
            return "" if of_source else _OTHER
        case ConnectionLost():
            return _HOST
        case OSError() if is_transient(error):
            return _BUSY
        case Unfit():
            return _RANGES
        case ValueError() if "Protocol not known" in text:
            return _advise_protocol(text.rpartition(":")[2].strip())
        case ValueError() if "cannot be stored exactly" in text or "the shown array" in text:
            return _INEXACT
        case ValueError():  # bytes that cannot be decoded
            return "" if of_source else _OTHER
    if "NoCredentialsError" in text:
        return _advise_credentials(where, reason)
    return _HOST if "Cannot connect to host" in text else ""


def _advise_protocol(name: str) -> str:
    """Return the known protocol that is spelled nearly like ``name``, or how to add a protocol."""
    import difflib  # needed only here

    near = difflib.get_close_matches(name, available_protocols(), 1, 0.75)
    return f"Did you mean {near[0]}://?" if near else _PROTOCOL


def _advise_credentials(where: str, reason: str) -> str:
    """Return the option that passes credentials, with the bucket or server in it, ready to be pasted."""
    if WITHOUT in reason:  # the reason says this already
        return ""
    place = place_of(where.partition(" [")[0]) if where else "s3://BUCKET/"
    if place is None:  # a local file
        return "Check the permissions of the file with `ls -l`"
    if place.startswith(("http://", "https://")):
        return f"Credentials go into options={{{place!r}: {{'headers': {{...}}}}}}"
    advice = f"Credentials go into options={{{place!r}: {{...}}}}"
    without = ANONYMOUS.get(protocol_of(place) or "")
    return f"{advice}; if it is public: options={{{place!r}: {without}}}" if without else advice


def describe(entry: Entry) -> str:
    """Describe the location of the bytes of ``entry``, for errors."""
    match entry:
        case Inline():
            return "the source itself"
        case Packed(source):
            return describe(source)
        case Span(url, start, stop):
            return url if start == 0 and stop is None else f"{url} [{start}:{'' if stop is None else stop}]"


def note_source(error: Exception, url: str) -> None:
    """Add a note to ``error`` that says which source could not be opened, for `make_source_error`."""
    error.add_note(OPENING + sanitize(url))


def note(error: Exception, need: Need) -> None:
    """Add a note with the location of ``need`` to ``error``, for `name_key`."""
    match need:
        case Load(entry):
            where = describe(entry)
        case Stat(url) | Head(url) | Names(url) | Tree(url):
            where = url
    error.add_note(READING + sanitize(where))


def is_of_need(error: Exception) -> bool:
    """Return whether ``error`` comes from the answer to a need, which several look-ups may share."""
    return _find_noted_place(error, READING) is not None


def name_key(key: str, error: Exception, source: str = "") -> Exception:
    """Return an error like ``error`` that names ``key``, and is never a FileNotFoundError.

    If ``error`` does not say what could not be read, the new error names the URL ``source``.
    """
    if isinstance(error, (DamagedIndex, ReferenceNotReachable)):
        named = type(error)(key, error.target, error.reason)
        named.__cause__ = sanitize_cause(error.__cause__ or error)
        return named
    if isinstance(error, TargetNotAllowed):
        return TargetNotAllowed(error.url, error.rule, error.remedy, key)
    if isinstance(error, (SourceNotReachable, ManifestError)) and key not in str(error):  # from a piece of a cube
        of_piece = type(error)(f"{key!r} cannot be read: {error}")
        of_piece.__cause__ = sanitize_cause(error.__cause__ or error)
        return of_piece
    if isinstance(error, RefShardError) and not isinstance(error, OSError):
        return error
    return _make_unreachable_error(key, _find_noted_place(error, READING) or source or "an unknown location", error)


def _find_noted_place(error: Exception, mark: str) -> str | None:
    """Return the place that a note on ``error`` names after ``mark``; the first such note has the innermost place."""
    notes: list[str] = getattr(error, "__notes__", [])
    return next((text.removeprefix(mark) for text in notes if text.startswith(mark)), None)


def note_decoding(error: Exception, key: str, entry: Entry | None) -> None:
    """Add a note to the ``error`` of a codec: the key, the location of the bytes, and what may be wrong with them."""
    where = "" if entry is None else f" ({describe(entry)})"
    error.add_note(sanitize(f"while decoding {key!r}{where}. {_OTHER}"))


def make_source_error(source: object, error: Exception) -> SourceNotReachable:
    """Return the error for a ``source``, a URL or a source in memory, that cannot be opened.

    The error also names the object that cannot be read, if this is not the source itself, but a file beside it.
    """
    place = _find_noted_place(error, OPENING) or source
    where = sanitize(place) if isinstance(place, str) else ""
    read = _find_noted_place(error, READING) or where
    reason = explain(error, read or where, of_source=True)
    return SourceNotReachable(f"{place} cannot be opened: {'' if read.startswith(where) else f'{read}: '}{reason}")


def make_read_error(key: str, entry: Entry, error: Exception) -> Exception:
    """Return the error for the reader of ``key`` when reading its ``entry`` fails with ``error``."""
    if isinstance(error, NOT_FOUND) and isinstance(entry, Span) and entry.optional:
        return FileNotFoundError(key)
    if isinstance(error, (ReferenceNotReachable, TargetNotAllowed)):
        return name_key(key, error)
    return _make_unreachable_error(key, describe(entry), error)


def make_too_large_text(where: str, most: int) -> str:
    """Return the error text for a document that has more than ``most`` bytes."""
    return f"{where} has more than max_manifest_bytes={most} bytes: pass a larger number if you trust it"


def _make_unreachable_error(key: str, where: str, error: Exception) -> ReferenceNotReachable:
    named = ReferenceNotReachable(key, where, explain(error, where))
    named.__cause__ = sanitize_cause(error)
    return named
