"""Records of commits to hierarchies: names below the hierarchy, copies where copies are, and the same record again."""

from __future__ import annotations

import json
from contextlib import nullcontext as configured

from refshard_fs.errors import ManifestError
from refshard_fs.formats.zarr_hierarchy.before_commit import Before
from refshard_fs.formats.zarr_hierarchy.commit_record import DIRECTORY, CommitRecord, RecordIndex

__all__ = ["IS_TEXT", "WORDS", "configured", "one_input", "seeds"]

IS_TEXT = True
WORDS = tuple(
    b"""
    "refshard" "commit" "version" "id" "by" "begun" "renewed" "state" "replacing" "done" "kept" "absent" ["a/c/0",3]
    ["a/c/0",null] "../a" ".refshard/commit.json" "/a" "a//b" "a\\\\b" "a/./b" "s3://b/k" "" "\\u0000"
    """.split()
)


def seeds() -> list[bytes]:
    begun = CommitRecord("0123456789abcdef" * 2, "process 1 on a", 1763715600.5, 1763715601.0, "begun")
    kept = (("a/c/0", 12), ("zarr.json", None), ("a/c.1/é", 0))
    replacing = CommitRecord(begun.id, begun.by, 0, 1e9, "replacing", kept, ("b/zarr.json", "b/c/0/0"))
    as_others = json.dumps({**json.loads(replacing.dumps()), "by": "ü"}, indent=1).encode()
    return [begun.dumps(), replacing.dumps(), as_others, CommitRecord(begun.id, "", 0, 0, "done").dumps()]


def one_input(data: bytes) -> None:
    try:
        record = RecordIndex("s3://b/h/.refshard/commit.json").record(data)
    except ManifestError:
        return
    before = Before(record, "s3://b/h")
    names = record.concerns
    assert len(names) == len(record.kept) + len(record.absent)
    for name in names:
        assert not {"", ".", "..", DIRECTORY}.intersection(name.split("/")[:1])
        assert not {"", ".", ".."}.intersection(name.split("/"))
        copy = before.object_of(name)
        assert copy is None or copy == name or copy.startswith(f"{DIRECTORY}/{record.id}/")
    assert RecordIndex("again").record(record.dumps()) == record
