"""The directory of a ZIP: sorted names, names in other encodings, and directories that contradict the archive."""

from __future__ import annotations

import bisect
import io
import struct
import zipfile
import zlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refshard_fs import ManifestError, RefShardError
from refshard_fs.core.model import Load, Span
from refshard_fs.formats.zip.directory import Members, SortedNames, parse_tail
from refshard_fs.formats.zip.source import ZipKeySpace
from tests.support.zip_archives import URL, make_members, make_zip, open_archive, read_contents

name = st.text(st.sampled_from("ab/é\x01"), min_size=1, max_size=26).map(str.encode)


def sort_names(names: Sequence[bytes]) -> tuple[SortedNames, list[int]]:
    found, order, repeated = SortedNames.sort(names)
    assert repeated == {name for name in names if names.count(name) > 1}
    return found, order


@given(st.lists(name, max_size=30))
def test_names_are_sorted_and_the_last_of_equal_ones_is_kept(names: list[bytes]) -> None:
    found, order = sort_names(names)
    want = sorted(set(names))
    assert [found[i] for i in range(len(found))] == want
    assert [names[i] for i in order] == want
    assert order == [len(names) - 1 - names[::-1].index(n) for n in want]


@given(st.lists(name, max_size=30), name)
def test_name_is_found_at_its_index(names: list[bytes], wanted: bytes) -> None:
    found, _ = sort_names(names)
    ordered = sorted(set(names))
    place = bisect.bisect_left(ordered, wanted)
    assert found.find(wanted) == (place if wanted in names else None)
    assert [found.find(n) for n in ordered] == list(range(len(ordered)))


@given(st.lists(name, max_size=30), st.sampled_from([b"", b"a/", b"b/a/", b"ab/", "é/".encode()]))
def test_list_children_returns_members_and_subdirectories(names: list[bytes], directory: bytes) -> None:
    found, _ = sort_names(names)
    below = [n for n in sorted(set(names)) if n.startswith(directory)]
    assert [found[i] for i in found.find_below(directory)] == below
    tails = [n[len(directory) :].partition(b"/") for n in below]
    want = {(head, bool(slash)) for head, slash, _ in tails if head}
    children = list(found.list_children(directory))
    assert {(head, place is None) for head, place in children} == want
    assert len(children) == len(want)
    assert all(found[place] == directory + head for head, place in children if place is not None)


def test_long_names_with_equal_beginnings_are_sorted() -> None:
    names = [b"x" * 60_000 + bytes([97 + i]) for i in (2, 0, 1)]
    assert sort_names(names)[1] == [1, 2, 0]


def test_last_of_equal_members_is_read() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a", "old")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a", "new")
        archive.writestr("b", "other")
    assert read_contents(open_archive(buffer.getvalue())) == {"a": b"new", "b": b"other"}


def test_names_that_are_not_ascii_are_decoded() -> None:
    data = make_zip({"Käse/Å": b"1"})
    assert read_contents(open_archive(data)) == {"Käse/Å": b"1"}
    old = make_zip({"K?se": b"2"}).replace(b"K?se", b"K\x84se")  # in code page 437, without the flag for UTF-8
    assert read_contents(open_archive(old)) == {"Käse": b"2"}


def test_truncated_archive_is_refused() -> None:
    data = make_zip(make_members(2, 50), comment=b"end")
    for cut in [1, 2, 3, 4, 10, 24, 25, 26, 100, len(data) // 2, len(data) - 5]:
        with pytest.raises(RefShardError):
            open_archive(data[:-cut], format="zip").ls("")
    for start, stop in [(0, 5), (100, 101), (len(data) - 200, len(data) - 150)]:
        with pytest.raises(RefShardError):
            open_archive(data[:start] + data[stop:], format="zip").ls("")


def test_archive_with_two_end_records_is_refused() -> None:
    inner = make_zip({"a": b"another"})
    with pytest.raises(ManifestError, match="2 valid end records"):
        open_archive(make_zip({"a": b"one"}, comment=inner)).ls("")


def test_members_that_overlap_are_refused() -> None:
    data = bytearray(make_zip({"a": b"0123", "b": b"4567"}))
    second = data.index(b"PK\1\2", data.index(b"PK\1\2") + 1)
    data[second + 42 : second + 46] = struct.pack("<L", 20)
    with pytest.raises(ManifestError, match="expected an end up to byte"):
        open_archive(bytes(data)).ls("")


def test_parts_of_a_split_archive_are_refused() -> None:
    data = bytearray(make_zip({"a": b"0123"}))
    data[-18] = 1
    with pytest.raises(ManifestError, match="several disks"):
        open_archive(bytes(data)).ls("")


def test_archive_of_more_than_65535_members_is_read() -> None:
    names = [f"a/{i}" for i in range(66_000)]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name), b"")
    assert b"PK\6\6" in buffer.getvalue()[-200:]
    fs = open_archive(buffer.getvalue())
    assert len(fs.ls("a")) == len(names)
    assert fs.cat_file("a/65999") == b""


