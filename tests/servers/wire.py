"""HTTP/1.1 by RFC 9110, without sockets: the head of a request, a resource, and the right answer."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate, parsedate_to_datetime
from enum import Enum
from http import HTTPStatus
from urllib.parse import unquote

__all__ = ["Answer", "End", "Head", "Resource", "answer_read", "check_write", "failure", "parse_head", "resolve_range"]


@dataclass(frozen=True, slots=True)
class Head:
    """The request line and the headers of a request; header names are in lower case."""

    method: str
    target: str
    """As sent: percent-encoded, with the query."""
    headers: Mapping[str, str]

    @property
    def path(self) -> str:
        return unquote(self.target.partition("?")[0])

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]


@dataclass(frozen=True, slots=True)
class Resource:
    """The bytes at a path, with ETag and modification time."""

    data: memoryview
    etag: str
    modified: float

    @classmethod
    def of(cls, data: bytes | bytearray | memoryview, modified: float | None = None) -> Resource:
        view = memoryview(data).cast("B")
        etag = '"' + hashlib.blake2b(view, digest_size=16).hexdigest() + '"'
        return cls(view, etag, time.time() if modified is None else modified)


_NOTHING = memoryview(b"")


class End(Enum):
    """The end of the connection after the last byte of an answer."""

    KEEP = "keep"
    FIN = "fin"
    RST = "rst"


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, headers and body of an answer. With a fault, they may contradict each other."""

    status: int
    headers: Mapping[str, str]
    body: memoryview = _NOTHING
    end: End = End.KEEP
    pause: float = 0.0
    """Seconds before each piece of the body."""
    piece: int = 256 * 1024
    whole: memoryview | None = None
    """The whole resource, for faults that send bytes outside of the requested range."""
    span: tuple[int, int] | None = None
    """Start and stop of the requested range."""
    discard: bool = False
    """Whether the body is not sent, because the request is a HEAD."""


class Unsatisfiable(Exception):
    """A valid range has no byte of the resource: the answer is 416."""


def parse_head(raw: bytes) -> Head:
    """Parse the bytes before the empty line of a request; ValueError if they are not an HTTP/1.1 request."""
    first, *lines = raw.decode("latin-1").split("\r\n")
    method, target, version = first.split(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"expected HTTP/1.1, got {version!r}")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return Head(method, target, headers)


def resolve_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return start and stop of a Range header for a resource of ``size`` bytes.

    Return None if RFC 9110 14.2 permits a server to send the whole: without a header, for another unit, several ranges,
    or an invalid range. Raise Unsatisfiable if no byte of the range exists.
    """
    if header is None:
        return None
    unit, _, spec = header.partition("=")
    first, dash, last = spec.strip().partition("-")
    if unit.strip().lower() != "bytes" or not dash or not all(part == "" or part.isdecimal() for part in (first, last)):
        return None
    match first, last:
        case "", "":
            return None
        case "", suffix:
            start, stop = max(0, size - int(suffix)), size
        case _, "":
            start, stop = int(first), size
        case _:
            start, stop = int(first), min(int(last) + 1, size)
            if int(last) < start:
                return None
    if start >= stop:
        raise Unsatisfiable
    return start, stop


def answer_read(head: Head, resource: Resource) -> Answer:
    """Return the right answer to a GET or HEAD of a resource, with the order of checks of RFC 9110 13.2.2."""
    size = len(resource.data)
    headers = {
        "ETag": resource.etag,
        "Last-Modified": formatdate(int(resource.modified), usegmt=True),
        "Accept-Ranges": "bytes",
        "Content-Type": "application/octet-stream",
    }
    if _is_stale(head, resource):
        return failure(412, "PreconditionFailed", headers)
    if _is_fresh_at_client(head, resource):
        return Answer(304, headers)
    asked = head.headers.get("range")
    if asked is not None and not _if_range_holds(head, resource):
        asked = None
    try:
        span = resolve_range(asked, size)
    except Unsatisfiable:
        return failure(416, "InvalidRange", headers | {"Content-Range": f"bytes */{size}"})
    start, stop = span or (0, size)
    if span is not None:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    headers["Content-Length"] = str(stop - start)
    return Answer(
        status=200 if span is None else 206,
        headers=headers,
        body=resource.data[start:stop],
        whole=resource.data,
        span=span,
        discard=head.method == "HEAD",
    )


def check_write(head: Head, resource: Resource | None) -> Answer | None:
    """Return the refusal of a conditional PUT or DELETE; None if the condition holds."""
    match head.headers.get("if-match"), resource:
        case None, _:
            pass
        case _, None:
            return failure(412, "PreconditionFailed")
        case condition, Resource(etag=etag) if not _matches(condition, etag):
            return failure(412, "PreconditionFailed")
    match head.headers.get("if-none-match"), resource:
        case str(condition), Resource(etag=etag) if _matches(condition, etag):
            return failure(412, "PreconditionFailed")
    return None


def failure(status: int, code: str | None = None, headers: Mapping[str, str] | None = None) -> Answer:
    """Return an answer with an error status. The body is an error document of S3, which other clients ignore."""
    code = code or HTTPStatus(status).phrase.replace(" ", "")
    body = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'.encode()
    described = {"Content-Type": "application/xml", "Content-Length": str(len(body))}
    return Answer(status, dict(headers or {}) | described, memoryview(body))


def _is_stale(head: Head, resource: Resource) -> bool:
    if (condition := head.headers.get("if-match")) is not None:
        return not _matches(condition, resource.etag)
    if (date := head.headers.get("if-unmodified-since")) is not None:
        return int(resource.modified) > parsedate_to_datetime(date).timestamp()
    return False


def _is_fresh_at_client(head: Head, resource: Resource) -> bool:
    if (condition := head.headers.get("if-none-match")) is not None:
        return _matches(condition, resource.etag)
    if (date := head.headers.get("if-modified-since")) is not None:
        return int(resource.modified) <= parsedate_to_datetime(date).timestamp()
    return False


def _if_range_holds(head: Head, resource: Resource) -> bool:
    condition = head.headers.get("if-range")
    return condition in (None, resource.etag, formatdate(int(resource.modified), usegmt=True))


def _matches(condition: str, etag: str) -> bool:
    return condition.strip() == "*" or etag in (tag.strip() for tag in condition.split(","))
