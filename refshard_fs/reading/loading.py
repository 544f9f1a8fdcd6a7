"""Load indexes: decode large ones in threads, piece by piece, and keep them in the index cache.

An index with a `Decoder` is read piece by piece, so that its source is never whole in memory. An index that can be
packed is taken from the `IndexCache`, or put there after decoding.
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
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

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
    Raw,
    Span,
    Stat,
    Steps,
)
from refshard_fs.core.zarrmeta import is_metadata
from refshard_fs.errors import DamagedIndex, ManifestError, RefShardError
from refshard_fs.reading.failures import describe, make_too_large_text
from refshard_fs.reading.index_cache import IndexCache
from refshard_fs.reading.read_ranges import ReadRanges
from refshard_fs.security import policy
from refshard_fs.targets import Pool, TooLarge

MANY: Final = 1 << 20  # bytes: decoding more takes too long on an event loop
PIECE: Final = 1 << 21  # bytes of a piece of a local source
REMOTE_PIECE: Final = 1 << 26  # bytes of a piece of a remote source: larger, since each request costs time
TICK: Final = 0.02  # seconds: the resolution of most file systems' times
COARSE_TICK: Final = 2.0  # seconds: the coarsest resolution of file systems with times in whole seconds, that of FAT
WORTH_A_LOOK: Final = 1 << 18  # bytes: the cache is searched for larger sources (or for all: `IndexCache.everything`)
WORTH_KEEPING: Final = 1 << 22  # bytes: larger indexes are put into the cache (or all)


class Decoder(Protocol):
    """Decode an index from bytes as they arrive."""

    def feed(self, data: bytes) -> None:
        """Decode the next bytes; ValueError if they are damaged."""

    def finish(self) -> Any:
        """Return the index."""


class StreamedIndex(Protocol):
    """An index that is decoded piece by piece."""

    def make_decoder(self) -> Decoder:
        """Return a new decoder of one document."""


@runtime_checkable
class Packable(Protocol):
    """An index whose decoded form can be kept in a file."""

    def make_identity(self) -> bytes:
        """Return bytes that identify all options that change the decoded form, and the version of the packed layout."""

    def pack(self, value: Any) -> list[bytes | memoryview]:
        """Encode ``value``; ValueError if this is not possible."""

    def unpack(self, data: memoryview) -> Any:
        """Decode ``data`` without copying them; ValueError if they have another version of the layout."""


class ScannedIndex(Protocol):
    """An index that is made by several reads of its source, for example a read of each message of a file."""

    def scan(self, source: Span) -> Steps[Any]:
        """Make the index; ``source`` is the whole object, pinned to its version."""


# `isinstance` is avoided: its first call with a protocol takes half a millisecond.


def is_streamed(index: Any) -> bool:
    """Return whether ``index`` is `StreamedIndex`."""
    return hasattr(index, "make_decoder")


def is_scanned(index: Any) -> bool:
    """Return whether ``index`` is `ScannedIndex`."""
    return hasattr(index, "scan")


Read = Callable[[Entry], Awaitable[bytes]]
Run = Callable[[Steps[Any]], Awaitable[Any]]


async def load(
    need: Load,
    read: Read,
    run: Run,
    keep: IndexCache | None = None,
    choose_index: Callable[[Load], Index] = attrgetter("index"),
) -> tuple[Any, int]:
    """Load the index of ``need``; return it and its size in memory, in bytes.

    ``read`` reads bytes, ``run`` runs the steps of a scan, and ``choose_index`` returns the index that decodes the
    bytes, once the size of their object is known. The cache ``keep`` is searched first.
    """
    index: Any = need.index
    is_made_by_steps = is_scanned(index)
    if not is_made_by_steps and not is_streamed(index):
        data = await read(need.entry)
        value = await _decode(choose_index(need), data)
        return value, getattr(value, "nbytes", len(data))
    name, value = None, None
    if keep is not None and isinstance(index, Packable):
        name = _name_file(need.entry, index, keep)
        if name is not None:
            value = await asyncio.to_thread(_load_kept, keep, name, index)
    if value is None:
        value = await (run(index.scan(need.entry)) if is_made_by_steps else _decode_stream(need.entry, index, read))
        if keep is not None and name is not None:
            if is_made_by_steps or keep.everything or getattr(value, "nbytes", 0) >= WORTH_KEEPING:
                _write_in_thread(keep, name, index, value)
    return value, int(getattr(value, "nbytes", MANY))


def decode(index: Index, data: bytes) -> Any:
    """Decode ``data``; after an error, free everything that was decoded so far.

    An error and its frames refer to each other until the garbage collector runs: without this, each read of a damaged
    archive would take the memory of its half-decoded index.
    """
    try:
        return index.decode(data)
    except Exception as e:
        error: BaseException | None = e
        while error is not None:
            traceback.clear_frames(error.__traceback__)  # except this frame, which is running
            error = error.__cause__
        raise


async def _decode(index: Index, data: bytes) -> Any:
    if len(data) <= MANY:
        return decode(index, data)
    return await asyncio.to_thread(decode, index, data)


async def _decode_stream(entry: Entry, index: Any, read: Read) -> Any:
    """Read ``entry`` in pieces, and decode each piece while the next one is being read."""
    match entry:
        case Span(url, 0, None, pin=pin) if pin is not None and (pin.size or 0) > MANY:
            local = policy.protocol_of(url) in (None, *policy.LOCAL)
            pieces = _split_to_pieces(entry, pin.size or 0, PIECE if local else REMOTE_PIECE)
        case _:
            pieces = []
    if len(pieces) < 2:
        return await _decode(index, await read(entry))
    decoder: Decoder = index.make_decoder()
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
    """Give freed memory back to the system: glibc would keep most of it."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _split_to_pieces(entry: Span, size: int, step: int) -> list[Span]:
    """Split ``entry``, of ``size`` bytes, into spans of ``step`` bytes."""
    starts = range(0, size, step)
    return [Span(entry.url, start, min(start + step, size), pin=entry.pin, origin=entry.origin) for start in starts]


