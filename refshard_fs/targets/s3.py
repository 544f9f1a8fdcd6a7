"""S3 objects: s3fs finds credentials, region and endpoint, and the ranged GETs are sent from here.

One request through s3fs and botocore costs many times the CPU of the bare one. Whatever these
plain requests cannot express or the server answers with a detour (other regions, versions,
customer keys, unusual signatures, proxies) is left to s3fs, for that bucket or altogether.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.request import getproxies, proxy_bypass

import aiohttp
from fsspec.spec import AbstractFileSystem
from yarl import URL

from refshard_fs.core.model import Facts, Listed
from refshard_fs.targets.answer import Answer, answer_of, failure_of, judge, range_header, read_answer
from refshard_fs.targets.buffers import Buffers
from refshard_fs.targets.closing import close_with
from refshard_fs.targets.failures import HttpStatus, as_failure
from refshard_fs.targets.generic import FsspecTarget, in_thread
from refshard_fs.targets.own_http import Direct, Request, prepare
from refshard_fs.targets.sigv4 import Credentials, Signer, quote_key

__all__ = ["S3Target", "as_os_error", "is_s3fs", "speaking"]

_YOUNG = 300.0  # seconds that a signature is used; servers take it for 15 minutes, give or take a clock's error
_SIGNED = 8192  # objects whose signature is kept
_STALLED = aiohttp.ClientTimeout(total=None, sock_connect=20)

# The answer does not say no: it says that the request should have been another one, which botocore knows how to make.
_DETOURS = frozenset(
    [
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
        "InvalidRequest",
        "NotSignedUp",
        "PermanentRedirect",
        "Redirect",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TemporaryRedirect",
        "XAmzContentSHA256Mismatch",
    ]
)
_STALE = frozenset(["ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken"])


def is_s3fs(fs: AbstractFileSystem) -> bool:
    """Whether ``fs`` is s3fs's own; asked this way since importing it takes long."""
    return (type(fs).__module__, type(fs).__name__) == ("s3fs.core", "S3FileSystem")


class _Bucket(NamedTuple):
    """Where a bucket's objects are, and what signs for it; ``credentials`` is None for unsigned requests."""

    base: str
    path: str
    host: str
    signer: Signer
    credentials: Any
    requester_pays: bool


class _Ready(NamedTuple):
    """A request for one object but for its range, good until a time of the monotonic clock."""

    url: URL
    headers: dict[str, str]
    until: float
    direct: Request | None  # the same over connections of our own


