"""Parquet files whose page headers announce more than the pages hold are refused before memory is allocated."""

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

from refshard_fs.core.columns import Row  # noqa: E402
from refshard_fs.formats.kerchunk_parquet import page_guard  # noqa: E402  # not without pyarrow
from refshard_fs.formats.kerchunk_parquet.page_guard import DamagedParquet, ThriftReader  # noqa: E402
from refshard_fs.formats.kerchunk_parquet.partition import PartitionIndex  # noqa: E402
from tests.support.parquet_forging import DATA_V2, DICTIONARY, Found, forged, pages_of, partition, varint  # noqa: E402

MIB = 1 << 20
INDEX = PartitionIndex(8, 8)
WRITTEN: tuple[dict[str, Any], ...] = tuple(
    {"compression": compression, "data_page_version": version, "use_dictionary": use_dictionary}
    for compression, version, use_dictionary in itertools.product(
        ("zstd", "snappy", "gzip", "none"), ("1.0", "2.0"), (True, False)
    )
)


def forgeries() -> Iterator[tuple[str, bytes]]:
    """Yield (description, file) with one forged page: it announces 2 GiB, a billion values, or both."""
    for options in WRITTEN:
        data = partition(**options)
        for column in ("path", "offset", "size", "raw"):
            for found in pages_of(data, column):
                for made, own in ((2**31 - 1, {}), (None, {1: 2**30}), (2**31 - 1, {1: 2**28})):
                    if room(found, made, own):
                        what = f"{options}: {column}, a page of kind {found.page.kind} with {made}, {own}"
                        yield what, forged(data, found, made, own)


def room(found: Found, made: int | None, own: dict[int, int]) -> bool:
    """Whether a page header has room for two larger numbers; a dictionary's header has room for one."""
    return found.page.kind != DICTIONARY or made is None or not own


def test_valid_pages_are_found() -> None:
    for options in WRITTEN:
        data = partition(**options)
        assert len(INDEX.decode(data)) == 8
        kinds = [found.page.kind for found in pages_of(data, "path")]
        assert kinds == [DICTIONARY] * options["use_dictionary"] + [DATA_V2 * (options["data_page_version"] == "2.0")]


@pytest.mark.case(id="P27")
def test_page_with_a_false_size_is_refused() -> None:
    seen = 0
    for what, data in forgeries():
        with pytest.raises(ValueError, match=r"its pages decode to|a page of .* bytes has"):
            raise AssertionError(f"{what}: {INDEX.decode(data)} was made")
        seen += 1
    assert seen > 200


@pytest.mark.case(id="P27")
def test_declared_page_size_allocates_nothing() -> None:
    """The decoding runs in a process of its own, because Arrow and Python report the peak of a whole process."""
    code = "from tests.formats.kerchunk_parquet import test_page_guard as t; t.most_taken()"
    ran = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], capture_output=True, check=True)
    assert int(ran.stdout) < 16 * MIB


def most_taken() -> None:
    """Decode all forgeries, and print the peak memory of Arrow or Python."""
    made = list(forgeries())
    tracemalloc.start()
    for _, data in made:
        try:
            INDEX.decode(data)
        except ValueError:
            continue
        raise AssertionError("it was decoded")
    print(max(pa.default_memory_pool().max_memory(), tracemalloc.get_traced_memory()[1]))


def written(rows: int, **columns: Any) -> bytes:
    out = io.BytesIO()
    encodings = columns.pop("column_encoding", None)
    table = {"offset": [0] * rows, "size": [1] * rows, **columns}
    options = {"use_dictionary": False, "column_encoding": encodings} if encodings else {}
    pq.write_table(pa.table(table), out, compression="zstd", **options)
    return out.getvalue()


@pytest.mark.case(id="P27")
def test_data_shared_by_many_rows_is_decoded_once() -> None:
    data = written(2000, raw=pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array([bytes(MIB)])))
    assert len(data) < 50_000
    tracemalloc.start()
    try:
        made = PartitionIndex(2000, 2000).decode(data)
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()
    assert len({id(value) for value in made.inline.values()}) == 1
    assert made.value(1999) == bytes(MIB)


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip"])
@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
@pytest.mark.case(id="P27")
def test_unbounded_texts_are_refused_before_pyarrow(encoding: str, compression: str) -> None:
    """In these encodings one byte may repeat all of the previous value: a page of kilobytes makes gigabytes."""
    out = io.BytesIO()
    options = {"column_encoding": {"path": encoding}, "use_dictionary": False, "compression": compression}
    pq.write_table(pa.table({"path": ["u"] * 8}), out, **options)
    with pytest.raises(ValueError, match=f"its column 'path' cannot be read: .* {encoding}, .* or a dictionary"):
        INDEX.decode(out.getvalue())


