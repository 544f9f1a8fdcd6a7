"""How a read of a target fails: a closed set of errors, all of them OSErrors, none of which means "no such object".

Absence alone is FileNotFoundError. The texts never hold "not satisfiable", which zarr takes
for an empty chunk, nor anything of a request's headers, which may hold credentials.
"""

from __future__ import annotations

import contextlib
import http
import random
import socket
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from refshard_fs.errors import TargetNotAllowed, told, told_cause

ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


class Unfit(OSError):
    """A target answered with other bytes than those that were asked for."""


class Incomplete(Unfit):
    """An answer ended early; another try may get all of it."""


class ConnectionLost(ConnectionError):
    """No connection, or one that ended before the answer did; another try may do better."""


class Unreadable(OSError):
    """Any other error of a filesystem, which is the ``__cause__``: none that a layer above takes for a missing key."""


class TooLarge(OSError):
    """An object of which only the target knew the length has more than the ``most`` bytes that are read of it."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.most = most

    def __str__(self) -> str:
        return f"it has more than {self.most} bytes"


EXPIRED: Final = "the signature has expired"  # said of a status whose body says so
WITHOUT: Final = "without credentials"  # said of what was asked for so


class HttpStatus(OSError):
    """A status that is no answer, with the server's own code, if it gave one, and the seconds it asks to wait."""

    def __init__(self, status: int, code: str = "", retry_after: float | None = None) -> None:
        super().__init__(status, code)
        self.status = status
        self.code = code
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.code, self.retry_after)

    def __str__(self) -> str:
        code = f" ({self.code})" if self.code else ""
        return f"HTTP {self.status} {_phrase(self.status)}{code}"


class Denied(HttpStatus, PermissionError):
    """The server knows the reader, or its lack of credentials, and says no."""


def _phrase(status: int) -> str:
    if status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return "the range lies outside of the object"
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "of no known meaning"


def as_failure(error: Exception) -> OSError:
    """Return ``error`` as an OSError of this module, or as it is where it is one already."""
    if isinstance(error, ABSENT) and not _is_empty_to_zarr(error):
        return type(error)(told(str(error)))
    import aiohttp  # slow to import, and not needed for local files
    from aiohttp.http_exceptions import HttpProcessingError

    match error:
        case aiohttp.ClientConnectorError(os_error=TargetNotAllowed() as refusal):
            return refusal
        case aiohttp.ClientResponseError(message=message) if isinstance(error.__cause__, HttpProcessingError):
            failure: OSError = ConnectionLost(f"the server's answer is not HTTP/1.1 ({message.partition(':')[0]})")
        case aiohttp.ClientResponseError(status=status) if status >= 400:
            failure = Denied(status) if status in (401, 403, 407) else HttpStatus(status)
        case aiohttp.ClientSSLError() | aiohttp.ServerFingerprintMismatch():
            failure = Unreadable(str(error))
        case aiohttp.ClientConnectorDNSError(os_error=cause) if cause.errno != socket.EAI_AGAIN:
            failure = Unreadable(str(error))
        case aiohttp.ClientPayloadError():
            failure = Incomplete(f"the answer ended early ({error})")
        case aiohttp.ClientConnectionError():
            failure = ConnectionLost(str(error) or type(error).__name__)
        case OSError() if not _is_empty_to_zarr(error):
            return told_cause(error)
        case _:
            failure = Unreadable(f"{type(error).__name__}: {error}".rstrip(": ").replace("not satisfiable", "outside"))
    failure.__cause__ = told_cause(error)
    return failure


def _is_empty_to_zarr(error: OSError) -> bool:
    return "not satisfiable" in str(error)


# ----------------------------------------------------------------------------------------------------
# Which failures are worth another try, and how long to wait before it.


_STATUSES = frozenset([408, 425, 429, 500, 502, 503, 504, 509, 520, 521, 522, 523, 524, 529, 598, 599])
_CODES = frozenset(["SlowDown", "RequestTimeout", "RequestTimeTooSkewed", "InternalError", "ServiceUnavailable"])
_FIRST = 0.1  # seconds before the second try, give or take; doubled for each further one
_LONGEST = 20.0


class Retry(msgspec.Struct, frozen=True):
    """``retries`` further tries of what fails for a passing reason, ``timeout`` seconds for a read and all its tries.

    ``longest`` bounds, in seconds, the wait that a server's Retry-After is granted; one
    that asks for more gets no further try.
    """

    retries: int = 5
    timeout: float = 300.0
    longest: float = 60.0

    def at_most(self, retries: int) -> Retry:
        """Return the same with no more than ``retries``."""
        return self if self.retries <= retries else Retry(retries, self.timeout, self.longest)

    def pause(self, failure: OSError, tried: int) -> float | None:
        """Return the seconds to wait after ``tried`` tries, the last of which ended in ``failure``; None to give up."""
        if tried > self.retries or not transient(failure):
            return None
        asked = failure.retry_after if isinstance(failure, HttpStatus) else None
        if asked is not None and asked > self.longest:
            return None
        # Jitter, so that readers which failed together do not come back together.
        own = min(_LONGEST, _FIRST * 2.0 ** (tried - 1)) * random.uniform(0.5, 1.0)  # noqa: S311  # no secret
        return own if asked is None else asked + own


def transient(failure: OSError) -> bool:
    """Whether ``failure`` may pass by itself: lost connections, short answers, overloaded servers; never a refusal."""
    match failure:
        case HttpStatus(status=status, code=code):
            return status in _STATUSES or code in _CODES
        case Incomplete():
            return True
        case Unfit() | Unreadable():
            return False
        case _ if isinstance(failure, ABSENT):
            return False
        case ConnectionError() | TimeoutError():
            return True
        case _:
            return False


# ----------------------------------------------------------------------------------------------------
# What a client of S3 raises, said as all other filesystems do: an OSError, so that whoever expects one sees it.


_CLIENTS: Final = ("botocore.", "aiobotocore.", "aiohttp.")


@contextlib.contextmanager
def os_errors() -> Iterator[None]:
    """Let whatever the client of S3 raises be an OSError; decorates functions, too."""
    try:
        yield
    except Exception as e:
        if not type(e).__module__.startswith(_CLIENTS) and not isinstance(e, RecursionError):
            raise
        raise as_os_error(e) from e


def as_os_error(error: Exception) -> OSError:
    """Return ``error``, which a client of S3 raised, as an OSError."""
    if type(error).__module__.startswith("aiohttp."):
        return as_failure(error)
    if isinstance(error, RecursionError):  # botocore asks again for a bucket's region, to which there is one answer
        return Unreadable("the endpoint of S3 redirects all requests: give the one that it leads to, as endpoint_url=")
    from s3fs.errors import translate_boto_error  # it is there: its filesystem is what failed

    return as_failure(translate_boto_error(error))
