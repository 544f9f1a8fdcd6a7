"""HTTP(S) objects, read by ranged GETs whose status and ``Content-Range`` are checked (RFC 9110, section 14)."""

from __future__ import annotations

import asyncio
import re
import weakref
from typing import Any

import aiohttp
from fsspec.implementations.http import HTTPFileSystem

from refshard_fs.model import Facts, Listed
from refshard_fs.targets.answer import Answer, Unfit

__all__ = ["HttpTarget"]

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)$")
_PIECE = 1 << 16


class HttpStatus(OSError):
    """A status that is no answer; ``retry_after`` is what the server asks for, in seconds."""

    def __init__(self, status: int, reason: str, retry_after: float | None = None) -> None:
        super().__init__(f"HTTP {status} {reason}".rstrip())
        self.status = status
        self.retry_after = retry_after


class HttpTarget:
    """The objects of all HTTP servers, by URL, with the options of one `HTTPFileSystem`, whose session is used."""

    def __init__(self, fs: HTTPFileSystem) -> None:
        self.fs = fs
        self._session: aiohttp.ClientSession | None = None

    async def read(self, path: str, start: int, stop: int | None) -> Answer:
        whole = start == 0 and stop is None
        headers = {"Accept-Encoding": "identity"}
        if not whole:
            headers["Range"] = f"bytes={start}" if start < 0 else f"bytes={start}-{'' if stop is None else stop - 1}"
        async with await self._request("GET", path, headers) as response:
            status = response.status
            etag, modified = _versions(response)
            if status == 206 and not whole:
                total = _content_range(response, start, stop)
                limit = None if stop is None else stop - start
                return Answer(await _body(response, limit), total, etag, modified)
            if status == 416 and not whole:
                total = _total_of_416(response)
                if total is not None and (start >= total or total == 0):
                    return Answer(b"", total, etag, modified)
            if status != 200:
                raise _failure(response)
            # The server knows no ranges: take what was asked for out of the whole.
            total = response.content_length
            data = await _body(response, stop, cut=True)
            if stop is None or len(data) < stop:
                total = len(data) if total is None else total
                if len(data) != total:
                    raise Unfit(f"the server promised {total} bytes and sent {len(data)}")
            return Answer(data if whole else data[start:stop], total, etag, modified)

    async def facts(self, path: str) -> Facts:
        async with await self._request("HEAD", path, {"Accept-Encoding": "identity"}) as response:
            if response.status in (404, 410):
                raise _failure(response)
            if response.status == 200 and response.content_length is not None:
                return Facts(response.content_length, *_versions(response))
        # HEAD is refused or says nothing: one byte tells the size.
        answer = await self.read(path, 0, 1)
        return Facts(answer.size, answer.etag, answer.last_modified)

    async def names(self, path: str) -> tuple[Listed, ...] | None:
        return None

    def read_now(self, path: str, start: int, stop: int | None) -> Answer | None:
        return None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _request(self, method: str, path: str, headers: dict[str, str]) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = await self.fs.set_session()
            weakref.finalize(self, HTTPFileSystem.close_session, asyncio.get_running_loop(), self._session)
        options: dict[str, Any] = {"allow_redirects": True, **self.fs.kwargs}
        options["headers"] = {**headers, **options.get("headers", {})}
        response: aiohttp.ClientResponse = await self._session.request(method, self.fs.encode_url(path), **options)
        return response


def _versions(response: aiohttp.ClientResponse) -> tuple[str | None, str | None]:
    return response.headers.get("ETag"), response.headers.get("Last-Modified")


def _content_range(response: aiohttp.ClientResponse, start: int, stop: int | None) -> int | None:
    """Check a partial answer's place in the object and return the object's size, if it is told."""
    text = response.headers.get("Content-Range", "")
    match = _CONTENT_RANGE.match(text)
    if match is None:
        raise Unfit(f"a partial answer without a valid Content-Range ({text!r})")
    first, last = int(match[1]), int(match[2])
    total = None if match[3] == "*" else int(match[3])
    if start < 0:
        right = total is not None and first == max(total + start, 0) and last == total - 1
    else:
        ends = {stop - 1 if stop is not None else None, total - 1 if total is not None else None}
        right = first == start and (last in ends or None in ends) and (stop is None or last < stop)
    if not right:
        asked = f"bytes={start}-{'' if stop is None else stop - 1}"
        raise Unfit(f"asked for {asked}, got the bytes of Content-Range {text!r}")
    if response.content_length not in (None, last - first + 1):
        raise Unfit(f"Content-Range {text!r} with {response.content_length} bytes")
    return total


def _total_of_416(response: aiohttp.ClientResponse) -> int | None:
    match = re.match(r"bytes \*/(\d+)$", response.headers.get("Content-Range", ""))
    return int(match[1]) if match else None


async def _body(response: aiohttp.ClientResponse, limit: int | None, *, cut: bool = False) -> bytes:
    """Return the body; never more than ``limit`` bytes and a few: with ``cut`` the rest is not wanted, else wrong."""
    if limit is None or (not cut and response.content_length is not None and response.content_length <= limit):
        return await response.read()
    parts: list[bytes] = []
    size = 0
    while size < limit:
        part = await response.content.read(min(limit - size, _PIECE * 16))
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    if cut:
        if not response.content.at_eof():
            response.close()  # the rest may be long
    elif await response.content.read(1):
        response.close()
        raise Unfit(f"asked for {limit} bytes, got more")
    return b"".join(parts)


def _failure(response: aiohttp.ClientResponse) -> OSError:
    if response.status in (404, 410):
        return FileNotFoundError(f"HTTP {response.status} {response.reason}")
    after = response.headers.get("Retry-After", "")
    error = HttpStatus(response.status, response.reason or "", float(after) if after.isdigit() else None)
    return error
