"""ZIP archives of zipfile, Info-ZIP and others: members are keys, and damage is an error or has no effect."""

from __future__ import annotations

import gc
import io
import lzma
import resource
import shutil
import struct
import subprocess
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refshard_fs import ManifestError, ReferenceNotReachable, RefShardError, RefShardFileSystem
from refshard_fs.core.compression import import_zstd
from refshard_fs.core.model import Inline, Load, Packed, Span, Steps
from refshard_fs.formats.zip.directory import Members, decompress_member, parse_tail
from refshard_fs.formats.zip.source import ZipKeySpace
from tests.servers.http import RangeServer
from tests.support.memory import check_peak
from tests.support.zip_archives import URL, make_members, make_zip, open_archive, read_contents

pytestmark = [pytest.mark.usefixtures("large_files"), pytest.mark.case(id="P33")]

DATA = Path(__file__).parents[2] / "data" / "zips"


MEMBERS = make_members()


def parse_members(data: bytes) -> Members:
    found = parse_tail(data[-66_000:], "it", len(data))
    assert isinstance(found, Members)
    return found


def look_up(data: bytes, key: str) -> tuple[Any, list[Any]]:
    """Look up ``key`` in an archive at `URL`. Return its entry, and the needs of the look-up."""
    steps: Steps[Any] = ZipKeySpace(URL, Span(URL, 0, len(data)), parse_members(data)).lookup(key)
    needs: list[Any] = []
    answer = None
    try:
        while True:
            need = steps.send(answer)
            assert isinstance(need, Load)
            assert isinstance(need.entry, Span)
            needs.append(need)
            answer = need.index.decode(data[need.entry.start : need.entry.stop])
    except StopIteration as stop:
        return stop.value, needs


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("piped", [False, True])
@pytest.mark.parametrize("comment", [b"", b"a comment", b"c" * 65535])
def test_members_written_by_zipfile_are_keys(method: int, piped: bool, comment: bytes) -> None:
    fs = open_archive(make_zip(MEMBERS, method, comment, piped=piped))
    assert read_contents(fs) == MEMBERS
    assert fs.info("a/0/x1") == {"name": "a/0/x1", "size": len(MEMBERS["a/0/x1"]), "type": "file"}
    assert fs.ls("a", detail=False) == ["a/0", "a/1", "a/2"]
    assert fs.isdir("a/1")
    assert not fs.exists("a/1/x99")
    assert not fs.exists("a/9")
    assert fs.cat_file("a/2/x3", 1, -1) == MEMBERS["a/2/x3"][1:-1]


@pytest.mark.parametrize("options", ["-0", "-6", "-0 -X", "-0 -D", "-0 -fz", "-6 -fz", "piped -0", "piped -6"])
@pytest.mark.evidence(id="T27")
def test_members_written_by_info_zip_are_keys(options: str, tmp_path: Path) -> None:
    if shutil.which("zip") is None:
        pytest.skip("the command zip is not installed")
    for name, data in MEMBERS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    piped = options.startswith("piped ")
    command = ["zip", "-qr", *options.removeprefix("piped ").split(), "-" if piped else "../out.zip", "a"]
    (tmp_path / "in").mkdir()
    (tmp_path / "a").rename(tmp_path / "in" / "a")
    run = subprocess.run(command, cwd=tmp_path / "in", stdout=subprocess.PIPE, check=True)
    data = run.stdout if piped else (tmp_path / "out.zip").read_bytes()
    assert read_contents(open_archive(data)) == MEMBERS
    entry, needs = look_up(data, "a/1/x1")
    if "-0" in options:
        assert isinstance(entry, Span)
        assert data[entry.start : entry.stop] == MEMBERS["a/1/x1"]
        assert len(needs) == int(piped), "the directory predicts the extra fields"


def test_archives_of_other_writers_are_read_as_by_zipfile() -> None:
    for path in sorted(DATA.glob("*.zip")):
        with zipfile.ZipFile(path) as archive:
            want = {n: archive.read(n) for n in archive.namelist() if not n.endswith("/")}
        assert read_contents(RefShardFileSystem(fo=str(path))) == want, path.name


def test_directory_alone_locates_stored_members() -> None:
    data = make_zip(MEMBERS)
    for key, value in MEMBERS.items():
        entry, needs = look_up(data, key)
        assert isinstance(entry, Span)
        assert (data[entry.start : entry.stop], needs) == (value, [])


