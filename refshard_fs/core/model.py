"""The values that all layers share: entries, which locate the bytes of a key, and needs, which request reads. No I/O.

A key resolves to an `Entry`: a `Span` (a byte range of a target), `Inline` (the bytes themselves) or `Packed` (bytes
decoded or joined from ranges). ``None`` means that the key does not exist. Finding the entry may itself take reads, so
a look-up is a generator (`Steps`): it yields needs and is sent the answers. The engine drives many look-ups in rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache, partial
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias, TypeGuard, TypeVar

import msgspec
import numpy.typing as npt

from refshard_fs.core.zarrmeta import is_metadata

T = TypeVar("T")
Origin: TypeAlias = tuple[str, ...]  # the servers of the sets that named a target

OWN = "refshard-"  # the prefix of ETags that this package makes; manifests never contain them


def clamp(start: int | None, end: int | None, size: int) -> tuple[int, int]:
    """Convert the slice ``[start:end]`` of ``size`` bytes to a range, whose start is at most its stop."""
    begin, stop, _ = slice(start, end).indices(size)
    return begin, max(begin, stop)


def _check_within(offset: int, length: int, size: int | None) -> None:
    """Raise ValueError unless a range lies within ``size`` bytes (None: unknown)."""
    if offset < 0 or length < 0 or (size is not None and offset + length > size):
        limit = "with an offset and a length of at least 0" if size is None else f"within {size} bytes"
        raise ValueError(f"expected a range {limit}, got [{offset}, {offset + length})")


class Pin(msgspec.Struct, frozen=True):
    """The version of a target that an entry refers to; another version raises `TargetChanged`.

    Unless the pin is ``exact``, a target that was last modified before ``last_modified`` is accepted, too.
    """

    etag: str | None = None
    last_modified: str | None = None
    size: int | None = None
    exact: bool = False

    @property
    def version(self) -> dict[str, str]:
        """The facts that distinguish versions of the same size: ETag and time of modification, if they are known."""
        facts = {"etag": self.etag, "last_modified": self.last_modified}
        return {name: value for name, value in facts.items() if value is not None}


class Span(msgspec.Struct, frozen=True):
    """Bytes ``[start, stop)`` of the object at ``url``.

    - ``stop=None``: to the end of the object, of any length. A negative ``start`` counts from the end.
    - ``exact=False``: the target may answer with fewer bytes, since the object's size was unknown when the range was
      computed. All other ranges must be answered in full.
    - ``optional``: if the object does not exist, the key does not exist.
    - ``dense``: the range is one of many that lie close together and are usually read together, such as the chunks of
      a shard, so that fetching larger gaps between them pays.
    - ``apart``: the range is merged only with ranges that touch or overlap it; bytes between ranges are not read.
    - ``mixed``: values of several arrays lie in the range, such as records of a file, or chunks between metadata. Its
      bytes are kept in memory for reads of the other arrays.
    - ``interleaved``: the range is one of many between which lie short gaps with values of other arrays. Ranges are
      merged over gaps that cost less than a request, and the gaps are kept for a while.
    - ``origin``: the servers of other people's sets that named the object, if a set of the user contains references
      from these sets. Each of these servers must be allowed to reach the object; this is checked when the target is
      opened.
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
    mixed: bool = False
    interleaved: bool = False

    @property
    def size(self) -> int | None:
        """The number of bytes; None if it is known only to the target."""
        return None if self.stop is None or not self.exact else self.stop - self.start

    @property
    def spans(self) -> tuple[Span, ...]:
        """The ranges that have to be read."""
        return (self,)

    def finish(self, read: Sequence[bytes | None]) -> bytes | None:
        """Return this entry's bytes; ``read`` has the bytes of each of its `spans` (None: the object does not exist).

        Return None if the key does not exist.
        """
        return read[0]

    def take_window(self, start: int | None = None, end: int | None = None) -> Entry:
        """Return the entry of the slice ``[start:end]`` of this span.

        Raises ValueError if the size is needed but unknown: call `resolve_end` first.
        """
        if start is None and end is None:
            return self
        if self.stop is not None and self.exact:
            first, last = clamp(start, end, self.stop - self.start)
            return self._make_range(self.start + first, self.start + last) if last > first else Inline(b"")
        first = start or 0
        if self.stop is None and not self.start and first < 0 and end is None:
            return self.suffix(-first)
        if self.stop is not None or self.start < 0 or first < 0 or (end is not None and end < 0):
            raise ValueError(f"cannot take [{start}:{end}] of {self.url}: expected a known size, found none")
        if end is None:
            return self._make_range(self.start + first, None, exact=False)
        return self._make_range(self.start + first, self.start + end, exact=False) if end > first else Inline(b"")

    def suffix(self, length: int) -> Span:
        """Return the last ``length`` bytes of the object, which may begin before this span."""
        return self._make_range(-length, None, exact=False)

    def part(self, offset: int, length: int) -> Entry:
        """Return exactly ``length`` bytes at ``offset``; ValueError if the span is known to be shorter."""
        _check_within(offset, length, self.size)
        return self._make_range(self.start + offset, self.start + offset + length) if length else Inline(b"")

    def resolve_end(self, object_size: int) -> Span:
        """Return this span with a known end, for an object of ``object_size`` bytes."""
        if self.stop is not None and self.exact:
            return self
        first, last = clamp(self.start, self.stop, object_size)
        return self._make_range(first, last)

    def _make_range(self, start: int, stop: int | None, *, exact: bool = True) -> Span:
        flags = self.dense, self.apart, self.origin, self.mixed, self.interleaved
        return Span(self.url, start, stop, exact, self.optional, self.pin, *flags)


