"""Define targets and their answers, and check that an answer is what was requested."""

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
from refshard_fs.targets.failures import EXPIRED, Denial, HttpStatus, Incomplete, TooLarge, Unfit

if TYPE_CHECKING:
    import aiohttp
    from fsspec.spec import AbstractFileSystem

MOST_UNSIZED: Final = 8 << 30  # the most bytes that are read of an object of unknown size, which may be endless
UNKNOWN: Final = Facts(None)


class Answer(msgspec.Struct, frozen=True, gc=False):
    """Bytes of an object, and the ``facts`` about the object in the same answer.

    ``unasked`` counts the bytes outside of the range, which a server sends if it ignores ranges.
    """

    data: bytes
    facts: Facts = UNKNOWN
    waited: float | None = None  # seconds until the server began to answer, if known
    unasked: int = 0

    @property
    def size(self) -> int | None:
        """The number of bytes of the object, if known."""
        return self.facts.size


class Target:
    """Objects that are reached in the same way, and read in ranges. Only a missing object raises FileNotFoundError.

    A target is bound to one event loop, unless it is an `ImmediateTarget`.
    """

    most_retries = 1000  # further tries after temporary failures; few, if a layer below also tries again
    patience = math.inf  # seconds to wait for the answer to a request
    tells_versions = True  # answers have the version of their bytes; otherwise only `get_current_facts` has it
    logs_requests = False  # whether the target logs its requests itself; otherwise `VersionedObject` logs them

    async def read(
        self, path: str, start: int, stop: int | None, etag: str | None = None, most: int | None = None
    ) -> Answer:
        """Return bytes ``[start, stop)``; ``stop=None`` reads to the end; then a negative start counts from the end.

        The answer may be shorter only where the object ends before ``stop``; `check` verifies this. If the target
        supports conditions, the request has the condition that the object has the strong ``etag``. Reading to the end
        raises TooLarge for an object of more than ``most`` bytes, soon after ``most`` bytes were received. For an
        object of unknown size, ``most`` is `MOST_UNSIZED` by default.
        """
        raise NotImplementedError

    async def get_facts(self, path: str) -> Facts:
        """Return the size and version of an object, without its bytes."""
        raise NotImplementedError

    async def get_current_facts(self, path: str) -> Facts:
        """Return the same as `get_facts`, but ignore cached listings."""
        return await self.get_facts(path)

    async def list_names(self, path: str) -> tuple[Listed, ...] | None:
        """Return the names directly below ``path``, or None if this target cannot list."""
        return None

    async def list_tree(self, path: str) -> tuple[Listed, ...] | None:
        """Return all objects below ``path``, named relative to it; None if this target lists directory by directory."""
        return None

    def read_now(self, path: str, start: int, stop: int | None, most: int | None = None) -> Answer | None:
        """Return the same bytes as `read` at once, in any thread, or None if that takes an event loop."""
        return None

    def read_into(self, path: str, start: int, buffer: memoryview) -> Facts | None:
        """Fill ``buffer`` with bytes from ``start`` on at once; None if this is not possible, or there are too few."""
        return None

    async def find_writing_filesystem(self, path: str) -> tuple[AbstractFileSystem, str] | None:
        """Return the filesystem that writes objects, and ``path`` there; None if nothing can be written."""
        return None

    async def close(self) -> None:
        """Close connections and files."""


class ImmediateTarget(Target):
    """Objects whose bytes any thread can read without an event loop, by `read_now`."""

    most_retries = 0
    fs: Any = None  # the filesystem that writes objects, usable from any thread, if there is one

    async def read(
        self, path: str, start: int, stop: int | None, etag: str | None = None, most: int | None = None
    ) -> Answer:
        return self.read_now(path, start, stop, most)

    def read_now(self, path: str, start: int, stop: int | None, most: int | None = None) -> Answer:
        raise NotImplementedError


def check_size(size: int | None, most: int | None) -> None:
    """Raise `TooLarge` if ``size`` and ``most`` are known, and ``size`` is larger."""
    if size is not None and most is not None and size > most:
        raise TooLarge(most)


