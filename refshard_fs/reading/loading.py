"""Loads indexes: large ones are decoded in threads, piece by piece, and kept in the index cache.

An index with a `Decoder` is read piece by piece, so that its source is never whole in memory. One that can be packed is
looked for in the `IndexCache` first, and put there afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import hashlib
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

from refshard_fs.core.lru import LRU
from refshard_fs.core.model import (
    OWN,
    Entry,
    Facts,
    Head,
    Index,
    Inline,
    Load,
    Need,
    Origin,
    Packed,
    Pin,
    Span,
    Stat,
    Steps,
)
from refshard_fs.errors import DamagedIndex, ManifestError, RefShardError
from refshard_fs.reading.failures import describe, too_large
from refshard_fs.reading.index_cache import IndexCache
from refshard_fs.security import policy
from refshard_fs.targets import Pool, TooLarge

MANY: Final = 1 << 20  # bytes; more take too long to decode on an event loop
PIECE: Final = 1 << 21  # bytes of a local source at a time,
REMOTE_PIECE: Final = 1 << 26  # and of others, where each request has its price
TICK: Final = 0.02  # seconds; clocks of file systems are as fine as this,
COARSE_TICK: Final = 2.0  # and those that know whole seconds only, as this
WORTH_A_LOOK: Final = 1 << 18  # bytes of a source that may be in the cache,
WORTH_KEEPING: Final = 1 << 22  # and of an index that is put there, unless the user says so of all


class Decoder(Protocol):
    """Makes an index of bytes as they come."""

    def feed(self, data: bytes) -> None:
        """Take the next bytes; ValueError where they are damaged."""

    def finish(self) -> Any:
        """Return the index."""


@runtime_checkable
class Streamed(Protocol):
    """An index that is decoded piece by piece."""

    def decoder(self) -> Decoder:
        """Return what decodes one document."""


@runtime_checkable
class Packable(Protocol):
    """An index whose decoded form can be kept in a file."""

    def identity(self) -> bytes:
        """Return what, beside the document, the decoded form depends on: options, and the version of its layout."""

    def pack(self, value: Any) -> list[bytes | memoryview]:
        """Return the bytes that stand for ``value``; ValueError where that is not possible."""

    def unpack(self, data: memoryview) -> Any:
        """Return the decoded form, on the memory of ``data``; ValueError if it is of another version."""


@runtime_checkable
class Scanned(Protocol):
    """An index that is made in several reads of its source, such as one of each message of a file."""

    def scan(self, source: Span) -> Steps[Any]:
        """Return the index; ``source`` is the whole object, of one version."""


Read = Callable[[Entry], Awaitable[bytes]]
Run = Callable[[Steps[Any]], Awaitable[Any]]


async def load(
    need: Load,
    read: Read,
    run: Run,
    keep: IndexCache | None = None,
    sized: Callable[[Load], Index] = attrgetter("index"),
) -> tuple[Any, int]:
    """Return the decoded index of ``need``, whose bytes ``read`` returns, and its weight in memory.

    ``sized`` returns the index as it is known when they are read. It is looked for in ``keep`` first. ``run`` drives
    the steps of a scan.
    """
    index: Any = need.index
    is_scanned = isinstance(index, Scanned)
    if not is_scanned and not isinstance(index, Streamed):
        data = await read(need.entry)
        value = await _decode(sized(need), data)
        return value, getattr(value, "nbytes", len(data))
    name, value = None, None
    if keep is not None and isinstance(index, Packable):
        name = _name(need.entry, index, keep)
        if name is not None:
            value = await asyncio.to_thread(_kept, keep, name, index)
    if value is None:
        value = await (run(index.scan(need.entry)) if is_scanned else _stream(need.entry, index, read))
        if keep is not None and name is not None:
            if is_scanned or keep.everything or getattr(value, "nbytes", 0) >= WORTH_KEEPING:
                _put(keep, name, index, value)
    return value, int(getattr(value, "nbytes", MANY))


def decode(index: Index, data: bytes) -> Any:
    """Return the index that ``data`` are. An error lets go of what was decoded until then.

    Errors and the frames that they went through hold one another until Python looks for garbage: a damaged archive
    that is asked for again and again would take the size of its half-made index each time.
    """
    try:
        return index.decode(data)
    except Exception as e:
        error: BaseException | None = e
        while error is not None:
            traceback.clear_frames(error.__traceback__)  # but for this one, which is running
            error = error.__cause__
        raise


async def _decode(index: Index, data: bytes) -> Any:
    if len(data) <= MANY:
        return decode(index, data)
    return await asyncio.to_thread(decode, index, data)


async def _stream(entry: Entry, index: Any, read: Read) -> Any:
    """Decode piece by piece, the next one being read meanwhile."""
    match entry:
        case Span(url, 0, None, pin=pin) if pin is not None and (pin.size or 0) > MANY:
            local = policy.protocol_of(url) in (None, *policy.LOCAL)
            pieces = _pieces(entry, pin.size or 0, PIECE if local else REMOTE_PIECE)
        case _:
            pieces = []
    if len(pieces) < 2:
        return await _decode(index, await read(entry))
    decoder: Decoder = index.decoder()
    ahead: asyncio.Future[bytes] | None = None
    try:
        for number, piece in enumerate(pieces):
            data = await (read(piece) if ahead is None else ahead)
            ahead = asyncio.ensure_future(read(pieces[number + 1])) if piece is not pieces[-1] else None
            await asyncio.to_thread(decoder.feed, data)
            del data
        value = await asyncio.to_thread(decoder.finish)
        del decoder
        _return_memory()
        return value
    finally:
        if ahead is not None:
            ahead.cancel()


def _return_memory() -> None:
    """Give back what decoding has freed: glibc keeps most of it otherwise, for a process that never needs it again."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _pieces(entry: Span, size: int, step: int) -> list[Span]:
    """Return ``entry``, of ``size`` bytes, as spans of ``step`` bytes."""
    starts = range(0, size, step)
    return [Span(entry.url, start, min(start + step, size), pin=entry.pin, origin=entry.origin) for start in starts]