def test_local_header_is_read_if_bytes_lie_between_members() -> None:
    parts = [make_zip({"a": b"one"}), make_zip({"b": b"two"})]
    ends = [part.index(b"PK\1\2") for part in parts]
    first = parts[0][: ends[0]]
    body = first + b"left over from a deleted member" + parts[1][: ends[1]]
    second = bytearray(parts[1][ends[1] :])
    second[42:46] = struct.pack("<L", len(body) - ends[1])
    entry_a, entry_b = parts[0][ends[0] :][:47], bytes(second[:47])
    data = body + entry_a + entry_b + b"PK\5\6" + struct.pack("<4H2LH", 0, 0, 2, 2, 94, len(body), 0)
    assert read_contents(open_archive(data)) == {"a": b"one", "b": b"two"}
    assert [len(look_up(data, key)[1]) for key in "ab"] == [1, 0]


def test_extra_field_only_in_the_local_header_is_read() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, archive.open("a", "w", force_zip64=True) as member:
        member.write(b"data")
    entry, needs = look_up(buffer.getvalue(), "a")
    assert len(needs) == 1
    assert buffer.getvalue()[entry.start : entry.stop] == b"data"


def test_self_extracting_archive_is_opened_with_format_zip() -> None:
    data = b"#!/bin/sh\nexit 0\n" + make_zip(MEMBERS)
    with pytest.raises(ManifestError, match="Pass the format with format="):
        open_archive(data).ls("")
    assert read_contents(open_archive(data, format="zip")) == MEMBERS
    assert len(look_up(data, "a/0/x0")[1]) == 1, "other bytes may have been inserted between members, too"


def test_empty_archive_is_an_empty_directory() -> None:
    fs = open_archive(make_zip({}))
    assert fs.find("") == []
    assert fs.isdir("")


@pytest.mark.parametrize(
    ("name", "key"),
    [("../evil", "evil"), ("a/../../b", "b"), ("/abs", "abs"), ("a\\b", "a/b"), ("a//b", "a/b"), ("./a", "./a")],
)
@pytest.mark.case(id="P21")
def test_members_with_invalid_names_are_not_keys(name: str, key: str) -> None:
    plain = "x" * len(name)
    data = make_zip({plain: b"data", "fine": b"1"}).replace(plain.encode(), name.encode())
    fs = open_archive(data)
    assert fs.find("") == ["fine"]
    for path in (name, key):
        with pytest.raises((ManifestError, FileNotFoundError)):
            fs.cat_file(path)
    if key in ("abs", "a/b"):  # other readers make this key of the name, so the key is an error and not missing
        with pytest.raises(ManifestError, match="expected a relative path"):
            fs.cat_file(key)


def test_error_of_an_unreadable_member_has_the_reason() -> None:
    data = make_zip({"a": b"abc", "b": b"bcd"})
    entry = data.index(b"PK\1\2")
    encrypted, packed = bytearray(data), bytearray(data)
    for at in (6, entry + 8):
        encrypted[at] |= 1
    for at in (8, entry + 10):
        packed[at] = 98
    for damaged, reason in ((encrypted, "encrypted"), (packed, r"98 \(PPMd\)")):
        fs = open_archive(bytes(damaged))
        assert fs.find("") == ["a", "b"]
        assert fs.cat_file("b") == b"bcd"
        with pytest.raises(ReferenceNotReachable, match=reason):
            fs.cat_file("a")


def test_deflated_member_is_decompressed_whole_and_checked() -> None:
    data = make_zip({"a": b"text " * 999}, zipfile.ZIP_DEFLATED)
    entry, needs = look_up(data, "a")
    assert isinstance(entry, Packed)
    assert (entry.size, needs) == (4995, [])
    raw = data[entry.source.start : entry.source.stop]
    assert entry.take_window(5, 9).finish([raw]) == b"text"
    for damaged in (raw[:-1], raw[:40] + bytes([raw[40] ^ 1]) + raw[41:], b"PK\3\5" + raw[4:]):
        with pytest.raises(ValueError, match=r"\w"):
            entry.finish([damaged])


