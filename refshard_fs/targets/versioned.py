"""Read one object for a source: retry temporary failures, and check that all answers have the same version.

The first answer sets the version, and later answers are compared with it: by size, then by ETag, then by modification
time. Equal ETags mean the same version. Different weak ETags mean nothing, since they may differ among the servers
behind one name: then modification times decide.
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
from typing import Any, Final, TypeVar

import msgspec

from refshard_fs.core.forks import fork_safe
from refshard_fs.core.lru import LRU
from refshard_fs.core.model import ABSENT, OWN, Absent, Facts, Listed, Pin, Span
from refshard_fs.core.stats import Stats
from refshard_fs.errors import CostlyPattern, RefShardError, TargetChanged, sanitize
from refshard_fs.security.policy import protocol_of, server_of
from refshard_fs.targets.answer import Answer, ImmediateTarget, Target, check, make_range_header
from refshard_fs.targets.failures import NOT_FOUND as MISSING
from refshard_fs.targets.failures import HttpStatus, Retry, Unfit, convert_error
from refshard_fs.targets.logs import log_request, logger

T = TypeVar("T")

MAX_VERSIONS = 1 << 16  # the most objects whose versions a source remembers
# A smaller source is read whole if more than its first bytes is needed. 4 MiB take 70 ms at 60 MB/s, less than
# four rounds of 20 ms. Opening a file and reading its variables takes 2 to 20 rounds after the first. xarray's other
# engines read 4 MiB at a time, too.
SMALL_FILE = 4 << 20

# The methods in log records of targets without HTTP requests, by the names of coroutines.
_METHODS: Final = {
    "_read": "READ",
    "get_facts": "STAT",
    "get_current_facts": "STAT",
    "list_names": "LIST",
    "list_tree": "LIST",
}
_NUMBER = re.compile(r"-?\d+(\.\d*)?$")
_PRECONDITION_FAILED = 412
_NO_SUFFIX = frozenset([400, 416, 501])  # the statuses of servers that do not support ranges from the end
_SLOWEST = 8192  # bytes per second; a slower server has stalled, even if many requests share its connection

# The predicate of a sentence: warnings and checks put the server's name before it.
IGNORES_RANGES: Final = (
    "ignores ranges: it answers with whole files, which are read for few bytes. Read them from another server, or put "
    "'simplecache::' before their URLs, which copies each file once"
)


class Version:
    """The version of one object, and kept bytes of the object; all loops and threads of a source share it."""

    __slots__ = ("_pin", "content", "is_absent", "is_answered", "is_kept", "is_sampled", "only_size", "seen", "url")

    def __init__(self, url: str, *, only_size: bool = False) -> None:
        self.url = url
        self.seen: Facts | None = None  # the facts in the answers so far
        self.is_absent = False  # whether the object was missing in the last answer
        self.is_kept = False  # whether to keep bytes of the object
        self.content = b""  # the kept bytes: the first ones or, of a small object, all
        self.is_sampled = False  # whether ranges of a small object were read, while only its first bytes are kept
        self.is_answered = False  # whether the server reported the version to us: a version from a cache may be old
        self.only_size = only_size
        self._pin: Pin | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all bytes of the object are kept."""
        return bool(self.content) and self.seen is not None and len(self.content) == self.seen.size

    @property
    def rest(self) -> tuple[int, int] | None:
        """The missing range of a small object whose first bytes are kept; None if no range is missing."""
        size = None if self.seen is None else self.seen.size
        return (len(self.content), size) if size is not None and len(self.content) < size <= SMALL_FILE else None

    def holds(self, span: Span) -> bool:
        """Return whether the bytes of ``span`` are kept."""
        return self.is_whole or (span.stop is not None and 0 <= span.start <= span.stop <= len(self.content))

    def keep(self, content: bytes) -> None:
        """Keep ``content``, the first bytes of the object or all, if `is_kept`."""
        if self.is_kept and len(content) > len(self.content):
            self.content = content

    def answer(self, start: int, stop: int | None, pin: Pin | None) -> Answer:
        """Return the answer for bytes ``[start, stop)``, which the object `holds`."""
        assert self.seen is not None
        if pin is not None:
            self.observe(self.seen, pin)
        size = len(self.content)
        first = max(size + start, 0) if start < 0 else start
        return Answer(self.content[first : size if stop is None else stop], self.seen)

    def is_like(self, seen: Facts) -> bool:
        """Return whether this object has the version ``seen``; if its version is unknown, it becomes ``seen``."""
        try:
            self.observe(seen, None)
        except TargetChanged:
            return False
        return True

    def learn(self, found: Facts, pin: Pin | None) -> None:
        """Observe the facts in an answer of the object's server, and note that the server reported the version."""
        self.observe(found, pin)
        by_etag = self.seen is not None and self.seen.etag is not None
        if (found.etag if by_etag else found.last_modified) is not None:
            self.is_answered = True

    def fits(self, pin: Pin | None) -> bool:
        """Return whether the server reported to this source that the object exists, and its version matches ``pin``."""
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

    def find_required_etag(self, pin: Pin | None) -> str | None:
        """Return the ETag that a request requires: the ETag of an earlier answer, or else of the manifest."""
        if self.seen is not None:
            return get_strong_etag(self.seen.etag)
        etag = None if pin is None or self.only_size else get_strong_etag(pin.etag)
        return None if etag is None else f'"{get_opaque_tag(etag)}"'

    def observe(self, found: Facts, pin: Pin | None) -> None:
        """Compare an answer with the known version; raise TargetChanged, which names the difference, if they differ."""
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

    def make_etag_error(self, pin: Pin | None) -> TargetChanged:
        """Return the error for a request that the server refused because the object has another ETag."""
        if self.seen is not None:
            return self._make_change_error(f"its ETag is no longer {self.seen.etag}")
        return self._make_mismatch_error(f"its ETag is not {pin.etag}" if pin is not None else "its ETag differs")

    def _compare(self, seen: Facts, found: Facts) -> None:
        if None not in (seen.size, found.size) and seen.size != found.size:
            raise self._make_change_error(f"its size was {seen.size} bytes and is {found.size}")
        if seen.etag is not None and found.etag is not None:
            if get_opaque_tag(seen.etag) == get_opaque_tag(found.etag):
                return
            if get_strong_etag(seen.etag) and get_strong_etag(found.etag):
                raise self._make_change_error(f"its ETag was {seen.etag} and is {found.etag}")
        then, now = seen.last_modified, found.last_modified
        if then is not None and now is not None and then != now:
            raise self._make_change_error(f"it was last modified {_format_date(then)}, and then {_format_date(now)}")

    def _compare_pin(self, pin: Pin, found: Facts) -> None:
        if None not in (pin.size, found.size) and pin.size != found.size:
            raise self._make_mismatch_error(f"its size is {found.size} bytes, not {pin.size}")
        if pin.etag is not None and found.etag is not None:
            if get_opaque_tag(pin.etag) != get_opaque_tag(found.etag) and not found.etag.startswith(OWN):
                raise self._make_mismatch_error(f"its ETag is {found.etag}, not {pin.etag}")
        then, now = pin.last_modified, found.last_modified
        if then is None or now is None or (pin.etag is not None and found.etag is not None):
            return
        recorded, modified = parse_time(then), parse_time(now)
        if recorded is None or modified is None:
            return
        if pin.exact:  # some servers tell fractions of a second, and others do not
            if abs(modified - recorded) >= (0.0001 if "." in then and "." in now else 1):
                raise self._make_mismatch_error(f"it was last modified {_format_date(now)}, not {_format_date(then)}")
        elif modified > recorded + 1:
            raise self._make_mismatch_error(f"it was last modified {_format_date(now)}, after {_format_date(then)}")

    def _make_change_error(self, what: str) -> TargetChanged:
        remedy = "invalidate_cache() starts over with the present object"
        if protocol_of(self.url) in ("http", "https"):
            remedy += (
                "; if several mirrors with different ETags answer, "
                f"options={{'{server_of(self.url)}/': {{'versions': 'ignore'}}}} compares only sizes"
            )
        return TargetChanged("", self.url, f"it was replaced since it was first read here: {what}; {remedy}")

    def _make_mismatch_error(self, what: str) -> TargetChanged:
        remedy = "make the references again; `refshard check` names all replaced objects"
        return TargetChanged("", self.url, f"it is not the object that the manifest was made for: {what}; {remedy}")


