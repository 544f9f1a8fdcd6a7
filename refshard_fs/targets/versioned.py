"""One object as a session reads it: passing failures are tried again, and every answer is of one version.

The first answer decides which version that is; all later ones are compared with it. Only strong ETags are compared as
such, since servers behind one name may differ in weak ones. Where there are none to compare, the times of the last
change are, and the sizes in any case.
"""

from __future__ import annotations

import asyncio
import email.utils
import logging
import math
import re
import threading
import warnings
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final, TypeVar

import msgspec

from refshard_fs.core.forks import fork_safe
from refshard_fs.core.lru import LRU
from refshard_fs.core.model import ABSENT, OWN, Absent, Facts, Listed, Pin, Span
from refshard_fs.core.stats import Stats
from refshard_fs.errors import CostlyPattern, RefShardError, TargetChanged, told
from refshard_fs.security.policy import protocol_of, server_of
from refshard_fs.targets.answer import Answer, ImmediateTarget, Target, check
from refshard_fs.targets.failures import ABSENT as MISSING
from refshard_fs.targets.failures import HttpStatus, Retry, Unfit, as_failure

logger = logging.getLogger("refshard_fs")

T = TypeVar("T")

REMEMBERED = 1 << 16  # objects whose version a session remembers
# Bytes of a source that is read whole, once more than its first bytes is needed. So many take 35 ms at 60 MB/s, or two
# rounds of 20 ms; to open a file and read its variables takes 2 to 20 rounds more than the first one.
SMALL_FILE = 2 << 20

_NUMBER = re.compile(r"-?\d+(\.\d*)?$")
_PRECONDITION_FAILED = 412
_NO_SUFFIX = frozenset([400, 416, 501])  # what servers answer that know no ranges which count from the end
_SLOWEST = 8192  # bytes per second; a server that sends fewer, behind a connection that is shared by many, has stalled

# Said of a server, by a warning and by a check.
IGNORES_RANGES: Final = (
    "ignores ranges: it answers with whole files, of which most is thrown away. Read them from another server, or put "
    "'simplecache::' before their URLs, which copies each file once"
)