def _name_file(entry: Entry, index: Packable, keep: IndexCache) -> str | None:
    """Return the name under which the index cache keeps the decoded ``entry``; None if it does not keep it."""
    state = hashlib.sha256(index.make_identity())
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
    """Return whether every later version of the object will have another pin.

    A weak ETag, or a time alone, may be the same for different contents. The ETag that this package makes for a local
    file contains a time with the resolution of the file system: if the file was written just now, its next version
    may have the same time.
    """
    etag = pin.etag or ""
    if not etag.startswith(OWN):
        return bool(etag) and not etag.startswith("W/")
    modified = float(pin.last_modified or 0)
    return time.time() - modified > (COARSE_TICK if modified.is_integer() else TICK)


def _load_kept(cache: IndexCache, name: str, index: Packable) -> Any:
    found = cache.get(name)
    if found is None:
        return None
    try:
        return index.unpack(found)
    except ValueError:
        cache.discard(name)
        return None


def _write_in_thread(cache: IndexCache, name: str, index: Any, value: Any) -> None:
    """Write ``value`` to the cache in a thread; the process waits for the thread before it exits."""

    def write() -> None:
        with contextlib.suppress(ValueError):
            cache.put(name, index.pack(value))

    threading.Thread(target=write, name="refshard-index-cache", daemon=False).start()


# Cache answers for all sources of the process. Each answer is bound to the version of its object.
#
# Without the version, a source that is opened after a file was replaced would look chunks up in the index of the old
# file, and read their bytes from the new one.


class Outcome(NamedTuple):
    """A result, which may be None."""

    value: Any


class _BoundValue(NamedTuple):
    """A value, and the facts of the object at ``url`` from which it was made."""

    value: Any
    url: str
    origin: Origin
    seen: Facts


