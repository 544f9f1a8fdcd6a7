"""Define the errors of reads, which are OSErrors. Only FileNotFoundError means that an object does not exist.

Texts never contain "not satisfiable", for which zarr would return an empty chunk, nor the headers of a request, which
may hold credentials.
"""

from __future__ import annotations

import contextlib
import http
import random
import socket
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from refshard_fs.errors import TargetNotAllowed, sanitize, sanitize_cause

NOT_FOUND = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


class Unfit(OSError):
    """A target answered with bytes other than the requested ones."""


class Incomplete(Unfit):
    """An answer ended early; another try may succeed."""


class ConnectionLost(ConnectionError):
    """A connection failed, or ended before its answer; another try may succeed."""


class Unreadable(OSError):
    """An object cannot be read, for a reason that no other class here names; it never means that a key is missing.

    If a filesystem raised an error, that is the ``__cause__``.
    """


class TooLarge(OSError):
    """An object has more than the permitted ``most`` bytes."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.most = most

    def __str__(self) -> str:
        return f"expected at most {self.most} bytes, got more"


EXPIRED: Final = "the signature has expired"  # shown in place of the server's error code
WITHOUT: Final = "without credentials"  # hints contain these words if the request had no credentials


class HttpStatus(OSError):
    """The HTTP status of a failed request, with the server's error code, if any, and its Retry-After in seconds."""

    def __init__(self, status: int, code: str = "", retry_after: float | None = None) -> None:
        super().__init__(status, code)
        self.status = status
        self.code = code
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.code, self.retry_after)

    def __str__(self) -> str:
        code = f" ({self.code})" if self.code else ""
        return f"HTTP {self.status} {_find_phrase(self.status)}{code}"


class Denial(HttpStatus, PermissionError):
    """The server refused the reader's credentials, or a request without credentials."""


def _find_phrase(status: int) -> str:
    if status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return "the range lies outside the object"
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "unknown status"


def convert_error(error: Exception) -> OSError:
    """Convert ``error`` to an OSError; return an OSError unchanged, except for secrets in its text."""
    if isinstance(error, NOT_FOUND) and not _is_empty_for_zarr(error):
        return type(error)(sanitize(str(error)))
    import aiohttp  # slow, and not needed for local files
    from aiohttp.http_exceptions import HttpProcessingError

    match error:
        case aiohttp.ClientConnectorError(os_error=TargetNotAllowed() as refusal):
            return refusal
        case aiohttp.ClientResponseError(message=message) if isinstance(error.__cause__, HttpProcessingError):
            failure: OSError = ConnectionLost(f"expected an answer in HTTP/1.1, got: {message.partition(':')[0]}")
        case aiohttp.ClientResponseError(status=status) if status >= 400:
            failure = Denial(status) if status in (401, 403, 407) else HttpStatus(status)
        case aiohttp.ClientSSLError() | aiohttp.ServerFingerprintMismatch():
            failure = Unreadable(str(error))
        case aiohttp.ClientConnectorDNSError(os_error=cause) if cause.errno != socket.EAI_AGAIN:
            failure = Unreadable(str(error))
        case aiohttp.ClientPayloadError():
            failure = Incomplete(f"the answer ended early ({error})")
        case aiohttp.ClientConnectionError():
            failure = ConnectionLost(str(error) or type(error).__name__)
        case OSError() if not _is_empty_for_zarr(error):
            return sanitize_cause(error)
        case _:
            failure = Unreadable(f"{type(error).__name__}: {error}".rstrip(": ").replace("not satisfiable", "outside"))
    failure.__cause__ = sanitize_cause(error)
    return failure


def _is_empty_for_zarr(error: OSError) -> bool:
    """Return whether zarr would return an empty chunk for ``error``, because of its text."""
    return "not satisfiable" in str(error)


# The failures after which a request is tried again, and the time before another try.


_STATUSES = frozenset([408, 425, 429, 500, 502, 503, 504, 509, 520, 521, 522, 523, 524, 529, 598, 599])
_CODES = frozenset(["SlowDown", "RequestTimeout", "RequestTimeTooSkewed", "InternalError", "ServiceUnavailable"])
_FIRST = 0.1  # seconds before the second try, without jitter; doubled for each further try
_LONGEST = 20.0  # seconds: the wait does not grow beyond this


class Retry(msgspec.Struct, frozen=True):
    """Up to ``retries`` further tries after temporary failures, in at most ``timeout`` seconds for all tries together.

    A server whose Retry-After asks for more than ``longest`` seconds gets no further try.
    """

    retries: int = 5
    timeout: float = 300.0
    longest: float = 60.0

    def limit_to(self, retries: int) -> Retry:
        """Return the same rule with at most ``retries`` further tries."""
        return self if self.retries <= retries else Retry(retries, self.timeout, self.longest)

    def pause(self, failure: OSError, tried: int) -> float | None:
        """Return the seconds to wait after the try number ``tried`` ended in ``failure``; None to give up."""
        if tried > self.retries or not is_transient(failure):
            return None
        retry_after = failure.retry_after if isinstance(failure, HttpStatus) else None
        if retry_after is not None and retry_after > self.longest:
            return None
        # Jitter, so that readers that failed together do not try again together.
        backoff = min(_LONGEST, _FIRST * 2.0 ** (tried - 1)) * random.uniform(0.5, 1.0)  # noqa: S311  # not a secret
        return backoff if retry_after is None else retry_after + backoff


def is_transient(failure: OSError) -> bool:
    """Return whether another try may succeed: yes after a lost connection, a short answer or an overload."""
    match failure:
        case HttpStatus(status=status, code=code):
            return status in _STATUSES or code in _CODES
        case Incomplete():
            return True
        case Unfit() | Unreadable():
            return False
        case _ if isinstance(failure, NOT_FOUND):
            return False
        case ConnectionError() | TimeoutError():
            return True
        case _:
            return False


# Convert the errors of S3's clients to OSErrors.


_CLIENTS: Final = ("botocore.", "aiobotocore.", "aiohttp.")


@contextlib.contextmanager
def convert_s3_errors() -> Iterator[None]:
    """Raise errors of S3's client in the ``with`` block as OSErrors; usable as a decorator, too."""
    try:
        yield
    except Exception as e:
        if not type(e).__module__.startswith(_CLIENTS) and not isinstance(e, RecursionError):
            raise
        raise convert_s3_error(e) from e


def convert_s3_error(error: Exception) -> OSError:
    """Convert ``error`` of a client of S3 to an OSError."""
    if type(error).__module__.startswith("aiohttp."):
        return convert_error(error)
    if isinstance(error, RecursionError):  # botocore asks for the bucket's region again and again
        return Unreadable(
            "the S3 endpoint redirects all requests: pass the endpoint that it redirects to as endpoint_url="
        )
    from s3fs.errors import translate_boto_error  # s3fs is installed: its filesystem raised the error

    return convert_error(translate_boto_error(error))
