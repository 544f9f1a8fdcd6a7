"""Faults between a server and a reader: one function for each kind, which changes the right answer.

No sockets here: a fault says what to send, ``engine`` sends it.
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
    "ignored_range",  # 200 and the whole resource, whatever was asked
    "short_body",  # fewer bytes than Content-Range says, with an honest Content-Length
    "unframed_body",  # fewer bytes, no Content-Length: the connection's end is the body's end
    "long_body",  # more bytes than asked for, with an honest Content-Length
    "flipped_body",  # the right length, one bit wrong
    "wrong_content_range",  # another range than asked for, and Content-Range says so
    "missing_content_range",  # 206 without Content-Range
    "wrong_total",  # Content-Range with another size of the resource
    "unknown_total",  # Content-Range with "*" for the size: allowed, and awkward
    "chunked",  # Transfer-Encoding: chunked, no Content-Length: allowed, and awkward
    "status",  # an error status: use fault(503)
    "reset",  # RST in mid-body
    "hang_up",  # FIN in mid-body, short of the promised Content-Length
    "dropped",  # FIN instead of an answer
    "silent",  # no answer, the connection stays open
    "drip",  # the right bytes, slowly
    "redirect",  # 302 to another URL
    "gzip",  # the bytes asked for, compressed, with Content-Encoding
    "gzip_stored",  # the range of a compressed resource, with Content-Encoding
    "replaced",  # from here on other bytes and another ETag are there
]
KINDS: tuple[Kind, ...] = get_args(Kind)

_RANGE_ONLY: frozenset[Kind] = frozenset(
    ["ignored_range", "wrong_content_range", "missing_content_range", "wrong_total", "unknown_total"]
)
_ANY_METHOD: frozenset[Kind] = frozenset(["status", "dropped", "silent", "redirect", "replaced"])
_S3_CODES = {503: "SlowDown", 403: "AccessDenied", 404: "NoSuchKey", 416: "InvalidRange", 500: "InternalError"}


class FaultOptions(TypedDict, total=False):
    """What ``HttpServer.fault`` takes by name: the fields of ``Fault``."""

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
    """One thing that goes wrong, for the requests it fits; ``hits`` counts those that met it."""

    kind: Kind
    path: str | None = None
    """A glob over the decoded path (``*`` crosses ``/``); None fits all."""
    method: str | None = None
    after: int = 0
    """Fitting requests to leave alone first."""
    times: int | None = None
    """Requests to harm; None harms on and on."""
    probability: float = 1.0
    seed: int = 0
    status: int = 500
    retry_after: float | None = None
    to: str = ""
    """Where a redirect leads."""
    data: bytes | None = None
    """What a replaced resource holds afterwards; by default its bytes inverted."""
    pause: float = 0.05
    """Seconds before each piece of a drip."""
    piece: int = 1
    """Bytes per piece of a drip."""
    hits: int = 0
    _passed: int = 0
    _random: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no fault is called {self.kind!r}; there are {', '.join(KINDS)} and status numbers")
        self._random.seed(self.seed)

    def strikes(self, head: Head) -> bool:
        """Decide, and count, whether this request meets the fault."""
        if not self._fits(head) or (self.times is not None and self.hits >= self.times):
            return False
        self._passed += 1
        if self._passed <= self.after or self._random.random() >= self.probability:
            return False
        self.hits += 1
        return True

    def apply(self, answer: Answer) -> Answer:
        """Turn the right answer into what this fault sends; a refusal is left as it is by faults of the body."""
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


def _with(headers: Mapping[str, str], **changed: str | None) -> dict[str, str]:
    """Headers with some replaced (``Content_Length="3"``), or removed by None."""
    names = {name.replace("_", "-"): value for name, value in changed.items()}
    return {name: value for name, value in (dict(headers) | names).items() if value is not None}


def _half(body: memoryview) -> memoryview:
    return body[: len(body) // 2]


def _as_it_is(answer: Answer, _: Fault) -> Answer:
    return answer


def _short(answer: Answer, _: Fault) -> Answer:
    body = _half(answer.body)
    return replace(answer, body=body, headers=_with(answer.headers, Content_Length=str(len(body))))


def _unframed(answer: Answer, _: Fault) -> Answer:
    headers = _with(answer.headers, Content_Length=None, Connection="close")
    return replace(answer, body=_half(answer.body), headers=headers, end=End.FIN)


def _long(answer: Answer, _: Fault) -> Answer:
    after = answer.span[1] if answer.span else len(answer.body)
    more = bytes(answer.whole[after : after + 16]) if answer.whole is not None else b""
    body = memoryview(bytes(answer.body) + more.ljust(16, b"\0"))
    return replace(answer, body=body, headers=_with(answer.headers, Content_Length=str(len(body))))


def _flipped(answer: Answer, fault: Fault) -> Answer:
    body = bytearray(answer.body)
    if body:
        body[fault.hits * 7919 % len(body)] ^= 1 << fault.hits % 8
    return replace(answer, body=memoryview(body))


def _ignored(answer: Answer, _: Fault) -> Answer:
    if answer.whole is None:
        return answer
    headers = _with(answer.headers, Content_Range=None, Accept_Ranges=None, Content_Length=str(len(answer.whole)))
    return replace(answer, status=200, body=answer.whole, headers=headers)


def _other_range(answer: Answer, _: Fault) -> Answer:
    if answer.span is None:
        return answer
    start, stop = answer.span
    size = answer.headers["Content-Range"].rpartition("/")[2]
    start, stop = (start - 1, stop - 1) if start else (start + 1, stop + 1)
    body = answer.body
    if answer.whole is not None:
        body = memoryview(bytes(answer.whole[start:stop]).ljust(stop - start, b"\0"))
    return replace(answer, body=body, headers=_with(answer.headers, Content_Range=f"bytes {start}-{stop - 1}/{size}"))


def _no_content_range(answer: Answer, _: Fault) -> Answer:
    return replace(answer, headers=_with(answer.headers, Content_Range=None))


def _other_total(answer: Answer, _: Fault) -> Answer:
    if answer.span is None:
        return answer
    span, slash, size = answer.headers["Content-Range"].rpartition("/")
    return replace(answer, headers=_with(answer.headers, Content_Range=f"{span}{slash}{int(size) + 1}"))


def _no_total(answer: Answer, _: Fault) -> Answer:
    if answer.span is None:
        return answer
    span = answer.headers["Content-Range"].rpartition("/")[0]
    return replace(answer, headers=_with(answer.headers, Content_Range=f"{span}/*"))


def _chunked(answer: Answer, _: Fault) -> Answer:
    pieces = [bytes(answer.body[at : at + 8192]) for at in range(0, len(answer.body), 8192)]
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""])
    headers = _with(answer.headers, Content_Length=None, Transfer_Encoding="chunked")
    return replace(answer, body=memoryview(body), headers=headers)


def _status(answer: Answer, fault: Fault) -> Answer:
    wait = 1.0 if fault.retry_after is None and fault.status == 429 else fault.retry_after
    headers = {} if wait is None else {"Retry-After": f"{wait:g}"}
    if fault.status == 401:
        headers["WWW-Authenticate"] = 'Basic realm="tests"'
    refusal = failure(fault.status, _S3_CODES.get(fault.status), headers)
    return replace(refusal, discard=answer.discard)


def _cut(end: End) -> Callable[[Answer, Fault], Answer]:
    return lambda answer, _: replace(answer, body=_half(answer.body), end=end)


def _drip(answer: Answer, fault: Fault) -> Answer:
    return replace(answer, pause=fault.pause, piece=fault.piece)


def _redirect(answer: Answer, fault: Fault) -> Answer:
    return Answer(302, {"Location": fault.to, "Content-Length": "0"}, discard=answer.discard)


def _gzip(answer: Answer, _: Fault) -> Answer:
    body = memoryview(gzip.compress(answer.body, mtime=0))
    headers = _with(answer.headers, Content_Encoding="gzip", Content_Length=str(len(body)))
    return replace(answer, body=body, headers=headers)


def _gzip_stored(answer: Answer, _: Fault) -> Answer:
    if answer.whole is None:
        return answer
    stored = memoryview(gzip.compress(answer.whole, mtime=0))
    start, stop = answer.span or (0, len(stored))
    if start >= len(stored):
        return failure(416, "InvalidRange", {"Content-Range": f"bytes */{len(stored)}"})
    body = stored[start:stop]
    headers = _with(answer.headers, Content_Encoding="gzip", Content_Length=str(len(body)))
    if answer.span is not None:
        headers["Content-Range"] = f"bytes {start}-{start + len(body) - 1}/{len(stored)}"
    return replace(answer, body=body, headers=headers)


# "silent", "dropped" and "replaced" are acts of the server, not another answer.
_TRANSFORMS: Mapping[Kind, Callable[[Answer, Fault], Answer]] = {
    "ignored_range": _ignored,
    "short_body": _short,
    "unframed_body": _unframed,
    "long_body": _long,
    "flipped_body": _flipped,
    "wrong_content_range": _other_range,
    "missing_content_range": _no_content_range,
    "wrong_total": _other_total,
    "unknown_total": _no_total,
    "chunked": _chunked,
    "status": _status,
    "reset": _cut(End.RST),
    "hang_up": _cut(End.FIN),
    "dropped": _as_it_is,
    "silent": _as_it_is,
    "drip": _drip,
    "redirect": _redirect,
    "gzip": _gzip,
    "gzip_stored": _gzip_stored,
    "replaced": _as_it_is,
}
