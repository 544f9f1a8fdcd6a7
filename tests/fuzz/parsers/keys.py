"""Check keys, one by one and in blocks: only paths of plain names are accepted."""

from __future__ import annotations

import json
import posixpath
from contextlib import nullcontext as set_up

from refshard_fs.core.keys import MOST_CHARACTERS, MOST_STEPS, is_key, normalise
from refshard_fs.errors import ManifestError
from refshard_fs.references.builder import ReferenceBuilder

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = True
WORDS = tuple(b"/ // . .. ... ./ ../ /. /.. \\ \0 a .zarray .zgroup 0.0 c/0/0 zarr.json :// ~ \xc3\xbc".split(b" "))


def make_seeds() -> list[bytes]:
    return [b"a/b/c\n.zgroup", b"a/.zarray\na/0.0\na/0.1", b"..a/b..\nx.y", b"/".join([b"d"] * 99), b"\xc3\xbc/ \ne"]


def check_input(data: bytes) -> None:
    keys = data.decode("utf-8", "replace").split("\n")
    for key in keys:
        if is_key(key):
            steps = key.split("/")
            assert posixpath.normpath(key) == key == normalise(key) or "://" in key
            assert all(steps)
            assert not {".", ".."}.intersection(steps)
            assert not key.startswith("/")
            assert "\0" not in key
            assert len(steps) <= MOST_STEPS
            assert len(key) <= MOST_CHARACTERS
    for many in (1, 3):  # in a block, and one by one
        members = {key: ["u", 0, 1] for key in keys * many}
        try:
            builder = ReferenceBuilder("fuzz")
            builder.add_members(members)
            for kept in builder.finish().keys:
                assert is_key(kept)
        except ManifestError as e:
            assert len(str(e)) < 20_000
        try:
            builder = ReferenceBuilder("fuzz")
            if builder.add_block(json.dumps(members).encode()[1:-1]):
                for kept in builder.finish().keys:
                    assert is_key(kept)
        except ManifestError as e:
            assert len(str(e)) < 20_000