def _name(entry: Entry, index: Packable, keep: IndexCache) -> str | None:
    """Return the name of the decoded form of ``entry``; None if it is not worth one, or nothing tells its version."""
    state = hashlib.sha256(index.identity())
    match entry:
        case Inline(data) if keep.everything or len(data) >= WORTH_A_LOOK:
            state.update(b"\0bytes\0" + hashlib.sha256(data).digest())
        case Span(url, 0, None, pin=pin) if pin is not None and _tells_versions_apart(pin):
            if not keep.everything and (pin.size or 0) < WORTH_A_LOOK:
                return None
            state.update(repr((url, pin.etag, pin.last_modified, pin.size)).encode("utf-8", "surrogatepass"))
        case _:
            return None
    return state.hexdigest()


def _tells_versions_apart(pin: Pin) -> bool:
    """Whether an object that is written over, now or later, will have another pin.

    A weak ETag, or a time alone, may stand for several contents. The time in the ETag that we make of a local file is
    as fine as its file system's clock: of a file that was written just now, the next version may have the same.
    """
    etag = pin.etag or ""
    if not etag.startswith(OWN):
        return bool(etag) and not etag.startswith("W/")
    modified = float(pin.last_modified or 0)
    return time.time() - modified > (COARSE_TICK if modified.is_integer() else TICK)


def _kept(cache: IndexCache, name: str, index: Packable) -> Any:
    found = cache.get(name)
    if found is None:
        return None
    try:
        return index.unpack(found)
    except ValueError:
        cache.discard(name)
        return None


def _put(cache: IndexCache, name: str, index: Any, value: Any) -> None:
    """Write in a thread that the process waits for at its end; nobody else does."""

    def write() -> None:
        with contextlib.suppress(ValueError):
            cache.put(name, index.pack(value))

    threading.Thread(target=write, name="refshard-index-cache", daemon=False).start()


# ----------------------------------------------------------------------------------------------------
# What the process remembers of an object, used only with the version of the object that it was made from.
#
# Indexes outlive the session that read them. Without this, one that begins after a file was
# replaced would look chunks up in the index of the old one, and read its bytes from the new one.


Heads: TypeAlias = LRU[Head, tuple[Facts, bytes]]  # the first bytes of objects, by the need that they answered


class _Bound(NamedTuple):
    """A value, and what was seen of the object at ``url`` when it was made."""

    value: Any
    url: str
    origin: Origin
    seen: Facts


