"""Make shards byte by byte, and the metadata of their arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from refshard_fs.core.checksums import crc32c

META_2 = {"zarr_format": 2, "shape": [16], "chunks": [4], "shards": [4], "dtype": "|u1", "fill_value": 0}


def make_metadata(*, location: str, checked: bool) -> dict[str, Any]:
    index: list[Any] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    if checked:
        index.append({"name": "crc32c"})
    inner = {"chunk_shape": [4], "codecs": ["bytes"], "index_codecs": index, "index_location": location}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [16],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [16]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "sharding_indexed", "configuration": inner}],
    }


def make_shard(pairs: list[tuple[int, int]], payload: bytes, *, location: str, checked: bool) -> bytes:
    index = np.array(pairs, "<u8").tobytes()
    if checked:
        index += crc32c(index).to_bytes(4, "little")
    return payload + index if location == "end" else index + payload


def make_pairs(*rows: tuple[int, int]) -> bytes:
    return np.array(rows, "<u8").tobytes()