def check(answer: Answer, start: int, stop: int | None, *, exact: bool) -> None:
    """Raise `Unfit` unless ``answer`` is the requested range. If not ``exact``, the object may end before ``stop``."""
    got = len(answer.data)
    if stop is None:
        if start < 0 and (got > -start or (answer.size is not None and got != min(-start, answer.size))):
            raise Unfit(f"expected the last {-start} bytes, got {got}")
        if start >= 0 and answer.size is not None and got != max(answer.size - start, 0):
            raise Unfit(f"expected bytes from {start} to the end at {answer.size}, got {got} bytes")
        return
    expected = stop - start
    if got == expected:
        return
    available = None if answer.size is None else max(min(stop, answer.size) - start, 0)
    if got == available and not exact:
        return
    end = "" if answer.size is None else f" (the object has {answer.size} bytes)"
    text = f"expected bytes [{start}, {stop}), got {got} of {expected}{end}"
    raise Incomplete(text) if available is not None and got < available else Unfit(text)


# The answer to one ranged GET, checked against the request: status, ``Content-Range``, length (RFC 9110, section 14).


_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)$")
_NO_SUCH_RANGE = re.compile(r"bytes \*/(\d+)$")
_S3_SIZE = re.compile(rb"<ActualObjectSize>(\d+)</ActualObjectSize>")
_S3_CODE = re.compile(rb"<Code>(\w{1,64})</Code>")
# The texts of S3, Google and Azure for an expired signed URL: they have no error code for this.
_EXPIRED_TEXTS = (b"Request has expired", b"Request signature expired", b"not valid in the specified time frame")
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]*)?")
_ERROR_TEXT = 1 << 12  # bytes of an error's body that are read for its code
_LARGE = 1 << 22  # bytes from which a body's memory is allocated at once; below, a second copy is cheaper
_MOST_ROOM = 1 << 30  # the most bytes that are allocated before they arrive: a server may announce more than it sends
_IDENTITY = ("", "identity")
_INFLATED = ("gzip", "deflate")


def make_range_headers(start: int, stop: int | None, etag: str | None = None) -> dict[str, str]:
    """Return the headers of a request for bytes ``[start, stop)``, on condition that the object has the ``etag``."""
    headers = {"Range": make_range_header(start, stop)} if start or stop is not None else {}
    return headers if etag is None else {**headers, "If-Match": etag}


def make_range_header(start: int, stop: int | None) -> str:
    """Return the Range header for bytes ``[start, stop)``; a negative start counts from the end."""
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
    """Return bytes ``[start, stop)`` from ``response``; raise an error if it holds anything else.

    Raises TooLarge as `Target.read` does. If the server ignores ranges and sends the whole object, cut the range out of
    the object. ``inflates``: the client has already decompressed the body.
    """
    headers, status = response.headers, response.status
    encoding = headers.get("content-encoding", "")
    content_range = ", ".join(dict.fromkeys(map(str.strip, headers.getall("content-range", ()))))
    unasked = 0
    is_part = content_range and not _is_whole(content_range, response.content_length)
    if status == 206 or (status == 200 and is_part):
        if encoding not in _IDENTITY:
            raise Unfit(f"expected a range of the plain object, got one of the compressed object ({encoding})")
        length, total = _parse_range(content_range, response.content_length, start, stop)
        check_size(length, most)
        data = await _read_body(response, length + 1)  # one byte more shows that the body is too long
        if len(data) > length:
            raise Unfit(f"expected {length} bytes, got more")
        if len(data) < length:
            raise Incomplete(f"expected {length} bytes, got {len(data)}: the answer ended early")
    elif status == 200:
        if encoding not in _IDENTITY and not (inflates and encoding in _INFLATED):
            raise Unfit(f"expected the plain object, got it compressed ({encoding})")
        data, total = await _read_first_bytes(response, stop, most, is_plain=encoding in _IDENTITY)
        data = data if start == 0 else data[start:stop]
        if start or stop is not None:
            unasked = max(response.content.total_bytes - len(data), 0)
    else:
        text = await _read_error_text(response)
        size = _parse_size(headers.get("content-range", ""), text) if status == 416 else None
        if size is None or start < size != 0:
            raise _make_error(status, headers, text)
        data, total = b"", size
    return Answer(data, Facts(total, headers.get("etag"), headers.get("last-modified")), waited, unasked)


