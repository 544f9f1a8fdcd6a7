"""Columns made of their pages with numpy: what pyarrow makes of the same file, or left to it."""

from __future__ import annotations

import io
import itertools
import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

from refshard_fs.core.columns import ABSENT, WHOLE, Row  # noqa: E402  # not without pyarrow
from refshard_fs.formats.kerchunk_parquet import partition  # noqa: E402
from refshard_fs.formats.kerchunk_parquet.page_guard import Footer  # noqa: E402
from refshard_fs.formats.kerchunk_parquet.page_values import (  # noqa: E402
    Unusual,
    hybrid,
    usual_columns,
)
from refshard_fs.formats.kerchunk_parquet.partition import (  # noqa: E402
    COLUMNS,
    Partition,
    PartitionIndex,
    arrow_columns,
    encode,
)
from tests.manifests.parquet_forging import forged, pages_of, rows_of  # noqa: E402
from tests.manifests.parquet_forging import partition as references  # noqa: E402


def written(columns: dict[str, Any], **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, **options)
    return out.getvalue()


def by_both(data: bytes) -> dict[str, Any]:
    """Return what is read of a file with numpy, which is what pyarrow reads of it."""
    usual = rows_of(usual_columns(data, Footer(data), COLUMNS))
    assert usual == rows_of(arrow_columns(data, Footer(data), COLUMNS))
    return usual


OPTIONS = [
    {
        "compression": compression,
        "use_dictionary": use_dictionary,
        "data_page_version": version,
        "write_page_checksum": compression == "zstd",
    }
    for compression, use_dictionary, version in itertools.product(
        ("none", "snappy", "zstd"), (True, False, ["path"]), ("1.0", "2.0")
    )
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 1000])
def test_files_of_every_usual_kind_are_read_as_pyarrow_reads_them(rows: int, options: dict[str, Any]) -> None:
    rng = random.Random(rows)
    columns = {
        "path": pa.array([rng.choice(["s3://b/x", "s3://b/ü", None]) for _ in range(rows)]),
        "offset": pa.array([rng.randrange(2**40) for _ in range(rows)], pa.int64()),
        "size": pa.array([rng.choice([None, 1, 2**31 - 1]) for _ in range(rows)], pa.int32()),
        "raw": pa.array([b"data" * i if i in (0, 5) else None for i in range(rows)], pa.binary()),
        "other": pa.array([0.5] * rows),
    }
    assert by_both(written(columns, **options)).keys() == set(COLUMNS)


def test_columns_of_several_pages() -> None:
    rows = range(30_000)
    columns = {
        "path": ["u", None, "v"] * 10_000,
        "offset": rows,
        "size": pa.array(rows, mask=np.arange(30_000) < 20_000),
    }
    data = written(columns, use_dictionary=["path"], data_page_size=1000)
    assert len(pages_of(data, "offset")) > 5
    by_both(data)


@pytest.mark.parametrize("distinct", [1, 2, 3, 5, 100, 256, 257, 5000, 70_000])
def test_dictionaries_of_every_size(distinct: int) -> None:
    rows = max(1000, distinct + 1)
    order = np.random.default_rng(1).permutation(np.arange(rows) % distinct)
    by_both(written({"path": pa.array([f"u{n}" for n in order[:2000]]), "offset": order[:2000]}))
    data = written({"offset": order, "size": np.sort(order)}, compression="none")
    assert by_both(data)["offset"] == ("whole numbers", order.tolist())


def test_a_column_without_values_is_none_whatever_its_type() -> None:
    columns = {"path": ["u"] * 9, "raw": pa.nulls(9), "size": pa.nulls(9, pa.float64())}
    assert by_both(written(columns)) == {"path": ("text", ["u"] * 9), "raw": None, "size": None}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.none() | st.sampled_from(["a", "b", "ü", ""]),
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.none() | st.binary(max_size=5),
        ),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from(OPTIONS),
)
def test_any_rows(rows: list[Any], options: dict[str, Any]) -> None:
    path, offset, raw = zip(*rows, strict=True)
    columns = {
        "path": pa.array(path, pa.string()),
        "offset": pa.array(offset, pa.int64()),
        "raw": pa.array(raw, pa.binary()),
    }
    read = by_both(written(columns, **options))
    for name, kind, values in (("path", "text", path), ("offset", "whole numbers", offset), ("raw", "bytes", raw)):
        assert read[name] == (None if set(values) == {None} else (kind, list(values)))