class Versions:
    """The versions of a source's objects: of the ``most`` objects that were opened last."""

    def __init__(self, most: int = MAX_VERSIONS) -> None:
        self._lock = fork_safe(threading.Lock())  # so that threads never make two records of one object
        self._known: LRU[str, Version] = LRU(most)

    def of(self, url: str, *, only_size: bool = False) -> Version:
        """Return the version of ``url``; with ``only_size``, answers are compared by size alone."""
        with self._lock:
            version = self._known.get(url)
            if version is None:
                version = Version(url, only_size=only_size)
                self._known.put(url, version)
            return version

    def find_known_facts(self, url: str) -> Facts | None:
        """Return the known facts of the object at ``url``; None if there are none."""
        version = self._known.peek(url)
        return None if version is None else version.seen

    def find_kept(self, span: Span) -> Version | None:
        """Return the version of the object of ``span``, if bytes of it are kept and the source itself refers to it."""
        version = self._known.peek(span.url)
        if version is None or not version.content or span.origin:
            return None
        return version

    def find_confirmed_facts(self, url: str, pin: Pin | None) -> Facts | None:
        """Return the facts of the object at ``url`` if they match ``pin``: see `Version.fits`."""
        version = self._known.peek(url)
        return version.seen if version is not None and version.fits(pin) else None

    def find_latest(self, url: str) -> Facts | Absent | None:
        """Return the last known facts of the object at ``url``, or `ABSENT`; None if there was no request for it."""
        version = self._known.peek(url)
        if version is None:
            return None
        return ABSENT if version.is_absent else version.seen

    def has_opened(self, url: str, below: str | None = None) -> bool:
        """Return whether the object at ``url`` was opened and, with ``below``, lies at or below that URL."""
        return self._known.peek(url) is not None and (below is None or url == below or url.startswith(below + "/"))

    def clear(self, below: str | None = None) -> None:
        """Forget all versions, or only the versions of objects at and below a URL; the next answers set new ones."""
        self._known.discard_where(lambda url: self.has_opened(url, below))