def test_member_with_a_false_size_is_refused() -> None:
    data = make_zip({"a": bytes(50_000_000)}, zipfile.ZIP_DEFLATED)
    size, crc = struct.pack("<L", 50_000_000), struct.pack("<L", zlib.crc32(bytes(50_000_000)))
    small = data.replace(size, struct.pack("<L", 10)).replace(crc, struct.pack("<L", zlib.crc32(bytes(10))))
    with pytest.raises(ReferenceNotReachable, match="expected at most 10"):
        open_archive(small).cat_file("a")
    with pytest.raises(ManifestError, match="expected less than"):
        open_archive(data.replace(size, struct.pack("<L", 4_000_000_000))).ls("")


def test_damaged_directory_is_an_error_each_time_without_leak() -> None:
    good = make_zip({"a": b"a" * 100, "b": b"b" * 100})
    end = good.rindex(b"PK\5\6")
    (begin,) = struct.unpack_from("<I", good, end + 16)
    entries, count = good[begin : begin + 47] * 6000, 6000
    data = good[:begin] + entries + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, len(entries), begin, 0)
    fs = open_archive(data)
    gc.collect()
    gc.disable()
    try:
        with check_peak(6 << 20):  # one attempt takes 1 MiB, and the bytes of the archive 0.3 MiB
            for _ in range(10):
                with pytest.raises(ManifestError, match="expected an end up to byte"):
                    fs.cat_file("a")
    finally:
        gc.enable()


SMALL = {"a/b": b"0123456789", "a/c": b"text" * 30, "d": b"x"}
INDEXED = make_zip({k: v for k, v in SMALL.items() if k != "a/c"}, zipfile.ZIP_STORED)
MIXED = make_zip(SMALL, zipfile.ZIP_DEFLATED)


