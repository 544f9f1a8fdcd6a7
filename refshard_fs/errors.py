"""The exception tree. ``FileNotFoundError`` is not in it: that one means "no such key", and nothing else.

Every error here survives pickling, so that a dask worker's failure reaches the user whole.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from fsspec.implementations.reference import ReferenceNotReachable as _FsspecNotReachable

# ----------------------------------------------------------------------------------------------------
# What may be shown of a text: all of ours that leaves, in an error, a log, a page or on a terminal, goes through here.


E = TypeVar("E", bound=BaseException)

LONGEST: Final = 20_000  # characters of a text that are shown: longer ones are clipped before anything looks at them

# What moves a cursor, rings, starts an escape sequence, or turns the direction of writing; and what nobody sees, or
# each font shows in its own way: joiners, fillers, selectors, tags, private letters.
_CONTROL: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    r"\ud800-\uf8ff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U0010ffff]"
)
# None of these looks at a character more than some hundred times, however long a text is and whatever it holds.
_USERINFO: Final = re.compile(r"(?<=://)[^/?#\s@]++@")
_PASSWORD: Final = re.compile(
    r"(?<![\w/])[^\s/:@'\"()\[\]]{1,256}+:[^\s/:@'\"]++@(?=[\w\[])"
)  # where another's text left the scheme out
_PARAMETER: Final = re.compile(r"([?&;#]([\w.\-\[\]%]++)=)(?:[^?&;#\s\])'\"]|\?(?![\w-]{1,64}=))++")
_SECRET: Final = re.compile(
    r"^x-(?:amz|goog)-|^(?:api|access|account|subscription)?[-_]?key$|^sid$|auth(?!or)|credential|jwt|accesskeyid|passw|pwd|secret"
    r"|session[-_]?id|(?:^|[-_])sig$|signature|token",
    re.IGNORECASE,
)


_ENCODED: Final = 4  # times that a name may be percent-encoded
_NAME: Final = 256  # characters of a name that are looked at


def redacted(text: str) -> str:
    """Return ``text`` with what gives access in its URLs (names, passwords, tokens, signatures) left out."""
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}... ({len(text)} characters)"
    return _PARAMETER.sub(_unsigned, _PASSWORD.sub("...@", _USERINFO.sub("...@", text)))


def gives_access(urls: bytes) -> bool:
    """Whether there is something in ``urls``, many in a row, that `redacted` would leave out."""
    if not any(mark in urls for mark in (b"?", b"&", b";", b"#", b"@")):
        return False
    text = urls.decode("latin-1")
    named = any(is_secret(found[2]) for found in _PARAMETER.finditer(text))
    return named or _USERINFO.search(text) is not None


def printable(text: str) -> str:
    r"""Return ``text`` with control characters spelled out, so that a key cannot steer a terminal.

    >>> printable("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)


def told(text: str) -> str:
    """Return ``text`` as it may be shown: printable, and with nothing that gives access."""
    return printable(redacted(text))


def told_cause(error: E) -> E | OSError:
    """Return ``error`` as it may be shown as a cause: as it is, or its like, if its text may not be."""
    text = str(error)
    if isinstance(error, RefShardError) or (told(text) == text and told(repr(error)) == repr(error)):
        return error
    return OSError(f"{type(error).__name__}: {told(text)}")


def _unsigned(match: re.Match[str]) -> str:
    return f"{match[1]}..." if is_secret(match[2]) else match[0]


def is_secret(name: str) -> bool:
    """Whether a parameter or an option of this name gives access: ``token``, ``auth[key]``, ``to%6ben``."""
    for _ in range(_ENCODED):
        before, name = name, unquote(name[:_NAME], errors="replace")
        if name == before:
            break
    return any(_SECRET.search(part) for part in (name, *re.split(r"[\[\].]", name)))


class RefShardError(Exception):
    """Whatever this package raises on its own account, apart from ``FileNotFoundError``. Its text may be shown."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(told(text) if isinstance(text, str) else text for text in arguments))


class ManifestError(RefShardError, ValueError):
    """A manifest (or an index that names keys) does not follow its format; the text names source and key."""


class DivisionByZero(ManifestError, ZeroDivisionError):
    """A template or a generated reference divides by zero."""


class UnknownSource(ManifestError):
    """No registered format, or more than one, recognises what ``fo`` holds."""


class SourceNotReachable(RefShardError):
    """The source itself (``fo``) is missing or cannot be read. The original error is the ``__cause__``.

    No FileNotFoundError even where the manifest is missing: a worker that cannot find it
    must not take every chunk for a missing one.
    """


class NoSuchSource(SourceNotReachable):
    """There is nothing at the source's URL: with ``mode="a"`` it would be made by the first commit."""


class NotListable(RefShardError, NotImplementedError):
    """A source that can be read and not be listed, as plain HTTP cannot."""


class ReferenceNotReachable(RefShardError, _FsspecNotReachable):
    """A key exists, and its bytes could not be had. The original error is the ``__cause__``.

    Derives from fsspec's error of the same name, and is no ``OSError``: zarr and mappers
    take several of those for a missing chunk, and would fill it with the fill value.
    """

    def __init__(self, key: str, target: str, reason: str = "") -> None:
        super().__init__(key, target, reason)
        self.key = key
        self.target = told(target)
        self.reason = told(reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key, self.target, self.reason)

    def __str__(self) -> str:
        if not self.key:  # all of the source was looked at
            return f"{self.target} cannot be read: {self.reason}"
        return f"{self.key!r} exists, but its bytes at {self.target} cannot be had: {self.reason}"


class DamagedIndex(ReferenceNotReachable):
    """An index that says where chunks lie (of a shard, an archive, a partition) is damaged."""

    def __str__(self) -> str:
        return f"{super().__str__()}. It has to be written or copied anew; `refshard check` finds all that are damaged"


class TargetChanged(ReferenceNotReachable):
    """A target was replaced between two reads: its bytes would mix two versions of one file."""


class TargetNotAllowed(RefShardError, PermissionError):
    """A manifest points where the reader does not let it: ``url`` breaks ``rule``; ``remedy`` would permit it."""

    def __init__(self, url: str, rule: str, remedy: str, key: str = "") -> None:
        super().__init__(url, rule, remedy, key)
        self.url = told(url)
        self.rule = told(rule)
        self.remedy = told(remedy)
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url, self.rule, self.remedy, self.key)

    def __str__(self) -> str:
        who = f"{self.key!r} points to" if self.key else "not allowed:"
        return f"{who} {self.url!r}: {self.rule}. {self.remedy}."


class ReadOnlyError(RefShardError, PermissionError):
    """A write to a filesystem that was opened for reading, or to a source that takes none."""


class ConflictError(RefShardError):
    """Somebody else committed to the same source since it was opened; nothing was written.

    If ``is_certain`` is False, what was written may have been there before that: the store's first answer was lost.
    """

    is_certain = True


class CostlyPattern(UserWarning):
    """What is done works, and costs requests or bytes that another way, which the text names, would not cost.

    Told once for each array and kind; `warnings.filterwarnings` with this category silences it, or makes it an error.
    """
