"""The values that all layers share: where the bytes of a key are, and what has to be read to know it. No I/O here.

A key resolves to an `Entry`: a `Span` (a byte range of a target), `Inline` (the bytes themselves) or `Packed` (bytes
decoded from a range). ``None`` means that there is no such key. Finding the entry may itself take reads, so a look-up
is a generator (`Steps`): it yields what it needs and is sent the answer. The engine drives many of them in rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec
import numpy.typing as npt

from refshard_fs.core.zarrmeta import is_metadata

T = TypeVar("T")
Origin: TypeAlias = tuple[str, ...]  # servers

OWN = "refshard-"  # begins the ETags that we make ourselves; no manifest can name one


def clamp(start: int | None, end: int | None, size: int) -> tuple[int, int]:
    """Return the range that slicing ``size`` bytes with ``[start:end]`` takes; the start is never behind the end."""
    begin, stop, _ = slice(start, end).indices(size)
    return begin, max(begin, stop)


def _check_within(offset: int, length: int, size: int | None) -> None:
    """Raise ValueError unless a part lies within ``size`` bytes, as far as that is known."""
    if offset < 0 or length < 0 or (size is not None and offset + length > size):
        raise ValueError(f"bytes [{offset}, {offset + length}) lie outside the {size} bytes there are")


class Pin(msgspec.Struct, frozen=True):
    """The version of a target that a manifest refers to; another version is the error `TargetChanged`.

    Unless the pin is ``exact``, a target that was last modified before ``last_modified`` is accepted too.
    """

    etag: str | None = None
    last_modified: str | None = None
    size: int | None = None
    exact: bool = False

    @property
    def version(self) -> dict[str, str]:
        """What distinguishes versions of the same size, as far as it is known."""
        facts = {"etag": self.etag, "last_modified": self.last_modified}
        return {name: value for name, value in facts.items() if value is not None}


class Span(msgspec.Struct, frozen=True):
    """Bytes ``[start, stop)`` of the object at ``url``.

    - ``stop=None`` reaches to the end of the object, however long it is. A negative ``start`` counts from that end.
    - ``exact=False``: the range may end early, for the object's size was unknown when it was computed. All other ranges
      must be answered in full.
    - ``optional``: if there is no such object, there is no such key.
    - ``dense``: one of many ranges that lie together and tend to be read together, as the chunks of a shard do. Larger
      gaps between them are worth fetching.
    - ``apart``: fetched together with other ranges only where they touch or overlap. No byte between them is read.
    - ``origin``: the servers of the sets of others that named the object, if this reference is one of theirs in a set
      of the user's: of the set that has it as a part, and of those that a saved set records. Each of them must be
      allowed to reach it, which is decided when the target is opened.
    """

    url: str
    start: int = 0
    stop: int | None = None
    exact: bool = True
    optional: bool = False
    pin: Pin | None = None
    dense: bool = False
    apart: bool = False
    origin: Origin = ()

    @property
    def size(self) -> int | None:
        """Number of bytes, or None while only the target knows."""
        return None if self.stop is None or not self.exact else self.stop - self.start

    @property
    def spans(self) -> tuple[Span, ...]:
        """The ranges that have to be read."""
        return (self,)

    def finish(self, read: Sequence[bytes | None]) -> bytes | None:
        """Return this entry's bytes, given those of each of its `spans`: None for an optional one without an object.

        None means that there is no such key.
        """
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
        _check_within(offset, length, self.size)
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

    def finish(self, read: Sequence[bytes | None]) -> bytes:
        return self.data

    def window(self, start: int | None = None, end: int | None = None) -> Inline:
        return Inline(self.data[start:end])

    def part(self, offset: int, length: int) -> Inline:
        _check_within(offset, length, self.size)
        return Inline(self.data[offset : offset + length])


class Recipe(Protocol, Hashable):
    """How the bytes of a `Packed` entry are decoded; frozen, hashable and picklable."""

    def make(self, raw: bytes) -> bytes:
        """Return the bytes decoded from those that were read; ValueError where they are damaged."""


@runtime_checkable
class FillingRecipe(Recipe, Protocol):
    """A recipe that knows what stands for an optional object that does not exist."""

    def absent(self) -> bytes | None:
        """Return what would be decoded from its bytes; None if there is no such key then."""


class SizedRecipe(Recipe, Protocol):
    """A recipe that knows how many bytes it makes."""

    @property
    def size(self) -> int: ...


@runtime_checkable
class ArrayRecipe(Recipe, Protocol):
    """A recipe of a chunk of numbers, each of which is converted by itself: a reader may convert those that it wants.

    ``make`` encodes what `converted` returns for all that `decoded` returns.
    """

    def decoded(self, raw: bytes) -> npt.NDArray[Any]:
        """Return the chunk's values as they are stored, in its shape; ValueError where the bytes are damaged."""

    def converted(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return stored values as the array shows them; ValueError where they have no such value."""


class Packed(msgspec.Struct, frozen=True):
    """Bytes ``[start, stop)`` of what ``recipe`` makes of ``source``; ``made`` is the size of all of it, if known.

    With ``parts``, the recipe is given their bytes, joined, and the source is only what errors name.
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
        """The ranges that have to be read, in the order in which `finish` takes their bytes."""
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
        _check_within(offset, length, self.size)
        begin = (self.start or 0) + offset
        return self._window(begin, begin + length, exact=True)

    def finish(self, read: Sequence[bytes | None]) -> bytes | None:
        """Return this entry's bytes, given those of each of its `spans`: None for an optional one without an object.

        None means that there is no such key. ValueError where bytes are damaged.
        """
        raw = self.raw(read)
        if raw is not None:
            full = self.recipe.make(raw)
        else:
            filled = self.recipe.absent() if isinstance(self.recipe, FillingRecipe) else None
            if filled is None:
                return None
            full = filled
        if self.made is not None and len(full) != self.made:
            raise ValueError(f"{len(full)} bytes were made where {self.made} were promised")
        data = full if self.start is None and self.stop is None else full[self.start : self.stop]
        if self.exact and self.stop is not None and len(data) != self.stop - (self.start or 0):
            raise ValueError(f"{len(full)} bytes were made, too few for [{self.start}:{self.stop}]")
        return data

    def raw(self, read: Sequence[bytes | None]) -> bytes | None:
        """Return the bytes that the recipe is given, as `finish` takes them; None where an object does not exist."""
        if self.parts:
            left = iter(read)
            read = [part.finish([next(left) for _ in part.spans]) for part in self.parts]
        known = [data for data in read if data is not None]
        if len(known) < len(read):
            return None
        return known[0] if len(known) == 1 else b"".join(known)

    def _window(self, start: int | None, stop: int | None, *, exact: bool = False) -> Packed:
        return Packed(self.source, self.recipe, self.made, start, stop, exact, self.parts)


Entry = Span | Inline | Packed


class Quota(msgspec.Struct, frozen=True):
    """At most ``most`` decoded indexes of those that belong to ``name`` are remembered at a time."""

    name: str
    most: int


class Index(Protocol, Hashable):
    """How loaded bytes become something to look keys up in; frozen and hashable, for it is half of a cache key."""

    def decode(self, data: bytes) -> Any:
        """Return the decoded index; ValueError (saying what is wrong) where the bytes are damaged.

        The result is shared between threads and must not be changed. It has ``nbytes`` if it takes more or less memory
        than ``data``. An index may have a ``quota``, which limits how many results of its kind are remembered, and a
        method ``sized(object_size)``: it is told the size of the object that was read, if that is known by then, and
        returns the index that decodes the bytes.
        """


class Raw(msgspec.Struct, frozen=True):
    """The bytes themselves are the index."""

    def decode(self, data: bytes) -> bytes:
        return data


class Parsed(msgspec.Struct, frozen=True):
    """An index that a module's function ``parse`` makes of the bytes, which ``arguments`` follow."""

    parse: Callable[..., Any]
    arguments: tuple[Hashable, ...] = ()

    def decode(self, data: bytes) -> Any:
        return self.parse(data, *self.arguments)


class Load(msgspec.Struct, frozen=True):
    """Needed: the bytes of ``entry``, decoded by ``index``. Answer: its result; None if optional and absent."""

    entry: Entry
    index: Index


class Facts(msgspec.Struct, frozen=True):
    """What a target says about an object; an ``etag`` that begins with `OWN` is one that we made."""

    size: int | None
    etag: str | None = None
    last_modified: str | None = None

    @property
    def pin(self) -> Pin:
        """The pin of this version of the object."""
        return Pin(self.etag, self.last_modified, self.size)

    @property
    def named_etag(self) -> str | None:
        """The ETag that the target itself gave the object."""
        return None if self.etag is None or self.etag.startswith(OWN) else self.etag


class Absent(Enum):
    """The version of an object that does not exist."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT
Version: TypeAlias = Facts | Absent


class Stat(msgspec.Struct, frozen=True):
    """Needed: `Facts` of the object at ``url``, if ``fresh`` not remembered ones. Answer: None if there is none."""

    url: str
    fresh: bool = False
    origin: Origin = ()


class Head(msgspec.Struct, frozen=True):
    """Needed: `Facts` of the object at ``url`` and its first ``length`` bytes, both of one answer of its target.

    Answer: both; None if there is no such object. Only a lazy set remembers them, those of its parts.
    """

    url: str
    length: int
    origin: Origin = ()


class Listed(msgspec.Struct, frozen=True, gc=False):
    """One name directly below a prefix; ``size`` in bytes is None for a directory, or if only the target knows it.

    ``etag`` and ``last_modified`` are the target's, if its listings have them.
    """

    name: str
    size: int | None
    is_directory: bool = False
    etag: str | None = None
    last_modified: str | None = None


class Names(msgspec.Struct, frozen=True):
    """Needed: the names directly below ``url``. Answer: a tuple of `Listed`; None if the target cannot list."""

    url: str
    origin: Origin = ()


class Tree(msgspec.Struct, frozen=True):
    """Needed: all objects below ``url``, of one flat listing.

    Answer: a tuple of `Listed`, whose names are relative to ``url``; None if the target lists one directory at a time.
    """

    url: str
    origin: Origin = ()


Need = Load | Stat | Head | Names | Tree


def of_origin(what: T, origin: Origin) -> T:
    """Return a need, several of them, or an entry, as one of the sets at ``origin``, too; anything else as it is."""
    match what:
        case Span() | Stat() | Head() | Names() | Tree():
            if what.origin[: len(origin)] == origin:
                return what
            return msgspec.structs.replace(what, origin=(*origin, *what.origin))
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
    """Return what ``steps`` return; ``meet`` answers each of their needs, and its errors are raised in them."""
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
        except Exception as e:  # noqa: BLE001  # the steps may go on, as where a directory cannot be listed
            answer, error = None, e


# What lies in each directory, by its URL; a directory that is in none does not exist.
Directories = Mapping[str, tuple[Listed, ...]]


def answered(steps: Steps[T], root: str, directories: Directories | None) -> Steps[T]:
    """Return what ``steps`` return; ``directories`` are known, all that there are at and below the URL ``root``.

    An optional document of zarr's that none of them has is absent: it is not asked for. Others may be spelled
    otherwise in URLs.
    """
    if directories is None:
        return steps

    def has(url: str) -> bool:
        directory, _, name = url.rpartition("/")
        return any(listed.name == name and not listed.is_directory for listed in directories.get(directory, ()))

    def is_known(need: Need) -> bool:
        match need:
            case Names(url):
                return url == root or url.startswith(root.rstrip("/") + "/")
            case Load(Span(url, optional=True)) if is_metadata(url):
                return url.startswith(root.rstrip("/") + "/") and not has(url)
        return False

    def known(need: Need) -> Any:
        return directories.get(need.url) if isinstance(need, Names) else None

    def meet(need: Need | tuple[Need, ...]) -> Steps[Any]:
        if not isinstance(need, tuple):
            return known(need) if is_known(need) else (yield need)
        are_known = [is_known(one) for one in need]
        left = tuple(one for one, is_one in zip(need, are_known, strict=True) if not is_one)
        answers = iter((yield left) if left else ())
        return tuple(known(one) if is_one else next(answers) for one, is_one in zip(need, are_known, strict=True))

    return driven(steps, meet)


# ----------------------------------------------------------------------------------------------------
# Several look-ups as one: what they need is asked for together, in rounds.


def batches(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Yield ``items`` in parts of up to ``most``."""
    for start in range(0, len(items), most):
        yield items[start : start + most]


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
        places: list[tuple[int, int | slice]] = []  # of the answers to each that waits
        for i in turn():
            try:
                need = many[i].send(answers[i])
            except StopIteration as stop:
                results[i] = stop.value
                continue
            first = len(needs)
            needs += need if isinstance(need, tuple) else (need,)
            places.append((i, slice(first, len(needs)) if isinstance(need, tuple) else first))
        waiting = [i for i, _ in places]
        if waiting:
            met = yield tuple(needs)
            for i, place in places:
                answers[i] = met[place]
    return results
