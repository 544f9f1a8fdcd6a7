"""Decoding a partition: columns of all types are read, and damaged files are refused."""

from __future__ import annotations

import io
import itertools
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs.formats.kerchunk_parquet.partition import PartitionIndex
from tests.support.parquet_values import make_rows

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

ROOT = Path(__file__).parents[3]
NAN = float("nan")


def write_table(**columns: Any) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pa.table(columns), out)
    return out.getvalue()


EXPECTED = [["a", 0, 5], None, ["b"], b"raw", ["a", 7, 0]]
OFFSET = [0, 0, 0, 0, 7]
SIZE = [5, 0, 0, 0, 0]
PATH = ["a", None, "b", None, "a"]
RAW = [None, None, None, b"raw", None]


@pytest.mark.parametrize(
    "path",
    [
        pa.array(PATH),
        pa.array(PATH, pa.large_string()),
        pa.array(PATH).dictionary_encode(),
        pa.array(PATH, pa.binary()),
    ],
    ids=["text", "large text", "dictionary", "bytes"],
)
@pytest.mark.parametrize(
    "raw", [pa.array(RAW), pa.array(RAW, pa.large_binary()), pa.array([None, None, None, "raw", None])]
)
def test_paths_and_data_of_several_types_are_read(path: Any, raw: Any) -> None:
    assert make_rows(write_table(path=path, offset=OFFSET, size=SIZE, raw=raw), 5) == EXPECTED


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32(), pa.uint64(), pa.uint8()])
def test_numbers_of_several_integer_types_are_read(kind: Any) -> None:
    data = write_table(path=PATH, offset=pa.array(OFFSET, kind), size=pa.array(SIZE, kind), raw=pa.array(RAW))
    assert make_rows(data, 5) == EXPECTED


@pytest.mark.parametrize("nothing", [[None, None], [NAN, NAN], [NAN, None]])
def test_columns_of_none_and_nan_are_like_missing_columns(nothing: list[float | None]) -> None:
    raw = pa.array([b"x", b"y"])
    assert make_rows(write_table(path=pa.array(nothing), offset=[0, 0], size=[0, 0], raw=raw), 2) == [b"x", b"y"]
    assert make_rows(write_table(path=["u", "v"], offset=[1, 2], size=[3, 4], raw=pa.array(nothing)), 2) == [
        ["u", 1, 3],
        ["v", 2, 4],
    ]
    assert make_rows(write_table(path=["u", "v"], offset=pa.array(nothing), size=pa.array(nothing)), 2) == [
        ["u"],
        ["v"],
    ]
    assert make_rows(write_table(path=pa.array(nothing), raw=pa.array(nothing)), 2) == [None, None]


def test_columns_may_be_missing() -> None:
    assert make_rows(write_table(raw=[b"x", None]), 2) == [b"x", None]
    assert make_rows(write_table(path=["u", None]), 2) == [["u"], None]
    assert make_rows(write_table(path=["u", "v"], size=[3, 0], other=["x", "y"]), 2) == [["u", 0, 3], ["v"]]


def test_row_with_data_and_a_path_has_the_data() -> None:
    assert make_rows(write_table(path=["u"], offset=[0], size=[0], raw=[b""]), 1) == [b""]


def test_base64_is_decoded_in_text_and_not_in_bytes() -> None:
    assert make_rows(write_table(raw=["base64:AAE="]), 1) == [b"\0\1"]
    assert make_rows(write_table(raw=[b"base64:AAE="]), 1) == [b"base64:AAE="]
    with pytest.raises(ValueError, match="row 0: its base64 text is damaged"):
        PartitionIndex(1, 1).decode(write_table(raw=["base64:A"]))


def test_padding_rows_are_ignored() -> None:
    data = write_table(path=["u", "v", "w"], offset=[1, 2, -9], size=[1, 1, 1])
    assert make_rows(data, 2, record_size=3) == [["u", 1, 1], ["v", 2, 1]]