class Answers:
    """The answers to needs in the process's ``cache``; ``token`` is the part of cache keys that names the source.

    ``longest`` is the most bytes of a document or an index; a larger one is an error. ``keep`` is the cache of decoded
    indexes in files. ``ranges`` are bytes of objects that were read when the source was made, or None if the source was
    not made in this process.
    """

    def __init__(
        self,
        cache: LRU[Any, Any],
        token: object,
        longest: int | None,
        keep: IndexCache | None,
        ranges: ReadRanges | None = None,
    ) -> None:
        self.cache = cache
        self.token = token
        self.longest = longest
        self.keep = keep
        self.ranges = ranges

    def get(self, need: Need, pool: Pool) -> Any:
        """Return the cached answer to ``need``; None if there is none, or its object is known to have changed.

        If only a request could show whether the object has changed, the answer is returned as if it had not: if it
        has changed, the next read of the object raises `TargetChanged`. Whole documents, and answers to `Stat`, are
        not returned in this case, because perhaps nothing else of the object is read afterwards: see `find_doubtful`.
        """
        if isinstance(need, Head):
            return self._get_read(need, pool)
        if isinstance(need, Stat) and need.fresh:
            return None
        found = self.cache.get((self.token, need))
        if found is None and isinstance(need, Load):
            read = self._get_read(need, pool)
            return None if read is None else read[1]
        if type(found) is not _BoundValue or self._is_doubtful(need, found, pool):
            return None if type(found) is _BoundValue else found
        place = pool.place(found.url, found.origin)
        if place is None:  # the target needs an event loop; its version may be known from reads on one
            version = pool.versions.of(found.url)
            return found.value if version.seen is not None and version.is_like(found.seen) else None
        return found.value if place[0].is_still(place[1], found.seen) else None

    def find(self, need: Need, pool: Pool) -> Outcome | None:
        """Return the outcome of ``need`` if it is known: the result of `get`, or that a document did not exist."""
        value = self.get(need, pool)
        return Outcome(value) if value is not None or self._is_absent(need, pool) else None

    def _is_absent(self, need: Need, pool: Pool) -> bool:
        """Return whether ``need`` is for the first bytes of a document that did not exist when the set was made."""
        if self.ranges is None or not isinstance(need, Head) or not self.ranges.is_absent(need.url, need.origin):
            return False
        is_admitted = pool.place(need.url, need.origin) is not None
        return is_admitted and not isinstance(pool.versions.find_latest(need.url), Facts)

    def keep_absence(self, url: str, origin: Origin) -> None:
        """Note in ``ranges`` that no object exists at ``url``, if its name is that of a metadata document.

        Metadata of a replaced source are read again before its chunks are.
        """
        if self.ranges is not None and is_metadata(url):
            self.ranges.put_absence(url, origin)

    def _get_read(self, need: Head | Load, pool: Pool) -> tuple[Facts, bytes] | None:
        """Return facts and bytes of ``need`` if they are in ``ranges``."""
        match need:
            case Head(url, length, origin):
                return self._find_in_ranges(url, origin, 0, length, pool)
            case Load(Span(url, start, int(stop), pin=None, origin=origin), Raw()):
                return self._find_in_ranges(url, origin, start, stop, pool)
        return None

    def _find_in_ranges(
        self, url: str, origin: Origin, start: int, stop: int, pool: Pool
    ) -> tuple[Facts, bytes] | None:
        """Return facts and bytes that are in ``ranges``; later reads of another version raise `TargetChanged`."""
        found = None if self.ranges is None else self.ranges.find(url, origin, start, stop)
        if found is None:
            return None
        place = pool.place(url, origin)
        return found if place is not None and place[0].is_still(place[1], found[0]) else None

    def keep_range(self, url: str, origin: Origin, start: int, data: bytes, pool: Pool) -> None:
        """Keep bytes of a remote object in ``ranges``, if its server reports their version."""
        place = None if self.ranges is None else pool.place(url, origin)
        if self.ranges is None or place is None or not place[0].is_remote:
            return
        seen = place[0].facts
        if seen is not None and (seen.etag or seen.last_modified):
            self.ranges.put(url, origin, seen, start, data)

    def find_bytes(self, span: Span, pool: Pool) -> bytes | None:
        """Return the bytes of ``span`` if they are in ``ranges``; else None.

        Raises TargetNotAllowed if the source must not reach the object, TargetChanged if the pin has another version.
        """
        if span.stop is None:
            return None
        found = self._find_in_ranges(span.url, span.origin, span.start, span.stop, pool)
        if found is None or (span.exact and len(found[1]) < span.stop - span.start):
            return None
        if span.pin is not None:
            pool.versions.of(span.url).observe(found[0], span.pin)
        return found[1]

    def has_bytes(self, span: Span) -> bool:
        """Return whether the bytes of ``span`` are in ``ranges``."""
        if self.ranges is None or span.stop is None:
            return False
        return self.ranges.find(span.url, span.origin, span.start, span.stop) is not None

    def forget_ranges(self) -> None:
        """Drop the kept ranges of objects, for all filesystems of the same set."""
        if self.ranges is not None:
            self.ranges.clear()

    def find_doubtful(self, need: Need, pool: Pool) -> tuple[str, Origin] | None:
        """Return URL and origin of the object of a cached answer, if its version has to be requested; else None."""
        found = self.cache.get((self.token, need))
        return (
            (found.url, found.origin) if type(found) is _BoundValue and self._is_doubtful(need, found, pool) else None
        )

    def _is_doubtful(self, need: Need, found: _BoundValue, pool: Pool) -> bool:
        match need:
            case Stat() | Load(Span(start=0, stop=None) | Packed(source=Span(start=0, stop=None))):
                place = pool.place(found.url, found.origin)
                with contextlib.suppress(OSError):  # the object is gone: the answer will not match
                    return place is not None and not place[0].is_known(place[1])
        return False

    def put(self, need: Need, value: Any, weight: int, pool: Pool) -> None:
        """Keep ``value``, of ``weight`` bytes, as the answer to ``need``."""
        url, origin = _find_source(need)
        seen = None if url is None else pool.versions.of(url).seen
        quota = getattr(need.index, "quota", None) if isinstance(need, Load) else None
        kept = value if url is None or seen is None else _BoundValue(value, url, origin, seen)
        self.cache.put((self.token, need), kept, weight, quota)


