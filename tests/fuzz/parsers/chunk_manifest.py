"""Parse chunk manifests of one array: entries are valid ranges of chunks in the grid, or a ManifestError is raised."""

from __future__ import annotations

import json
from contextlib import nullcontext as set_up

from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding
from refshard_fs.errors import ManifestError
from refshard_fs.formats.chunk_manifest.manifest import parse

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = True
WORDS = tuple(
    b"""
    {"path":"x"} {"data":"y"} "offset" "length" "etag" "last_modified" "checksum" "md5:00" "prefix" "separator"
    "path" "1.2" "01.2" "1.2.3" "999999999999999999.0" "-1.0" "" "0.
    """.split()
)
_GRIDS = tuple(ChunkGrid(counts, ChunkKeyEncoding("default", "/")) for counts in ((4, 3), (7,), ()))


def make_seeds() -> list[bytes]:
    entries: dict[str, object] = {
        "0.1": {"path": "x", "offset": 3, "length": 4},
        "3.2": {"path": "y"},
        "1.0": {},
        "2.0": {"data": "abc"},
        "2.1": {"data": "base64:/wA="},
        "0.0": {"path": "x", "offset": 7, "etag": "e", "last_modified": "2024-01-01", "checksum": "md5:00"},
        "2.2": {"data": {"a": 1}},
    }
    prefixes = {"prefix": {"0.": {"path": "../one/c/0/", "separator": "/"}, "": {"path": "../rest/"}}}
    plain = {str(i): {"path": "s3://b/x", "offset": i * 10, "length": 10} for i in range(7)}
    return [json.dumps(d).encode() for d in (entries, {**prefixes, **entries}, plain, {"0": {"path": "z"}})]


def check_input(data: bytes) -> None:
    for grid in _GRIDS:
        try:
            manifest = parse(data, grid, "manifest.json")
        except ManifestError:
            continue
        numbers = manifest.table.list_present().tolist()
        assert len(numbers) == len(manifest)
        for number in range(grid.size):
            source = manifest.locate(number)
            assert (source is not None) == (number in numbers)
            assert source is None or not manifest.is_empty(number)
            if source is not None:
                assert source.offset >= 0
                assert source.offset + (source.length or 0) < 2**63
            prefix = manifest.find_prefix(grid.coords(number))
            assert prefix is None or prefix.make_url(grid.coords(number))
