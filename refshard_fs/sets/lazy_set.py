"""Sets joined by a document that names them. Its parts are opened when they are read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from refshard_fs.core.stats import count_text
from refshard_fs.cubes.document import ConcatDocument
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.reading.loading import Heads
from refshard_fs.security.policy import directory_of, protocol_of
from refshard_fs.source.in_memory_source import InMemorySource
from refshard_fs.source.settings import format_named
from refshard_fs.stores.objects import Objects
from refshard_fs.tools.views import fold, table, view


class LazySet(InMemorySource, frozen=True, eq=False, weakref=True):
    """A document that joins sets: an ``fo`` for `RefShardFileSystem`. Immutable; URLs in it are absolute.

    ``remark`` says why other software does not read what it shows, ``joined`` what it joins. ``opened_with`` are the
    arguments by which its parts were opened: filesystems of it open them so. ``first_bytes`` of the parts were read to
    join them: filesystems of it do not read these again. Neither is saved; pickles lack the bytes.
    """

    remark: str
    joined: str
    opened_with: Mapping[str, Any] = {}
    first_bytes: Heads | None = None

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments that opened the sources of this set: the set is opened with the same."""
        return self.opened_with

    def heads(self) -> Heads | None:
        """Return the first bytes of its parts."""
        return self.first_bytes

    @property
    def title(self) -> str:
        """What it joins, in a few words."""
        return self.joined

    @property
    def document(self) -> ConcatDocument:
        """What the document says."""
        assert isinstance(self.content, bytes), "a document that joins sets is bytes"
        return ConcatDocument.read(self.content, repr(self))

    @property
    def urls(self) -> list[str]:
        """The URLs of all parts, of documents within it, too."""
        found: list[str] = []

        def note(url: str) -> str:
            found.append(url)
            return url

        self.document.dumps(note)
        return found

    def __len__(self) -> int:
        """Number of parts."""
        return self.document.count

    def save(self, url: str, format: str | None = None, **storage_options: Any) -> str:
        """Write the document to ``url``, parts that lie below its directory relative to it; it appears whole.

        With ``format``, or a name that ends with ``.icechunk``, it is written in a format that others read, too: see
        `RefShardFileSystem.save`. Returns in one line why only this package reads the document, or what was copied.
        """
        if format is not None or format_named(url) == "icechunk":
            return RefShardFileSystem(self).save(url, format, **storage_options) or ""
        data = self.document.dumps(relative_urls(url))
        Objects(url, storage_options).put("", (data,))
        return self.remark

    def _repr_html_(self) -> str:
        document = self.document
        dim, total = document.dim, len(document.parts)
        starts = document.starts
        parts = ((part.name, f"{starts[i]:,}", f"{part.length:,}") for i, part in enumerate(document.parts))
        arrays = ((path or "/", str(axis)) for path, axis in sorted(document.axes.items()))
        return view(
            self.joined,
            f"{dim} {starts[-1]:,}",
            table(("set", "starts at", "length"), parts, right=["starts at", "length"], most=10, total=total),
            fold(
                count_text(len(document.axes), "joined array"),
                table(("array", "axis"), arrays, right=["axis"], total=len(document.axes)),
            ),
        )

    def respelled(self, respell: Callable[[str], str]) -> LazySet:
        """Return the set with other URLs."""
        data = self.document.dumps(respell)
        return LazySet(data, hashlib.sha256(data).hexdigest(), self.remark, self.joined, self.opened_with)

    def __reduce__(self) -> tuple[Any, ...]:
        return LazySet, (self.content, self.digest, self.remark, self.joined, self.opened_with)


def relative_urls(url: str) -> Callable[[str], str]:
    """Return how URLs are spelled in a document at ``url``."""
    absolute = url if protocol_of(url) is not None else os.path.abspath(os.path.expanduser(url))
    directory = directory_of(absolute)
    stem = directory if directory.endswith("/") else directory + "/"

    def respell(part: str) -> str:
        rest = part.removeprefix(stem)
        plain = rest != part and "::" not in part and protocol_of(rest) is None and not rest.startswith("/")
        return rest if plain else part

    return respell
