"""Parse ``info`` of precomputed volumes: chunks have a bounded size, or an error of this package is raised."""

from __future__ import annotations

import json
from contextlib import nullcontext as set_up

from refshard_fs.core.format import Document, OpenOptions, Probe
from refshard_fs.core.model import Facts
from refshard_fs.errors import RefShardError
from refshard_fs.formats.neuroglancer import INFO
from refshard_fs.formats.neuroglancer.info import MOST_DECODED
from refshard_fs.formats.neuroglancer.volume import open_
from tests.support.shards_in_memory import ROOT, Files

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = True
WORDS = tuple(
    b"""
    "scales" "key" "size" "chunk_sizes" "voxel_offset" "sharding" "@type" "raw" "gzip" "jpeg" "uint64"
    "num_channels" "minishard_bits" "shard_bits" "preshift_bits" "murmurhash3_x86_128" "../x" [64,64,64]
    [[64,64,64]] 63 64 [0,0,0]
    """.split()
)


def make_seeds() -> list[bytes]:
    scale: dict[str, object] = {
        "key": "8_8_8",
        "size": [20, 9, 12],
        "chunk_sizes": [[4, 4, 5]],
        "encoding": "raw",
        "resolution": [8, 8, 8],
    }
    sharding: dict[str, object] = {
        "@type": "neuroglancer_uint64_sharded_v1",
        "preshift_bits": 1,
        "hash": "murmurhash3_x86_128",
    }
    sharding |= {"minishard_bits": 2, "shard_bits": 3, "minishard_index_encoding": "gzip", "data_encoding": "gzip"}
    whole = {"@type": "neuroglancer_multiscale_volume", "type": "image", "data_type": "uint16", "num_channels": 2}
    documents = [
        {**whole, "scales": [scale]},
        {**whole, "scales": [{**scale, "sharding": sharding, "voxel_offset": [1, -2, 3]}]},
        {
            **whole,
            "scales": [
                {**scale, "encoding": "jpeg"},
                {**scale, "key": "16", "sharding": {**sharding, "hash": "identity"}},
            ],
        },
    ]
    return [json.dumps(document).encode() for document in documents]


def check_input(data: bytes) -> None:
    files = Files({})
    probe = Probe(ROOT, documents={INFO: Document(data, Facts(len(data)))})
    try:
        keys = files.run(open_(probe, OpenOptions(zarr_format=2 + len(data) % 2)))
    except RefShardError:
        return
    for path, grid in list(keys.grids.items())[:4]:
        for number in {0, grid.size // 2, grid.size - 1} if grid.size else ():
            key = f"{path}/{grid.tail(number)}"
            assert grid.number(grid.tail(number)) == number
            try:
                entry = files.run(keys.lookup(key))
            except RefShardError:
                continue
            assert entry is None or (entry.size or 0) <= MOST_DECODED
        try:
            files.run(keys.children(path))
        except RefShardError:
            pass