@given(data=st.sampled_from([INDEXED, MIXED]), place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_flipped_bit_gives_an_error_or_the_right_bytes(data: bytes, place: int, bit: int) -> None:
    """Bits that nothing checks are left out: those of names in the directory, and of members without compression."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos = archive.infolist()
        starts = [(info, info.header_offset + 30) for info in infos]
        unchecked = [range(start, start + len(info.filename) + info.compress_size) for info, start in starts]
        start = archive.start_dir
    for info in infos:
        unchecked.append(range(start + 46, start + 46 + len(info.filename)))
        start += 46 + len(info.filename)
    place %= len(data)
    if any(place in span for span in unchecked) and data is INDEXED:
        return
    damaged = bytearray(data)
    damaged[place] ^= 1 << bit
    try:
        fs = open_archive(bytes(damaged), format="zip")
        names = fs.find("")
    except RefShardError:
        return
    for name in names:
        if name not in SMALL:
            continue
        try:
            got = fs.cat_file(name)
        except (RefShardError, FileNotFoundError):
            continue
        assert got == SMALL[name]


def test_opening_takes_two_requests_and_reading_few(http_server: RangeServer) -> None:
    members = make_members(3, 60_000)
    url = http_server.put("/a.zip", make_zip(members))
    fs = RefShardFileSystem(fo=url)
    assert sorted(fs.find("")) == sorted(members)
    gets = [r for r in http_server.requests() if r.method == "GET"]
    assert len(gets) == 2, "the first bytes, to recognise the archive, and the last ones"
    http_server.clear()
    assert fs.cat(list(members)) == members
    total = sum(map(len, members.values()))
    sent = http_server.bytes_sent
    assert sent < 1.05 * total + 20_000
    assert len(http_server.requests()) <= 2 + total // 500_000
    http_server.clear()
    assert fs.cat_ranges(["a/0/x1", "a/0/x1"], [10, 30], [20, 40]) == [
        members["a/0/x1"][10:20],
        members["a/0/x1"][30:40],
    ]
    assert len(http_server.requests()) == 1


@pytest.mark.usefixtures("large_files")
def test_each_local_header_is_requested_only_once(http_server: RangeServer) -> None:
    members = make_members(4, 40_000)
    fs = RefShardFileSystem(fo=http_server.put("/a.zip", make_zip(members, piped=True)))
    keys = ["a/0/x0", "a/1/x5", "a/2/x11"]
    fs.find("")
    http_server.clear()
    assert fs.cat(keys) == {key: members[key] for key in keys}
    sizes = sorted((r.stop or 0) - (r.start or 0) for r in http_server.requests())
    assert sizes == sorted([*(30 + len(key) + 16 for key in keys), *(len(members[key]) for key in keys)])
    http_server.clear()
    assert fs.cat(keys) == {key: members[key] for key in keys}
    assert len(http_server.requests()) == len(keys)


def test_large_directory_takes_a_separate_request(http_server: RangeServer) -> None:
    members = {f"group/array/c/{i}/{j}": b"%d" % i for i in range(40) for j in range(40)}
    data = make_zip(members)
    fs = RefShardFileSystem(fo=http_server.put("/a.zip", data))
    assert len(fs.find("")) == 1600
    ranges = [(r.start, r.stop) for r in http_server.requests() if r.method == "GET"]
    assert len(ranges) == 3
    assert ranges[2] == (data.index(b"PK\1\2"), len(data) - 22)
    assert fs.cat_file("group/array/c/39/0") == b"39"
    assert len(fs.ls("group/array/c")) == 40


def test_member_of_a_replaced_archive_is_an_error(http_server: RangeServer) -> None:
    url = http_server.put("/a.zip", make_zip(MEMBERS))
    fs = RefShardFileSystem(fo=url)
    assert fs.cat_file("a/0/x0") == MEMBERS["a/0/x0"]
    http_server.put("/a.zip", make_zip(make_members(9)))
    with pytest.raises(ReferenceNotReachable):
        fs.cat_file("a/1/x5")
    again = RefShardFileSystem(fo=url, skip_instance_cache=True)
    assert again.cat_file("a/1/x5") == make_members(9)["a/1/x5"]


def test_member_of_an_archive_in_memory_is_inline() -> None:
    data = make_zip({"a": b"one"})
    keyspace = ZipKeySpace("it", Inline(data), parse_members(data))
    with pytest.raises(StopIteration) as found:
        next(keyspace.lookup("a"))
    assert found.value.value == Inline(b"one")


TEXT = b"".join(b"line %d of the text\n" % (i % 97) for i in range(5000))


def make_archive(number: int, data: bytes) -> bytes:
    """Return an archive of one member ``a``, compressed by the method ``number``."""
    if number in (12, 14):
        return make_zip({"a": data}, number)
    packed = lzma.compress(data) if number == 95 else import_zstd().compress(data)
    archive = bytearray(make_zip({"a": packed}))
    entry = archive.index(b"PK\1\2")
    for method, numbers in ((8, 14), (entry + 10, entry + 16)):
        struct.pack_into("<H", archive, method, number)
        struct.pack_into("<LLL", archive, numbers, zlib.crc32(data), len(packed), len(data))
    return bytes(archive)


@pytest.mark.parametrize("number", [12, 14, 20, 93, 95])
def test_members_of_bzip2_lzma_zstd_and_xz_are_read_and_checked(number: int) -> None:
    data = make_archive(number, TEXT)
    fs = open_archive(data)
    assert fs.cat_file("a") == TEXT
    assert fs.cat_file("a", 5, 90) == TEXT[5:90]
    assert fs.size("a") == len(TEXT)
    for at in range(52, data.index(b"PK\1\2"), 41):
        damaged = bytearray(data)
        damaged[at] ^= 0x11
        with pytest.raises(ReferenceNotReachable):
            open_archive(bytes(damaged)).cat_file("a")


@pytest.mark.parametrize("number", [12, 14, 93, 95])
def test_member_decompresses_at_most_to_its_stated_size(number: int) -> None:
    data = bytearray(make_archive(number, TEXT))
    for at in (22, data.index(b"PK\1\2") + 24):
        struct.pack_into("<L", data, at, 1000)
    with pytest.raises(ReferenceNotReachable, match="expected at most 1000"):
        open_archive(bytes(data)).cat_file("a")


def test_stated_dictionary_size_is_not_allocated() -> None:
    filters = [{"id": lzma.FILTER_LZMA1, "dict_size": 1 << 16}]
    packed = struct.pack("<2xHBL", 5, 93, 0xFFFFFFFF) + lzma.compress(TEXT, lzma.FORMAT_RAW, filters=filters)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert decompress_member(14, packed, len(TEXT), zlib.crc32(TEXT)) == TEXT
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10  # KiB
