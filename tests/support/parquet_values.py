"""Read the values in the rows of a partition, and draw random rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from refshard_fs.core.columns import WHOLE, Row
from refshard_fs.formats.kerchunk_parquet.partition import PartitionIndex

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def make_rows(data: bytes, chunks: int, record_size: int | None = None) -> list[Any]:
    """Return the value of each row: a list as in JSON, bytes, or None."""
    part = PartitionIndex(chunks, record_size or chunks).decode(data)
    assert len(part) == chunks
    out: list[Any] = []
    for row in range(chunks):
        match part.get_value(row):
            case Row(target, offset, None):
                out.append([part.urls[target]])
            case Row(target, offset, length):
                out.append([part.urls[target], offset, length])
            case other:
                out.append(other)
    there = [row for row, value in enumerate(out) if value is not None]
    assert part.list_present(0, chunks) == there
    assert part.list_present() == there
    sizes = [len(v) if isinstance(v, bytes) else v[2] if len(v) == 3 else WHOLE for v in out if v is not None]
    assert part.make_part(100).ranges.lengths.tolist() == sizes
    return out


rows = st.lists(
    st.none()
    | st.binary(max_size=9)
    | st.tuples(st.sampled_from(["a", "b", "ü"]))
    | st.tuples(st.sampled_from(["a", "b", "ü"]), st.integers(0, 2**62), st.integers(0, 2**62 - 1)),
    min_size=1,
    max_size=30,
)
