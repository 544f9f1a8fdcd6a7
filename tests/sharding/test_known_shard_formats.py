"""Options and metadata are compared with all known shard formats."""

from __future__ import annotations

from typing import Any

import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.sharding.known_shard_formats import load_shard_formats, unshard_metadata

PLAIN = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "order": "C", "fill_value": 0}


def test_each_shard_format_has_a_unique_name_and_marks() -> None:
    known = load_shard_formats()
    assert len({shard_format.name for shard_format in known}) == len(known) >= 2
    assert all(shard_format.marks for shard_format in known)


def test_no_format_recognises_unsharded_metadata() -> None:
    assert unshard_metadata({**PLAIN, "filters": None, "compressor": None}, {}) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endian": "middle"}, r"endian='middle'.*'little' or 'big'"),
        ({"color": "red"}, "color='red'"),
    ],
)
def test_unknown_shard_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        RefShardFileSystem({}, shard_options=options)
