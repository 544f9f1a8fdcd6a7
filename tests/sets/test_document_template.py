"""Documents of similar sets are compared instead of parsed, with the same result."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refshard_fs.formats.kerchunk_json.source import parse, parse_document
from refshard_fs.references.reference_set import References
from refshard_fs.sets.document_template import DocumentTemplate, Members, decode_members

META = {"zarr_format": 2, "shape": [6], "chunks": [1], "dtype": "|u1", "order": "C", "fill_value": 0}
ARRAY = json.dumps(META | {"filters": None, "compressor": None})
FIRST: dict[str, Any] = {
    ".zgroup": '{"zarr_format": 2}',
    "a/.zarray": ARRAY,
    "a/.zattrs": "{}",
    "a/0": ["s3://b/0", 0, 10],
    "a/1": ["s3://b/0", 10, 10],
    "a/2": "base64:AA==",
    "b/.zarray": ARRAY,
    "b/5": ["s3://b/1", 0, 10],
    "b/3": ["s3://b/0", 7, 9],
}


def parse_members(document: Any) -> Members:
    found = decode_members(document)
    assert found is not None
    return found


def make_template() -> DocumentTemplate:
    found = DocumentTemplate.of(parse_members(FIRST), parse_document(FIRST, "first", {}))
    assert found is not None
    return found


urls = st.sampled_from(["s3://b/0", "s3://c/1", "é", "http://x/{{u}}", ""])
numbers = st.sampled_from([0, 1, 5, 2**62, 2**63, -1, True, 1.0, "1", None])
values = st.one_of(
    st.tuples(urls, numbers, numbers).map(list),
    st.tuples(urls).map(list),
    st.sampled_from(["abc", "base64:AQ==", None, {"x": 1}, ["s3://b", 1], [None, 0, 1], 7]),
)


@given(st.dictionaries(st.sampled_from(sorted(FIRST)), values, max_size=3))
def test_document_read_by_template_equals_parsed_document(changes: dict[str, Any]) -> None:
    other = {"version": 1, "refs": {**FIRST, **changes}}
    for document, parsed in (
        (other, lambda: parse_document(other, "x", {})),
        (json.dumps(other).encode(), lambda: parse(json.dumps(other).encode(), "x", {})),
    ):
        given_members = decode_members(document)
        found = None if given_members is None else make_template().read(given_members)
        if found is not None:
            assert dict(References(found)) == dict(References(parsed()))


def test_document_with_other_ranges_is_read_by_template() -> None:
    other = {**FIRST, "a/0": ["s3://new/0", 5, 6], "a/.zattrs": '{"title": "x"}', "a/2": "base64:AQ=="}
    found = make_template().read(parse_members(other))
    assert found is not None
    assert dict(References(found)) == dict(References(parse_document(other, "x", {})))


@pytest.mark.parametrize(
    "other",
    [
        {**FIRST, "a/.zarray": ARRAY.replace("[1]", "[2]")},
        {key: value for key, value in FIRST.items() if key != "b/3"},
        {**FIRST, "b/4": ["s3://b/0", 7, 9]},
        dict(reversed(FIRST.items())),
        {**FIRST, "a/0": ["{{u}}", 0, 1]},
        {**FIRST, "a/0": "data"},
        {**FIRST, "a/0": ["s3://b/0"]},
        {**FIRST, "a/0": ["s3://b/0", -1, 1]},
        {**FIRST, "a/0": [None, 0, 1]},
    ],
)
def test_documents_that_do_not_fit_are_not_read_by_template(other: dict[str, Any]) -> None:
    found = decode_members(other)
    assert found is None or make_template().read(found) is None


@pytest.mark.parametrize(
    "document",
    [
        {"version": 1, "templates": {"u": "s3://b"}, "refs": {}},
        {"version": 1, "gen": [{}], "refs": {}},
        {"version": 2, "refs": {}},
        {"refs": {}},
        {"version": 1, "refs": {}, "unknown": 1},
        [1],
    ],
)
def test_decode_members_is_none_for_other_documents(document: Any) -> None:
    assert decode_members(document) is None
    assert decode_members(json.dumps(document).encode()) is None
