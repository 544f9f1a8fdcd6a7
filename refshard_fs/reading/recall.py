"""What the process remembers of an object, used only with the version of the object that it was made from.

Indexes outlive the session that read them. Without this, one that begins after a file was
replaced would look chunks up in the index of the old one, and read its bytes from the new one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from refshard_fs.model import Load, Need, Packed, Span, Stat
from refshard_fs.reading.loading import Streamed
from refshard_fs.targets import Pool, Seen

__all__ = ["bound", "recalled"]


class _Bound(NamedTuple):
    """A value, and what was seen of the object at ``url`` when it was made."""

    value: Any
    url: str
    seen: Seen


def bound(need: Need, value: Any, pool: Pool) -> Any:
    """Return ``value``, the answer to ``need``, as it is to be remembered."""
    url = _source(need)
    seen = None if url is None else pool.versions.of(url).seen
    return value if url is None or seen is None else _Bound(value, url, seen)


def recalled(found: Any, pool: Pool) -> Any:
    """Return the value that was remembered as ``found``; None if its object is another one by now.

    Where that cannot be told without a request, the object is held to be the one it was: if
    it is not, the next read of it is `TargetChanged`.
    """
    if type(found) is not _Bound:
        return found
    place = pool.place(found.url)
    if place is None:  # nothing is opened without an event loop; the session may have seen it in one
        version = pool.versions.of(found.url)
        return found.value if version.seen is not None and version.is_like(found.seen) else None
    return found.value if place[0].holds(place[1], found.seen) else None


def _source(need: Need) -> str | None:
    """Return the URL whose version decides; None where what is asked for names the version itself."""
    match need:
        case Load(Span(url=url, pin=None) | Packed(source=Span(url=url, pin=None)), index):
            return None if isinstance(index, Streamed) else url
        case Stat(url):
            return url
        case _:
            return None
