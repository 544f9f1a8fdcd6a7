"""A file of chunks of equal size on a test server, and references that show it as an array with any order of chunks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.servers.http import RangeServer

__all__ = ["CHUNK", "Chunked"]

CHUNK = 10_000


class Chunked:
    """``count`` chunks at ``url``; chunk i is CHUNK times the byte i % 251."""

    def __init__(self, server: RangeServer, count: int = 256) -> None:
        self.server = server
        self.count = count
        self.url = server.put("/data.bin", b"".join(self.chunk(i) for i in range(count)))

    @staticmethod
    def chunk(place: int) -> bytes:
        return bytes([place % 251]) * CHUNK

    def refs(self, counts: Sequence[int] | None = None, order: Sequence[int] | None = None) -> dict[str, Any]:
        """Return references to the array "a", whose chunk number i is the chunk ``order[i]`` of the file."""
        counts = counts or [self.count]
        shape = [*counts, CHUNK]
        meta = {"zarr_format": 2, "shape": shape, "chunks": [1] * len(counts) + [CHUNK], "dtype": "|u1", "order": "C"}
        out: dict[str, Any] = {".zgroup": '{"zarr_format": 2}'}
        out["a/.zarray"] = json.dumps({**meta, "fill_value": 0, "filters": None, "compressor": None})
        for i in range(self.count):
            place = i if order is None else order[i]
            out[self.key(i, counts)] = [self.url, place * CHUNK, CHUNK]
        return out

    @staticmethod
    def key(number: int, counts: Sequence[int]) -> str:
        coords = []
        for count in reversed(counts):
            number, coord = divmod(number, count)
            coords.append(str(coord))
        return "a/" + ".".join([*reversed(coords), "0"])

    def keys(self, numbers: Sequence[int]) -> list[str]:
        return [self.key(i, [self.count]) for i in numbers]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The requested ranges since the log was cleared, in chunks, ascending."""
        return sorted(((r.start or 0) // CHUNK, -(-(r.stop or 0) // CHUNK)) for r in self.server.requests("/data.bin"))

    @property
    def fetched(self) -> int:
        """The number of sent chunks since the log was cleared."""
        return self.server.bytes_sent // CHUNK