class Version:
    """What is known of one object; shared by all loops and threads of a session."""

    __slots__ = ("_pin", "content", "is_absent", "is_answered", "is_kept", "is_sampled", "only_size", "seen", "url")

    def __init__(self, url: str, *, only_size: bool = False) -> None:
        self.url = url
        self.seen: Facts | None = None  # what is known, if anything was seen of the object
        self.is_absent = False  # whether it was not there when it was looked for last
        self.is_kept = False  # whether the bytes of a small object are kept, once some of it were read:
        self.content = b""  # the first ones, or all
        self.is_sampled = False  # whether ranges of a small object were read, of which only the first bytes are kept
        self.is_answered = False  # whether the session was told so itself, and did not take it from an earlier one
        self.only_size = only_size
        self._pin: Pin | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all bytes of the object are kept."""
        return bool(self.content) and self.seen is not None and len(self.content) == self.seen.size

    @property
    def rest(self) -> tuple[int, int] | None:
        """The range that is missing of a small object whose first bytes are kept; None if there is none."""
        size = None if self.seen is None else self.seen.size
        return (len(self.content), size) if self.content and size is not None and len(self.content) < size else None

    def holds(self, span: Span) -> bool:
        """Whether the bytes of ``span`` are kept."""
        return span.stop is not None and 0 <= span.start <= span.stop <= len(self.content)

    def keep(self, content: bytes) -> None:
        """Keep the first bytes of the object, or all, if they are to be kept and it is small."""
        size = None if self.seen is None else self.seen.size
        if self.is_kept and size is not None and size <= SMALL_FILE and len(content) > len(self.content):
            self.content = content

    def answer(self, start: int, stop: int | None, pin: Pin | None) -> Answer:
        """Return what reading bytes ``[start, stop)`` gives, of an object all of whose bytes are kept."""
        assert self.seen is not None
        if pin is not None:
            self.observe(self.seen, pin)
        size = len(self.content)
        first = max(size + start, 0) if start < 0 else start
        return Answer(self.content[first : size if stop is None else stop], self.seen)

    def is_like(self, seen: Facts) -> bool:
        """Whether this object is the one that was ``seen``. If it was not seen at all, it is, from then on."""
        try:
            self.observe(seen, None)
        except TargetChanged:
            return False
        return True

    def learn(self, found: Facts, pin: Pin | None) -> None:
        """Take note of what the object's server answered, as `observe` does."""
        self.observe(found, pin)
        by_etag = self.seen is not None and self.seen.etag is not None
        if (found.etag if by_etag else found.last_modified) is not None:
            self.is_answered = True

    def fits(self, pin: Pin | None) -> bool:
        """Whether the session was told what the object is, and it is there, of the version that ``pin`` names."""
        if self.seen is None or self.is_absent or not self.is_answered:
            return False
        if pin is None or pin == self._pin:
            return True
        try:
            self._compare_pin(pin, self.seen)
        except TargetChanged:
            return False
        self._pin = pin
        return True

    def condition(self, pin: Pin | None) -> str | None:
        """Return the ETag to ask for: the one seen before, or the one that the manifest names."""
        if self.seen is not None:
            return strong(self.seen.etag)
        etag = None if pin is None or self.only_size else strong(pin.etag)
        return None if etag is None else f'"{bare(etag)}"'

    def observe(self, found: Facts, pin: Pin | None) -> None:
        """Compare an answer with what is known; TargetChanged, which says what differs, if it is another version."""
        self.is_absent = False
        if self.only_size:
            found = Facts(found.size)
            pin = None if pin is None else Pin(size=pin.size)
        seen = self.seen
        if found == seen and (pin is None or pin == self._pin):
            return
        if seen is None:
            self.seen = found
        elif found != seen:
            self._compare(seen, found)
            size = found.size if seen.size is None else seen.size
            self.seen = Facts(size, seen.etag or found.etag, seen.last_modified or found.last_modified)
        if pin is not None:
            self._compare_pin(pin, found)
            self._pin = pin

    def refuse(self, pin: Pin | None) -> TargetChanged:
        """Return the error for a server that says the object is no longer what was asked for."""
        if self.seen is not None:
            return self._changed(f"its ETag is no longer {self.seen.etag}")
        return self._differs(f"its ETag is not {pin.etag}" if pin is not None else "its ETag is another one")

    def _compare(self, seen: Facts, found: Facts) -> None:
        if None not in (seen.size, found.size) and seen.size != found.size:
            raise self._changed(f"its size was {seen.size} bytes and is {found.size}")
        if seen.etag is not None and found.etag is not None:
            if bare(seen.etag) == bare(found.etag):
                return
            if strong(seen.etag) and strong(found.etag):
                raise self._changed(f"its ETag was {seen.etag} and is {found.etag}")
        then, now = seen.last_modified, found.last_modified
        if then is not None and now is not None and then != now:
            raise self._changed(f"it was last modified {_spelled(then)}, and then {_spelled(now)}")

    def _compare_pin(self, pin: Pin, found: Facts) -> None:
        if None not in (pin.size, found.size) and pin.size != found.size:
            raise self._differs(f"its size is {found.size} bytes, not {pin.size}")
        if pin.etag is not None and found.etag is not None:
            if bare(pin.etag) != bare(found.etag) and not found.etag.startswith(OWN):
                raise self._differs(f"its ETag is {found.etag}, not {pin.etag}")
        then, now = pin.last_modified, found.last_modified
        if then is None or now is None or (pin.etag is not None and found.etag is not None):
            return
        recorded, modified = seconds(then), seconds(now)
        if recorded is None or modified is None:
            return
        if pin.exact:  # some tell fractions of a second, and others cut them off
            if abs(modified - recorded) >= (0.0001 if "." in then and "." in now else 1):
                raise self._differs(f"it was last modified {_spelled(now)}, not {_spelled(then)}")
        elif modified > recorded + 1:
            raise self._differs(f"it was last modified {_spelled(now)}, after {_spelled(then)}")

    def _changed(self, what: str) -> TargetChanged:
        remedy = "invalidate_cache() starts over with what is there now"
        if protocol_of(self.url) in ("http", "https"):
            remedy += (
                "; if mirrors that differ in this answer by turns, "
                f"options={{'{server_of(self.url)}/': {{'versions': 'ignore'}}}} compares sizes alone"
            )
        return TargetChanged("", self.url, f"it was replaced since it was first read here: {what}; {remedy}")

    def _differs(self, what: str) -> TargetChanged:
        remedy = "have the references made anew; `refshard check` names all objects that were replaced"
        return TargetChanged("", self.url, f"it is not the object that the manifest was made for: {what}; {remedy}")


