"""The closed set of values every layer speaks: where bytes lie, and what is needed to know it. No I/O here.

A key resolves to an `Entry`: a `Span` (a byte range of a target), `Inline` (the bytes
themselves) or `Packed` (bytes made from a range). ``None`` stands for "no such key".
Finding the entry may itself take reads, so look-ups are generators (`Steps`) that yield
what they need and are sent the answer; the engine drives many of them in lock-step.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

T = TypeVar("T")

OWN = "refshard-"  # starts an ETag of our own making, which no manifest can name


def clamp(start: int | None, end: int | None, size: int) -> tuple[int, int]:
    """Return ``start``, ``end`` as slicing ``size`` bytes would take them, with start <= end."""
    begin, stop, _ = slice(start, end).indices(size)
    return begin, max(begin, stop)


class Pin(msgspec.Struct, frozen=True):
    """What a manifest says a target was when it was written; a difference is `TargetChanged`.

    Without ``exact``, one that was last changed earlier than ``last_modified`` says is no difference.
    """

    etag: str | None = None
    last_modified: str | None = None
    size: int | None = None
    exact: bool = False

    @property
    def version(self) -> dict[str, str]:
        """What tells versions of one size apart, as far as it is known."""
        facts = {"etag": self.etag, "last_modified": self.last_modified}
        return {name: value for name, value in facts.items() if value is not None}


class Span(msgspec.Struct, frozen=True):
    """Bytes ``[start, stop)`` of the object at ``url``.

    ``stop=None`` reaches to the end of the object, however long it is; then a negative
    ``start`` counts from that end. ``exact=False`` marks a range that may end early
    because the object's size was unknown when it was computed; all others must be
    answered in full. ``optional`` marks an object whose absence means "no such key".
    ``dense`` marks one of many ranges that lie together and tend to be read together, as a
    shard's chunks do: it is worth fetching with others over larger gaps. ``apart`` marks one that
    is fetched with others only where they touch or overlap: no byte between them is read.
    ``origin`` is the server of the set that says so, where that is somebody else's part of a
    set of the user's: what it may reach is judged when it is opened.
    """

    url: str
    start: int = 0
    stop: int | None = None
    exact: bool = True
    optional: bool = False
    pin: Pin | None = None
    dense: bool = False
    apart: bool = False
    origin: str | None = None

    @property
    def size(self) -> int | None:
        """Number of bytes, or None while only the target knows."""
        return None if self.stop is None or not self.exact else self.stop - self.start

    @property
    def spans(self) -> tuple[Span, ...]:
        """What is to be read."""
        return (self,)

    def finish(self, read: Sequence[bytes]) -> bytes:
        """Return this entry's bytes, given those of each of its `spans`."""
        return read[0]

    def window(self, start: int | None = None, end: int | None = None) -> Entry:
        """Return bytes ``[start:end]`` of this span, as slicing them would.

        Raises ValueError where the size is unknown and needed: then `resized` first.
        """
        if start is None and end is None:
            return self
        if self.stop is not None and self.exact:
            first, last = clamp(start, end, self.stop - self.start)
            return self._range(self.start + first, self.start + last) if last > first else Inline(b"")
        first = start or 0
        if self.stop is None and not self.start and first < 0 and end is None:
            return self.suffix(-first)
        if self.stop is not None or self.start < 0 or first < 0 or (end is not None and end < 0):
            raise ValueError(f"the size of {self.url} must be known to take [{start}:{end}] of it")
        if end is None:
            return self._range(self.start + first, None, exact=False)
        return self._range(self.start + first, self.start + end, exact=False) if end > first else Inline(b"")

    def suffix(self, length: int) -> Span:
        """Return the last ``length`` bytes of the object, which may begin before this span does."""
        return self._range(-length, None, exact=False)

    def part(self, offset: int, length: int) -> Entry:
        """Return exactly ``length`` bytes at ``offset``; ValueError where the span is known to be shorter."""
        size = self.size
        if offset < 0 or length < 0 or (size is not None and offset + length > size):
            raise ValueError(f"bytes [{offset}, {offset + length}) lie outside the {size} bytes there are")
        return self._range(self.start + offset, self.start + offset + length) if length else Inline(b"")

    def resized(self, object_size: int) -> Span:
        """Return this span with its end known, for an object of ``object_size`` bytes."""
        if self.stop is not None and self.exact:
            return self
        first, last = clamp(self.start, self.stop, object_size)
        return self._range(first, last)

    def _range(self, start: int, stop: int | None, *, exact: bool = True) -> Span:
        return Span(self.url, start, stop, exact, self.optional, self.pin, self.dense, self.apart, self.origin)


