"""AWS Signature Version 4 of a GET without a body, as headers. No I/O here.

Headers rather than a presigned URL: a URL ends up in logs and errors. Neither covers Range or
If-Match, so that one signature serves all ranges of an object for as long as it is young.
Reference: AWS, "Create a signed AWS API request".
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import datetime
from typing import NamedTuple
from urllib.parse import quote

__all__ = ["Credentials", "Signer", "quote_key"]

_EMPTY = hashlib.sha256(b"").hexdigest()


class Credentials(NamedTuple):
    """What to sign with, whose ``repr`` tells nothing."""

    access_key: str
    secret_key: str
    token: str | None

    def __repr__(self) -> str:
        return "<credentials>"


def quote_key(key: str) -> str:
    """Return an object's key as it stands in the path of a URL, and in what is signed."""
    return quote(key, safe="/-_.~")


class Signer:
    """Signs for one region; the day's key is made once."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._made_for: tuple[Credentials, str] | None = None
        self._key = b""

    def headers(
        self, host: str, path: str, credentials: Credentials, when: datetime, *, requester_pays: bool
    ) -> dict[str, str]:
        """Return the headers that sign a GET of the quoted ``path`` at ``host``, sent at ``when`` (UTC)."""
        stamp = when.strftime("%Y%m%dT%H%M%SZ")
        day = stamp[:8]
        headers = {"x-amz-content-sha256": _EMPTY, "x-amz-date": stamp}
        if requester_pays:
            headers["x-amz-request-payer"] = "requester"
        if credentials.token:
            headers["x-amz-security-token"] = credentials.token
        signed = ";".join(("host", *headers))
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        request = f"GET\n{path}\n\nhost:{host}\n{lines}\n{signed}\n{_EMPTY}"
        scope = f"{day}/{self._region}/s3/aws4_request"
        digest = hashlib.sha256(request.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
        signature = hmac.digest(self._signing_key(credentials, day), text.encode(), "sha256").hex()
        headers["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
            f"SignedHeaders={signed}, Signature={signature}"
        )
        return headers

    def _signing_key(self, credentials: Credentials, day: str) -> bytes:
        if self._made_for != (credentials, day):
            key = b"AWS4" + credentials.secret_key.encode()
            for part in (day, self._region, "s3", "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._key, self._made_for = key, (credentials, day)
        return self._key