def test_what_is_written_here_is_read_without_pyarrows_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(partition, "arrow_columns")
    targets = np.array([0, 1, ABSENT, 1] * 2500, np.uint32)
    offsets = np.arange(10_000, dtype=np.uint64)
    offsets[1::4] = 0
    lengths = np.array([5, WHOLE, 0, 7] * 2500, np.uint64)
    part = Partition(["s3://b/a", "s3://b/c"], targets, offsets, lengths, {2: b"data"})
    made = PartitionIndex(10_000, 10_000).decode(encode(part))
    assert [made.value(row) for row in range(6)] == [
        Row(0, 0, 5),
        Row(1, 0, None),
        b"data",
        Row(1, 3, 7),
        Row(0, 4, 5),
        Row(1, 0, None),
    ]


@pytest.mark.filterwarnings("ignore")  # pandas, of fastparquet
@pytest.mark.parametrize("engine", ["fastparquet", "pyarrow"])
def test_what_fsspec_writes_is_read_without_pyarrows_reader(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for needed in ("pandas", "kerchunk", engine):
        pytest.importorskip(needed)
    reference = pytest.importorskip("fsspec.implementations.reference")
    mapper = reference.LazyReferenceMapper.create(str(tmp_path), record_size=100, engine=engine)
    array = {"zarr_format": 2, "shape": [200], "chunks": [1], "dtype": "<i4", "fill_value": 0, "order": "C"}
    mapper["v/.zarray"] = json.dumps(array | {"compressor": None, "filters": None}).encode()
    for i in range(200):
        mapper[f"v/{i}"] = b"data" if i == 3 else [f"s3://b/{i % 3}", i * 10, 10]
    mapper.flush()
    monkeypatch.delattr(partition, "arrow_columns")
    for number, row in ((0, 3), (1, 7)):
        made = PartitionIndex(100, 100).decode((tmp_path / f"v/refs.{number}.parq").read_bytes())
        value = made.value(row)
        if number == 0:
            assert value == b"data"
        else:
            assert isinstance(value, Row)
            assert (made.urls[value.target], value.offset, value.length) == ("s3://b/2", 1070, 10)


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ({"offset": pa.array([1, 2], pa.uint64())}, {}),
        ({"offset": pa.array([1, 2], pa.timestamp("us"))}, {}),
        ({"offset": pa.array([1.5, 2.5])}, {}),
        ({"offset": [1, 2]}, {"compression": "gzip"}),
        ({"offset": [1, 2]}, {"row_group_size": 1}),
        ({"offset": [1, 2]}, {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"}),
        ({"offset": [[1], [2]]}, {}),
        ({"offset": range(2**17 + 1)}, {}),
        ({"offset": range(10_000)}, {"use_dictionary": False, "data_page_size": 8, "write_batch_size": 8}),
        ({"path": [str(i) for i in range(2**11 + 1)]}, {}),
        ({"path": [str(i) for i in range(2**11 + 1)]}, {"use_dictionary": False}),
    ],
    ids=lambda given: str(given)[:50],
)
def test_all_else_is_left_to_pyarrow(columns: dict[str, Any], options: dict[str, Any]) -> None:
    data = written(columns, **options)
    with pytest.raises(Unusual):
        usual_columns(data, Footer(data), COLUMNS)


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_pages_that_make_less_than_they_promise_are_not_read(compression: str) -> None:
    """What pyarrow's codecs do not fill is whatever was in memory before."""
    data = references(compression=compression, use_dictionary=False)
    for column in COLUMNS:
        (found,) = pages_of(data, column)
        changed = forged(data, found, made=found.page.made + 100)
        with pytest.raises(Unusual):
            usual_columns(changed, Footer(changed), COLUMNS)
        if compression != "none":
            with pytest.raises(ValueError, match="no parquet file that can be read"):
                PartitionIndex(8, 8).decode(changed)


@pytest.mark.parametrize("width", range(33))
def test_packed_numbers_of_any_width(width: int) -> None:
    numbers = [random.Random(width).getrandbits(width) if width else 0 for _ in range(24)]
    bits = sum(number << i * width for i, number in enumerate(numbers))
    data = b"x" + bytes([3 << 1 | 1]) + bits.to_bytes(3 * width, "little") + b"y"
    assert hybrid(data, 1, width, 21).tolist() == numbers[:21]


def test_runs_and_packed_numbers_take_turns() -> None:
    packed = bytes([1 << 1 | 1]) + sum(i % 8 << 3 * i for i in range(8)).to_bytes(3, "little")
    run = bytes([200 & 127 | 128, 200 >> 7]) + b"\x05"
    assert hybrid(run + packed + run + packed, 0, 3, 213).tolist() == [5] * 100 + [*range(8)] + [5] * 100 + [
        0,
        1,
        2,
        3,
        4,
    ]


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00\x05", b"\x01", b"\x03\x00", b"\x10", b"\xff" * 6, struct.pack("<BB", 4, 1)],
)
def test_numbers_that_are_not_there_are_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="a run of|no end"):
        hybrid(data, 0, 3, 8)
    with pytest.raises(ValueError, match="of 33 bits"):
        hybrid(data, 0, 33, 8)
