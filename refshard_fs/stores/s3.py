"""Objects of S3: each takes one request, and the store decides whether the object is still the one that was read."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final

from fsspec.asyn import sync

from refshard_fs.core.model import Absent, Facts
from refshard_fs.stores.store import LARGE, Buffer, Condition, Fetched, Place, Store, conflict, content, sum_of
from refshard_fs.targets.failures import as_os_error, os_errors

_PIECE: Final = 1 << 20
_REFUSED: Final = (404, 409, 412)  # what S3 answers where a condition does not hold


class S3Store(Store):
    """The objects of s3fs. botocore repeats requests that fail in passing, with the condition."""

    def facts(self, path: str) -> Facts | None:
        bucket, key, _ = self.fs.split_path(path)
        try:
            head = self.call("call_s3", "head_object", Bucket=bucket, Key=key)
        except FileNotFoundError:
            return None
        return Facts(head["ContentLength"], head.get("ETag"))

    @os_errors()
    def fetch(self, path: str) -> Fetched | None:
        try:
            found: Fetched = sync(self._loop, _fetch, self.fs, path)
        except FileNotFoundError:
            return None
        return found

    def put(self, place: Place, parts: Sequence[Buffer], condition: Condition, *, durable: bool) -> Facts | None:
        when = _headers_of(condition)
        if not when:
            self.check(place, condition)
        try:
            with _body(parts) as body:
                answer = sync(self._loop, _send, self.fs, place.path, body, when)
        except Exception as e:  # of botocore, which is not ours to import; raised again unless it is a conflict
            if not when or _status(e) not in _REFUSED:
                raise as_os_error(e) from e
            is_certain = not _was_repeated(e)
            there = None if is_certain else self.fetch(place.path)  # else others wrote it, though it be the same
            if there is None or sum_of([there.data]) != sum_of(parts):
                raise conflict(place, condition, is_certain=is_certain) from e
            return there.facts  # it was written, and the answer to that was lost
        self.fs.invalidate_cache(place.path)
        return Facts(sum(map(len, parts)), answer.get("ETag"))

    def remove(self, place: Place, condition: Condition) -> None:
        bucket, key, _ = self.fs.split_path(place.path)
        try:
            self.call("call_s3", "delete_object", Bucket=bucket, Key=key, **_headers_of(condition))
        except OSError as e:
            if condition is None or _status(e) not in _REFUSED:
                raise
            if self.facts(place.path) is not None:
                raise conflict(place, condition) from e
        self.fs.invalidate_cache(place.path)  # it is gone: also where it was removed, and the answer to that was lost


async def _fetch(fs: Any, path: str) -> Fetched:
    bucket, key, _ = fs.split_path(path)
    answer = await fs._call_s3("get_object", Bucket=bucket, Key=key)
    with tempfile.SpooledTemporaryFile(LARGE) as copy:
        body = answer["Body"]
        async with body:  # which gives the response beneath it before aiobotocore 3
            while piece := await body.read(_PIECE):
                copy.write(piece)
        return Fetched(content(copy), Facts(answer["ContentLength"], answer.get("ETag")))


async def _send(fs: Any, path: str, body: bytes | BinaryIO, when: dict[str, str]) -> dict[str, Any]:
    """Put an object on the conditions ``when``, with one request, and return the answer."""
    bucket, key, _ = fs.split_path(path)
    await fs.set_session()
    client = await fs.get_s3(bucket)
    members = client.meta.service_model.operation_model("PutObject").input_shape.members
    extra = {k: v for k, v in {**fs.s3_additional_kwargs, **fs.req_kw}.items() if k in members and v is not None}
    answer: dict[str, Any] = await client.put_object(**extra, **when, Bucket=bucket, Key=key, Body=body)
    return answer


@contextlib.contextmanager
def _body(parts: Sequence[Buffer]) -> Iterator[bytes | BinaryIO]:
    """Give what botocore sends for ``parts``: a file, if they are large, which it reads again if it tries again."""
    if sum(map(len, parts)) <= LARGE:
        yield b"".join(parts)
        return
    with tempfile.TemporaryFile() as file:
        file.writelines(parts)
        file.seek(0)
        yield file


def _headers_of(condition: Condition) -> dict[str, str]:
    """Return what S3 is told of the version to replace."""
    match condition:
        case Facts(etag=str(etag)):
            return {"IfMatch": etag}
        case Absent():
            return {"IfNoneMatch": "*"}
    return {}


def _status(error: Exception) -> int | None:
    """Return the status of the answer of S3 that ``error`` tells of."""
    status: int | None = _told_by(error).get("HTTPStatusCode")
    return status


def _was_repeated(error: Exception) -> bool:
    """Whether botocore sent the request more than once: the store may have done it, and the answer to that was lost."""
    return bool(_told_by(error).get("RetryAttempts"))


def _told_by(error: Exception) -> Mapping[str, Any]:
    """Return what botocore tells of the answer of S3 that is an ``error``."""
    for e in (error, error.__cause__):
        response: Any = getattr(e, "response", None)
        if isinstance(response, dict):
            told: Mapping[str, Any] = response.get("ResponseMetadata", {})
            return told
    return {}
