"""Decode partitions of parquet reference sets: rows are valid references or data, or a ValueError is raised."""

from __future__ import annotations

import io
from contextlib import nullcontext as set_up

import pyarrow as pa
import pyarrow.parquet as pq

from refshard_fs.core.columns import WHOLE, Row
from refshard_fs.formats.kerchunk_parquet.partition import PartitionIndex

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = False
WORDS = (
    b"PAR1",
    b"\x15\x00",
    b"\x19\xfc\xff\xff\xff\xff\x0f",
    b"\x16\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"path",
)
_INDEX = PartitionIndex(8, 16)


def make_seeds() -> list[bytes]:
    paths = ["s3://b/1", None, "s3://b/1", "u", None, "v", "v", "s3://b/1"]
    columns = {
        "path": pa.array(paths),
        "offset": pa.array([0, 0, 5, 7, 0, 2**40, 1, 0], pa.int64()),
        "size": pa.array([10, 0, 5, 0, 0, 9, 1, 0], pa.int64()),
        "raw": pa.array([None, b"data", None, None, b"", None, None, None], pa.binary()),
    }
    plain = {name: columns[name] for name in ("path", "offset", "size")}
    text = {**plain, "raw": pa.array([None, "base64:AAEC", None, None, "x", None, None, None])}
    ints = {**plain, "offset": columns["offset"].cast(pa.uint64()), "size": columns["size"].cast(pa.int32())}
    written: list[tuple[dict[str, pa.Array], dict[str, object]]] = [
        (columns, {"compression": "zstd", "use_dictionary": ["path"], "write_page_checksum": True}),
        (columns, {"compression": "snappy"}),
        (text, {"compression": "none", "use_dictionary": False}),
        (ints, {"compression": "gzip", "row_group_size": 3}),
        (plain, {"compression": "none", "data_page_version": "2.0", "store_schema": False}),
        (columns, _deltas("DELTA_BYTE_ARRAY") | {"compression": "none", "store_schema": False}),
        (columns, _deltas("DELTA_LENGTH_BYTE_ARRAY") | {"compression": "snappy", "data_page_version": "2.0"}),
    ]
    return [_parquet(table, **options) for table, options in written]


def _deltas(encoding: str) -> dict[str, object]:
    return {"use_dictionary": False, "column_encoding": {"path": encoding, "raw": encoding}}


def _parquet(columns: dict[str, pa.Array], **options: object) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, **options)
    return out.getvalue()


def check_input(data: bytes) -> None:
    try:
        partition = _INDEX.decode(data)
    except ValueError:
        return
    assert len(partition) == 8
    rows = partition.list_present(0, 8)
    sizes = [None if size == WHOLE else size for size in partition.make_part(0).ranges.lengths.tolist()]
    for row, size in zip(rows, sizes, strict=True):
        assert 0 <= row < 8
        match partition.get_value(row):
            case Row(target, offset, length):
                assert isinstance(partition.urls[target], str)
                assert offset >= 0
                assert offset + (length or 0) < 2**63
                assert length == size
            case bytes(data):
                assert len(data) == size