class Inline(msgspec.Struct, frozen=True):
    """Bytes that the manifest itself holds."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def spans(self) -> tuple[Span, ...]:
        return ()

    def finish(self, read: Sequence[bytes]) -> bytes:
        return self.data

    def window(self, start: int | None = None, end: int | None = None) -> Inline:
        return Inline(self.data[start:end])

    def part(self, offset: int, length: int) -> Inline:
        if offset < 0 or length < 0 or offset + length > len(self.data):
            raise ValueError(f"bytes [{offset}, {offset + length}) lie outside the {self.size} bytes there are")
        return Inline(self.data[offset : offset + length])


class Recipe(Protocol, Hashable):
    """How a `Packed` entry's bytes are made; frozen, hashable and picklable."""

    def make(self, raw: bytes) -> bytes:
        """Return the bytes made from those that were read; ValueError where they are damaged."""


class SizedRecipe(Recipe, Protocol):
    """One that knows how many bytes it makes."""

    @property
    def size(self) -> int: ...


class Packed(msgspec.Struct, frozen=True):
    """Bytes ``[start, stop)`` of what ``recipe`` makes from ``source``; ``made`` is the full size, if known.

    It is made from all of the source, or from the bytes of ``parts``, joined: then the source is what errors name.
    """

    source: Span
    recipe: Recipe
    made: int | None = None
    start: int | None = None
    stop: int | None = None
    exact: bool = False
    parts: tuple[Entry, ...] = ()

    @property
    def spans(self) -> tuple[Span, ...]:
        """What is to be read, in the order that `finish` takes it in."""
        if not self.parts:
            return (self.source,)
        return tuple(span for part in self.parts for span in part.spans)

    @property
    def size(self) -> int | None:
        if self.made is None:
            return self.stop - (self.start or 0) if self.exact and self.stop is not None else None
        first, last = clamp(self.start, self.stop, self.made)
        return last - first

    def window(self, start: int | None = None, end: int | None = None) -> Packed:
        """Return bytes ``[start:end]`` of this entry, as slicing them would."""
        if start is None and end is None:
            return self
        if self.made is None:
            if self.start is not None or self.stop is not None:
                raise ValueError("a window of a window needs the size of the whole")
            return self._window(start, end)
        begin, stop = clamp(self.start, self.stop, self.made)
        first, last = clamp(start, end, stop - begin)
        return self._window(begin + first, begin + last)

    def part(self, offset: int, length: int) -> Packed:
        """Return exactly ``length`` bytes at ``offset``; ValueError where the entry is known to be shorter."""
        if offset < 0 or length < 0 or (self.size is not None and offset + length > self.size):
            raise ValueError(f"bytes [{offset}, {offset + length}) lie outside the {self.size} bytes there are")
        begin = (self.start or 0) + offset
        return self._window(begin, begin + length, exact=True)

    def finish(self, read: Sequence[bytes]) -> bytes:
        """Return this entry's bytes, given those of each of its `spans`; ValueError where they are damaged."""
        if self.parts:
            left = iter(read)
            read = [part.finish([next(left) for _ in part.spans]) for part in self.parts]
        full = self.recipe.make(read[0] if len(read) == 1 else b"".join(read))
        if self.made is not None and len(full) != self.made:
            raise ValueError(f"{len(full)} bytes were made where {self.made} were promised")
        data = full if self.start is None and self.stop is None else full[self.start : self.stop]
        if self.exact and self.stop is not None and len(data) != self.stop - (self.start or 0):
            raise ValueError(f"{len(full)} bytes were made, too few for [{self.start}:{self.stop}]")
        return data

    def _window(self, start: int | None, stop: int | None, *, exact: bool = False) -> Packed:
        return Packed(self.source, self.recipe, self.made, start, stop, exact, self.parts)


Entry = Span | Inline | Packed


class Quota(msgspec.Struct, frozen=True):
    """Of all that belongs to ``name``, at most ``most`` decoded indexes are remembered at a time."""

    name: str
    most: int


class Index(Protocol, Hashable):
    """How loaded bytes become something to look keys up in; frozen, hashable: half of a cache key."""

    def decode(self, data: bytes) -> Any:
        """Return the decoded index; ValueError (saying what is wrong) where the bytes are damaged.

        The result is shared between threads and must not be changed; give it ``nbytes``
        if its weight in memory is not about that of ``data``. An index with a ``quota``
        limits how many results of its kind are remembered. One with a method
        ``sized(object_size)`` is told how long the object is that ``data`` were read of, as
        far as reading it has shown that, and what this returns decodes them.
        """


class Raw(msgspec.Struct, frozen=True):
    """An index that is the bytes themselves."""

    def decode(self, data: bytes) -> bytes:
        return data


