"""Decode objects of Icechunk repositories: all offsets lie within the object, or a ValueError is raised."""

from __future__ import annotations

from contextlib import nullcontext as set_up
from functools import cache
from pathlib import Path
from typing import Final

from refshard_fs.core.columns import NO_TARGET
from refshard_fs.core.compression import import_zstd
from refshard_fs.core.format import OpenOptions
from refshard_fs.errors import RefShardError
from refshard_fs.formats.icechunk.objects import MAGIC, ManifestIndex, Repository, Snapshot, decode_snapshot
from refshard_fs.formats.icechunk.source import IcechunkKeySpace

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = False
WORDS = (bytes(4), b"\xff" * 4, b"\1\0\0\0", b"\4\0", b"\xff\xff", b"://", b"\0\0\0\x80")
_FOLDER: Final = Path(__file__).parents[2] / "data" / "icechunk"
_MOST: Final = 1 << 20  # bytes
_HEADER: Final = 39


@cache
def make_seeds() -> list[bytes]:
    """Return inputs: a byte with the type of an object and its FlatBuffer, or a byte 0 and a whole object."""
    files = [_FOLDER / "repo", *sorted(_FOLDER.glob("snapshots/*")), *sorted(_FOLDER.glob("manifests/*"))]
    objects = [file.read_bytes() for file in files]
    bare = [data[37:38] + import_zstd().decompress(data[_HEADER:]) for data in objects]
    return [*bare, *(b"\0" + data for data in objects)]


@cache
def _load_snapshot() -> tuple[Snapshot, dict[str, ManifestIndex]]:
    """Return the snapshot, and the index that decodes each of its manifests, by name."""
    file = next(_FOLDER.glob("snapshots/*"))
    snapshot = decode_snapshot(file.read_bytes(), file.name, _MOST)
    arrays = IcechunkKeySpace("s3://b/r", snapshot, {}, OpenOptions()).arrays.values()
    indexes = [load.index for array in arrays for load in array.loads]
    return snapshot, {index.ref.name: index for index in indexes if isinstance(index, ManifestIndex)}


def check_input(data: bytes) -> None:
    kind, body = data[:1], data[1:]
    whole = body if kind == b"\0" else MAGIC + b" " * 24 + b"\2" + kind + b"\0" + body
    try:
        repository = Repository.decode(whole, _MOST)
        for place in (*repository.branches.values(), *repository.tags.values()):
            assert len(list(repository.list_ancestry(place))) <= len(repository.snapshots)
    except RefShardError:
        return
    except ValueError:
        pass
    try:
        name = next(_FOLDER.glob("snapshots/*")).name
        found = decode_snapshot(whole, name, _MOST)
        keys = IcechunkKeySpace("s3://b/r", found, {}, OpenOptions())
        for path, array in keys.arrays.items():
            assert sum(map(len, array.boxes.list_ranges())) <= keys.grids[path].size
    except ValueError:
        pass
    for index in _load_snapshot()[1].values():
        try:
            refs = index.decode(whole)
            urls = [*refs.chunks.urls]
        except ValueError:
            continue
        targets, offsets, lengths = refs.chunks.ranges
        assert len(refs.numbers) == len(targets)
        for row, (target, offset, length) in enumerate(zip(targets, offsets, lengths, strict=True)):
            assert int(offset) + int(length) < 1 << 63
            assert row in refs.chunks.inline if target == NO_TARGET else urls[target]