@pytest.mark.parametrize("compression", ["snappy", "zstd"])
def test_page_smaller_than_declared_is_refused(compression: str) -> None:
    data = partition(compression=compression, use_dictionary=False)
    for column in ("path", "offset", "size", "raw"):
        (found,) = pages_of(data, column)
        with pytest.raises(ValueError, match="cannot be read as a parquet file"):
            INDEX.decode(forged(data, found, made=found.page.made + 100))


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"])
def test_numbers_are_read_in_any_encoding(encoding: str) -> None:
    try:
        data = written(8, path=["u"] * 8, column_encoding={"offset": encoding})
    except OSError:
        pytest.skip("this version of pyarrow does not write it")
    assert INDEX.decode(data).value(7) == Row(0, 0, 1)


@pytest.mark.parametrize(
    "column", [pa.array([["u"]] * 8), pa.array([{"path": "u"}] * 8), pa.array([None, [[1]]] * 4)], ids=str
)
def test_column_that_nests_is_refused(column: Any) -> None:
    with pytest.raises(ValueError, match="its column 'path' is nested"):
        INDEX.decode(written(8, path=column))


def test_pages_of_several_row_groups_are_found() -> None:
    out = io.BytesIO()
    columns = {"path": [f"s3://b/{i}" for i in range(5000)], "offset": range(5000), "size": [1] * 5000}
    pq.write_table(pa.table(columns), out, row_group_size=700, data_page_size=256, use_dictionary=False)
    made = PartitionIndex(5000, 5000).decode(out.getvalue())
    assert made.value(4999) == Row(int(made.ranges.targets[4999]), 4999, 1)


def test_total_size_of_a_file_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = partition(compression="none")
    parts = [found.page.made for name in ("path", "offset", "size", "raw") for found in pages_of(data, name)]
    monkeypatch.setattr(page_guard, "RATIO", 0)
    monkeypatch.setattr(page_guard, "GRACE", sum(parts))
    assert len(INDEX.decode(data)) == 8
    for bound in ("GRACE", "DECODED"):
        with monkeypatch.context() as patch:
            patch.setattr(page_guard, bound, sum(parts) - 1)
            with pytest.raises(ValueError, match="its pages decode to"):
                INDEX.decode(data)


def read(data: bytes) -> dict[tuple[int, int], Any]:
    return ThriftReader(data, 0, len(data)).struct()


def test_thrift_structures_are_parsed() -> None:
    inner = b"\x15" + varint(10) + b"\0"  # 1: 5
    data = b"\x15" + varint(7) + b"\x16" + varint(2**62) + b"\x18\x03abc" + b"\x1c" + inner + b"\x19\x2c" + inner * 2
    others = b"\x11\x12\x13\x07\x17" + bytes(8) + b"\x1a\x35\x02\x04\x06" + b"\x19\x21\x01\x02" + b"\x1c" + inner
    found = read(data + others + b"\x05" + varint(28) + varint(1) + b"\0")
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
        (b"", "is cut short|ends beyond"),
        (b"\x15", "is cut short|ends beyond"),
        (b"\x15\x02\x05\x02\x02\0", "twice"),
        (b"\x15" + b"\xff" * 4 + b"\x7f\0", "too large"),
        (b"\x15" + b"\xff" * 5 + b"\0", "is cut short|ends beyond"),
        (b"\x05" + varint(2 * 65537) + b"\x02\0", "the number 65537"),
        (b"\x28\xff\x01x\0", "is cut short|ends beyond"),
        (b"\x29\xfc\xff\xff\xff\x0f", "longer than the bytes"),
        (b"\x3c" * 100, "nested too deeply"),
        (b"\x39\x19" * 100, "nested too deeply"),
        (b"\x3b\x01\x55\x02\x02\0", "unknown type"),
        (b"\x29\xfc" + varint(200_000) + bytes(200_001), "more than 100000 structures"),
    ],
)
def test_invalid_thrift_is_an_error(data: bytes, reason: str) -> None:
    with pytest.raises(DamagedParquet, match=reason):
        read(data)
