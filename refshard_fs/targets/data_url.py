"""``data:`` URLs (RFC 2397): the object is the URL itself."""

from __future__ import annotations

import base64
import binascii
import math
from urllib.parse import unquote_to_bytes

from refshard_fs.model import Facts, Listed
from refshard_fs.targets.answer import Answer, hold
from refshard_fs.targets.failures import Unreadable

__all__ = ["DataTarget"]


class DataTarget:
    """Objects whose path is what stands behind ``data:``."""

    most_retries = 0
    patience = math.inf

    def read_now(self, path: str, start: int, stop: int | None, most: int | None = None) -> Answer:
        data = _decoded(path)
        if stop is None:
            hold(len(data), most)
        return Answer(data[start:stop], len(data))

    async def read(
        self, path: str, start: int, stop: int | None, etag: str | None = None, most: int | None = None
    ) -> Answer:
        return self.read_now(path, start, stop, most)

    async def facts(self, path: str) -> Facts:
        return Facts(len(_decoded(path)))

    async def names(self, path: str) -> tuple[Listed, ...] | None:
        return None

    async def close(self) -> None:
        """Nothing is held."""


def _decoded(path: str) -> bytes:
    kind, comma, text = path.partition(",")
    if not comma:
        raise Unreadable("a data: URL without a comma holds no data")
    data = unquote_to_bytes(text)
    if not kind.endswith(";base64"):
        return data
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as e:
        raise Unreadable(f"a data: URL with damaged base64 ({e})") from e