def test_members_beyond_4_gib_are_located_by_zip64_fields() -> None:
    size, start = 5_000_000_000, 6_000_000_000
    entry = struct.Struct("<4sHHHHHHLLLHHHHHLL")
    full = 0xFFFFFFFF
    wide = struct.pack("<HHQQ", 1, 16, size, size)
    far = struct.pack("<HHQ", 1, 8, size + 51)
    directory = b"".join(
        [
            entry.pack(b"PK\1\2", 45, 45, 0, 0, 0, 0, 1, full, full, 1, len(wide), 0, 0, 0, 0, 0) + b"a" + wide,
            entry.pack(b"PK\1\2", 45, 45, 0, 0, 0, 0, 1, 9, 9, 1, len(far), 0, 0, 0, 0, full) + b"b" + far,
        ]
    )
    record = struct.pack("<4sQHHLLQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, 2, 2, len(directory), start)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, start + len(directory), 1)
    short = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, full, full, 0)
    tail = directory + record + locator + short
    whole = start + len(tail)
    found = parse_tail(bytes(66_560 - len(tail)) + tail, "it", whole)
    assert isinstance(found, Members)
    keyspace = ZipKeySpace(URL, Span(URL, 0, whole), found)
    with pytest.raises(StopIteration) as entry_a:
        next(keyspace.lookup("a"))  # the bytes up to the next member prove that its local header has a zip64 field
    assert entry_a.value.value == Span(URL, 51, 51 + size)
    need = next(keyspace.lookup("b"))  # the length of its local header is uncertain
    assert isinstance(need, Load)
    assert isinstance(need.entry, Span)
    assert need.entry.start == size + 51
    for broken in (tail.replace(far, struct.pack("<HHL", 9, 8, 0) + far[8:]), tail.replace(locator[4:16], bytes(12))):
        with pytest.raises(ManifestError):
            parse_tail(bytes(66_560 - len(tail)) + broken, "it", whole)


def test_large_directory_takes_less_than_70_bytes_a_member() -> None:
    names = [f"a/{i // 100}/{i % 100}" for i in range(20_000)]
    members = parse_archive_of(names)
    assert isinstance(members, Members)
    assert members.nbytes < 70 * len(names)
    assert [members.names[i].decode() for i in range(len(names))] == sorted(names)


def parse_archive_of(names: list[str]) -> Members:
    """Parse an archive of empty members with these names."""
    parts, start = [], 0
    for name in names:
        head = struct.pack(
            "<4sHHHHHHLLLHHHHHLL", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, len(name), 0, 0, 0, 0, 0, start
        )
        parts.append(head + name.encode())
        start += 30 + len(name)
    directory = b"".join(parts)
    end = b"PK\5\6" + struct.pack("<4H2LH", 0, 0, len(names), len(names), len(directory), start, 0)
    found = parse_tail(bytes(start) + directory + end, "it", None)
    assert isinstance(found, Members)
    return found


def make_archive(name: bytes, extra: bytes = b"") -> bytes:
    """Return an archive of one stored member, with these bytes as its name in both headers."""
    size, crc = len(name), zlib.crc32(b"data")
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 0, crc, 4, 4, size, 0) + name + b"data"
    entry = struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 0, 0, 0, crc, 4, 4, size, len(extra), 0, 0, 0, 0, 0)
    directory = entry + name + extra
    return local + directory + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(directory), len(local), 0)


def make_unicode_path(name: bytes, path: str) -> bytes:
    text = path.encode()
    return struct.pack("<2HBL", 0x7075, 5 + len(text), 1, zlib.crc32(name)) + text


@pytest.mark.parametrize("name", [b"?????.bin", b"\x81\x82.bin", b"plain.bin"])
def test_unicode_path_is_used_if_its_checksum_matches(name: bytes) -> None:
    fs = open_archive(make_archive(name, make_unicode_path(name, "größe.bin")))
    assert fs.find("") == ["größe.bin"]
    assert fs.cat_file("größe.bin") == b"data"
    other = open_archive(make_archive(name, make_unicode_path(b"renamed since", "größe.bin")))
    assert other.find("") == [name.decode("cp437")]
    assert other.cat_file(name.decode("cp437")) == b"data"


@pytest.mark.parametrize("name", [b"a/b\0hidden", b"a/b\0", b"a/b\0\0c/d"])
def test_name_is_cut_at_nul_as_by_zipfile(name: bytes) -> None:
    data = make_archive(name)
    with zipfile.ZipFile(io.BytesIO(data)) as theirs:
        assert theirs.namelist() == ["a/b"]
    fs = open_archive(data)
    assert fs.find("") == ["a/b"]
    assert fs.cat_file("a/b") == b"data"
