"""s3fs's filesystem, whose signed requests go to no other host than its endpoint.

In a module of its own since it imports s3fs, which takes long.
"""

from __future__ import annotations

import logging
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
from s3fs.core import S3FileSystem

from refshard_fs.errors import TargetNotAllowed, told
from refshard_fs.security.admission import remedy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from refshard_fs.targets.connections import Guard

logger = logging.getLogger("refshard_fs")


class S3Client(S3FileSystem):  # type: ignore[misc]  # s3fs has no types
    """Requests of s3fs that follow no redirect, and an endpoint that ``guard`` judges (None: it may be anywhere)."""

    guard: Guard | None = None

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._judged: set[str] = set()  # endpoints

    async def get_s3(self, bucket: str | None = None) -> Any:
        """Return botocore's client for a bucket; s3fs asks for it before each request."""
        client = await super().get_s3(bucket)
        endpoint = str(client.meta.endpoint_url)
        if self.guard is not None and endpoint not in self._judged:
            try:
                await self.guard.judge_server(endpoint)
            except TargetNotAllowed as e:
                url = f"s3://{bucket}/"
                raise TargetNotAllowed(url, f"{e.rule}, where its endpoint {endpoint} is", remedy(url)) from None
            self._judged.add(endpoint)
        _keep_from_redirects(client)
        return client


def _keep_from_redirects(client: Any) -> None:
    """Let the HTTP session of ``client`` follow no redirect: it is for botocore to sign for another host, or not.

    aiobotocore has no option for that. Where its sessions are made in another way than they are now, all else works.
    """
    http: Any = getattr(getattr(client, "_endpoint", None), "http_session", None)
    opened = getattr(http, "_get_session", None)
    if opened is None:
        warnings.warn(
            "this version of aiobotocore opens its HTTP sessions in an unknown way: expected AIOHTTPSession with "
            "_get_session. Redirects of S3 endpoints are followed, with what is sent along. Use an earlier version, or "
            "report this",
            RuntimeWarning,
            stacklevel=2,
        )
    elif getattr(opened, "func", None) is not _staying:
        http._get_session = partial(_staying, opened)


class _Staying(NamedTuple):
    """A session that follows no redirects."""

    session: aiohttp.ClientSession

    def request(self, *arguments: Any, **options: Any) -> Any:
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s by s3fs", told(" ".join(map(str, [*arguments, options.get("url", "")])).strip()))
        return self.session.request(*arguments, **{**options, "allow_redirects": False})


async def _staying(opened: Callable[[Any], Awaitable[aiohttp.ClientSession]], proxy: Any) -> _Staying:
    return _Staying(await opened(proxy))
