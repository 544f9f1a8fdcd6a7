"""How a read of a target fails: a closed set of errors, all of them OSErrors, none of which means "no such object".

Absence alone is FileNotFoundError. The texts never hold "not satisfiable", which zarr takes
for an empty chunk, nor anything of a request's headers, which may hold credentials.
"""

from __future__ import annotations

import http
import socket
from typing import Any

import aiohttp

from refshard_fs.errors import TargetNotAllowed

__all__ = [
    "ABSENT",
    "ConnectionLost",
    "Denied",
    "HttpStatus",
    "Incomplete",
    "TooLarge",
    "Unfit",
    "Unreadable",
    "as_failure",
]

ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


class Unfit(OSError):
    """A target answered with other bytes than those that were asked for."""


class Incomplete(Unfit):
    """An answer ended early; another try may get all of it."""


class ConnectionLost(ConnectionError):
    """No connection, or one that ended before the answer did; another try may do better."""


class Unreadable(OSError):
    """A filesystem's own error, which is the ``__cause__``, as one that no layer above takes for something else."""


class TooLarge(OSError):
    """An object of which only the target knew the length has more than the ``most`` bytes that are read of it."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.most = most

    def __str__(self) -> str:
        return f"it has more than {self.most} bytes"


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
    match error:
        case aiohttp.ClientConnectorError(os_error=TargetNotAllowed() as refusal):
            return refusal
        case aiohttp.ClientResponseError(status=status) if status >= 400:
            failure: OSError = Denied(status) if status in (401, 403, 407) else HttpStatus(status)
        case aiohttp.ClientSSLError() | aiohttp.ServerFingerprintMismatch():
            failure = Unreadable(str(error))
        case aiohttp.ClientConnectorDNSError(os_error=cause) if cause.errno != socket.EAI_AGAIN:
            failure = Unreadable(str(error))
        case aiohttp.ClientPayloadError():
            failure = Incomplete(f"the answer ended early ({error})")
        case aiohttp.ClientConnectionError():
            failure = ConnectionLost(str(error) or type(error).__name__)
        case OSError() if not _is_empty_to_zarr(error):
            return error
        case _:
            failure = Unreadable(f"{type(error).__name__}: {error}".rstrip(": ").replace("not satisfiable", "outside"))
    failure.__cause__ = error
    return failure


def _is_empty_to_zarr(error: OSError) -> bool:
    return "not satisfiable" in str(error)