class Inline(msgspec.Struct, frozen=True):
    """Bytes in memory: the source contains them, or they were computed or read before."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def spans(self) -> tuple[Span, ...]:
        return ()

    def finish(self, read: Sequence[bytes | None]) -> bytes:
        return self.data

    def take_window(self, start: int | None = None, end: int | None = None) -> Inline:
        return Inline(self.data[start:end])

    def part(self, offset: int, length: int) -> Inline:
        _check_within(offset, length, self.size)
        return Inline(self.data[offset : offset + length])


class Recipe(Protocol, Hashable):
    """A decoder for a `Packed` entry; frozen, hashable and picklable."""

    def make(self, raw: bytes) -> bytes:
        """Decode the bytes of the source; ValueError if they are damaged."""


class FillingRecipe(Recipe, Protocol):
    """A recipe that can make the bytes of a key whose object does not exist."""

    def make_absent(self) -> bytes | None:
        """Return the decoded bytes if the object does not exist; None if then the key does not exist either."""


class PaddingRecipe(Recipe, Protocol):
    """A recipe whose result begins with the bytes of the source, unchanged."""

    pads: ClassVar[bool]


class SizedRecipe(Recipe, Protocol):
    """A recipe with a known decoded size in bytes."""

    @property
    def size(self) -> int: ...


class ArrayRecipe(Recipe, Protocol):
    """A recipe for a chunk of numbers that converts each number alone, so that readers can convert a part of them.

    ``make`` decodes the chunk (`decode`), converts all values (`convert`), and encodes them.
    """

    def decode(self, raw: bytes) -> npt.NDArray[Any]:
        """Return the chunk's stored values, in C order; ValueError if the bytes are damaged."""

    def convert(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Convert stored values to values that the array shows; ValueError if this is not possible."""


@cache
def _has_members(kind: type, *names: str) -> bool:
    """Return whether a class has members of these names; for protocols, ``isinstance`` takes 10 times as long."""
    return all(hasattr(kind, name) for name in names)


def fills_absent(recipe: Recipe) -> TypeGuard[FillingRecipe]:
    """Return whether ``recipe`` is a `FillingRecipe`."""
    return _has_members(type(recipe), "make_absent")


def decodes_arrays(recipe: Recipe) -> TypeGuard[ArrayRecipe]:
    """Return whether ``recipe`` is an `ArrayRecipe`."""
    return _has_members(type(recipe), "decode", "convert")


class Packed(msgspec.Struct, frozen=True):
    """Bytes ``[start, stop)`` of the bytes that ``recipe`` decodes from ``source``.

    ``made`` is the size in bytes of the whole decoded result, if it is known. With ``parts``, the recipe decodes the
    bytes of all parts, joined, and ``source`` is only named in errors. With ``exact``, ``stop`` must not lie beyond the
    end of the decoded bytes.
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

    def take_window(self, start: int | None = None, end: int | None = None) -> Packed:
        """Return the entry of the slice ``[start:end]`` of this entry."""
        if start is None and end is None:
            return self
        if self.made is None:
            if self.start is not None or self.stop is not None:
                raise ValueError("cannot take a slice of a slice: expected a known number of decoded bytes, found none")
            return self._make_slice(start, end)
        begin, stop = clamp(self.start, self.stop, self.made)
        first, last = clamp(start, end, stop - begin)
        return self._make_slice(begin + first, begin + last)

    def part(self, offset: int, length: int) -> Packed:
        """Return exactly ``length`` bytes at ``offset``; ValueError if the entry is known to be shorter."""
        _check_within(offset, length, self.size)
        begin = (self.start or 0) + offset
        return self._make_slice(begin, begin + length, exact=True)

    def finish(self, read: Sequence[bytes | None]) -> bytes | None:
        """Return this entry's bytes; ``read`` has the bytes of each of its `spans` (None: the object does not exist).

        Return None if the key does not exist. Raises ValueError if bytes are damaged.
        """
        raw = self.join_raw(read)
        if raw is not None:
            full = self.recipe.make(raw)
        else:
            filled = self.recipe.make_absent() if fills_absent(self.recipe) else None
            if filled is None:
                return None
            full = filled
        if self.made is not None and len(full) != self.made:
            raise ValueError(f"expected {self.made} decoded bytes, got {len(full)}")
        data = full if self.start is None and self.stop is None else full[self.start : self.stop]
        if self.exact and self.stop is not None and len(data) != self.stop - (self.start or 0):
            raise ValueError(f"expected decoded bytes up to {self.stop}, got {len(full)}")
        return data

    def join_raw(self, read: Sequence[bytes | None]) -> bytes | None:
        """Return the bytes to decode; ``read`` has the bytes of each of `spans`. None if an object does not exist."""
        if self.parts:
            rest = iter(read)
            read = [part.finish([next(rest) for _ in part.spans]) for part in self.parts]
        known = [data for data in read if data is not None]
        if len(known) < len(read):
            return None
        return known[0] if len(known) == 1 else b"".join(known)

    def _make_slice(self, start: int | None, stop: int | None, *, exact: bool = False) -> Packed:
        return Packed(self.source, self.recipe, self.made, start, stop, exact, self.parts)


Entry = Span | Inline | Packed


class JoinedBytes(msgspec.Struct, frozen=True):
    """The recipe for bytes that are stored as they are, in several ranges."""

    def make(self, raw: bytes) -> bytes:
        return raw


class ChunkPart(NamedTuple):
    """Runs of ``length`` bytes, which begin at ``starts``, of a chunk that has ``size`` bytes after decoding."""

    starts: Sequence[int]
    length: int
    size: int

    def find_stored(self, entry: Entry) -> Span | Packed | None:
        """Return the ranges that have these bytes of a chunk with the ``entry``; None if they are encoded."""
        if isinstance(entry, Packed) and _has_members(type(entry.recipe), "pads") and entry.made == self.size:
            is_whole = entry.start is None and entry.stop is None and not entry.parts
            has_part = is_whole and self.starts[-1] + self.length <= (entry.source.size or 0)
            source = entry.source if has_part else None
        else:
            source = entry if isinstance(entry, Span) and entry.size == self.size else None
        if source is None:
            return None
        runs = tuple(source.part(start, self.length) for start in self.starts)
        if len(runs) > 1:
            return Packed(source, JoinedBytes(), self.length * len(runs), parts=runs)
        return runs[0] if isinstance(runs[0], Span) else None


class Quota(msgspec.Struct, frozen=True):
    """A limit for caches: they keep at most ``most`` decoded indexes with the quota ``name`` at a time."""

    name: str
    most: int


class Index(Protocol, Hashable):
    """A decoder of an index, in which keys are looked up; frozen and hashable, because it is a part of a cache key."""

    def decode(self, data: bytes) -> Any:
        """Return the decoded index; ValueError, with the reason, if the bytes are damaged.

        Threads share the result, which must not be changed. It needs an attribute ``nbytes`` if its size in memory
        differs from the size of ``data``. An index may have a ``quota``, which limits the number of results in caches,
        and a method ``with_size(object_size)``: if the size of the object is known, the index that this method returns
        decodes the bytes.
        """


class Raw(msgspec.Struct, frozen=True):
    """An index that needs no decoding: the result is the bytes."""

    def decode(self, data: bytes) -> bytes:
        return data


class ParsedIndex(msgspec.Struct, frozen=True):
    """An index that is decoded by ``parse(data, *arguments)``; ``parse`` is a function of a module."""

    parse: Callable[..., Any]
    arguments: tuple[Hashable, ...] = ()

    def decode(self, data: bytes) -> Any:
        return self.parse(data, *self.arguments)


class Load(msgspec.Struct, frozen=True):
    """Need: the bytes of ``entry``, decoded by ``index``.

    Answer: the decoded index; None if the entry is optional and its object does not exist.
    """

    entry: Entry
    index: Index


class Facts(msgspec.Struct, frozen=True):
    """The facts about an object from its target. This package made an ``etag`` that begins with `OWN`."""

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
    """Need: the `Facts` of the object at ``url``, not from a cache if ``fresh``.

    Answer: the facts; None if the object does not exist.
    """

    url: str
    fresh: bool = False
    origin: Origin = ()


class Head(msgspec.Struct, frozen=True):
    """Need: the `Facts` of the object at ``url`` and its first ``length`` bytes, from one answer of its target.

    Answer: the facts and the bytes; None if the object does not exist.
    """

    url: str
    length: int
    origin: Origin = ()


class Listed(msgspec.Struct, frozen=True, gc=False):
    """A member of a directory; ``size`` in bytes is None for a directory, or if the listing has no size.

    ``etag`` and ``last_modified`` are from the target's listing, if it has them.
    """

    name: str
    size: int | None
    is_directory: bool = False
    etag: str | None = None
    last_modified: str | None = None


class Names(msgspec.Struct, frozen=True):
    """Need: the names directly below ``url``.

    Answer: a tuple of `Listed`; None if the target cannot list, or nothing exists at ``url``.
    """

    url: str
    origin: Origin = ()


class Tree(msgspec.Struct, frozen=True):
    """Need: all objects below ``url``, from one flat listing.

    Answer: a tuple of `Listed`, whose names are relative to ``url``; None if the target lists one directory at a time,
    or nothing exists at ``url``.
    """

    url: str
    origin: Origin = ()


Need = Load | Stat | Head | Names | Tree


def add_origin(what: T, origin: Origin) -> T:
    """Return ``what`` (a need, several needs, or an entry) with the servers ``origin`` added to its origin.

    Other objects are returned unchanged.
    """
    match what:
        case Span() | Stat() | Head() | Names() | Tree():
            if what.origin[: len(origin)] == origin:
                return what
            return msgspec.structs.replace(what, origin=(*origin, *what.origin))
        case Packed(source, parts=parts):
            new_parts = tuple(add_origin(part, origin) for part in parts)
            return msgspec.structs.replace(what, source=add_origin(source, origin), parts=new_parts)
        case Load(entry):
            return msgspec.structs.replace(what, entry=add_origin(entry, origin))
        case tuple() if what and isinstance(what[0], Need):
            return tuple(add_origin(need, origin) for need in what)  # type: ignore[return-value]  # T is this tuple
    return what


# Yields a need and is sent its answer; or yields a tuple of needs and is sent a tuple of answers.
Steps = Generator[Need | tuple[Need, ...], Any, T]


def drive(steps: Steps[T], meet: Callable[[Need | tuple[Need, ...]], Steps[Any]]) -> Steps[T]:
    """Run ``steps`` and return their result; ``meet`` answers each need. Errors of ``meet`` are raised in the steps."""
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
        except Exception as e:  # noqa: BLE001  # the steps may handle the error, for example if a listing fails
            answer, error = None, e


def answer_unknown(need: Need | tuple[Need, ...], find: Callable[[Need], tuple[Any] | None]) -> Steps[Any]:
    """Return the answer to ``need``. ``find`` returns a known answer in a tuple, or None: then the need is yielded."""
    needs = need if isinstance(need, tuple) else (need,)
    found = [find(single) for single in needs]
    unknown = tuple(single for single, known in zip(needs, found, strict=True) if known is None)
    answers = iter((yield unknown) if unknown else ())
    all_answers = tuple(next(answers) if known is None else known[0] for known in found)
    return all_answers if isinstance(need, tuple) else all_answers[0]


def read_once(steps: Steps[T]) -> Steps[T]:
    """Run ``steps`` and return their result; each metadata document that they need is read once, as a whole."""
    known: dict[Span, bytes | None] = {}

    def find(need: Need) -> tuple[Any] | None:
        match need:
            case Load(Span() as span, index) if span in known:
                data = known[span]
                with suppress(ValueError):  # the engine reads the document again, and its error names the document
                    return (None if data is None else index.decode(data),)
        return None

    def meet(need: Need | tuple[Need, ...]) -> Steps[Any]:
        needs = need if isinstance(need, tuple) else (need,)
        new = [span for span in dict.fromkeys(map(_find_document, needs)) if span is not None and span not in known]
        if new:
            known.update(zip(new, (yield tuple(Load(span, Raw()) for span in new)), strict=True))
        answer = yield from answer_unknown(need, find)
        for single, found in zip(needs, answer if isinstance(need, tuple) else (answer,), strict=True):
            if isinstance(single, Head) and (found is None or found[0].size == len(found[1])):
                known[Span(single.url, optional=True, origin=single.origin)] = None if found is None else found[1]
        return answer

    return drive(steps, meet)


def _find_document(need: Need) -> Span | None:
    match need:
        case Load(Span(url, 0, None, optional=True, pin=None) as span) if is_metadata(url):
            return span
    return None


# The members of each directory by its URL; other directories do not exist.
Directories = Mapping[str, tuple[Listed, ...]]


def answer_from_listing(steps: Steps[T], root: str, directories: Directories | None) -> Steps[T]:
    """Run ``steps`` and return their result; answer some needs from ``directories``, all at and below the URL ``root``.

    The directories answer needs for names, and needs for optional metadata documents that are not listed: these count
    as absent. Other objects are requested, because URLs may encode their names differently.
    """
    if directories is None:
        return steps

    def has(url: str) -> bool:
        directory, _, name = url.rpartition("/")
        return any(listed.name == name and not listed.is_directory for listed in directories.get(directory, ()))

    def find(need: Need) -> tuple[Any] | None:
        match need:
            case Names(url) if url == root or url.startswith(root.rstrip("/") + "/"):
                return (directories.get(url),)
            case Load(Span(url, optional=True)) if is_metadata(url):
                return (None,) if url.startswith(root.rstrip("/") + "/") and not has(url) else None
        return None

    return drive(steps, partial(answer_unknown, find=find))


def iterate_batches(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Yield ``items`` in parts of up to ``most``."""
    for start in range(0, len(items), most):
        yield items[start : start + most]


def run_together(many: Sequence[Steps[T]]) -> Steps[list[T]]:
    """Run ``many`` steps in rounds and return their results, in order. The first error ends all steps.

    Each round yields all needs together. Running steps may append further steps to ``many``, which begin in the same
    round.
    """
    results: list[Any] = []
    answers: list[Any] = []
    waiting: list[int] = []

    def iterate_running() -> Iterator[int]:
        yield from waiting
        while len(results) < len(many):
            results.append(None)
            answers.append(None)
            yield len(results) - 1

    while waiting or len(results) < len(many):
        needs: list[Need] = []
        places: list[tuple[int, int | slice]] = []  # the steps that wait, and the positions of their answers
        for i in iterate_running():
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
            all_answers = yield tuple(needs)
            for i, place in places:
                answers[i] = all_answers[place]
    return results
