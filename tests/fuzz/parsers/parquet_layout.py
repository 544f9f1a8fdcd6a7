"""Parse ``.zmetadata`` of a parquet set: numbers and keys of chunks agree, or an error of this package is raised."""

from __future__ import annotations

import json
from contextlib import nullcontext as set_up

from refshard_fs.core.keys import join
from refshard_fs.errors import RefShardError
from refshard_fs.formats.kerchunk_parquet.source import ParquetKeySpace
from tests.fuzz.parsers.json_references import _ARRAY, _ARRAY_3
from tests.support.shards_in_memory import ROOT, Files

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = True
WORDS = (
    b'"metadata"',
    b'"record_size"',
    b'"a/.zarray"',
    b'"b/zarr.json"',
    b'"dimension_separator":"/"',
    b"[4,6]",
    b"[]",
)


def make_seeds() -> list[bytes]:
    small = {"metadata": {".zgroup": {"zarr_format": 2}, "a/.zarray": _ARRAY, "a/.zattrs": {"x": 1}}, "record_size": 4}
    both = {"metadata": {"b/zarr.json": _ARRAY_3, "deep/c/.zarray": {**_ARRAY, "dimension_separator": "/"}}}
    scalar = {**_ARRAY, "shape": [], "chunks": []}
    documents = [small, {**both, "record_size": 100}, {"metadata": {".zarray": scalar}, "record_size": 1}]
    return [json.dumps(document).encode() for document in documents]


def check_input(data: bytes) -> None:
    try:
        keys = ParquetKeySpace(ROOT, data, lambda url: url or "x")
    except RefShardError:
        return
    files = Files({f"{ROOT}/.zmetadata": data})
    assert files.run(keys.lookup(".zmetadata")) is not None
    for path, grid in list(keys.grids.items())[:4]:
        if grid.size:
            for number in {0, grid.size // 2, grid.size - 1}:
                assert grid.number(grid.tail(number)) == number
                assert files.run(keys.lookup(join(path, grid.tail(number)))) is None
        for prefix in (path, join(path, "c"), join(path, "0")):
            try:
                files.run(keys.children(prefix))
                files.run(keys.is_directory(prefix))
            except RefShardError:
                pass
