"""Whole objects on their way: fetched complete or not at all, sent without being in memory twice."""

from __future__ import annotations

import asyncio
import hashlib
import mmap
import os
import tempfile
from collections.abc import Iterable, Sequence
from typing import IO, Any, Final, NamedTuple

from fsspec.asyn import sync
from fsspec.spec import AbstractFileSystem

from refshard_fs.core.model import Facts
from refshard_fs.errors import SourceNotReachable
from refshard_fs.targets.local import facts_of

__all__ = ["LARGE", "Buffer", "Fetched", "fetch_any", "fetch_local", "fetch_s3", "put_s3", "sum_of"]

LARGE: Final = 8 << 20  # bytes; objects of more are read and sent by way of a temporary file
PIECE: Final = 1 << 20

Buffer = bytes | memoryview


class Fetched(NamedTuple):
    """The bytes of an object, and which version of it they are."""

    data: Buffer
    facts: Facts


def fetch_local(path: str) -> Fetched:
    """Return a local file, of which nobody may have written a part meanwhile."""
    with open(path, "rb") as file:
        facts = facts_of(os.fstat(file.fileno()))
        size = facts.size or 0
        if size <= LARGE:
            data: Buffer = file.read()
        else:
            with tempfile.TemporaryFile() as copy:
                while piece := file.read(PIECE):
                    copy.write(piece)
                data = _mapped(copy)
        if len(data) != size:
            raise SourceNotReachable(f"{path} had {size} bytes, and {len(data)} were read: somebody writes it in place")
        return Fetched(data, facts)


def fetch_any(fs: AbstractFileSystem, path: str, facts: Facts) -> Fetched:
    """Return an object of any filesystem, which was just asked for its ``facts``."""
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "object")
        fs.get_file(path, copy)
        with open(copy, "rb") as file:
            data = _mapped(file) if os.path.getsize(copy) > LARGE else file.read()
    if facts.size is not None and len(data) != facts.size:
        raise SourceNotReachable(f"{path} has {facts.size} bytes, and {len(data)} were read")
    return Fetched(data, facts)


def fetch_s3(fs: Any, path: str) -> Fetched:
    """Return an object of S3, with one request."""
    bucket, key, _ = fs.split_path(path)

    async def fetch() -> Fetched:
        answer = await fs._call_s3("get_object", Bucket=bucket, Key=key)
        size: int = answer["ContentLength"]
        async with answer["Body"] as body:
            if size <= LARGE:
                data: Buffer = await body.read()
            else:
                with tempfile.TemporaryFile() as copy:
                    while piece := await body.read(PIECE):
                        copy.write(piece)
                    data = _mapped(copy)
        if len(data) != size:
            raise SourceNotReachable(f"s3://{path} has {size} bytes, and {len(data)} came")
        return Fetched(data, Facts(size, answer.get("ETag")))

    fetched: Fetched = sync(fs.loop, fetch)
    return fetched


def sum_of(parts: Iterable[Buffer]) -> bytes:
    """Return what tells ``parts``, one after the other, from all other bytes."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.digest()


async def put_s3(fs: Any, path: str, parts: Sequence[Buffer], when: dict[str, str]) -> dict[str, Any]:
    """Put an object of S3 on the conditions ``when``, with one request, and return the answer."""
    bucket, key, _ = fs.split_path(path)
    await fs.set_session()
    client = await fs.get_s3(bucket)
    members = client.meta.service_model.operation_model("PutObject").input_shape.members
    extra = {k: v for k, v in {**fs.s3_additional_kwargs, **fs.req_kw}.items() if k in members and v is not None}
    given = {**extra, **when, "Bucket": bucket, "Key": key}
    if sum(map(len, parts)) <= LARGE:
        answer: dict[str, Any] = await client.put_object(**given, Body=b"".join(parts))
        return answer
    with tempfile.TemporaryFile() as file:  # botocore sends it from the start again where it tries again
        await asyncio.to_thread(_write, file, parts)
        answer = await client.put_object(**given, Body=file)
        return answer


def _write(file: IO[bytes], parts: Sequence[Buffer]) -> None:
    file.writelines(parts)
    file.seek(0)


def _mapped(file: IO[bytes]) -> Buffer:
    """Return the content of ``file``, a copy of our own that nobody cuts short, without taking memory for it."""
    file.flush()
    if not os.fstat(file.fileno()).st_size:
        return b""
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
