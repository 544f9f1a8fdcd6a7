"""The errors of this package. FileNotFoundError means only that a key, an array or a group does not exist.

Every error can be pickled with its text, so that it reaches the user from a worker of dask.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from fsspec.implementations.reference import ReferenceNotReachable as _FsspecNotReachable

# Sanitizing texts: all texts that we show, in an error, a log, a page or on a terminal, go through `sanitize`.


E = TypeVar("E", bound=BaseException)

LONGEST: Final = 20_000  # characters: longer texts are cut first, which bounds the time of all later steps

# Characters that move the cursor, ring the bell, start an escape sequence or change the direction of text; and
# characters that are invisible or differ between fonts: joiners, fillers, selectors, tags, private letters.
_CONTROL: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    r"\ud800-\uf8ff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U0010ffff]"
)
# Each pattern visits a character at most a few hundred times, whatever the text is.
_USERINFO: Final = re.compile(r"(?<=://)[^/?#\s@]++@")
_PASSWORD: Final = re.compile(
    r"(?<![\w/])[^\s/:@'\"()\[\]]{1,256}+:[^\s/:@'\"]++@(?=[\w\[])"
)  # for texts of other packages, which may leave out the scheme of a URL
_PARAMETER: Final = re.compile(r"([?&;#]([\w.\-\[\]%]++)=)(?:[^?&;#\s\])'\"]|\?(?![\w-]{1,64}=))++")
_SECRET: Final = re.compile(
    r"^x-(?:amz|goog)-|^[-_]?key$|(?:^|[-_])(?:api|access|account|subscription)[-_]?key$|^sid$|^session$|^code$|auth(?!or(?!i))|credential|jwt|accesskeyid|passw|pwd|secret"
    r"|sess(?:ion)?[-_.\[]?id|(?:^|[-_])sig$|signature|token",
    re.IGNORECASE,
)


_MAX_DECODINGS: Final = 4  # how often a name is percent-decoded at most
_CHECKED: Final = 256  # characters: a longer name is cut before it is checked, which bounds the time


def redact(text: str) -> str:
    """Replace credentials in the URLs of ``text`` (user names, passwords, tokens, signatures) by ``...``."""
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}... ({len(text)} characters)"
    return _PARAMETER.sub(_redact_parameter, _PASSWORD.sub("...@", _USERINFO.sub("...@", text)))


def contains_credentials(urls: bytes) -> bool:
    """Return whether ``urls``, a text of many URLs, contains credentials that `redact` would replace."""
    if not any(mark in urls for mark in (b"?", b"&", b";", b"#", b"@")):
        return False
    text = urls.decode("latin-1")
    has_secret = any(is_secret(match[2]) for match in _PARAMETER.finditer(text))
    return has_secret or _USERINFO.search(text) is not None


def escape_controls(text: str) -> str:
    r"""Escape control characters in ``text``, so that a key cannot control a terminal.

    >>> escape_controls("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)


def sanitize(text: str) -> str:
    """Make ``text`` safe to show: escape control characters, and redact credentials."""
    return escape_controls(redact(text))


def sanitize_cause(error: E) -> E | OSError:
    """Return ``error``, or an OSError with its sanitized text if its own text must not be shown."""
    text = str(error)
    if isinstance(error, RefShardError) or (sanitize(text) == text and sanitize(repr(error)) == repr(error)):
        return error
    return OSError(f"{type(error).__name__}: {sanitize(text)}")


def _redact_parameter(match: re.Match[str]) -> str:
    return f"{match[1]}..." if is_secret(match[2]) else match[0]


def is_secret(name: str) -> bool:
    """Return whether a parameter or option ``name`` holds a credential: ``token``, ``auth[key]``, ``to%6ben``."""
    for _ in range(_MAX_DECODINGS):
        before, name = name, unquote(name[:_CHECKED], errors="replace")
        if name == before:
            break
    return any(_SECRET.search(part) for part in (name, *re.split(r"[\[\].]", name)))


class RefShardError(Exception):
    """The base of the errors that this package defines, for opening, reading and writing. Texts are sanitized.

    Wrong arguments raise ValueError or TypeError, a missing key FileNotFoundError, an object that exists already
    FileExistsError, and a missing package ImportError.
    """

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(sanitize(text) if isinstance(text, str) else text for text in arguments))