def _find_source(need: Need) -> tuple[str | None, Origin]:
    """Return URL and origin of the object whose version binds the answer; no URL if the need has a pin."""
    match need:
        case Load((Span(pin=None) as span) | Packed(source=Span(pin=None) as span), index):
            return None if is_streamed(index) else span.url, span.origin
        case Stat(url, origin=origin):
            return url, origin
        case _:
            return None, ()


def advance(steps: Steps[Any], answer: Any, known: Callable[[Need], Outcome | None]) -> Need | tuple[Need, ...]:
    """Send ``answer`` to ``steps``, then all ``known`` answers, and return the first need without a known answer.

    Raises StopIteration at the end of the steps.
    """
    need = steps.throw(answer) if isinstance(answer, BaseException) else steps.send(answer)
    while True:
        try:
            found = [known(part) for part in (need if isinstance(need, tuple) else (need,))]
        except DamagedIndex as e:  # the look-up may continue without the damaged index
            need = steps.throw(e)
            continue
        values = tuple(outcome.value for outcome in found if outcome is not None)
        if len(values) < len(found):
            return need
        need = steps.send(values if isinstance(need, tuple) else values[0])


def choose_index_for_size(need: Load, pool: Pool) -> Index:
    """Return the index of ``need``; if it has a method ``with_size``, the index for the size of the object."""
    with_size = getattr(need.index, "with_size", None)
    if with_size is None or not isinstance(need.entry, Span):
        return need.index
    place = pool.place(need.entry.url, need.entry.origin)
    size = None if place is None else place[0].size
    index: Index = need.index if size is None else with_size(size)
    return index


@contextlib.contextmanager
def name_location(entry: Entry) -> Iterator[None]:
    """Add the location of ``entry`` to errors of this block, which reads an index or a document."""
    try:
        yield
    except TooLarge as e:
        raise ManifestError(make_too_large_text(describe(entry), e.most)) from e
    except RefShardError:
        raise
    except ValueError as e:
        raise DamagedIndex("", describe(entry), str(e)) from e
