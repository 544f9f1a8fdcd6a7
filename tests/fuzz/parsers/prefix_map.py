"""Open maps of prefixes for a whole source: entries are valid, or an error of this package is raised."""

from __future__ import annotations

import json
from contextlib import nullcontext as set_up

from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keys import join
from refshard_fs.core.model import Facts, Inline, Span
from refshard_fs.errors import RefShardError
from refshard_fs.formats.chunk_manifest.prefix_map import open_
from tests.support.shards_in_memory import Files

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = True
WORDS = tuple(
    b"""
    {"path":"x"} {"data":"y"} "prefix":{"p/":{"path":"../q/"}} "zarr.json" "a/zarr.json" "offset" "length"
    "checksum" "crc32c:00000000" "./x" "../../../x" "#key" "s3://b/k" "file:///etc/hosts"
    """.split()
)


def make_seeds() -> list[bytes]:
    entries: dict[str, object] = {
        "zarr.json": {"data": {"zarr_format": 3, "node_type": "group"}},
        "a/c/0": {"path": "s3://b/k", "offset": 1, "length": 5},
        "a/c/1": {"data": "text", "checksum": "crc32c:00000000"},
        "a/c/2": {},
        "prefix": {"x/": {"path": "https://h/store/"}, "": {"path": "./base/"}},
    }
    maps = [entries, {"k": {"path": "y", "etag": "e"}}, {"prefix": {"a/b/": {"path": "s3://b/"}}}]
    documents = [{"name": "chunk-manifest-json", "configuration": {"manifest": m}} for m in maps]
    return [json.dumps(document).encode() for document in documents]


def check_input(data: bytes) -> None:
    files = Files({})
    try:
        keys = files.run(open_(Probe("https://h/dir/map.json", Facts(len(data)), data), OpenOptions()))
    except (RefShardError, ValueError) as e:
        assert isinstance(e, RefShardError)
        return
    folders: list[str] = [""]
    found: list[str] = []
    while folders and len(found) < 12:
        folder = folders.pop()
        try:
            children = files.run(keys.children(folder)) or ()
        except RefShardError:
            continue
        for listed in children:
            name = join(folder, listed.name)
            (folders if listed.is_directory else found).append(name)
    for key in [*found[:12], "x/y", "a/c/0", "zarr.json"]:
        try:
            entry = files.run(keys.lookup(key))
        except RefShardError:
            continue
        match entry:
            case Span(start=start, stop=stop):
                assert start >= 0
                assert stop is None or start <= stop < 2**63
            case Inline(content):
                assert isinstance(content, bytes)