class ManifestError(RefShardError, ValueError):
    """A source does not follow its format, lacks an array or version that was asked for, or does not fit a new set.

    The text names the source or the argument, and says what was expected.
    """


class DivisionByZero(ManifestError, ZeroDivisionError):
    """A template or a generated reference divides by zero."""


class UnknownSource(ManifestError):
    """No format recognises the content of ``fo``, or more than one does."""


class SourceNotReachable(RefShardError):
    """The source itself (``fo``) is missing or cannot be read. The original error is the ``__cause__``.

    This is not a FileNotFoundError, even if the manifest is missing: a worker without access to the manifest must not
    treat every chunk as missing.
    """


class NoSuchSource(SourceNotReachable):
    """Nothing exists at the source's URL. With ``mode="a"``, the first commit creates the source."""


class NotListable(RefShardError, NotImplementedError):
    """The keys of the source can be read but not listed, for example over plain HTTP."""


class ReferenceNotReachable(RefShardError, _FsspecNotReachable):
    """A key exists, but its bytes cannot be read. The original error is the ``__cause__``.

    It derives from fsspec's error of the same name, and not from ``OSError``: zarr and fsspec's mappers
    treat several OSErrors as a missing chunk, and would return the fill value.
    """

    def __init__(self, key: str, target: str, reason: str = "") -> None:
        super().__init__(key, target, reason)
        self.key = key
        self.target = sanitize(target)
        self.reason = sanitize(reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key, self.target, self.reason)

    def __str__(self) -> str:
        if not self.key:  # the error concerns the whole source
            return f"{self.target} cannot be read: {self.reason}"
        return f"{escape_controls(repr(self.key))} exists, but its bytes at {self.target} cannot be read: {self.reason}"


class DamagedIndex(ReferenceNotReachable):
    """An index that locates chunks is damaged: for example of a shard or a file, or a partition of a manifest."""

    def __str__(self) -> str:
        return f"{super().__str__()}. Write or copy this object again; `refshard check` finds all damaged ones"


class NotYetThere(ReferenceNotReachable):
    """The file of a forecast's field does not exist yet; its URL follows from the rule of an archive."""


class TargetChanged(ReferenceNotReachable):
    """A target was replaced since its first read, or since a manifest pinned its version.

    Reading on would mix the bytes of two versions.
    """


class TargetNotAllowed(RefShardError, PermissionError):
    """A manifest points to a ``url`` that the reader does not allow. ``rule`` says why; ``remedy`` how to allow it."""

    def __init__(self, url: str, rule: str, remedy: str, key: str = "") -> None:
        super().__init__(url, rule, remedy, key)
        self.url = sanitize(url)
        self.rule = sanitize(rule)
        self.remedy = sanitize(remedy)
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url, self.rule, self.remedy, self.key)

    def __str__(self) -> str:
        subject = f"{escape_controls(repr(self.key))} points to" if self.key else "not allowed:"
        return f"{subject} {self.url!r}: {self.rule}. {self.remedy}."


class ReadOnlyError(RefShardError, PermissionError):
    """A write was refused: the filesystem is opened for reading, or the source cannot be written."""


class ConflictError(RefShardError):
    """A write was refused, since another writer has changed the object or the source since it was read.

    A commit of several objects may have put some of them before: a note on the error names these. If ``is_certain`` is
    False, the store's first answer was lost, so the refused write may have succeeded before the other change.
    """

    is_certain = True


class CostlyPattern(UserWarning):
    """An operation works, but costs more requests or bytes than necessary; the text names a cheaper way.

    The warning is issued once for each kind of cost and each array, server or directory that it is about.
    `warnings.filterwarnings` with this category hides it, or turns it into an error.
    """