class Versions:
    """The versions of a session's objects; the least recently opened are forgotten beyond some number."""

    def __init__(self) -> None:
        self._lock = fork_safe(threading.Lock())  # an object has one record
        self._known: LRU[str, Version] = LRU(REMEMBERED)

    def of(self, url: str, *, only_size: bool = False) -> Version:
        """Return the one record of ``url``, which holds it to its size alone where that is wanted."""
        with self._lock:
            version = self._known.get(url)
            if version is None:
                version = Version(url, only_size=only_size)
                self._known.put(url, version)
            return version

    def seen(self, url: str) -> Facts | None:
        """Return what is known of the object at ``url``, if anything was seen of it; nothing is forgotten for that."""
        version = self._known.peek(url)
        return None if version is None else version.seen

    def kept(self, span: Span) -> Version | None:
        """Return the version of the object of ``span``, if bytes of it are kept, and ``span`` is the session's own."""
        version = self._known.peek(span.url)
        if version is None or not version.content or span.origin:
            return None
        return version

    def proven(self, url: str, pin: Pin | None) -> Facts | None:
        """Return the same as `seen`, if the session was told so itself and it is the version that ``pin`` names."""
        version = self._known.peek(url)
        return version.seen if version is not None and version.fits(pin) else None

    def latest(self, url: str) -> Facts | Absent | None:
        """Return the version of the object at ``url`` that was found last; None if it was not looked for."""
        version = self._known.peek(url)
        if version is None:
            return None
        return ABSENT if version.is_absent else version.seen

    def knows(self, url: str, below: str | None = None) -> bool:
        """Whether the object at ``url`` was opened; with ``below``, only of those at and below that URL."""
        return self._known.peek(url) is not None and (below is None or url == below or url.startswith(below + "/"))

    def clear(self, below: str | None = None) -> None:
        """Forget all, or what is at and below a URL: what is read next is the version from then on."""
        self._known.discard_where(lambda url: self.knows(url, below))


def strong(etag: str | None) -> str | None:
    """Return ``etag`` if it names exact bytes (RFC 9110, section 8.8.1)."""
    return None if etag is None or etag.startswith("W/") else etag


def bare(etag: str) -> str:
    """Return ``etag`` without its weakness and quotes."""
    return etag.removeprefix("W/").strip('"')


