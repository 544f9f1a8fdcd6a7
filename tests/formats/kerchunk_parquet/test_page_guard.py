"""Parquet files whose page headers state larger sizes than the pages have are refused before memory is allocated."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

from refshard_fs.core.columns import Row  # noqa: E402  # after importorskip
from refshard_fs.formats.kerchunk_parquet import page_guard  # noqa: E402  # pyarrow may be missing
from refshard_fs.formats.kerchunk_parquet.page_guard import DamagedParquet, ThriftReader  # noqa: E402
from refshard_fs.formats.kerchunk_parquet.partition import PartitionIndex  # noqa: E402  # after importorskip
from tests.support.parquet_forging import (  # noqa: E402  # after importorskip
    DATA_V2,
    DICTIONARY,
    Found,
    encode_varint,
    forge,
    list_pages,
    make_partition,
)

MIB = 1 << 20
INDEX = PartitionIndex(8, 8)
WRITTEN: tuple[dict[str, Any], ...] = tuple(
    {"compression": compression, "data_page_version": version, "use_dictionary": use_dictionary}
    for compression, version, use_dictionary in itertools.product(
        ("zstd", "snappy", "gzip", "none"), ("1.0", "2.0"), (True, False)
    )
)


def forge_files() -> Iterator[tuple[str, bytes]]:
    """Yield (description, file) with one forged page header, which states 2 GiB, a billion values, or both."""
    for options in WRITTEN:
        data = make_partition(**options)
        for column in ("path", "offset", "size", "raw"):
            for found in list_pages(data, column):
                for decoded_size, fields in ((2**31 - 1, {}), (None, {1: 2**30}), (2**31 - 1, {1: 2**28})):
                    if has_room(found, decoded_size, fields):
                        what = f"{options}: {column}, a page of kind {found.page.kind} with {decoded_size}, {fields}"
                        yield what, forge(data, found, decoded_size, fields)


def has_room(found: Found, decoded_size: int | None, fields: dict[int, int]) -> bool:
    """Return whether the header has room for these numbers; the header of a dictionary has room for one of them."""
    return found.page.kind != DICTIONARY or decoded_size is None or not fields


def test_pages_of_valid_files_are_parsed() -> None:
    for options in WRITTEN:
        data = make_partition(**options)
        assert len(INDEX.decode(data)) == 8
        kinds = [found.page.kind for found in list_pages(data, "path")]
        assert kinds == [DICTIONARY] * options["use_dictionary"] + [DATA_V2 * (options["data_page_version"] == "2.0")]


@pytest.mark.case(id="P27")
def test_page_with_a_false_size_is_refused() -> None:
    seen = 0
    for what, data in forge_files():
        with pytest.raises(ValueError, match=r"pages up to this column decode to|a page of .* bytes has"):
            raise AssertionError(f"{what}: decoded to {INDEX.decode(data)}")
        seen += 1
    assert seen > 200


@pytest.mark.case(id="P27")
def test_forged_page_sizes_take_little_memory() -> None:
    """The files are decoded in another process, because Arrow and Python report the peak memory of a whole process."""
    code = "from tests.formats.kerchunk_parquet import test_page_guard as t; t.print_peak_memory()"
    ran = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], capture_output=True, check=True)
    assert int(ran.stdout) < 16 * MIB


def print_peak_memory() -> None:
    """Decode all forged files, and print the peak memory of Arrow or Python in bytes, whichever is larger."""
    files = list(forge_files())
    tracemalloc.start()
    for _, data in files:
        try:
            INDEX.decode(data)
        except ValueError:
            continue
        raise AssertionError("a forged file was decoded")
    print(max(pa.default_memory_pool().max_memory(), tracemalloc.get_traced_memory()[1]))


def write_table(rows: int, **columns: Any) -> bytes:
    out = io.BytesIO()
    encodings = columns.pop("column_encoding", None)
    table = {"offset": [0] * rows, "size": [1] * rows, **columns}
    options = {"use_dictionary": False, "column_encoding": encodings} if encodings else {}
    pq.write_table(pa.table(table), out, compression="zstd", **options)
    return out.getvalue()


@pytest.mark.case(id="P27")
def test_data_that_many_rows_share_is_decoded_once() -> None:
    data = write_table(
        2000, raw=pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array([bytes(MIB)]))
    )
    assert len(data) < 50_000
    tracemalloc.start()
    try:
        decoded = PartitionIndex(2000, 2000).decode(data)
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()
    assert len({id(value) for value in decoded.inline.values()}) == 1
    assert decoded.get_value(1999) == bytes(MIB)


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip"])
@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
@pytest.mark.case(id="P27")
def test_encodings_without_a_bound_are_refused(encoding: str, compression: str) -> None:
    """A byte in these encodings may repeat a whole value, so that kilobytes decode to gigabytes."""
    out = io.BytesIO()
    options = {"column_encoding": {"path": encoding}, "use_dictionary": False, "compression": compression}
    pq.write_table(pa.table({"path": ["u"] * 8}), out, **options)
    with pytest.raises(ValueError, match=f"its column 'path' cannot be read: .* {encoding}, .* or a dictionary"):
        INDEX.decode(out.getvalue())


@pytest.mark.parametrize("compression", ["snappy", "zstd"])
def test_page_that_is_smaller_than_stated_is_refused(compression: str) -> None:
    data = make_partition(compression=compression, use_dictionary=False)
    for column in ("path", "offset", "size", "raw"):
        (found,) = list_pages(data, column)
        with pytest.raises(ValueError, match="is not a valid parquet file"):
            INDEX.decode(forge(data, found, decoded_size=found.page.decoded_size + 100))


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"])
def test_numbers_are_read_in_several_encodings(encoding: str) -> None:
    try:
        data = write_table(8, path=["u"] * 8, column_encoding={"offset": encoding})
    except OSError:
        pytest.skip("this version of pyarrow does not write it")
    assert INDEX.decode(data).get_value(7) == Row(0, 0, 1)


@pytest.mark.parametrize(
    "column", [pa.array([["u"]] * 8), pa.array([{"path": "u"}] * 8), pa.array([None, [[1]]] * 4)], ids=str
)
def test_nested_column_is_refused(column: Any) -> None:
    with pytest.raises(ValueError, match="its column 'path' is nested"):
        INDEX.decode(write_table(8, path=column))


def test_pages_of_several_row_groups_are_decoded() -> None:
    out = io.BytesIO()
    columns = {"path": [f"s3://b/{i}" for i in range(5000)], "offset": range(5000), "size": [1] * 5000}
    pq.write_table(pa.table(columns), out, row_group_size=700, data_page_size=256, use_dictionary=False)
    decoded = PartitionIndex(5000, 5000).decode(out.getvalue())
    assert decoded.get_value(4999) == Row(int(decoded.ranges.targets[4999]), 4999, 1)


def test_total_size_of_a_file_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_partition(compression="none")
    parts = [found.page.decoded_size for name in ("path", "offset", "size", "raw") for found in list_pages(data, name)]
    monkeypatch.setattr(page_guard, "RATIO", 0)
    monkeypatch.setattr(page_guard, "GRACE", sum(parts))
    assert len(INDEX.decode(data)) == 8
    for bound in ("GRACE", "DECODED"):
        with monkeypatch.context() as patch:
            patch.setattr(page_guard, bound, sum(parts) - 1)
            with pytest.raises(ValueError, match="pages up to this column decode to"):
                INDEX.decode(data)


def read(data: bytes) -> dict[tuple[int, int], Any]:
    return ThriftReader(data, 0, len(data)).read_struct()


def test_thrift_structures_are_parsed() -> None:
    inner = b"\x15" + encode_varint(10) + b"\0"  # 1: 5
    data = (
        b"\x15"
        + encode_varint(7)
        + b"\x16"
        + encode_varint(2**62)
        + b"\x18\x03abc"
        + b"\x1c"
        + inner
        + b"\x19\x2c"
        + inner * 2
    )
    others = b"\x11\x12\x13\x07\x17" + bytes(8) + b"\x1a\x35\x02\x04\x06" + b"\x19\x21\x01\x02" + b"\x1c" + inner
    found = read(data + others + b"\x05" + encode_varint(28) + encode_varint(1) + b"\0")
    five = {(1, 5): 5}
    assert {key: found[key] for key in [(1, 5), (2, 6), (3, 8), (4, 12), (5, 9), (14, 5)]} == {
        (1, 5): -4,
        (2, 6): 2**61,
        (3, 8): b"abc",
        (4, 12): five,
        (5, 9): [five, five],
        (14, 5): -1,
    }
    assert found[12, 12] == five


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "expected (its end|at most)"),
        (b"\x15", "expected (its end|at most)"),
        (b"\x15\x02\x05\x02\x02\0", "twice"),
        (b"\x15" + b"\xff" * 4 + b"\x7f\0", "expected at most 32"),
        (b"\x15" + b"\xff" * 5 + b"\0", "expected (its end|at most)"),
        (b"\x05" + encode_varint(2 * 65537) + b"\x02\0", "the number 65537"),
        (b"\x28\xff\x01x\0", "expected (its end|at most)"),
        (b"\x29\xfc\xff\xff\xff\x0f", "expected at most 0, the bytes"),
        (b"\x3c" * 100, "nested too deeply"),
        (b"\x39\x19" * 100, "nested too deeply"),
        (b"\x3b\x01\x55\x02\x02\0", "of the type 11"),
        (b"\x29\xfc" + encode_varint(200_000) + bytes(200_001), "at most 100000 structures"),
    ],
)
def test_invalid_thrift_is_an_error(data: bytes, reason: str) -> None:
    with pytest.raises(DamagedParquet, match=reason):
        read(data)