class Parsed(msgspec.Struct, frozen=True):
    """An index that the function ``parse`` of a module makes of the bytes; ``arguments`` follow them."""

    parse: Callable[..., Any]
    arguments: tuple[Hashable, ...] = ()

    def decode(self, data: bytes) -> Any:
        return self.parse(data, *self.arguments)


class Load(msgspec.Struct, frozen=True):
    """Needed: the bytes of ``entry``, decoded by ``index``. Answer: its result; None if optional and absent."""

    entry: Entry
    index: Index


class Facts(msgspec.Struct, frozen=True):
    """What a target says of an object without its bytes; an ``etag`` that starts with `OWN` is of our making."""

    size: int | None
    etag: str | None = None
    last_modified: str | None = None

    @property
    def pin(self) -> Pin:
        """What tells this version of the object."""
        return Pin(self.etag, self.last_modified, self.size)

    @property
    def named_etag(self) -> str | None:
        """The ETag that the target itself gives the object."""
        return None if self.etag is None or self.etag.startswith(OWN) else self.etag


class Stat(msgspec.Struct, frozen=True):
    """Needed: `Facts` of the object at ``url``; ``fresh``: not remembered ones. Answer: None if there is none."""

    url: str
    fresh: bool = False
    origin: str | None = None


class Head(msgspec.Struct, frozen=True):
    """Needed: `Facts` of the object at ``url`` and its first ``length`` bytes, of one answer that is not remembered.

    Answer: both; None if there is no such object.
    """

    url: str
    length: int
    origin: str | None = None


class Listed(msgspec.Struct, frozen=True, gc=False):
    """One name directly below a prefix: ``size`` in bytes; None for a directory, or where only the target knows it.

    ``etag`` and ``last_modified`` are the target's, where its listings tell them.
    """

    name: str
    size: int | None
    is_directory: bool = False
    etag: str | None = None
    last_modified: str | None = None


class Names(msgspec.Struct, frozen=True):
    """Needed: the names directly below ``url``. Answer: tuple of `Listed`; None where the target cannot list."""

    url: str
    origin: str | None = None


Need = Load | Stat | Head | Names


def of_origin(what: T, origin: str) -> T:
    """Return a need, several of them, or an entry, as one of the set at ``origin``; whatever else it is, as it is."""
    match what:
        case Span() | Stat() | Head() | Names():
            return msgspec.structs.replace(what, origin=origin)
        case Packed(source, parts=parts):
            theirs = tuple(of_origin(part, origin) for part in parts)
            return msgspec.structs.replace(what, source=of_origin(source, origin), parts=theirs)
        case Load(entry):
            return msgspec.structs.replace(what, entry=of_origin(entry, origin))
        case tuple() if what and isinstance(what[0], Need):
            return tuple(of_origin(one, origin) for one in what)  # type: ignore[return-value]  # T is that tuple
    return what


# Yields one need, or a tuple of needs that can be met together (and is sent a tuple of answers).
Steps = Generator[Need | tuple[Need, ...], Any, T]


def driven(steps: Steps[T], meet: Callable[[Need | tuple[Need, ...]], Steps[Any]]) -> Steps[T]:
    """Return what ``steps`` return, each of whose needs ``meet`` answers; they are told of its errors."""
    answer: Any = None
    error: Exception | None = None
    while True:
        try:
            need = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration as stop:
            result: T = stop.value
            return result
        try:
            answer, error = (yield from meet(need)), None
        except Exception as e:  # noqa: BLE001  # the steps may know better, as where a directory is refused
            answer, error = None, e


# ----------------------------------------------------------------------------------------------------
# Several look-ups as one: what they need in a round is asked for together.


def together(many: Sequence[Steps[T]]) -> Steps[list[T]]:
    """Return what each of ``many`` returns, in their order; the first error of any ends them all.

    ``many`` may grow while they are made: what is added begins in the same round.
    """
    results: list[Any] = []
    answers: list[Any] = []
    waiting: list[int] = []

    def turn() -> Iterator[int]:
        yield from waiting
        while len(results) < len(many):
            results.append(None)
            answers.append(None)
            yield len(results) - 1

    while waiting or len(results) < len(many):
        needs: list[Need] = []
        spans: list[tuple[int, int | slice]] = []
        for i in turn():
            try:
                need = many[i].send(answers[i])
            except StopIteration as stop:
                results[i] = stop.value
                continue
            first = len(needs)
            if isinstance(need, tuple):
                needs += need
                spans.append((i, slice(first, len(needs))))
            else:
                needs.append(need)
                spans.append((i, first))
        waiting = [i for i, _ in spans]
        if waiting:
            met = yield tuple(needs)
            for i, place in spans:
                answers[i] = met[place]
    return results
