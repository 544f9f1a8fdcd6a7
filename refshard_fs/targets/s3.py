"""Read S3 objects by plain requests, with the credentials, region and endpoint of s3fs, and the signatures of botocore.

A request through s3fs and botocore costs many times the CPU of a plain one. s3fs sends only requests that need it: for
a key with ``?versionId=``, and for all keys of a bucket that needs another region, customer keys, an unusual signature,
a proxy or the user's hooks.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote_plus, urlencode
from urllib.request import getproxies, proxy_bypass

import aiohttp
from fsspec.spec import AbstractFileSystem
from yarl import URL

from refshard_fs.core.format import parse_xml
from refshard_fs.core.model import Facts, Listed
from refshard_fs.targets.answer import Answer, Target, make_range_headers, read_answer
from refshard_fs.targets.connections import Guard, make_tls_context, open_session
from refshard_fs.targets.failures import HttpStatus, TooLarge, Unfit, convert_s3_errors
from refshard_fs.targets.generic import FsspecTarget, run_in_thread, share_task
from refshard_fs.targets.logs import log_request

if TYPE_CHECKING:
    from refshard_fs.targets.s3_client import S3Client

T = TypeVar("T")

_VALID = 300.0  # seconds that a signature is used; servers accept it for 15 minutes, and clocks may differ
_SIGNED = 8192  # the most signed requests that are kept, one for each object
_PAGE = 16 << 20  # the most bytes of a page of a listing: 1,000 keys of at most 3 kB each

# Error codes after which botocore may succeed: it sends another request, with another region, time or signature.
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
_TOO_LONG = "KeyTooLongError"  # no object can have a key of more than 1,024 bytes
_TOKEN = "X-Amz-Security-Token"
_STALE = frozenset(["ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken"])


# The events of botocore for a GET of an object. Handlers may change the request.
_EVENTS = [
    "provide-client-params",
    "before-parameter-build",
    "before-call",
    "request-created",
    "choose-signer",
    "before-sign",
    "before-send",
    "response-received",
    "needs-retry",
    "after-call",
    "after-call-error",
]


def has_own_hooks(client: Any) -> bool:
    """Return whether code other than botocore and s3fs handles events of the client's requests; True if unknown.

    botocore has no public list of handlers.
    """
    try:
        emitter = client.meta.events
        trie = getattr(emitter, "_emitter", emitter)._handlers
        events = [f"{event}.s3.{operation}" for event in _EVENTS for operation in ("GetObject", "ListObjectsV2")]
        handlers = [handler for event in events for handler in trie.prefix_search(event)]
    except AttributeError:
        return True
    return not all(_find_module(handler).startswith(("botocore.", "aiobotocore.", "s3fs.")) for handler in handlers)


def _find_module(handler: Any) -> str:
    handler = getattr(handler, "func", handler)  # the function of a partial
    return getattr(handler, "__module__", None) or type(handler).__module__


class _Bucket(NamedTuple):
    """The URL of a bucket's objects, the signer of its requests (None: unsigned), and the authorities for TLS."""

    base: str
    signer: Any
    headers: dict[str, str]
    ssl: ssl.SSLContext | bool


class _SignedRequest(NamedTuple):
    """A signed request for one object, without a range; valid ``until`` a time of the monotonic clock."""

    url: URL
    headers: dict[str, str]
    ssl: ssl.SSLContext | bool
    until: float


