"""Copy the references of a file from an earlier file that differs only in the bytes of its chunks.

Files by one writer whose chunks have the same lengths often have the same headers and indexes, byte by byte. So a
file is compared with the last one of its size, without the ranges of its chunks. Before a template is used, a file
with other bytes in these ranges is parsed: if its references differ, the parser interprets bytes of a chunk, and no
template of this size is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ChunkTable, Texts
from refshard_fs.core.lru import LRU
from refshard_fs.core.model import Facts, Head, Inline, Load, Need, Span, Steps, answer_unknown, drive
from refshard_fs.references.binary import pack_compressed
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.shared_members import SharedMembers

SIZES: Final = 16  # the most templates that are kept, one for each size of a file: each has some 128 KiB
DIFFERING: Final = 1024  # the most differing bytes of two files that are tried as places of inline values
FLIPPED: Final = (0xFF, 0x55)  # bits that are flipped in chunks, to see whether the references depend on them
T = TypeVar("T")


# Returns the steps that collect the references of a source.
Collect = Callable[["FirstBytes"], Steps[ReferenceSet]]


# The tables without the chunks to make inline, and the spans of these chunks, by key.
InlineSplit = tuple[Mapping[str, ChunkTable], Mapping[str, Span]]


class FirstBytes:
    """The first bytes of the object at ``url``, which are read once: needs that lie in them cost no further request."""

    def __init__(self, url: str, length: int) -> None:
        self.url = url
        self.facts: Facts | None = None
        self.data = b""
        self.are_all = True  # whether the first bytes have answered all needs
        self._head = Head(url, length)
        self._answers: dict[Head, Any] = {}  # None for an object that does not exist, or the error of the request

    def read(self) -> Steps[None]:
        """Read the first bytes. An error is kept, and raised by the steps that need them."""
        try:
            found = yield self._head
        except Exception as e:  # noqa: BLE001  # the steps that need these bytes raise it
            found = e
        self._answers[self._head] = found
        if isinstance(found, tuple):
            self.facts, self.data = found

    def with_data(self, data: bytes) -> FirstBytes:
        """Return the same object with other bytes."""
        other = FirstBytes(self.url, self._head.length)
        other.facts, other.data = self.facts, data
        other._answers[self._head] = other.facts, other.data
        return other

    def run(self, steps: Steps[T]) -> Steps[T]:
        """Run ``steps``, and answer their needs from the first bytes if possible."""
        return (yield from drive(steps, partial(answer_unknown, find=self._find)))

    def _find(self, need: Need) -> tuple[Any] | None:
        """Answer a need; None if its bytes lie elsewhere, or are damaged, which the engine then reports."""
        match need:
            case Head() if need in self._answers:
                found = self._answers[need]
                if isinstance(found, Exception):
                    raise found
                return (found,)
            case Load(Inline(data), index):
                pass
            case Load(Span(url, start, int(stop)), index) if url == self.url and 0 <= start <= stop <= len(self.data):
                data = self.data[start:stop]
            case _:
                self.are_all = False
                return None
        with suppress(ValueError):
            return (index.decode(data),)
        self.are_all = False
        return None


class FileTemplate(NamedTuple):
    """A file that was parsed: its first bytes, which of them are outside of chunks, and its references.

    ``values`` has, by key, offset and end of the bytes of inline coordinates in the file, and ``has_all`` says whether
    these are all coordinates. ``is_safe`` says whether references are independent of the bytes of chunks; None if that
    has not been tried.
    """

    data: npt.NDArray[np.uint8]
    is_outside: npt.NDArray[np.bool_]
    refs: ReferenceSet
    values: Mapping[str, tuple[int, int]] = {}
    has_all: bool = False
    is_safe: bool | None = None

    @classmethod
    def of(cls, first: FirstBytes, refs: ReferenceSet) -> FileTemplate | None:
        """Return the template; None if more than the first bytes was read, or if references point to other files."""
        if not first.are_all or refs.pins is not None or len(refs.urls) != 1 or refs.urls[0] != first.url:
            return None
        is_outside = np.ones(len(first.data), bool)
        for table in refs.tables.values():
            _, ranges = table.make_part()
            near = ranges.take(ranges.offsets < len(is_outside))
            for start, length in zip(near.offsets.tolist(), near.lengths.tolist(), strict=True):
                is_outside[start : start + length] = False
        return cls(np.frombuffer(first.data, np.uint8), is_outside, refs)

    def compare(self, other: FileTemplate) -> FileTemplate:
        """Return the template with the places of inline values in which its file differs from that of ``other``."""
        if len(self.data) != len(other.data):
            return self
        differing = np.flatnonzero((self.data != other.data) & self.is_outside).tolist()[:DIFFERING]
        is_outside, values = self.is_outside.copy(), dict(self.values)
        for key, value in self.refs.side.items():
            theirs = other.refs.side.get(key)
            if zarrmeta.is_metadata(key) or not isinstance(value, bytes) or not isinstance(theirs, bytes):
                continue
            inner = next((i for i, (a, b) in enumerate(zip(value, theirs, strict=False)) if a != b), len(value))
            for start in (at - inner for at in differing if inner <= at and inner < len(value)):
                stop = start + len(value)
                if self.data[start:stop].tobytes() == value and other.data[start:stop].tobytes() == theirs:
                    values[key] = start, stop
                    is_outside[start:stop] = False
                    break
        return self._replace(is_outside=is_outside, values=values)

    def with_inline(self, first: FirstBytes, wanted: InlineSplit | None) -> FileTemplate:
        """Return the template with the ``wanted`` chunks inline; unchanged if they lie outside of the first bytes."""
        if wanted is None:
            return self._replace(has_all=True)
        tables, spans = wanted
        values = dict(self.values)
        for key, span in spans.items():
            if span.url != first.url or span.stop is None or not 0 <= span.start <= span.stop <= len(first.data):
                return self
            values[key] = span.start, span.stop
        refs = ReferenceSet(self.refs.urls, tables, self.refs.side)
        return self._replace(refs=refs, values=values, has_all=True)

    def fits(self, first: FirstBytes) -> bool:
        """Return whether a file has the same bytes outside of chunks."""
        data = np.frombuffer(first.data, np.uint8)
        return len(data) == len(self.data) and not ((data ^ self.data) * self.is_outside).any()

    def flip(self, first: FirstBytes, bits: int) -> FirstBytes:
        """Return the first bytes of a file, with ``bits`` flipped in those of chunks."""
        data = np.frombuffer(first.data, np.uint8) ^ (~self.is_outside * np.uint8(bits))
        return first.with_data(data.tobytes())

    def make_references(self, first: FirstBytes) -> ReferenceSet:
        """Return the references of a file that `fits`."""
        members = {key: first.data[start:stop] for key, (start, stop) in self.values.items()}
        side = SharedMembers(self.refs.side, members) if members else self.refs.side
        return ReferenceSet(Texts.of([first.url]), self.refs.tables, side)


class FileTemplates:
    """Templates of the last files that were parsed, by size.

    ``split`` gets the URL and the references of a file, and chooses the chunks to make inline.
    """

    def __init__(
        self, collect: Collect, split: Callable[[str, ReferenceSet], InlineSplit | None] | None = None
    ) -> None:
        self._collect = collect
        self._split = split
        self._by_size: LRU[int, FileTemplate] = LRU(SIZES)

    def find(self, first: FirstBytes) -> tuple[ReferenceSet, bool] | None:
        """Return the references of a file that fits a template, and whether all chunks to make inline are inline.

        None if the file has to be parsed.
        """
        size = None if first.facts is None else first.facts.size
        template = None if size is None else self._by_size.get(size)
        if size is None or template is None or not template.fits(first):
            return None
        if template.is_safe is None:
            template = template._replace(
                is_safe=all(self._is_right(template, template.flip(first, bits)) for bits in FLIPPED)
            )
            if template.is_safe and self._split is not None:
                template = template.with_inline(first, self._split(first.url, template.make_references(first)))
            self._by_size.put(size, template)
        return (template.make_references(first), template.has_all) if template.is_safe else None

    def add(self, first: FirstBytes, refs: ReferenceSet) -> None:
        """Keep the template of a file that was parsed, if it has one."""
        template = FileTemplate.of(first, refs)
        if template is None or first.facts is None or first.facts.size is None:
            return
        last = self._by_size.get(first.facts.size)
        if last is not None:  # if one template of a size was not safe, no other template of this size is used
            template = last if last.is_safe is False else template.compare(last)
        self._by_size.put(first.facts.size, template)

    def _is_right(self, template: FileTemplate, first: FirstBytes) -> bool:
        """Return whether parsing a file gives the same references as its template."""
        try:
            next(self._collect(first))
        except StopIteration as stop:
            return pack_compressed(stop.value) == pack_compressed(template.make_references(first))
        except Exception:  # noqa: BLE001  # parsing fails: the references depend on these bytes
            return False
        return False  # the parser needs more than the first bytes