class S3Target:
    """The objects of one `S3FileSystem`, by ``bucket/key``."""

    most_retries = 1000
    patience = 60.0

    def __init__(self, fs: AbstractFileSystem, buffers: Buffers | None = None) -> None:
        self.fs = fs
        self._theirs = FsspecTarget(fs, owned=True)
        self._buffers = Buffers() if buffers is None else buffers
        self._direct: Direct | None = None
        self._session: aiohttp.ClientSession | None = None
        self._certificates: ssl.SSLContext | bool | None = None  # whom to trust is known with the first bucket
        self._buckets: dict[str, asyncio.Task[_Bucket | None]] = {}
        self._left_to_s3fs: set[str] = set()
        self._ready: dict[str, _Ready] = {}

    async def read(
        self, path: str, start: int, stop: int | None, etag: str | None = None, most: int | None = None
    ) -> Answer:
        if stop is not None and stop <= start:
            return Answer(b"")
        ready = self._ready.get(path)
        if ready is None or ready.until < time.monotonic():
            made = await self._prepare(path)
            if made is None:
                return await self._read_theirs(path, start, stop, most)
            ready = made
        try:
            return await self._send(ready, start, stop, etag, most)
        except HttpStatus as e:
            if e.code in _STALE:
                self._ready.clear()
                again = await self._prepare(path)
                if again is not None and again.headers != ready.headers:
                    return await self._send(again, start, stop, etag, most)
            elif e.code in _DETOURS or e.status in (301, 302, 307, 308):
                answer = await self._read_theirs(path, start, stop, most)
                self._leave(path)  # only now: they could do it
                return answer
            raise

    async def facts(self, path: str) -> Facts:
        # A GET, for the answer to HEAD does not tell a missing bucket from a missing object.
        answer = await self.read(path, 0, 1)
        if answer.size is None:
            return await self._theirs.facts(path)
        return Facts(answer.size, answer.etag, answer.last_modified)

    async def names(self, path: str) -> tuple[Listed, ...] | None:
        try:
            return await self._theirs.names(path)
        except FileNotFoundError as e:
            raise _absent(e) from e

    def read_now(self, path: str, start: int, stop: int | None, most: int | None = None) -> Answer | None:
        return None

    async def close(self) -> None:
        for task in self._buckets.values():
            task.cancel()
        self._buckets.clear()
        self._ready.clear()
        self._direct = None
        if self._session is not None:
            await self._session.close()
            self._session = None
        await self._theirs.close()

    # ------------------------------------------------------------------ our own requests

    async def _send(self, ready: _Ready, start: int, stop: int | None, etag: str | None, most: int | None) -> Answer:
        own: dict[str, str] = {}
        if start or stop is not None:
            own["Range"] = range_header(start, stop)
        if etag is not None:
            own["If-Match"] = etag
        if ready.direct is not None and (stop is not None or start < 0):
            direct = self._direct
            if direct is None:
                direct = self._direct = Direct(self._buffers)
                close_with(self, direct.connections)
            reply = await direct.read(ready.direct, own, judge(start, stop), (stop or 0) - start)
            if reply is not None:
                return answer_of(reply, start, stop)
        headers = {**ready.headers, **own}
        session = self._session or self._open()
        async with session.get(ready.url, headers=headers, allow_redirects=False) as response:
            if response.status in (200, 206, 416):
                return await read_answer(response, start, stop, most)
            raise await failure_of(response)

    def _open(self) -> aiohttp.ClientSession:
        session = self._session = aiohttp.ClientSession(
            # How many are under way is the engine's matter.
            connector=aiohttp.TCPConnector(limit=0, ssl=True if self._certificates is None else self._certificates),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=_STALLED,
        )
        close_with(self, session)
        return session

    async def _prepare(self, path: str) -> _Ready | None:
        """Return the request for an object, with a new signature; None where s3fs is to make it."""
        name, _, key = path.partition("/")
        if name in self._left_to_s3fs or not key or "?versionId=" in key:
            return None
        task = self._buckets.get(name)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._buckets[name] = asyncio.get_running_loop().create_task(self._find(name))
        bucket = await asyncio.shield(task)
        if bucket is None:
            return None
        quoted = quote_key(key)
        headers = {"Accept-Encoding": "identity"}
        if bucket.credentials is not None:
            frozen = await bucket.credentials.get_frozen_credentials()
            credentials = Credentials(frozen.access_key, frozen.secret_key, frozen.token)
            headers |= bucket.signer.headers(
                bucket.host,
                bucket.path + quoted,
                credentials,
                datetime.now(UTC),
                requester_pays=bucket.requester_pays,
            )
        elif bucket.requester_pays:
            headers["x-amz-request-payer"] = "requester"
        if len(self._ready) >= _SIGNED:
            self._ready.clear()
        url = URL(bucket.base + quoted, encoded=True)
        direct = (
            prepare(url, headers) if self._certificates in (None, True) else None
        )  # ours trust whom the system does
        ready = self._ready[path] = _Ready(url, headers, time.monotonic() + _YOUNG, direct)
        return ready

    async def _find(self, name: str) -> _Bucket | None:
        """Return where a bucket is, as botocore would have it; None where its requests would be unlike ours."""
        fs = self.fs
        if (
            fs.version_aware
            or ":" in name
            or name.endswith("--x-s3")
            or fs.client_kwargs.get("verify") not in (None, True)
        ):
            return None
        await fs.set_session()
        client = await fs.get_s3(name)
        config = client.meta.config
        if config.proxies or config.client_cert:
            return None
        members = client.meta.service_model.operation_model("GetObject").input_shape.members
        extra = {k: v for k, v in {**fs.s3_additional_kwargs, **fs.req_kw}.items() if k in members and v is not None}
        pays = extra.pop("RequestPayer", None) is not None
        if extra:
            return None
        credentials = None
        if not fs.anon:
            credentials = getattr(getattr(client, "_request_signer", None), "_credentials", None)
            if credentials is None or config.signature_version != "s3v4":
                return None
        example = await client.generate_presigned_url("get_object", Params={"Bucket": name, "Key": "k"}, ExpiresIn=60)
        base = example.partition("?")[0]
        if not base.endswith("/k"):
            return None
        base = base[:-1]
        url = URL(base, encoded=True)
        if url.scheme in getproxies() and not proxy_bypass(url.host or ""):
            return None
        if url.scheme == "https" and self._certificates is None:
            trusted = fs.client_kwargs.get("verify", fs.session.get_config_variable("ca_bundle"))
            self._certificates = await in_thread(lambda: _certificates(trusted))
        region = client.meta.region_name
        signer = Signer("us-east-1" if region in (None, "aws-global") else region)
        return _Bucket(base, url.raw_path, url.host_port_subcomponent or "", signer, credentials, pays)

    # ------------------------------------------------------------------ s3fs's

    def _leave(self, path: str) -> None:
        self._left_to_s3fs.add(path.partition("/")[0])
        self._ready.clear()

    async def _read_theirs(self, path: str, start: int, stop: int | None, most: int | None) -> Answer:
        try:
            return await self._theirs.read(path, start, stop, most=most)
        except FileNotFoundError as e:
            raise _absent(e) from e


def _certificates(trusted: str | bool | None) -> ssl.SSLContext | bool:
    return ssl.create_default_context(cafile=trusted) if isinstance(trusted, str) else trusted is not False


def _absent(error: FileNotFoundError) -> OSError:
    """Return s3fs's error, unless it means that there is no such bucket, which is no answer about an object."""
    response = getattr(error.__cause__, "response", None)
    code = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
    return HttpStatus(404, code) if code == "NoSuchBucket" else FileNotFoundError(*error.args)


# ----------------------------------------------------------------------------------------------------
# What a client of S3 raises, said as all other filesystems do: an OSError, so that whoever expects one sees it.


_CLIENTS: Final = ("botocore.", "aiobotocore.", "aiohttp.")


@contextlib.contextmanager
def speaking() -> Iterator[None]:
    """Let whatever the client of S3 raises be an OSError; decorates functions, too."""
    try:
        yield
    except Exception as e:
        if not type(e).__module__.startswith(_CLIENTS):
            raise
        raise as_os_error(e) from e


def as_os_error(error: Exception) -> OSError:
    """Return ``error``, which a client of S3 raised, as an OSError."""
    from s3fs.errors import translate_boto_error  # it is there: its filesystem is what failed

    return as_failure(translate_boto_error(error))
