"""`scan` returns None for unusual JSON, and the exact members of all other JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from refshard_fs.core.columns import NO_TARGET
from refshard_fs.formats.kerchunk_json import blocks as json_blocks
from refshard_fs.references import builder
from refshard_fs.references.json_scan import scan
from tests.support.json_blocks import ARRAY, read, read_entries


@pytest.fixture(autouse=True, params=[(0, 512), (256, 512), (0, 2)], ids=str)
def small_blocks(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Use small blocks, so that the JSON is often cut within a member.

    The chunks of arrays are in columns, or by key, or in columns that are only made at the end.
    """
    small, documents = request.param
    monkeypatch.setattr(builder, "SMALL", small)
    monkeypatch.setattr(builder, "MANY_DOCUMENTS", documents)
    monkeypatch.setattr(builder, "MANY_MEMBERS", 16)
    monkeypatch.setattr(json_blocks, "BLOCK", 512)
    monkeypatch.setattr(json_blocks, "PART", 128)
    monkeypatch.setattr(builder, "FEW", 2)
    monkeypatch.setattr(builder, "BATCH", 8)


def test_small_and_large_numbers_are_exact() -> None:
    sizes = [
        0,
        9,
        10,
        9_999_999,
        10_000_000,
        99_999_999,
        2**32 - 1,
        2**32,
        10**15 - 1,
        10**15,
        10**16,
        2**63,
        2**64 - 2,
    ]
    refs: dict[str, Any] = {"a/.zarray": json.dumps(ARRAY)}
    refs |= {f"a/{i}.{j}": ["u", sizes[i], sizes[-1 - i - j]] for i in range(11) for j in range(2)}
    assert read_entries(read(json.dumps(refs, separators=(",", ":")))) == refs


def test_urls_of_many_lengths_are_distinct() -> None:
    names = ["x" * n + c for n in (0, 1, 6, 7, 8, 9, 15, 16, 17, 40, 600) for c in ("a", "b", "a")]
    refs: dict[str, Any] = {"a/.zarray": json.dumps(ARRAY)}
    refs |= {f"a/{i}.{j}": [names[i], 1, 2] for i in range(33) for j in range(3)}
    found = read(json.dumps(refs, separators=(",", ":")))
    assert read_entries(found) == refs
    assert len(found.urls) == 22


def test_scan_returns_none_for_unusual_json() -> None:
    assert scan(b'"a":["u",1,2]') is not None
    assert scan(b'"a":["u"],"b":["v"]') is not None
    assert scan(b'"a":["u"],"b":["v",1,2]') is not None
    mixed = scan(b'"a":"x\\\\","b":["v",1,2],"c":"\\"","d":["w"]')
    assert mixed is not None
    keys, ranges, _, texts = mixed
    found = zip(
        keys.list_names(), ranges.targets.tolist(), ranges.offsets.tolist(), ranges.lengths.tolist(), strict=True
    )
    assert {key: texts[at : at + size] for key, target, at, size in found if target == NO_TARGET} == {
        "a": b"x\\",
        "c": b'"',
    }
    assert scan(b'"a":["u"]]"b":["v"]') is None
    for block in (
        b'"a":["u",1]',
        b'"a":["u","b",2]',
        b'"a":["u",1,2],"b":"c\\"',
        b'"a":["\\u0075",1,2],"b":"c"',
        b'"a":"b"]',
        b'"a":["u",1,-2]',
        b'"a":["u",,2]',
        b"",
        b'"',
    ):
        assert scan(block) is None
