"""A damaged shard (truncated, with flipped bits or forged counts) raises an error that names shard and array."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refshard_fs import DamagedIndex, ReferenceNotReachable
from refshard_fs.sharding.index import OffsetsLevel
from tests.support.shard_writers import ONES, make_indexed_shard, open_source
from tests.support.shards_by_hand import META_2, make_metadata, make_pairs, make_shard

pytestmark = pytest.mark.case(id="P33")

CHUNKS = {0: b"A" * 10, 1: b"B" * 20, 3: b"D" * 7}  # of 4; slot 2 is empty
SHARD_2 = make_indexed_shard(CHUNKS, 4)


KINDS = {
    "v2": (META_2, ".zarray", "0", SHARD_2),
    **{
        f"v3-{location}{'-checked' * checked}": (
            make_metadata(location=location, checked=checked),
            "zarr.json",
            "c/0",
            make_shard(
                [(first, 10), (first + 10, 20), (ONES, ONES), (first + 30, 7)],
                b"A" * 10 + b"B" * 20 + b"D" * 7,
                location=location,
                checked=checked,
            ),
        )
        for location in ("start", "end")
        for checked in (False, True)
        for first in ((64 + 4 * checked) if location == "start" else 0,)
    },
}


def source(folder: Path, kind: str, content: bytes, *, sized: bool) -> tuple[Any, str]:
    """Return a source of the array ``a`` with one shard, ``content``: references if ``sized``, or a hierarchy."""
    meta, name, shard, _ = KINDS[kind]
    file = folder / "a" / shard
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    if sized:
        return open_source({f"a/{name}": json.dumps(meta), f"a/{shard}": [f"file://{file}", 0, len(content)]}), shard
    (folder / "a" / name).write_text(json.dumps(meta))
    (folder / ".zgroup").write_text('{"zarr_format": 2}')
    fs = open_source(folder)
    fs.invalidate_cache()  # examples write the same file within one tick of its clock
    return fs, shard


def key(shard: str, slot: int) -> str:
    return f"a/{shard[:-1]}{slot}"


def outcome(fs: Any, name: str) -> bytes | str | None:
    """Read a key: return its bytes, None if it is missing, or "error" for an error that names it."""
    try:
        data: bytes = fs.cat_file(name)
    except FileNotFoundError:
        return None
    except ReferenceNotReachable as e:
        return "error" if e.key == name else f"the error of {e.key}"
    return data


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_undamaged_shards_are_read(tmp_path: Path, kind: str, sized: bool) -> None:
    fs, shard = source(tmp_path, kind, KINDS[kind][3], sized=sized)
    for slot, data in CHUNKS.items():
        assert fs.cat_file(key(shard, slot)) == data
    assert not fs.exists(key(shard, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_of_truncated_shards_are_right_or_errors(tmp_path: Path, kind: str) -> None:
    whole = KINDS[kind][3]
    for size in range(len(whole) - 1, -1, -2):
        fs, shard = source(tmp_path, kind, whole[:size], sized=True)
        for slot, data in CHUNKS.items():
            got = outcome(fs, key(shard, slot))
            if got != "error":
                assert got == data, size
                assert kind.startswith("v3-start")  # then the index is complete, and so are the chunks before the cut
        if not kind.startswith("v3-start"):
            with pytest.raises(DamagedIndex, match=f"shard 'a/{shard}' of array 'a'"):
                fs.cat_file(key(shard, 0))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_flipped_bit_of_a_checked_index_is_found(tmp_path: Path, data: Any) -> None:
    kind = data.draw(st.sampled_from(["v3-start-checked", "v3-end-checked"]))
    whole = bytearray(KINDS[kind][3])
    at = data.draw(st.integers(0, 68 * 8 - 1))
    first = 0 if "start" in kind else len(whole) - 68
    whole[first + at // 8] ^= 1 << at % 8
    fs, shard = source(tmp_path, kind, bytes(whole), sized=data.draw(st.booleans()))
    for slot in range(4):  # also the missing chunk: a damaged index does not show that it is missing
        with pytest.raises(DamagedIndex, match="checksum"):
            fs.cat_file(key(shard, slot))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_random_index_gives_ranges_of_the_shard_or_errors(tmp_path: Path, data: Any) -> None:
    number = st.one_of(st.integers(0, 120), st.sampled_from([ONES, ONES - 1, 2**63, 2**63 - 1, 2**32]))
    pairs = data.draw(st.lists(st.tuples(number, number), min_size=4, max_size=4))
    location = data.draw(st.sampled_from(["start", "end"]))
    payload = bytes(range(1, 38))
    content = make_shard(pairs, payload, location=location, checked=False)
    fs, shard = source(tmp_path, f"v3-{location}", content, sized=data.draw(st.booleans()))
    for slot, (offset, length) in enumerate(pairs):
        got = outcome(fs, key(shard, slot))
        if got is None:
            assert (offset, length) == (ONES, ONES)
        elif got != "error":
            assert got == content[offset : offset + length]
            assert len(got) == length


@pytest.mark.parametrize(
    ("at_end", "rows", "reason"),
    [
        (True, [(0, 69), (ONES, ONES)], r"slot 0 .* \[0, 69\): expected a range within \[0, 68\)"),
        (True, [(ONES, ONES), (69, 0)], "slot 1"),
        (True, [(2**63, 2**63), (ONES, ONES)], "slot 0"),
        (True, [(5, ONES - 3), (ONES, ONES)], "slot 0"),
        (True, [(ONES, 5), (ONES, ONES)], "slot 0 of its index is half empty"),
        (True, [(ONES, ONES), (5, ONES)], "slot 1 of its index is half empty"),
        (False, [(31, 5), (ONES, ONES)], r"expected a range within \[32, 100\)"),
        (False, [(40, 61), (ONES, ONES)], r"expected a range within \[32, 100\)"),
    ],
)
def test_chunks_outside_the_shard_or_in_its_index_are_errors(at_end: bool, rows: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        OffsetsLevel(2, at_end=at_end).table(make_pairs(*rows), 100)


def test_chunks_may_overlap_leave_gaps_or_be_empty() -> None:
    table = OffsetsLevel(4).table(make_pairs((0, 36), (10, 26), (36, 0), (0, 0)), 100)
    assert [table.locate(slot) for slot in range(4)] == [(0, 36), (10, 26), (36, 0), (0, 0)]


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.case(id="P26")
def test_forged_count_allocates_little_memory(tmp_path: Path, sized: bool) -> None:
    fs, _ = source(tmp_path, "v2", SHARD_2, sized=sized)
    forged = json.dumps({**META_2, "shape": [2**40], "shards": [2**24]})  # an index of 256 MiB
    if sized:
        fs = open_source({"a/.zarray": forged, "a/0": [f"file://{tmp_path}/a/0", 0, len(SHARD_2)]})
    else:
        (tmp_path / "a/.zarray").write_text(forged)
        fs.invalidate_cache()
    tracemalloc.start()
    try:
        with pytest.raises(DamagedIndex, match="'a/0'"):
            fs.cat_file("a/0")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("status", [403, 500, 503])
def test_unreachable_shard_is_not_a_missing_chunk(http_server: Any, status: int) -> None:
    http_server.put("/a/.zarray", json.dumps(META_2).encode())
    http_server.put("/a/0", SHARD_2)
    fs = open_source(f"{http_server.url}/a", retries=0)
    fs.cat_file(".zarray")
    http_server.fault(status, "/a/0")
    for slot in range(4):
        with pytest.raises(ReferenceNotReachable):
            fs.cat_file(str(slot))
    http_server.heal()
    assert fs.cat_file("1") == CHUNKS[1]
    assert not fs.exists("2")


@pytest.mark.parametrize("kind", ["ignored_range", "short_body", "long_body", "wrong_content_range"])
def test_faulty_answer_for_an_index_gives_no_wrong_chunk(http_server: Any, kind: Any) -> None:
    http_server.put("/a/.zarray", json.dumps(META_2).encode())
    http_server.put("/a/0", SHARD_2)
    fs = open_source(f"{http_server.url}/a", retries=0)
    fs.cat_file(".zarray")
    http_server.fault(kind, "/a/0")
    assert outcome(fs, "1") in ("error", CHUNKS[1])
    assert outcome(fs, "2") in ("error", None)