def _make_error(status: int, headers: Mapping[str, str], text: bytes) -> OSError:
    match = _S3_CODE.search(text)
    code = match[1].decode() if match else ""
    if status == 404 and code in ("", "NoSuchKey", "NotFound", "BlobNotFound"):  # not 410: that object was deleted
        return FileNotFoundError(f"HTTP {status}")
    if status in (400, 403) and any(words in text for words in _EXPIRED_TEXTS):
        return Denial(status, EXPIRED)
    wait = _parse_retry_after(headers.get("retry-after", ""), time.time())
    return (Denial if status in (401, 403, 407) else HttpStatus)(status, code, wait)


def _parse_retry_after(after: str, now: float) -> float | None:
    """Return the seconds to wait, from a number or a date; None for any other text."""
    if _SECONDS.fullmatch(after):
        return float(after)
    try:
        return max(email.utils.parsedate_to_datetime(after).timestamp() - now, 0.0)
    except (ValueError, OverflowError):  # OverflowError: a year of twenty digits
        return None


def _parse_range(text: str, sent: int | None, start: int, stop: int | None) -> tuple[int, int | None]:
    """Return the length of a partial answer, and the object's size, if known; raise Unfit for another range."""
    match = _CONTENT_RANGE.match(text)
    if match is None:
        raise Unfit(f"expected a Content-Range 'bytes FIRST-LAST/SIZE' in a partial answer, got {text!r}")
    first, last = int(match[1]), int(match[2])
    total = None if match[3] == "*" else int(match[3])
    if total is not None and total <= last:
        raise Unfit(f"expected a Content-Range within the object, got {text!r}")
    if total is None:
        is_requested = stop is not None and (first, last) == (start, stop - 1)
    else:
        begin = max(total + start, 0) if start < 0 else start
        is_requested = (first, last) == (begin, min(total if stop is None else stop, total) - 1)
    if not is_requested:
        raise Unfit(f"expected the range {make_range_header(start, stop)}, got Content-Range {text!r}")
    length = last - first + 1
    if sent is not None and sent != length:
        raise (Incomplete if sent < length else Unfit)(f"expected {length} bytes by Content-Range {text!r}, got {sent}")
    return length, total


def _is_whole(content_range: str, sent: int | None) -> bool:
    """Return whether a Content-Range covers the whole object. Some servers send a part with status 200."""
    match = _CONTENT_RANGE.match(content_range)
    if match is None or match[1] != "0":
        return False
    size = int(match[2]) + 1
    return match[3] == str(size) and sent in (None, size)


async def _read_first_bytes(
    response: aiohttp.ClientResponse, stop: int | None, most: int | None, *, is_plain: bool
) -> tuple[bytes, int | None]:
    """Return the first ``stop`` bytes of a whole object (None: all, at most ``most``), and its size, if known."""
    size = response.content_length if is_plain else None
    limit = stop
    if limit is None:
        check_size(size, most)
        limit = 1 + (size if size is not None else MOST_UNSIZED if most is None else most)
    data = await _read_body(response, limit, is_plain=is_plain)
    if size is None:
        if stop is None:
            check_size(len(data), limit - 1)
        return data, len(data) if len(data) < limit else None
    if len(data) < min(size, limit):
        raise Incomplete(f"expected the {size} bytes that the server announced, got {len(data)}")
    return data, size


async def _read_body(response: aiohttp.ClientResponse, limit: int, *, is_plain: bool = True) -> bytes:
    """Return a body, or its first ``limit`` bytes without waiting for the rest.

    A large body of known length is not copied.
    """
    sent = response.content_length if is_plain else None
    known = 0 if sent is None or sent > limit else sent
    if 0 < known < _LARGE:
        return await response.read()
    room = BytesIO(bytes(known) if known <= _MOST_ROOM else b"")  # `getvalue` returns these bytes without a copy
    while room.tell() < limit:
        part = await response.content.readany()  # `readchunk` waits for ever at the end of an empty body
        if not part:
            break
        room.write(part)
    room.truncate(min(room.tell(), limit))
    if not response.content.at_eof():
        response.close()
    return room.getvalue()


async def _read_error_text(response: aiohttp.ClientResponse) -> bytes:
    import aiohttp

    try:
        return await _read_body(response, _ERROR_TEXT, is_plain=False)
    except aiohttp.ClientError:
        return b""  # then the error has the status, but no code


def _parse_size(content_range: str, text: bytes) -> int | None:
    """Return the object's size from the answer to a range outside the object; None if the answer lacks it."""
    match = _NO_SUCH_RANGE.match(content_range) or _S3_SIZE.search(text)
    return int(match[1]) if match else None