def get_strong_etag(etag: str | None) -> str | None:
    """Return ``etag`` if it is strong, which means that it identifies exact bytes (RFC 9110, section 8.8.1)."""
    return None if etag is None or etag.startswith("W/") else etag


def get_opaque_tag(etag: str) -> str:
    """Return ``etag`` without the mark of weak ETags and without quotes (RFC 9110, section 8.8.3)."""
    return etag.removeprefix("W/").strip('"')


def parse_time(text: str) -> float | None:
    """Return seconds since the epoch, from a time as in HTTP or ISO 8601, or a number; None if it is invalid."""
    if _NUMBER.match(text):
        return float(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        try:
            when = email.utils.parsedate_to_datetime(text)
        except (ValueError, OverflowError):  # OverflowError: a year of twenty digits
            return None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _format_range(start: int, stop: int | None) -> str | None:
    return None if start == 0 and stop is None else make_range_header(start, stop)


def _format_date(text: str) -> str:
    """Return a time for a text: seconds since the epoch become a date in UTC, other forms are unchanged."""
    try:
        return str(datetime.fromtimestamp(float(text), UTC)) if _NUMBER.match(text) else text
    except (ValueError, OverflowError, OSError):  # beyond the last year of `datetime`
        return text


class VersionedObject:
    """An object of ``target`` whose answers must all have one `Version`.

    ``hint`` is added to the error if the server refuses access, ``advice`` to any error. ``is_writable``: a commit may
    replace the object, if it still has the version that was read.
    """

    __slots__ = ("_advice", "_hint", "_is_writable", "_retry", "_stats", "_version", "target")

    def __init__(
        self,
        target: Target,
        version: Version,
        retry: Retry,
        stats: Stats,
        hint: str = "",
        advice: str = "",
        *,
        is_writable: bool = False,
    ) -> None:
        self.target = target
        self._version = version
        self._retry = retry
        self._stats = stats
        self._hint = hint
        self._advice = advice
        self._is_writable = is_writable

    @property
    def facts(self) -> Facts | None:
        """The facts in the answers so far."""
        return self._version.seen

    @property
    def size(self) -> int | None:
        """The number of bytes of the object; None if no answer had it."""
        return None if self._version.seen is None else self._version.seen.size

    @property
    def is_remote(self) -> bool:
        """Whether reading the object takes an event loop."""
        return not isinstance(self.target, ImmediateTarget)

    def facts_of(self, answer: Answer, before: Facts | None) -> Facts | None:
        """Return the facts of ``answer``; if the target reports no versions, return the facts ``before`` the request.

        If the object was replaced in between, the bytes belong to a later version, whose facts differ from ``before``:
        then later readers do not use these bytes.
        """
        if self._version.only_size:
            return None
        return answer.facts if self.target.tells_versions else before

    async def read(
        self, path: str, start: int, stop: int | None, pin: Pin | None = None, most: int | None = None
    ) -> Answer:
        """Return bytes ``[start, stop)``, or fewer if the object ends before; ``pin`` is the version in the manifest.

        With ``stop=None``, raises `TooLarge` for an object of more than ``most`` bytes. Raises FileNotFoundError if the
        object does not exist, TargetChanged if its version differs from the earlier one or from ``pin``, and another
        OSError if it cannot be read.
        """
        size = math.inf if stop is None else stop - start
        answer = await self._request(size, self._read, path, start, stop, pin, most)
        self._version.learn(answer.facts, pin)
        if answer.unasked:
            server = server_of(self._version.url)
            if self._stats.add_unasked(server, answer.unasked):
                warnings.warn(sanitize(f"{server} {IGNORES_RANGES}"), CostlyPattern, stacklevel=2)
        return answer

    async def _read(self, path: str, start: int, stop: int | None, pin: Pin | None, most: int | None) -> Answer:
        version = self._version
        if self._is_writable and version.seen is None and not self.target.tells_versions:
            version.learn(await self.target.get_current_facts(path), None)  # before the bytes, which may be newer
        try:
            answer = await self._read_range(path, start, stop, version.find_required_etag(pin), most)
            if pin is not None and not self.target.tells_versions:
                facts = await self.target.get_current_facts(path)  # after the bytes, to notice a replaced object
                answer = msgspec.structs.replace(answer, facts=facts)
        except HttpStatus as e:
            if e.status == _PRECONDITION_FAILED:
                raise version.make_etag_error(pin) from e
            raise
        if answer.size is not None:
            check(answer, start, stop, exact=False)
        return answer

    async def _read_range(self, path: str, start: int, stop: int | None, etag: str | None, most: int | None) -> Answer:
        try:
            return await self.target.read(path, start, stop, etag, most)
        except (Unfit, HttpStatus) as e:
            if start >= 0 or (isinstance(e, HttpStatus) and e.status not in _NO_SUFFIX):
                raise
            # Some servers do not support ranges from the end, or do not tell the size with them.
            size = self.size
            if size is None:
                size = (await self.target.get_facts(path)).size
            if size is None:
                raise
        return await self.target.read(path, max(size + start, 0), size, etag)

    async def get_facts(self, path: str) -> Facts:
        """Return the size and version of the object, without its bytes."""
        facts = await self._request(0, self.target.get_facts, path)
        self._version.learn(facts, None)
        return facts

    async def ask_version(self, path: str) -> None:
        """Ask for the present version of the object, and compare it with the known one."""
        facts = await self._request(0, self.target.get_current_facts, path)
        self._version.learn(facts, None)

    async def head(self, path: str, length: int) -> tuple[Facts, bytes]:
        """Return the facts of the object, and its first ``length`` bytes."""
        answer = await self.read(path, 0, length)
        if answer.size is None:
            return await self.get_facts(path), answer.data
        self._version.keep(bytes(answer.data))
        return answer.facts, answer.data

    async def list_names(self, path: str) -> tuple[Listed, ...] | None:
        """Return the names directly below ``path``, or None if the target cannot list."""
        return self._count_listing(await self._persist(math.inf, self.target.list_names, path))

    async def list_tree(self, path: str) -> tuple[Listed, ...] | None:
        """Return all objects below ``path``, or None if the target lists directory by directory."""
        return self._count_listing(await self._persist(math.inf, self.target.list_tree, path))

    def _count_listing(self, listing: tuple[Listed, ...] | None) -> tuple[Listed, ...] | None:
        if listing is not None:  # None: the target cannot list, or not a whole tree at once
            self._stats.count("listings", 1)
        return listing

    def read_now(
        self, path: str, start: int, stop: int | None, pin: Pin | None = None, most: int | None = None
    ) -> Answer | None:
        """Return the same bytes as `read` at once, in any thread, or None if that takes an event loop."""
        try:
            if logger.isEnabledFor(logging.DEBUG) and not self.is_remote:
                with log_request("READ", self._version.url, _format_range(start, stop)) as log:
                    answer = self.target.read_now(path, start, stop, most)
                    log.size = None if answer is None else len(answer.data)
            else:
                answer = self.target.read_now(path, start, stop, most)
        except MISSING:
            self._version.is_absent = True
            raise
        if answer is not None:
            self._version.observe(answer.facts, pin)
        return answer

    def read_into(self, path: str, start: int, buffer: memoryview, pin: Pin | None = None) -> bool:
        """Read bytes from ``start`` on into ``buffer`` at once; False if `read_now` has to read them."""
        if logger.isEnabledFor(logging.DEBUG) and not self.is_remote:
            with log_request("READ", self._version.url, _format_range(start, start + len(buffer))) as log:
                facts = self.target.read_into(path, start, buffer)
                log.size = None if facts is None else len(buffer)
        else:
            facts = self.target.read_into(path, start, buffer)
        if facts is not None:
            self._version.observe(facts, pin)
        return facts is not None

    def is_still(self, path: str, seen: Facts) -> bool:
        """Return whether the object has the version ``seen``; True if only a request would show it.

        Then the next answer is compared with ``seen``.
        """
        try:
            self.is_known(path)
        except OSError:
            return False
        return self._version.is_like(seen)

    def is_known(self, path: str) -> bool:
        """Return whether the version of the object is known, or can be found without a request."""
        if self._version.seen is None:
            now = self.target.read_now(path, 0, 0)
            if now is None:
                return False
            self._version.observe(now.facts, None)
        return True

    async def _request(self, size: float, call: Callable[..., Awaitable[T]], *args: object) -> T:
        """Return the result of `_persist`; if the object is missing, remember that."""
        try:
            return await self._persist(size, call, *args)
        except MISSING:
            self._version.is_absent = True
            raise

    async def _log(self, call: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Return the result of ``call``; log it as a request unless the target logs its own."""
        if self.target.logs_requests or not logger.isEnabledFor(logging.DEBUG):
            return await call(*args)
        name = call.__name__
        span = _format_range(args[1], args[2]) if name == "_read" else None
        with log_request(_METHODS[name], self._version.url, span) as log:
            result = await call(*args)
            log.size = len(result.data) if isinstance(result, Answer) else None
            log.is_sent = result is not None  # None: the target cannot list, or not a whole tree at once
            return result

    async def _persist(self, size: float, call: Callable[..., Awaitable[T]], *args: object) -> T:
        """Return the result of ``call``, which reads about ``size`` bytes; try again as `Retry` allows."""
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
                    return await self._log(call, *args)
            except RefShardError:
                raise
            except Exception as e:  # noqa: BLE001  # raised again as an OSError
                failure = convert_error(e)
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
                if self._advice:
                    failure.add_note(self._advice)
                raise failure
            self._stats.add(retries=1)
            await asyncio.sleep(wait)
