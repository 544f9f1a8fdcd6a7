"""What a target answers, and the check that it is what was asked for."""

from __future__ import annotations

import email.utils
import math
import re
import time
from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import msgspec

from refshard_fs.core.model import Facts, Listed
from refshard_fs.targets.failures import EXPIRED, Denied, HttpStatus, Incomplete, TooLarge, Unfit

if TYPE_CHECKING:
    import aiohttp
    from fsspec.spec import AbstractFileSystem

UNTOLD: Final = 8 << 30  # bytes that are read of an object of which nobody says how many it has: it may have no end


UNKNOWN: Final = Facts(None)


class Answer(msgspec.Struct, frozen=True, gc=False):
    """Bytes of an object, and the ``facts`` that came with them about the whole.

    ``unasked`` bytes came beside them, of a server that answers with whole objects where ranges are asked for.
    """

    data: bytes
    facts: Facts = UNKNOWN
    waited: float | None = None  # seconds until the server began to answer, where that is known
    unasked: int = 0

    @property
    def size(self) -> int | None:
        """Bytes that the object has, if that is known."""
        return self.facts.size


class Target:
    """Objects of one kind, read in ranges. Bound to one event loop, but for an `ImmediateTarget`.

    A missing object is FileNotFoundError; every other failure is some other error.
    """

    most_retries = 1000  # further tries of what failed for a passing reason; few, where a layer below has tried again
    patience = math.inf  # seconds after which a request that has not been answered never will be
    tells_versions = True  # with the bytes; else only `current_facts` tell which version they are of

    async def read(
        self, path: str, start: int, stop: int | None, etag: str | None = None, most: int | None = None
    ) -> Answer:
        """Return bytes ``[start, stop)``; ``stop=None`` reads to the end, then a negative start counts from it.

        The answer may be shorter only where the object ends before ``stop``: `check` tells.
        A target that can be asked for a version alone is asked for ``etag``, a strong one.
        What is read to its end and has more than ``most`` bytes is TooLarge, and hardly more of it is read. Without
        ``most``, that goes for what has more than `UNTOLD` bytes and does not say so beforehand.
        """
        raise NotImplementedError

    async def facts(self, path: str) -> Facts:
        """Return what is known of an object without its bytes."""
        raise NotImplementedError

    async def current_facts(self, path: str) -> Facts:
        """Return the same as `facts`, as the object is now: not what a listing told before."""
        return await self.facts(path)

    async def names(self, path: str) -> tuple[Listed, ...] | None:
        """Return what lies directly below ``path``, or None if this target cannot list."""
        return None

    async def tree(self, path: str) -> tuple[Listed, ...] | None:
        """Return all objects below ``path``, named relative to it; None if this target lists a directory at a time."""
        return None

    def read_now(self, path: str, start: int, stop: int | None, most: int | None = None) -> Answer | None:
        """Return the same bytes as `read` at once, in any thread, or None where that takes an event loop."""
        return None

    async def store(self, path: str) -> tuple[AbstractFileSystem, str] | None:
        """Return the filesystem that takes objects, and ``path`` there; None if nothing can be written."""
        return None

    async def close(self) -> None:
        """Let go of connections and files."""


class ImmediateTarget(Target):
    """Objects that are read without an event loop; the process shares them. Only `names` and `facts` are coroutines."""

    most_retries = 0
    fs: Any = None  # the filesystem that takes objects, in any thread, if any does

    async def read(
        self, path: str, start: int, stop: int | None, etag: str | None = None, most: int | None = None
    ) -> Answer:
        return self.read_now(path, start, stop, most)

    def read_now(self, path: str, start: int, stop: int | None, most: int | None = None) -> Answer:
        raise NotImplementedError


def check_size(size: int | None, most: int | None) -> None:
    """Raise `TooLarge` where an object of ``size`` bytes has more than ``most``, if both are known."""
    if size is not None and most is not None and size > most:
        raise TooLarge(most)