def seconds(text: str) -> float | None:
    """Return a time, as HTTP, ISO 8601 or the epoch write it, in seconds since the epoch; None if it is none."""
    if _NUMBER.match(text):
        return float(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        try:
            when = email.utils.parsedate_to_datetime(text)
        except (ValueError, OverflowError):  # the latter of a year of twenty digits
            return None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _spelled(text: str) -> str:
    """Return a time as people read it: seconds since the epoch as a date, in UTC."""
    try:
        return str(datetime.fromtimestamp(float(text), UTC)) if _NUMBER.match(text) else text
    except (ValueError, OverflowError, OSError):  # of no year that there is
        return text


class VersionedObject:
    """An object of ``target``: it answers like one, and knows what was seen of the object before."""

    __slots__ = ("_hint", "_retry", "_stats", "_version", "target")

    def __init__(self, target: Target, version: Version, retry: Retry, stats: Stats, hint: str = "") -> None:
        """Take what is read, and the ``hint`` to give where the server denies it."""
        self.target = target
        self._version = version
        self._retry = retry
        self._stats = stats
        self._hint = hint

    @property
    def seen(self) -> Facts | None:
        """What was seen of the object."""
        return self._version.seen

    @property
    def size(self) -> int | None:
        """Bytes that the object has, as far as reading it has shown that."""
        return None if self._version.seen is None else self._version.seen.size

    @property
    def is_remote(self) -> bool:
        """Whether reading it takes an event loop."""
        return not isinstance(self.target, ImmediateTarget)

    def facts_of(self, answer: Answer, before: Facts | None) -> Facts | None:
        """Return what tells the version of ``answer``; ``before`` was seen of the object before it was asked for.

        Bytes that come without a version are of that one, or of a later one that nobody takes for it any more.
        """
        if self._version.only_size:
            return None
        return answer.facts if self.target.tells_versions else before

    async def read(
        self, path: str, start: int, stop: int | None, pin: Pin | None = None, most: int | None = None
    ) -> Answer:
        """Return bytes ``[start, stop)``, fewer where the object ends; ``pin`` is what the manifest says of the object.

        With ``stop=None`` an object of more than ``most`` bytes is `TooLarge`.

        Raises FileNotFoundError if there is no such object, TargetChanged if it is another
        one than before or than ``pin`` says, and some other OSError if it cannot be had.
        """
        size = math.inf if stop is None else stop - start
        answer = await self._asked(size, self._read, path, start, stop, pin, most)
        self._version.learn(answer.facts, pin)
        if answer.unasked:
            server = server_of(self._version.url)
            if self._stats.add_unasked(server, answer.unasked):
                warnings.warn(told(f"{server} {IGNORES_RANGES}"), CostlyPattern, stacklevel=2)
        return answer

    async def _read(self, path: str, start: int, stop: int | None, pin: Pin | None, most: int | None) -> Answer:
        version = self._version
        try:
            answer = await self._ask(path, start, stop, version.condition(pin), most)
            if pin is not None and not self.target.tells_versions:
                facts = await self.target.current_facts(path)  # after the bytes came: an older object is then noticed
                answer = msgspec.structs.replace(answer, facts=facts)
        except HttpStatus as e:
            if e.status == _PRECONDITION_FAILED:
                raise version.refuse(pin) from e
            raise
        if answer.size is not None:
            check(answer, start, stop, exact=False)
        return answer

    async def _ask(self, path: str, start: int, stop: int | None, etag: str | None, most: int | None) -> Answer:
        try:
            return await self.target.read(path, start, stop, etag, most)
        except (Unfit, HttpStatus) as e:
            if start >= 0 or (isinstance(e, HttpStatus) and e.status not in _NO_SUFFIX):
                raise
            # Some servers know no ranges that count from the end, or do not tell of how many bytes that is.
            size = self.size
            if size is None:
                size = (await self.target.facts(path)).size
            if size is None:
                raise
        return await self.target.read(path, max(size + start, 0), size, etag)

    async def facts(self, path: str) -> Facts:
        """Return what is known of the object without its bytes."""
        facts = await self._asked(0, self.target.facts, path)
        self._tell("asked about", path)
        self._version.learn(facts, None)
        return facts

    async def ask_version(self, path: str) -> None:
        """Ask which version of the object there is now, and hold it to that."""
        facts = await self._asked(0, self.target.current_facts, path)
        self._tell("asked for its version", path)
        self._version.learn(facts, None)

    async def head(self, path: str, length: int) -> tuple[Facts, bytes]:
        """Return what is known of the object, and its first ``length`` bytes."""
        answer = await self.read(path, 0, length)
        if answer.size is None:
            return await self.facts(path), answer.data
        self._version.keep(bytes(answer.data))
        return answer.facts, answer.data

    async def names(self, path: str) -> tuple[Listed, ...] | None:
        """Return what lies directly below ``path``, or None if the target cannot list."""
        self._tell("listed", path)
        return await self._persist(math.inf, self.target.names, path)

    async def tree(self, path: str) -> tuple[Listed, ...] | None:
        """Return all that lies below ``path``, or None if the target lists one directory at a time."""
        self._tell("listed with all below", path)
        return await self._persist(math.inf, self.target.tree, path)

    def _tell(self, what: str, path: str) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s %s", told(f"{server_of(self._version.url)}: {path}"), what)

    def read_now(
        self, path: str, start: int, stop: int | None, pin: Pin | None = None, most: int | None = None
    ) -> Answer | None:
        """Return the same bytes as `read` at once, in any thread, or None where that takes an event loop."""
        try:
            answer = self.target.read_now(path, start, stop, most)
        except MISSING:
            self._version.is_absent = True
            raise
        if answer is not None:
            self._version.observe(answer.facts, pin)
        return answer

    def is_still(self, path: str, seen: Facts) -> bool:
        """Whether the object is the one that was ``seen``; if only a request can tell, yes, and later answers tell."""
        try:
            self.is_known(path)
        except OSError:
            return False
        return self._version.is_like(seen)

    def is_known(self, path: str) -> bool:
        """Whether it is known, or can be seen without a request, which version the object is of."""
        if self._version.seen is None:
            now = self.target.read_now(path, 0, 0)
            if now is None:
                return False
            self._version.observe(now.facts, None)
        return True

    async def _asked(self, size: float, call: Callable[..., Awaitable[T]], *args: object) -> T:
        """Return the same as `_persist`, and remember that the object is absent if it is."""
        try:
            return await self._persist(size, call, *args)
        except MISSING:
            self._version.is_absent = True
            raise

    async def _persist(self, size: float, call: Callable[..., Awaitable[T]], *args: object) -> T:
        """Return what ``call`` returns of some ``size`` bytes, in as many tries as `Retry` allows."""
        retry = self._retry
        now = asyncio.get_running_loop().time
        began = now()
        end = began + retry.timeout
        patience = self.target.patience + size / _SLOWEST
        tried = 0
        while True:
            limit = asyncio.timeout_at(min(now() + patience, end))
            try:
                async with limit:
                    return await call(*args)
            except RefShardError:
                raise
            except Exception as e:  # noqa: BLE001  # raised again as what it means
                failure = as_failure(e)
            if limit.expired():
                earlier = f", the last of {tried + 1} tries" if tried else ""
                late = TimeoutError(f"no answer after {now() - began:.1f} s{earlier}")
                late.__cause__ = failure
                failure = late
            tried += 1
            wait = retry.pause(failure, tried)
            if wait is None or now() + wait >= end:
                if self._hint and isinstance(failure, PermissionError):
                    failure.add_note(self._hint)
                raise failure
            self._stats.add(retries=1)
            await asyncio.sleep(wait)
