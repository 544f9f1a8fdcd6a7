"""The record of a commit under way: read strictly, since what it says is put back over what there is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from refshard_fs import ManifestError
from refshard_fs.core.model import Listed, Names
from refshard_fs.formats.zarr_hierarchy.before_commit import Before
from refshard_fs.formats.zarr_hierarchy.commit_record import MOST, CommitRecord, RecordIndex
from refshard_fs.security.policy import locator

WHERE = "s3://b/h/.refshard/commit.json"
ID = "0123456789abcdef" * 2
RECORD = CommitRecord(ID, "process 7 on host", 1.0, 2.0, "replacing", (("a/c/0", 5), ("a/c/1", None)), ("b/c/0", "a/x"))


def spelled(**changes: Any) -> bytes:
    return json.dumps({**json.loads(RECORD.dumps()), **changes}).encode()


def test_a_record_is_read_as_it_was_written() -> None:
    assert RecordIndex(WHERE).record(RECORD.dumps()) == RECORD
    assert json.loads(RECORD.dumps()) == {
        "id": ID,
        "by": "process 7 on host",
        "begun": 1.0,
        "renewed": 2.0,
        "state": "replacing",
        "kept": [["a/c/0", 5], ["a/c/1", None]],
        "absent": ["b/c/0", "a/x"],
        "refshard": "commit",
        "version": 1,
    }


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"<html>",
        RECORD.dumps()[:-1],
        RECORD.dumps() + b" {}",
        spelled(version=2),
        RECORD.dumps().replace(b'"version":1', b'"version":1.5'),
        RECORD.dumps().replace(b',"version":1', b""),
        RECORD.dumps().replace(b'"refshard":"commit",', b""),
        spelled(state="other"),
        spelled(more=1),
        spelled(id=ID[:-1]),
        spelled(id=ID + "\n"),
        spelled(id="../" + ID[3:]),
        spelled(kept=[["a", -1]]),
        spelled(kept=[["a", 1, 2]]),
        spelled(kept=[["a", 1], ["a", 1]]),
        spelled(kept=[["a", 1]], absent=["a"]),
        *(
            spelled(absent=[name])
            for name in ("", ".", "..", "../a", "a/../../b", "/a", "a/", "a//b", "a/./b", "a\\b", "a\0b", "s3://b/k")
        ),
        *(spelled(kept=[[name, 1]]) for name in (".refshard", ".refshard/x", ".refshard/commit.json")),
    ],
)
def test_what_is_no_record_is_an_error_that_names_it(data: bytes) -> None:
    with pytest.raises(ManifestError, match=WHERE):
        RecordIndex(WHERE).record(data)


def test_a_page_is_no_record_where_nothing_tells_that_there_is_one() -> None:
    assert RecordIndex(WHERE, listed=False).decode(b"\n<html>") is None
    with pytest.raises(ManifestError):
        RecordIndex(WHERE).decode(b"\n<html>")
    assert RecordIndex(WHERE, listed=False).decode(RECORD.dumps()) == RECORD


def test_a_record_has_a_bound() -> None:
    with pytest.raises(ManifestError, match="at most"):
        RecordIndex(WHERE).record(bytes(MOST + 1))


def listed(before: Before, there: dict[str, list[Listed]], prefix: str) -> Any:
    steps = before.listed(locator("s3://b/h"), prefix)
    answer = None
    while True:
        try:
            need = steps.send(answer)
        except StopIteration as stop:
            return None if stop.value is None else sorted((one.name, one.size) for one in stop.value)
        assert isinstance(need, Names)
        answer = there.get(need.url.removeprefix("s3://b/h").strip("/"))


def test_listings_are_those_of_before() -> None:
    there = {
        "": [Listed(".refshard", None, True), Listed("b", None, True), Listed("z", 1)],
        "b": [Listed("c", None, True)],
        "b/c": [Listed("0", 9)],
    }
    before = Before(RECORD, "s3://b/h")
    assert listed(before, there, "") == [("a", None), ("z", 1)]
    assert listed(before, there, "a") == [("c", None)], "it is there no more"
    assert listed(before, there, "a/c") == [("0", 5), ("1", None)]
    assert listed(before, there, "b") is None, "it was not there"
    assert listed(before, there, "b/c") is None
    there["b/c"].append(Listed("1", 9))
    assert listed(before, there, "b") == [("c", None)]
    assert listed(before, there, "b/c") == [("1", 9)]


@pytest.mark.parametrize("state", ["begun", "done"])
def test_a_record_that_replaces_nothing_changes_nothing(state: Any) -> None:
    before = Before(CommitRecord(ID, "", 1, 1, state, RECORD.kept, RECORD.absent), "s3://b/h")
    assert before.is_nothing
    assert before.object_of("a/c/0") == "a/c/0"
    before.check_settled()