def check(answer: Answer, start: int, stop: int | None, *, exact: bool) -> None:
    """Raise `Unfit` unless ``answer`` is all of the range that was asked for."""
    got = len(answer.data)
    if stop is None:
        if start < 0 and (got > -start or (answer.size is not None and got != min(-start, answer.size))):
            raise Unfit(f"asked for the last {-start} bytes, got {got}")
        if start >= 0 and answer.size is not None and got != max(answer.size - start, 0):
            raise Unfit(f"asked for all {answer.size} bytes from {start}, got {got}")
        return
    want = stop - start
    if got == want:
        return
    there = None if answer.size is None else max(min(stop, answer.size) - start, 0)
    if got == there and not exact:
        return
    end = "" if answer.size is None else f" (the object has {answer.size} bytes)"
    text = f"asked for bytes [{start}, {stop}), got {got} of {want}{end}"
    raise Incomplete(text) if there is not None and got < there else Unfit(text)


# ----------------------------------------------------------------------------------------------------
# The answer to one ranged GET, checked against what was asked: status, ``Content-Range``, length (RFC 9110, 14).


_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)$")
_NO_SUCH_RANGE = re.compile(r"bytes \*/(\d+)$")
_S3_SIZE = re.compile(rb"<ActualObjectSize>(\d+)</ActualObjectSize>")
_S3_CODE = re.compile(rb"<Code>(\w{1,64})</Code>")
# What S3, Google and Azure say of a signed URL after its time; none of them has a code for it.
_SIGNED_BEFORE = (b"Request has expired", b"Request signature expired", b"not valid in the specified time frame")
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]*)?")
_ERROR_TEXT = 1 << 12  # bytes of an error's body that are read for its code
_LARGE = 1 << 22  # bytes of a body for which room is made at once: of less, a second copy costs less than that
_MOST_ROOM = 1 << 30  # bytes for which room is made before they come: the server may promise what it does not send
_IDENTITY = ("", "identity")
_INFLATED = ("gzip", "deflate")


def ranged(start: int, stop: int | None, etag: str | None = None) -> dict[str, str]:
    """Return the headers that ask for bytes ``[start, stop)``, of the version ``etag`` if that is given."""
    headers = {"Range": range_header(start, stop)} if start or stop is not None else {}
    return headers if etag is None else {**headers, "If-Match": etag}


def range_header(start: int, stop: int | None) -> str:
    """Return the Range of bytes ``[start, stop)``; a negative start counts from the end."""
    if stop is None:
        return f"bytes={start}-" if start >= 0 else f"bytes={start}"
    return f"bytes={start}-{stop - 1}"


async def read_answer(
    response: aiohttp.ClientResponse,
    start: int,
    stop: int | None,
    most: int | None = None,
    *,
    inflates: bool = False,
    waited: float | None = None,
) -> Answer:
    """Return what ``response`` brings of bytes ``[start, stop)``; all that is not just that is an error.

    Of what is asked for to its end, that is TooLarge which `Target.read` says is.

    A server that knows no ranges sends the whole object: then the range is taken out of it.
    ``inflates`` says that the client has undone such a body's compression.
    """
    headers, status = response.headers, response.status
    encoding = headers.get("content-encoding", "")
    content_range = ", ".join(dict.fromkeys(map(str.strip, headers.getall("content-range", ()))))
    unasked = 0
    is_part = content_range and not _is_whole(content_range, response.content_length)
    if status == 206 or (status == 200 and is_part):
        if encoding not in _IDENTITY:
            raise Unfit("the answer is a range of the compressed object, though the plain one was asked for")
        length, total = _placed(content_range, response.content_length, start, stop)
        check_size(length, most)
        data = await _body(response, length + 1)  # of a longer one, hardly more than that is read
        if len(data) > length:
            raise Unfit(f"asked for {length} bytes, got more")
        if len(data) < length:
            raise Incomplete(f"the answer ended after {len(data)} of {length} bytes")
    elif status == 200:
        if encoding not in _IDENTITY and not (inflates and encoding in _INFLATED):
            raise Unfit("the answer is compressed, though the plain object was asked for")
        data, total = await _first_bytes(response, stop, most, is_plain=encoding in _IDENTITY)
        data = data if start == 0 else data[start:stop]
        if start or stop is not None:
            unasked = max(response.content.total_bytes - len(data), 0)
    else:
        text = await _error_text(response)
        size = _size_told(headers.get("content-range", ""), text) if status == 416 else None
        if size is None or start < size != 0:
            raise _failure(status, headers, text)
        data, total = b"", size
    return Answer(data, Facts(total, headers.get("etag"), headers.get("last-modified")), waited, unasked)