class Answers:
    """The answers to needs that the process remembers in ``cache``; ``token`` tells a filesystem's from others'.

    ``longest`` is the most bytes that a document or an index may have; a larger one is an error. Decoded indexes that
    other processes may use are in ``keep``. ``heads`` are the first bytes of objects that were read when the source
    was made: None where it was not made in this process.
    """

    def __init__(
        self,
        cache: LRU[Any, Any],
        token: object,
        longest: int | None,
        keep: IndexCache | None,
        heads: Heads | None = None,
    ) -> None:
        self.cache = cache
        self.token = token
        self.longest = longest
        self.keep = keep
        self.heads = heads

    def get(self, need: Need, pool: Pool) -> Any:
        """Return the answer to ``need``; None if it is not known, or its object is another one by now.

        Where only a request could tell, the object is taken to be unchanged: if it is not, the next read of it is
        `TargetChanged`. A document that is read as a whole has no next read, and what an object was need not be what
        it is: these are `doubtful`.
        """
        if isinstance(need, Head):
            return self._known_head(need, pool)
        if isinstance(need, Stat) and need.fresh:
            return None
        found = self.cache.get((self.token, need))
        if type(found) is not _Bound or self._is_doubtful(need, found, pool):
            return None if type(found) is _Bound else found
        place = pool.place(found.url, found.origin)
        if place is None:  # nothing is opened without an event loop; the session may have seen it in one
            version = pool.versions.of(found.url)
            return found.value if version.seen is not None and version.is_like(found.seen) else None
        return found.value if place[0].is_still(place[1], found.seen) else None

    def _known_head(self, need: Head, pool: Pool) -> tuple[Facts, bytes] | None:
        """Return the first bytes of an object. What is read of it later has their version, or is `TargetChanged`."""
        head = None if self.heads is None else self.heads.get(need)
        place = None if head is None else pool.place(need.url, need.origin)
        return head if head is not None and place is not None and place[0].is_still(place[1], head[0]) else None

    def put_head(self, need: Head, head: tuple[Facts, bytes], pool: Pool) -> None:
        """Remember the first bytes of a remote object, if its server tells the version that they are of."""
        place = None if self.heads is None else pool.place(need.url, need.origin)
        if self.heads is None or place is None or not place[0].is_remote:
            return
        seen = place[0].seen
        if seen is not None and (seen.etag or seen.last_modified):
            self.heads.put(need, head, len(head[1]))

    def forget_heads(self) -> None:
        """Forget the first bytes of objects, for all filesystems of the same set."""
        if self.heads is not None:
            self.heads.clear()

    def doubtful(self, need: Need, pool: Pool) -> tuple[str, Origin] | None:
        """Return URL and origin of a document, or an object, that this session has to ask about first."""
        found = self.cache.get((self.token, need))
        return (found.url, found.origin) if type(found) is _Bound and self._is_doubtful(need, found, pool) else None

    def _is_doubtful(self, need: Need, found: _Bound, pool: Pool) -> bool:
        match need:
            case Stat() | Load(Span(start=0, stop=None) | Packed(source=Span(start=0, stop=None))):
                place = pool.place(found.url, found.origin)
                with contextlib.suppress(OSError):  # it is gone: then it is not what it was
                    return place is not None and not place[0].is_known(place[1])
        return False

    def put(self, need: Need, value: Any, weight: int, pool: Pool) -> None:
        """Remember ``value``, of ``weight`` bytes, as the answer to ``need``."""
        url, origin = _source(need)
        seen = None if url is None else pool.versions.of(url).seen
        quota = getattr(need.index, "quota", None) if isinstance(need, Load) else None
        kept = value if url is None or seen is None else _Bound(value, url, origin, seen)
        self.cache.put((self.token, need), kept, weight, quota)


def _source(need: Need) -> tuple[str | None, Origin]:
    """Return the URL whose version decides (None where what is asked for names the version itself), and its origin."""
    match need:
        case Load((Span(pin=None) as span) | Packed(source=Span(pin=None) as span), index):
            return None if isinstance(index, Streamed) else span.url, span.origin
        case Stat(url, origin=origin):
            return url, origin
        case _:
            return None, ()


class Found(NamedTuple):
    """What is known, which may be None."""

    value: Any


def advance(steps: Steps[Any], answer: Any, known: Callable[[Need], Found | None]) -> Need | tuple[Need, ...]:
    """Send ``answer``, and what else is ``known``; return the first need that is not. StopIteration at the end."""
    need = steps.throw(answer) if isinstance(answer, BaseException) else steps.send(answer)
    while True:
        found = [known(one) for one in (need if isinstance(need, tuple) else (need,))]
        values = tuple(each.value for each in found if each is not None)
        if len(values) < len(found):
            return need
        need = steps.send(values if isinstance(need, tuple) else values[0])


def sized(need: Load, pool: Pool) -> Index:
    """Return the index of ``need``, whose bytes were read, told the size of their object if it wants to know that."""
    tell = getattr(need.index, "sized", None)
    if tell is None or not isinstance(need.entry, Span):
        return need.index
    place = pool.place(need.entry.url, need.entry.origin)
    size = None if place is None else place[0].size
    index: Index = need.index if size is None else tell(size)
    return index


@contextlib.contextmanager
def naming(entry: Entry) -> Iterator[None]:
    """Have what goes wrong with an index, or another document, name where it lies."""
    try:
        yield
    except TooLarge as e:
        raise ManifestError(too_large(describe(entry), e.most)) from e
    except RefShardError:
        raise
    except ValueError as e:
        raise DamagedIndex("", describe(entry), str(e)) from e