class S3Target(Target):
    """The objects of one `S3Client`, by ``bucket/key``. Without ``fast``, s3fs sends all requests.

    ``guard`` checks the endpoint, which the environment or a profile may name (None: it may be anywhere).
    """

    patience = 60.0
    logs_requests = True  # `S3Session` logs the requests of s3fs

    def __init__(self, fs: S3Client, *, fast: bool = True, guard: Guard | None = None) -> None:
        self.fs = fs
        self._guard = fs.guard = guard
        self._fast = fast
        self.tells_versions = fast  # s3fs returns the bytes without a version
        self._by_s3fs = FsspecTarget(fs, owned=True)
        self._session: aiohttp.ClientSession | None = None
        self._buckets: dict[str, asyncio.Task[_Bucket | None]] = {}
        self._left_to_s3fs: set[str] = set()
        self._ready: dict[str, _SignedRequest] = {}

    async def read(
        self, path: str, start: int, stop: int | None, etag: str | None = None, most: int | None = None
    ) -> Answer:
        if stop is not None and stop <= start:
            return Answer(b"")
        ready = self._ready.get(path)
        if ready is None or ready.until < time.monotonic():
            ready = await self._prepare(path)
            if ready is None:
                return await self._read_by_s3fs(path, start, stop, most)
        try:
            return await self._send(ready, start, stop, etag, most)
        except HttpStatus as e:
            if e.code in _STALE:
                self._ready.clear()
                again = await self._prepare(path)
                # Compare the tokens, because the signature differs every second.
                if again is not None and again.headers.get(_TOKEN) != ready.headers.get(_TOKEN):
                    return await self._send(again, start, stop, etag, most)
            elif e.code in _DETOURS or e.status in (301, 302, 307, 308):
                answer = await self._read_by_s3fs(path, start, stop, most)
                self._left_to_s3fs.add(path.partition("/")[0])  # after the read: s3fs fails, too, if the object is bad
                self._ready.clear()
                return answer
            if e.code == _TOO_LONG:
                raise FileNotFoundError(path) from e
            raise

    async def get_facts(self, path: str) -> Facts:
        # By GET: the answer to HEAD is the same for a missing bucket and a missing object.
        answer = await self.read(path, 0, 1)
        return await self._leave_to_s3fs(self._by_s3fs.get_facts(path)) if answer.size is None else answer.facts

    async def get_current_facts(self, path: str) -> Facts:
        if self._fast:
            return await self.get_facts(path)
        return await self._leave_to_s3fs(self._by_s3fs.get_current_facts(path))

    async def list_names(self, path: str) -> tuple[Listed, ...] | None:
        return await self._list(path, "/") or await self._leave_to_s3fs(self._by_s3fs.list_names(path))

    async def list_tree(self, path: str) -> tuple[Listed, ...] | None:
        return await self._list(path, "") or await self._leave_to_s3fs(self._by_s3fs.list_tree(path))

    async def find_writing_filesystem(self, path: str) -> tuple[AbstractFileSystem, str]:
        return self.fs, path

    async def close(self) -> None:
        for task in self._buckets.values():
            task.cancel()
        self._buckets.clear()
        self._ready.clear()
        if self._session is not None:
            await self._session.close()
            self._session = None
        await self._by_s3fs.close()
        await self.fs.close()

    # Requests of our own.
    async def _send(
        self, ready: _SignedRequest, start: int, stop: int | None, etag: str | None, most: int | None
    ) -> Answer:
        headers = {**ready.headers, **make_range_headers(start, stop, etag)}
        if self._session is None:
            self._session = open_session(self, self._guard, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False)
        session, loop = self._session, asyncio.get_running_loop()
        began = loop.time()
        with log_request("GET", str(ready.url), headers.get("Range")) as log:
            async with session.get(ready.url, headers=headers, allow_redirects=False, ssl=ready.ssl) as response:
                log.status = response.status
                try:
                    return await read_answer(response, start, stop, most, waited=loop.time() - began)
                finally:
                    log.size = response.content.total_bytes

    async def _prepare(self, path: str) -> _SignedRequest | None:
        """Return the request for an object, with a new signature; None if s3fs has to send the request."""
        name, _, key = path.partition("/")
        bucket = None if not key or "?versionId=" in key else await self._get_bucket(name)
        if bucket is None:
            return None
        url = bucket.base + quote(key, safe="/~")
        headers = bucket.headers if bucket.signer is None else await _sign(bucket.signer, url, bucket.headers)
        if len(self._ready) >= _SIGNED:
            self._ready.clear()
        headers = {**headers, "Accept-Encoding": "identity"}
        ready = self._ready[path] = _SignedRequest(
            URL(url, encoded=True), headers, bucket.ssl, time.monotonic() + _VALID
        )
        return ready

    async def _list(self, path: str, delimiter: str) -> tuple[Listed, ...]:
        """Return the objects below ``path``, and its directories if there is a ``delimiter``.

        An empty result means that s3fs has to list them. s3fs is slow: botocore takes longer to parse the time of an
        object than a server takes to list it.
        """
        name, _, prefix = path.rstrip("/").partition("/")
        bucket = await self._get_bucket(name)
        if bucket is None:
            return ()
        prefix = prefix and prefix + "/"
        query = {"delimiter": delimiter, "encoding-type": "url", "list-type": "2", "prefix": prefix}
        found: list[Listed] = []
        token: str | None = None
        try:
            while token != "":
                pairs = sorted((query if token is None else {**query, "continuation-token": token}).items())
                url = f"{bucket.base}?{urlencode(pairs, quote_via=quote, safe='~')}"
                headers = bucket.headers if bucket.signer is None else await _sign(bucket.signer, url, bucket.headers)

                ready = _SignedRequest(
                    URL(url, encoded=True), {**headers, "Accept-Encoding": "identity"}, bucket.ssl, 0.0
                )
                answer = await self._send(ready, 0, None, None, _PAGE)
                listed, following = parse_page(bytes(answer.data).decode(), len(prefix))
                if following and following == token:
                    raise ValueError("expected a new token for the next page of the listing, got the previous token")
                found, token = found + listed, following
        except (FileNotFoundError, HttpStatus, TooLarge, Unfit, LookupError, ValueError):  # s3fs raises its own error
            return ()
        return tuple(sorted(found, key=lambda listed: listed.name) if delimiter else found)

    async def _get_bucket(self, name: str) -> _Bucket | None:
        """Return the address of a bucket; None if s3fs has to send the requests."""
        if not self._fast or name in self._left_to_s3fs:
            return None
        return await share_task(self._buckets, name, lambda: self._find_bucket(name))

    async def _find_bucket(self, name: str) -> _Bucket | None:
        """Return the bucket as botocore would address it; None if botocore's requests would differ from ours."""
        fs = self.fs
        if fs.version_aware or ":" in name or name.endswith("--x-s3"):
            return None
        await fs.set_session()
        client = await fs.get_s3(name)
        config = client.meta.config
        verify = _find_verification(fs, client)
        if config.proxies or config.client_cert or verify is None or has_own_hooks(client):
            return None
        members = client.meta.service_model.operation_model("GetObject").input_shape.members
        extra = {k: v for k, v in {**fs.s3_additional_kwargs, **fs.req_kw}.items() if k in members and v is not None}
        pays = extra.pop("RequestPayer", None) is not None
        if extra:
            return None
        signer = None
        if not fs.anon:
            signer = getattr(client, "_request_signer", None)
            if signer is None or config.signature_version != "s3v4":
                return None
        example = await client.generate_presigned_url("get_object", Params={"Bucket": name, "Key": "k"}, ExpiresIn=60)
        base = example.partition("?")[0]
        if not base.endswith("/k"):
            return None
        url = URL(base, encoded=True)
        if url.scheme in getproxies() and not proxy_bypass(url.host or ""):
            return None
        trusted: ssl.SSLContext | bool = verify is not False
        if url.scheme == "https" and trusted:
            trusted = await run_in_thread(lambda: _load_authorities(verify))
        return _Bucket(base[:-1], signer, {"x-amz-request-payer": "requester"} if pays else {}, trusted)

    # Requests of s3fs.

    async def _read_by_s3fs(self, path: str, start: int, stop: int | None, most: int | None) -> Answer:
        return await self._leave_to_s3fs(self._by_s3fs.read(path, start, stop, most=most))

    async def _leave_to_s3fs(self, request: Awaitable[T]) -> T:
        """Return the answer to a request of s3fs. A missing bucket raises an error other than FileNotFoundError."""
        try:
            with convert_s3_errors():
                return await request
        except FileNotFoundError as e:
            raise _make_missing_error(e) from e
        except OSError as e:
            if _find_code(e) == _TOO_LONG:
                raise FileNotFoundError(*e.args) from e
            raise