def _failure(status: int, headers: Mapping[str, str], text: bytes) -> OSError:
    match = _S3_CODE.search(text)
    code = match[1].decode() if match else ""
    if (status == 404 and code in ("", "NoSuchKey", "NotFound", "BlobNotFound")) or status == 410:
        return FileNotFoundError(f"HTTP {status}")
    if status in (400, 403) and any(words in text for words in _SIGNED_BEFORE):
        return Denied(status, EXPIRED)
    wait = _wait(headers.get("retry-after", ""), time.time())
    return (Denied if status in (401, 403, 407) else HttpStatus)(status, code, wait)


def _wait(after: str, now: float) -> float | None:
    """Return the seconds that a Retry-After asks to wait, as a number or a date."""
    if _SECONDS.fullmatch(after):
        return float(after)
    try:
        return max(email.utils.parsedate_to_datetime(after).timestamp() - now, 0.0)
    except (ValueError, OverflowError):  # the latter of a year of twenty digits
        return None


def _placed(text: str, sent: int | None, start: int, stop: int | None) -> tuple[int, int | None]:
    """Return the length of a partial answer and the object's size, if told; Unfit if it is not the range asked for."""
    match = _CONTENT_RANGE.match(text)
    if match is None:
        raise Unfit(f"a partial answer without a valid Content-Range ({text!r})")
    first, last = int(match[1]), int(match[2])
    total = None if match[3] == "*" else int(match[3])
    if total is not None and total <= last:
        raise Unfit(f"a partial answer whose Content-Range contradicts itself ({text!r})")
    if total is None:
        right = stop is not None and (first, last) == (start, stop - 1)
    else:
        begin = max(total + start, 0) if start < 0 else start
        right = (first, last) == (begin, min(total if stop is None else stop, total) - 1)
    if not right:
        asked = range_header(start, stop)
        raise Unfit(f"asked for {asked}, got the bytes of Content-Range {text!r}")
    length = last - first + 1
    if sent is not None and sent != length:
        raise (Incomplete if sent < length else Unfit)(f"Content-Range {text!r} with {sent} bytes")
    return length, total


def _is_whole(content_range: str, sent: int | None) -> bool:
    """Whether a Content-Range is that of the whole object. Some servers and proxies send parts with status 200."""
    match = _CONTENT_RANGE.match(content_range)
    if match is None or match[1] != "0":
        return False
    size = int(match[2]) + 1
    return match[3] == str(size) and sent in (None, size)


async def _first_bytes(
    response: aiohttp.ClientResponse, stop: int | None, most: int | None, *, is_plain: bool
) -> tuple[bytes, int | None]:
    """Return the first ``stop`` bytes of a whole object, or all ``most`` of it, and its size where it is known."""
    size = response.content_length if is_plain else None
    limit = stop
    if limit is None:
        check_size(size, most)
        limit = 1 + (size if size is not None else UNTOLD if most is None else most)
    data = await _body(response, limit, is_plain=is_plain)
    if size is None:
        if stop is None:
            check_size(len(data), limit - 1)
        return data, len(data) if len(data) < limit else None
    if len(data) < min(size, limit):
        raise Incomplete(f"the server promised {size} bytes and sent {len(data)}")
    return data, size


async def _body(response: aiohttp.ClientResponse, limit: int, *, is_plain: bool = True) -> bytes:
    """Return a body, or its first ``limit`` bytes: the rest, which may be long, is not waited for.

    Of a large one whose head tells its length there is no second copy.
    """
    sent = response.content_length if is_plain else None
    known = 0 if sent is None or sent > limit else sent
    if 0 < known < _LARGE:
        return await response.read()
    room = BytesIO(bytes(known) if known <= _MOST_ROOM else b"")  # its value is these bytes: nothing is copied
    while room.tell() < limit:
        part = await response.content.readany()  # `readchunk` never says twice that a body which is empty has ended
        if not part:
            break
        room.write(part)
    room.truncate(min(room.tell(), limit))
    if not response.content.at_eof():
        response.close()
    return room.getvalue()


async def _error_text(response: aiohttp.ClientResponse) -> bytes:
    import aiohttp

    try:
        return await _body(response, _ERROR_TEXT, is_plain=False)
    except aiohttp.ClientError:
        return b""  # the status says enough


def _size_told(content_range: str, text: bytes) -> int | None:
    match = _NO_SUCH_RANGE.match(content_range) or _S3_SIZE.search(text)
    return int(match[1]) if match else None
