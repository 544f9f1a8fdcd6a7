"""Faults between a server and a reader: for each kind, a function that changes the right answer.

This module has no sockets: a fault returns an answer, and `engine` sends it.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal, TypedDict, get_args

from tests.servers.wire import Answer, End, Head, failure

__all__ = ["KINDS", "Fault", "FaultOptions", "Kind"]

Kind = Literal[
    "ignored_range",  # 200 and the whole resource for any range
    "short_body",  # fewer bytes than Content-Range says, with an honest Content-Length
    "unframed_body",  # fewer bytes, no Content-Length: the end of the connection ends the body
    "long_body",  # more bytes than the requested range, with an honest Content-Length
    "flipped_body",  # the right length, one wrong bit
    "wrong_content_range",  # another range than the requested one, with an honest Content-Range
    "missing_content_range",  # 206 without Content-Range
    "wrong_total",  # Content-Range with another size of the resource
    "unknown_total",  # Content-Range with "*" for the size, which HTTP permits
    "chunked",  # Transfer-Encoding: chunked, no Content-Length, which HTTP permits
    "status",  # an error status: use fault(503)
    "reset",  # RST in the middle of the body
    "hang_up",  # FIN in the middle of the body, before Content-Length bytes
    "dropped",  # FIN in place of an answer
    "silent",  # no answer, and the connection stays open
    "drip",  # the right bytes, slowly
    "redirect",  # 302 to another URL
    "gzip",  # the requested bytes, compressed, with Content-Encoding
    "gzip_stored",  # the requested range of the compressed resource, with Content-Encoding
    "replaced",  # from this request on, the resource has other bytes and another ETag
]
KINDS: tuple[Kind, ...] = get_args(Kind)

_RANGE_ONLY: frozenset[Kind] = frozenset(
    ["ignored_range", "wrong_content_range", "missing_content_range", "wrong_total", "unknown_total"]
)
_ANY_METHOD: frozenset[Kind] = frozenset(["status", "dropped", "silent", "redirect", "replaced"])
_S3_CODES = {503: "SlowDown", 403: "AccessDenied", 404: "NoSuchKey", 416: "InvalidRange", 500: "InternalError"}


class FaultOptions(TypedDict, total=False):
    """The keywords of ``HttpServer.fault``, which are fields of `Fault`."""

    method: str
    after: int
    times: int
    probability: float
    seed: int
    retry_after: float
    to: str
    data: bytes
    pause: float
    piece: int


@dataclass(slots=True)
class Fault:
    """A fault for all requests that match its fields; ``hits`` counts the requests with the fault."""

    kind: Kind
    path: str | None = None
    """A glob for the decoded path (``*`` matches ``/``, too); None matches all."""
    method: str | None = None
    after: int = 0
    """Number of matching requests that are first answered without the fault."""
    times: int | None = None
    """The most requests with the fault; None means no limit."""
    probability: float = 1.0
    seed: int = 0
    status: int = 500
    retry_after: float | None = None
    to: str = ""
    """The URL of a redirect."""
    data: bytes | None = None
    """The new bytes of a replaced resource; by default its old bytes, inverted."""
    pause: float = 0.05
    """Seconds before each piece of a drip."""
    piece: int = 1
    """Bytes in a piece of a drip."""
    hits: int = 0
    _passed: int = 0
    _random: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown fault {self.kind!r}: expected a status number or one of {', '.join(KINDS)}")
        self._random.seed(self.seed)

    def strikes(self, head: Head) -> bool:
        """Return whether this request gets the fault, and count it."""
        if not self._fits(head) or (self.times is not None and self.hits >= self.times):
            return False
        self._passed += 1
        if self._passed <= self.after or self._random.random() >= self.probability:
            return False
        self.hits += 1
        return True

    def apply(self, answer: Answer) -> Answer:
        """Return the answer with this fault. Faults of the body do not change refusals (status 300 and more)."""
        if answer.status >= 300 and self.kind not in _ANY_METHOD:
            return answer
        return _TRANSFORMS[self.kind](answer, self)

    def _fits(self, head: Head) -> bool:
        if self.path is not None and not fnmatchcase(head.path, self.path):
            return False
        if self.kind in _RANGE_ONLY and "range" not in head.headers:
            return False
        if self.method is not None:
            return head.method == self.method
        return head.method == "GET" or self.kind in _ANY_METHOD


def _replace_headers(headers: Mapping[str, str], **changed: str | None) -> dict[str, str]:
    """Return headers with some replaced (``Content_Length="3"``), or removed (None)."""
    names = {name.replace("_", "-"): value for name, value in changed.items()}
    return {name: value for name, value in (dict(headers) | names).items() if value is not None}


def _halve(body: memoryview) -> memoryview:
    return body[: len(body) // 2]


def _keep(answer: Answer, _: Fault) -> Answer:
    return answer


def _shorten(answer: Answer, _: Fault) -> Answer:
    body = _halve(answer.body)
    return replace(answer, body=body, headers=_replace_headers(answer.headers, Content_Length=str(len(body))))


def _unframe(answer: Answer, _: Fault) -> Answer:
    headers = _replace_headers(answer.headers, Content_Length=None, Connection="close")
    return replace(answer, body=_halve(answer.body), headers=headers, end=End.FIN)


def _lengthen(answer: Answer, _: Fault) -> Answer:
    after = answer.span[1] if answer.span else len(answer.body)
    more = bytes(answer.whole[after : after + 16]) if answer.whole is not None else b""
    body = memoryview(bytes(answer.body) + more.ljust(16, b"\0"))
    return replace(answer, body=body, headers=_replace_headers(answer.headers, Content_Length=str(len(body))))


def _flip_bit(answer: Answer, fault: Fault) -> Answer:
    body = bytearray(answer.body)
    if body:
        body[fault.hits * 7919 % len(body)] ^= 1 << fault.hits % 8
    return replace(answer, body=memoryview(body))


def _ignore_range(answer: Answer, _: Fault) -> Answer:
    if answer.whole is None:
        return answer
    headers = _replace_headers(
        answer.headers, Content_Range=None, Accept_Ranges=None, Content_Length=str(len(answer.whole))
    )
    return replace(answer, status=200, body=answer.whole, headers=headers)


def _shift_range(answer: Answer, _: Fault) -> Answer:
    if answer.span is None:
        return answer
    start, stop = answer.span
    size = answer.headers["Content-Range"].rpartition("/")[2]
    start, stop = (start - 1, stop - 1) if start else (start + 1, stop + 1)
    body = answer.body
    if answer.whole is not None:
        body = memoryview(bytes(answer.whole[start:stop]).ljust(stop - start, b"\0"))
    return replace(
        answer, body=body, headers=_replace_headers(answer.headers, Content_Range=f"bytes {start}-{stop - 1}/{size}")
    )


def _drop_content_range(answer: Answer, _: Fault) -> Answer:
    return replace(answer, headers=_replace_headers(answer.headers, Content_Range=None))


def _change_total(answer: Answer, _: Fault) -> Answer:
    if answer.span is None:
        return answer
    span, slash, size = answer.headers["Content-Range"].rpartition("/")
    return replace(answer, headers=_replace_headers(answer.headers, Content_Range=f"{span}{slash}{int(size) + 1}"))


def _drop_total(answer: Answer, _: Fault) -> Answer:
    if answer.span is None:
        return answer
    span = answer.headers["Content-Range"].rpartition("/")[0]
    return replace(answer, headers=_replace_headers(answer.headers, Content_Range=f"{span}/*"))


def _chunk(answer: Answer, _: Fault) -> Answer:
    pieces = [bytes(answer.body[at : at + 8192]) for at in range(0, len(answer.body), 8192)]
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""])
    headers = _replace_headers(answer.headers, Content_Length=None, Transfer_Encoding="chunked")
    return replace(answer, body=memoryview(body), headers=headers)


def _refuse(answer: Answer, fault: Fault) -> Answer:
    wait = 1.0 if fault.retry_after is None and fault.status == 429 else fault.retry_after
    headers = {} if wait is None else {"Retry-After": f"{wait:g}"}
    if fault.status == 401:
        headers["WWW-Authenticate"] = 'Basic realm="tests"'
    refusal = failure(fault.status, _S3_CODES.get(fault.status), headers)
    return replace(refusal, discard=answer.discard)


def _break_off(end: End) -> Callable[[Answer, Fault], Answer]:
    return lambda answer, _: replace(answer, body=_halve(answer.body), end=end)


def _slow_down(answer: Answer, fault: Fault) -> Answer:
    return replace(answer, pause=fault.pause, piece=fault.piece)


def _redirect(answer: Answer, fault: Fault) -> Answer:
    return Answer(302, {"Location": fault.to, "Content-Length": "0"}, discard=answer.discard)


def _compress(answer: Answer, _: Fault) -> Answer:
    body = memoryview(gzip.compress(answer.body, mtime=0))
    headers = _replace_headers(answer.headers, Content_Encoding="gzip", Content_Length=str(len(body)))
    return replace(answer, body=body, headers=headers)


def _compress_whole(answer: Answer, _: Fault) -> Answer:
    if answer.whole is None:
        return answer
    stored = memoryview(gzip.compress(answer.whole, mtime=0))
    start, stop = answer.span or (0, len(stored))
    if start >= len(stored):
        return failure(416, "InvalidRange", {"Content-Range": f"bytes */{len(stored)}"})
    body = stored[start:stop]
    headers = _replace_headers(answer.headers, Content_Encoding="gzip", Content_Length=str(len(body)))
    if answer.span is not None:
        headers["Content-Range"] = f"bytes {start}-{start + len(body) - 1}/{len(stored)}"
    return replace(answer, body=body, headers=headers)


# The server itself does "silent", "dropped" and "replaced"; they do not change the answer.
_TRANSFORMS: Mapping[Kind, Callable[[Answer, Fault], Answer]] = {
    "ignored_range": _ignore_range,
    "short_body": _shorten,
    "unframed_body": _unframe,
    "long_body": _lengthen,
    "flipped_body": _flip_bit,
    "wrong_content_range": _shift_range,
    "missing_content_range": _drop_content_range,
    "wrong_total": _change_total,
    "unknown_total": _drop_total,
    "chunked": _chunk,
    "status": _refuse,
    "reset": _break_off(End.RST),
    "hang_up": _break_off(End.FIN),
    "dropped": _keep,
    "silent": _keep,
    "drip": _slow_down,
    "redirect": _redirect,
    "gzip": _compress,
    "gzip_stored": _compress_whole,
    "replaced": _keep,
}