def test_several_row_groups_are_one_partition() -> None:
    out = io.BytesIO()
    paths = [f"u{i // 3}" for i in range(10)]
    parquet.write_table(pa.table({"path": paths, "offset": range(10), "size": [1] * 10}), out, row_group_size=4)
    assert make_rows(out.getvalue(), 10) == [[p, i, 1] for i, p in enumerate(paths)]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"path": [1, 2]}, "'path' has the type int64"),
        ({"path": [0.5, NAN]}, "'path' has the type double"),
        ({"path": ["u", "v"], "offset": ["1", "2"]}, "'offset' has the type .*string"),
        ({"path": ["u", "v"], "size": [1.5, 2.0]}, "'size' has the type double"),
        ({"raw": [1, 2]}, "'raw' has the type int64"),
        ({"path": ["u", "v"], "offset": [0, -1], "size": [1, 1]}, "row 1 is not a byte range"),
        ({"path": ["u", "v"], "offset": [0, 2**63 - 1], "size": [1, 1]}, "row 1 is not a byte range"),
        ({"path": ["u", "v"], "offset": pa.array([0, 2**64 - 1], pa.uint64())}, "row 1 is not a byte range"),
        ({"other": [1, 2]}, "none of the columns path, offset, size, raw"),
    ],
)
def test_columns_that_cannot_be_references_are_refused(columns: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        PartitionIndex(2, 2).decode(write_table(**columns))


def test_too_few_and_too_many_rows_are_refused() -> None:
    data = write_table(path=["u", "v"], offset=[1, 2], size=[1, 1])
    with pytest.raises(ValueError, match="it has 2 rows: expected at least 3"):
        PartitionIndex(3, 5).decode(data)
    with pytest.raises(ValueError, match="it has 2 rows: expected at most 1"):
        PartitionIndex(1, 1).decode(data)


def test_truncated_file_is_refused() -> None:
    data = write_table(path=["u"] * 50, offset=range(50), size=[9] * 50)
    for end in [0, 1, 4, 7, 8, 11, *range(12, len(data), 37), len(data) - 1]:
        with pytest.raises(ValueError, match="is not a valid parquet file"):
            PartitionIndex(50, 50).decode(data[:end])


WRITERS: list[dict[str, Any]] = [
    {
        "compression": compression,
        "use_dictionary": use_dictionary,
        "data_page_version": version,
        "write_page_checksum": compression == "zstd",
    }
    for compression, use_dictionary, version in itertools.product(
        ("none", "snappy", "gzip", "zstd"), (True, False, ["path"]), ("1.0", "2.0")
    )
]


@pytest.mark.parametrize("options", WRITERS, ids=str)
def test_files_written_with_various_options_are_read(options: dict[str, Any]) -> None:
    rng = random.Random(1)
    urls = [rng.choice(["s3://b/x", "s3://b/ü", None]) for _ in range(2000)]
    offsets = [rng.randrange(2**40) for _ in range(2000)]
    lengths = [rng.choice([1, 2**31 - 1]) for _ in range(2000)]
    raw = [b"data" * i if i in (0, 5) else None for i in range(2000)]
    columns = {
        "path": pa.array(urls),
        "offset": pa.array(offsets, pa.int64()),
        "size": pa.array(lengths, pa.int32()),
        "raw": pa.array(raw, pa.binary()),
        "other": pa.array([0.5] * 2000),
    }
    out = io.BytesIO()
    parquet.write_table(pa.table(columns), out, data_page_size=1000, **options)
    expected = [
        data if data is not None else None if url is None else [url, offset, length]
        for url, offset, length, data in zip(urls, offsets, lengths, raw, strict=True)
    ]
    assert make_rows(out.getvalue(), 2000) == expected


@pytest.mark.parametrize("distinct", [1, 2, 257, 70_000])
def test_dictionaries_of_various_sizes_are_read(distinct: int) -> None:
    rows = max(1000, distinct + 1)
    order = np.random.default_rng(1).permutation(np.arange(rows) % distinct)
    data = write_table(path=pa.array([f"u{n}" for n in order]), offset=order, size=np.sort(order) + 1)
    expected = [[f"u{n}", n, size] for n, size in zip(order.tolist(), (np.sort(order) + 1).tolist(), strict=True)]
    assert make_rows(data, rows) == expected


SCAN = """
import sys
from tests.fuzz import driver
harness = driver.load_harness("parquet_partition")
data = harness.make_seeds()[int(sys.argv[1])]
footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
values = (0, 2, 4, 8)
for at in range(footer, len(data) - 8):
    for value in {data[at] ^ 8, *(values if sys.argv[2:] else values[at % 4 : at % 4 + 1])}:
        harness.check_input(data[:at] + bytes([value]) + data[at + 1 :])
"""


@pytest.mark.parametrize("words", ["0", *(pytest.param(words, marks=pytest.mark.slow) for words in ("0 all", "2 all"))])
def test_damaged_footer_does_not_crash_the_process(words: str) -> None:
    """Each byte of the footer is changed in turn; every error must be a ValueError."""
    run = subprocess.run([sys.executable, "-c", SCAN, *words.split()], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]


def test_footer_that_states_a_million_columns_is_refused() -> None:
    count = bytes([0x80 | 999_999 & 0x7F, 0x80 | 999_999 >> 7 & 0x7F, 999_999 >> 14])
    footer = b"\x15\x02\x19\xfc" + count + b"\x48\x06schema\x15\x02\x00" * 20  # a version, and a list of columns
    data = b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    with pytest.raises(ValueError, match="a list states 999999 items"):
        PartitionIndex(1, 1).decode(data)