def parse_page(text: str, skipped: int) -> tuple[list[Listed], str]:
    """Parse a page of ListObjectsV2; return its objects and directories, and the token of the next page.

    The first ``skipped`` characters of each key are cut off. The token is empty on the last page.
    """
    page = parse_xml(text)
    if page.tag.rpartition("}")[2] != "ListBucketResult":
        raise ValueError(f"expected a ListBucketResult, found {page.tag}")
    decode = unquote_plus if page.findtext("{*}EncodingType") == "url" else str
    found = []
    for element in page:
        fields = {child.tag.rpartition("}")[2]: child.text or "" for child in element}
        match element.tag.rpartition("}")[2]:
            case "Contents" if not fields["Key"].endswith(("/", "%2F")):
                modified = str(datetime.fromisoformat(fields["LastModified"]))  # the spelling of s3fs
                name = decode(fields["Key"])[skipped:]
                found.append(Listed(name, int(fields["Size"]), False, fields["ETag"], modified))
            case "CommonPrefixes":
                found.append(Listed(decode(fields["Prefix"])[skipped:].rstrip("/"), None, True))
    token = page.findtext("{*}NextContinuationToken") or ""
    if page.findtext("{*}IsTruncated") == "true" and not token:  # the server supports only ListObjects
        raise ValueError("expected a NextContinuationToken in a truncated listing, found none")
    return [listed for listed in found if listed.name], token


async def _sign(signer: Any, url: str, headers: dict[str, str]) -> dict[str, str]:
    """Return ``headers`` and the headers that sign a GET of ``url``, for any range of it.

    Signed headers, not a presigned URL, because logs and errors show URLs.
    """
    from botocore.awsrequest import AWSRequest

    region = signer.region_name
    region = "us-east-1" if region in (None, "aws-global") else region
    auth = await signer.get_auth_instance(signer.signing_name, region, "s3v4")
    request = AWSRequest("GET", url, headers)
    auth.add_auth(request)
    return dict(request.headers.items())


def _find_verification(fs: S3Client, client: Any) -> str | bool | None:
    """Return how ``client`` verifies servers: by a bundle of authorities, True, or False.

    Return None if it has other TLS options, which plain requests do not have.
    """
    arguments = getattr(client.meta.config, "connector_args", None) or {}
    verify = {session.verify for session in fs.http_sessions}
    return verify.pop() if len(verify) == 1 and not set(arguments) - {"keepalive_timeout"} else None


def _load_authorities(verify: str | bool) -> ssl.SSLContext:
    from botocore.httpsession import get_cert_path

    return make_tls_context(get_cert_path(verify))


def _make_missing_error(error: FileNotFoundError) -> OSError:
    """Return s3fs's error for a missing object; for a missing bucket, an error other than FileNotFoundError."""
    code = _find_code(error)
    return HttpStatus(404, code) if code == "NoSuchBucket" else FileNotFoundError(*error.args)


def _find_code(error: OSError) -> str | None:
    """Return S3's code of an error that s3fs raised; None if there is none."""
    response = getattr(error.__cause__, "response", None)
    return response.get("Error", {}).get("Code") if isinstance(response, dict) else None
