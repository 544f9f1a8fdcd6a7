"""Open and list any document as a source, or raise an error of this package."""

from __future__ import annotations

from contextlib import nullcontext as set_up

from refshard_fs.core.keys import join
from refshard_fs.errors import ReferenceNotReachable, RefShardError
from tests.fuzz.parsers import bloscpack_file, compressed, json_references, prefix_map, zarr_metadata, zip_archive
from tests.support.shards_in_memory import ROOT, Files

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = False
WORDS = (
    b"PK\3\4",
    b"blpk\3",
    b"\x1f\x8b",
    b"\x28\xb5\x2f\xfd",
    b'{"',
    b'"shards":[2,2],',
    b"sharding_indexed",
    b"\xef\xbb\xbf",
)


def make_seeds() -> list[bytes]:
    others = (json_references, zip_archive, bloscpack_file, prefix_map, compressed)
    sharded = [
        b'{"version":1,"refs":{"a/zarr.json":%s,"a/c/0/0":["x",0,99]}}' % d for d in zarr_metadata.make_seeds()[3:7]
    ]
    return [found for other in others for found in other.make_seeds()[:3]] + sharded


class _Nothing(dict[str, bytes]):
    """Files in memory; another file raises ReferenceNotReachable, as an engine does."""

    def __missing__(self, url: str) -> bytes:
        raise ReferenceNotReachable("", url, "there is no such file")


def check_input(data: bytes) -> None:
    files = Files(_Nothing({ROOT: data, "x": bytes(99)}))
    try:
        keys = files.open()
        children = files.run(keys.children("")) or ()
    except RefShardError:
        return
    for listed in list(children)[:6]:
        key = join("", listed.name)
        try:
            if listed.is_directory:
                files.run(keys.children(key))
            else:
                files.read(keys, key)
        except (RefShardError, ValueError, EOFError):  # the engine adds the key to these errors
            pass
