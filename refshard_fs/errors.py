"""The exception tree. ``FileNotFoundError`` is not in it: that one means "no such key", and nothing else.

Every error here survives pickling, so that a dask worker's failure reaches the user whole.
"""

from __future__ import annotations

import re
from typing import Any

from fsspec.implementations.reference import ReferenceNotReachable as _FsspecNotReachable

# None of them looks at a character more than some hundred times, however long a text is and whatever it holds.
_USERINFO = re.compile(r"(?<=://)[^/?#\s@]++@")
_PASSWORD = re.compile(
    r"(?<![\w/])[^\s/:@'\"()\[\]]{1,256}+:[^\s/:@'\"]++@(?=[\w\[])"
)  # where another's text left the scheme out
_PARAMETER = re.compile(r"([?&;]([\w-]++)=)[^&;#\s\])'\"]++")
_SECRET = re.compile(
    r"^x-(?:amz|goog)-|^key$|sig|signature|token|secret|password|passwd|credential|accesskeyid", re.IGNORECASE
)


def redacted(text: str) -> str:
    """Return ``text`` with what gives access in its URLs (names, passwords, tokens, signatures) left out."""
    return _PARAMETER.sub(_unsigned, _PASSWORD.sub("...@", _USERINFO.sub("...@", text)))


def _unsigned(match: re.Match[str]) -> str:
    return f"{match[1]}..." if _SECRET.search(match[2]) else match[0]


class RefShardError(Exception):
    """Whatever this package raises on its own account, apart from ``FileNotFoundError``."""


class ManifestError(RefShardError, ValueError):
    """A manifest (or an index that names keys) does not follow its format; the text names source and key."""


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
        target, reason = redacted(target), redacted(reason)
        super().__init__(key, target, reason)
        self.key = key
        self.target = target
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key, self.target, self.reason)

    def __str__(self) -> str:
        if not self.key:  # all of the source was looked at
            return f"{self.target} cannot be read: {self.reason}"
        return f"{self.key!r} exists, but its bytes at {self.target} cannot be had: {self.reason}"


class DamagedIndex(ReferenceNotReachable):
    """An index that says where chunks lie (of a shard, an archive, a partition) is damaged."""


class TargetChanged(ReferenceNotReachable):
    """A target was replaced between two reads: its bytes would mix two versions of one file."""


class TargetNotAllowed(RefShardError, PermissionError):
    """A manifest points where the reader does not let it: ``url`` breaks ``rule``; ``remedy`` would permit it."""

    def __init__(self, url: str, rule: str, remedy: str, key: str = "") -> None:
        url, rule = redacted(url), redacted(rule)
        super().__init__(url, rule, remedy, key)
        self.url = url
        self.rule = rule
        self.remedy = remedy
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url, self.rule, self.remedy, self.key)

    def __str__(self) -> str:
        who = f"{self.key!r} points to" if self.key else "not allowed:"
        return f"{who} {self.url!r}: {self.rule}. {self.remedy}."


class ReadOnlyError(RefShardError, PermissionError):
    """A write to a filesystem that was opened for reading, or to a source that takes none."""


class ConflictError(RefShardError):
    """Somebody else committed to the same source since it was opened; nothing was written."""


class CostlyPattern(UserWarning):
    """What is done works, and costs requests or bytes that another way, which the text names, would not cost.

    Told once for each array and kind; `warnings.filterwarnings` with this category silences it, or makes it an error.
    """
