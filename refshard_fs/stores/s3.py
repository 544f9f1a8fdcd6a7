"""Store objects in S3: the request that puts or removes an object has the condition, which the server checks."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, BinaryIO, Final

from fsspec.asyn import sync

from refshard_fs.core.model import Absent, Facts
from refshard_fs.stores.store import (
    LARGE,
    Buffer,
    Condition,
    ObjectBytes,
    ObjectPlace,
    Store,
    compute_checksum,
    load_file,
    make_conflict_error,
)
from refshard_fs.targets.failures import Incomplete, convert_s3_error, convert_s3_errors

_READ_SIZE: Final = 1 << 20  # bytes that one call reads from an answer
_REFUSED: Final = (404, 409, 412)  # the statuses of S3 for a failed condition


class S3Store(Store):
    """Objects that s3fs writes. botocore repeats failed requests, with the same conditions."""

    logs_requests = True  # `S3Session` logs requests

    def _pause(self, failure: OSError, tried: int) -> float | None:
        """Try again only if an answer ended early: botocore repeats other failed requests itself."""
        return self._retry.pause(failure, tried) if isinstance(failure, Incomplete) else None

    def get_facts(self, path: str) -> Facts | None:
        bucket, key, _ = self.fs.split_path(path)
        try:
            head = self.call("call_s3", "head_object", Bucket=bucket, Key=key)
        except FileNotFoundError:
            return None
        return Facts(head["ContentLength"], head.get("ETag"))

    def fetch(self, path: str) -> ObjectBytes | None:
        try:
            return self.persist(partial(self._fetch_once, path))
        except FileNotFoundError:
            return None

    @convert_s3_errors()
    def _fetch_once(self, path: str) -> ObjectBytes:
        found: ObjectBytes = sync(self._loop, _fetch, self.fs, path)
        return found

    def put(self, place: ObjectPlace, parts: Sequence[Buffer], condition: Condition, *, durable: bool) -> Facts | None:
        when = _make_headers(condition)
        if not when:
            self.check(place, condition)
        try:
            with _make_body(parts) as body:
                answer = sync(self._loop, _send, self.fs, place.path, body, when)
        except Exception as e:  # errors of botocore, which is slow to import; raised again unless it is a conflict
            if not when or _find_status(e) not in _REFUSED:
                raise convert_s3_error(e) from e
            is_certain = not _is_repeated(e)
            stored = None if is_certain else self.fetch(place.path)  # if certain, equal bytes are another writer's
            if stored is None or compute_checksum([stored.data]) != compute_checksum(parts):
                raise make_conflict_error(place, condition, is_certain=is_certain) from e
            return stored.facts  # an earlier try wrote the object, but its answer was lost
        self.fs.invalidate_cache(place.path)
        return Facts(sum(map(len, parts)), answer.get("ETag"))

    def remove(self, place: ObjectPlace, condition: Condition) -> None:
        bucket, key, _ = self.fs.split_path(place.path)
        when = _make_headers(condition) if isinstance(condition, Facts) else {}  # S3 has no If-None-Match for removals
        if condition is not None and not when:
            if self.get_facts(place.path) is None:
                return
            self.check(place, condition)
        try:
            self.call("call_s3", "delete_object", Bucket=bucket, Key=key, **when)
        except OSError as e:
            if condition is None or _find_status(e) not in _REFUSED:
                raise
            if self.get_facts(place.path) is not None:
                raise make_conflict_error(place, condition) from e
        self.fs.invalidate_cache(place.path)  # the object is gone, even if an earlier try removed it


async def _fetch(fs: Any, path: str) -> ObjectBytes:
    bucket, key, _ = fs.split_path(path)
    answer = await fs._call_s3("get_object", Bucket=bucket, Key=key)
    with tempfile.SpooledTemporaryFile(LARGE) as copy:
        body = answer["Body"]
        async with body:  # before aiobotocore 3, `as` would bind the inner response
            while part := await body.read(_READ_SIZE):
                copy.write(part)
        return ObjectBytes(load_file(copy), Facts(answer["ContentLength"], answer.get("ETag")))


async def _send(fs: Any, path: str, body: bytes | BinaryIO, when: dict[str, str]) -> dict[str, Any]:
    """Put an object with one request, under the conditions ``when``, and return the answer."""
    bucket, key, _ = fs.split_path(path)
    await fs.set_session()
    client = await fs.get_s3(bucket)
    members = client.meta.service_model.operation_model("PutObject").input_shape.members
    extra = {k: v for k, v in {**fs.s3_additional_kwargs, **fs.req_kw}.items() if k in members and v is not None}
    answer: dict[str, Any] = await client.put_object(**extra, **when, Bucket=bucket, Key=key, Body=body)
    return answer


@contextlib.contextmanager
def _make_body(parts: Sequence[Buffer]) -> Iterator[bytes | BinaryIO]:
    """Yield the body of a request for ``parts``: if they are large, a temporary file, which botocore can read again."""
    if sum(map(len, parts)) <= LARGE:
        yield b"".join(parts)
        return
    with tempfile.TemporaryFile() as file:
        file.writelines(parts)
        file.seek(0)
        yield file


def _make_headers(condition: Condition) -> dict[str, str]:
    """Return the parameters of a request that make S3 check the version of the object to replace."""
    match condition:
        case Facts(etag=str(etag)):
            return {"IfMatch": etag}
        case Absent():
            return {"IfNoneMatch": "*"}
    return {}


def _find_status(error: Exception) -> int | None:
    """Return the HTTP status of the answer behind ``error``; None if there was no answer."""
    status: int | None = _get_metadata(error).get("HTTPStatusCode")
    return status


def _is_repeated(error: Exception) -> bool:
    """Return whether botocore sent the request more than once: an earlier one may have succeeded without an answer."""
    return bool(_get_metadata(error).get("RetryAttempts"))


def _get_metadata(error: Exception) -> Mapping[str, Any]:
    """Return botocore's metadata of the answer behind ``error``."""
    for e in (error, error.__cause__):
        response: Any = getattr(e, "response", None)
        if isinstance(response, dict):
            metadata: Mapping[str, Any] = response.get("ResponseMetadata", {})
            return metadata
    return {}
