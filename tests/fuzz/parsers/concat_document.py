"""Read documents of cubes: they are written again unchanged, and parts have lengths, or a ManifestError is raised."""

from __future__ import annotations

import json
from contextlib import nullcontext as set_up
from itertools import pairwise

from refshard_fs.cubes.document import ConcatDocument
from refshard_fs.errors import ManifestError

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = True
WORDS = tuple(
    b"""
    "refshard" "concat" "dim" "axes" "sets" "length" "coordinate" ["u",3] ["u",3,"base64:AAEC"] "time" {"t":0}
    """.split()
)


def make_seeds() -> list[bytes]:
    plain = {
        "refshard": "concat",
        "dim": "time",
        "axes": {"a": 0, "g/b": 1},
        "sets": [["s3://b/1", 3], ["s3://b/2", 4]],
    }
    equal = {**plain, "sets": ["one.json", "two.json"], "length": 5}
    valued = {
        **plain,
        "axes": {"time": 0},
        "coordinate": "time",
        "sets": [["x", 2, "base64:AAECAw=="], ["é", 1, "AAE="]],
    }
    return [json.dumps(document).encode() for document in (plain, equal, valued)]


def check_input(data: bytes) -> None:
    try:
        document = ConcatDocument.read(data, "join.json")
    except ManifestError:
        return
    starts = document.starts
    assert len(starts) == len(document.pieces) + 1
    assert all(start < stop for start, stop in pairwise(starts))
    assert all(axis >= 0 for axis in document.axes.values())
    spelled = document.dumps()
    assert ConcatDocument.read(spelled, "again").dumps() == spelled
