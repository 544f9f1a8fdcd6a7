"""Chunks of CDF variables: ranges of the file, or several parts that are joined."""

from __future__ import annotations

import gzip
import itertools
import math
from typing import Any

import msgspec
import numpy as np
import pytest

from refshard_fs import DamagedIndex, NotListable
from refshard_fs.core.model import Inline, Packed, Span, Steps
from refshard_fs.formats.cdf import chunks, records, source
from tests.support.cdf_writer import GZIP, RLE, Variable, Writer
from tests.support.shards_in_memory import ROOT, Files


def open_file(variable: Variable, **kwargs: Any) -> tuple[Files, Any]:
    files = Files({ROOT: Writer(**kwargs).write({"v": variable})})
    return files, files.open()


def make_values(*shape: int) -> Any:
    return np.arange(math.prod(shape), dtype="i4").reshape(shape)


def test_uncompressed_records_are_ranges_of_the_file() -> None:
    files, keyspace = open_file(Variable(make_values(10, 3)))
    entry = files.run(keyspace.lookup("v/0.0"))
    assert isinstance(entry, Span)
    assert files.bytes(entry) == make_values(10, 3).astype("<i4").tobytes()


def test_full_compressed_blocks_are_ranges_and_short_ones_padded() -> None:
    values = make_values(250, 200)  # blocks of 80,000 bytes; the last one is shorter
    files, keyspace = open_file(Variable(values, compression=GZIP, runs=[(0, 99), (100, 199), (200, 249)]))
    first, last = files.run(keyspace.lookup("v/0.0")), files.run(keyspace.lookup("v/2.0"))
    assert isinstance(first, Span)
    assert isinstance(last, Packed)
    assert last.source == msgspec.structs.replace(first, start=last.spans[0].start, stop=last.spans[0].stop)

    assert gzip.decompress(files.bytes(first)) == values[:100].tobytes()
    assert gzip.decompress(files.bytes(last)) == values[200:].tobytes() + bytes(40_000)


@pytest.mark.parametrize("compression", [0, GZIP, RLE])
@pytest.mark.parametrize("tree", [0, 2])
def test_records_of_several_runs_are_joined_into_a_chunk(compression: int, tree: int) -> None:
    runs = [(0, 0), (1, 4), (5, 5), (6, 8), (9, 9)]
    files, keyspace = open_file(Variable(make_values(10, 3), compression=compression, runs=runs, tree=tree))
    assert files.read(keyspace, "v/0.0") == make_values(10, 3).tobytes()


def run_steps(steps: Steps[Any], count: int, answer: Any) -> Steps[tuple[bool, Any]]:
    """Run ``count`` steps of a look-up. Return whether it ended, and its result or the last answer."""
    for _ in range(count):
        try:
            need = steps.send(answer)
        except StopIteration as stop:
            return True, stop.value
        answer = yield need
    return False, answer


def test_interleaved_lookups_return_the_right_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "WHOLE", 0)
    monkeypatch.setattr(chunks, "JOINED", 6 * 400)
    for name, value in (("PAGE", 64), ("AHEAD", 1), ("MOST_PAGES_OPENED", 0)):  # each record takes one step
        monkeypatch.setattr(records, name, value)
    values = make_values(23, 100)  # 23 runs of a record each; a chunk has six records
    variable = Variable(values, compression=GZIP, runs=[(record, record) for record in range(23)], tree=2)
    data = Writer().write({"before": Variable(make_values(20_000)), "v": variable})
    for pauses in itertools.product(range(1, 12), repeat=2):
        files = Files({ROOT: data})
        keyspace = files.open()
        look_ups = [keyspace.lookup(key) for key in ("v/1.0", "v/0.0")]
        states = [files.run(run_steps(steps, pause, None)) for steps, pause in zip(look_ups, pauses, strict=True)]
        for number in (0, 1):
            if not states[number][0]:
                states[number] = files.run(run_steps(look_ups[number], 99, states[number][1]))
        assert b"".join(files.bytes(entry) for _, entry in reversed(states)) == values[:12].tobytes()


@pytest.mark.parametrize(("sparse", "expected"), [(1, [-1, -1, 2, 3, -1, -1, 6, -1]), (2, [-1, -1, 2, 3, 3, 3, 6, 6])])
def test_missing_records_are_padded_or_repeated(sparse: int, expected: list[int]) -> None:
    pad = np.array(-1, "<i4").tobytes()
    variable = Variable(make_values(8), runs=[(2, 3), (6, 6)], sparse=sparse, pad=pad)
    files, keyspace = open_file(variable)
    assert np.frombuffer(files.read(keyspace, "v/0") or b"", "<i4").tolist() == expected


def test_missing_records_repeat_the_record_of_an_earlier_chunk() -> None:
    values = make_values(4, 10_000)
    files, keyspace = open_file(Variable(values, compression=GZIP, runs=[(0, 1)], sparse=2))
    assert gzip.decompress(files.read(keyspace, "v/1.0") or b"") == values[1].tobytes() * 2


def test_unwritten_chunk_exists_unless_its_pad_is_the_fill_value() -> None:
    for fill, kind in ((-1, type(None)), (5, Inline)):
        variable = Variable(
            make_values(8), {"FILLVAL": np.int32(fill)}, runs=[], sparse=1, pad=np.array(-1, "<i4").tobytes()
        )
        files, keyspace = open_file(variable)
        assert isinstance(files.run(keyspace.lookup("v/0")), kind)
        names = [child.name for child in files.run(keyspace.children("v"))]
        assert ("0" in names) == (fill == 5)


@pytest.mark.parametrize("runs", [[], [(0, 3)], [(4, 7)], [(0, 2), (4, 7)]])
def test_records_missing_from_the_index_are_an_error(runs: list[tuple[int, int]]) -> None:
    """Only sparse variables may lack records: otherwise a damaged index would show fill values."""
    files, keyspace = open_file(Variable(make_values(8), {"FILLVAL": np.int32(-1)}, runs=runs, pad=b"\xff" * 4))
    assert [child.name for child in files.run(keyspace.children("v")) if child.name[0] != "."] == ["0"]
    with pytest.raises(DamagedIndex, match="expected record [034] in its index, found none"):
        files.run(keyspace.lookup("v/0"))
    files, keyspace = open_file(
        Variable(make_values(8)[:1], {"FILLVAL": np.int32(-1)}, varies=False, runs=[], pad=b"\xff" * 4)
    )
    assert files.run(keyspace.lookup("v/0")) is None, "a constant that was never written"


def test_column_major_records_are_reordered() -> None:
    values = make_values(4, 2, 3)
    files, keyspace = open_file(Variable(values), is_row_major=False)
    assert files.read(keyspace, "v/0.0.0") == values.tobytes()
    files, keyspace = open_file(Variable(values[0], varies=False), is_row_major=False)
    assert files.read(keyspace, "v/0.0") == values[0].tobytes(order="F")
    assert b'"order":"F"' in (files.read(keyspace, "v/.zarray") or b"")


def test_index_that_lists_a_record_twice_is_an_error() -> None:
    files, keyspace = open_file(Variable(make_values(10), runs=[(0, 5), (4, 9)]))
    with pytest.raises(DamagedIndex, match="expected each record once"):
        files.run(keyspace.lookup("v/0"))


def test_listing_millions_of_missing_chunks_is_refused() -> None:
    variable = Variable(make_values(4, 3), {"FILLVAL": np.int32(5)}, runs=[(0, 0)], sparse=1)
    data = bytearray(Writer().write({"v": variable}))
    name_offset = data.index(b"v".ljust(256, b"\0"))  # the name, 60 bytes after the number of the last record
    data[name_offset - 60 : name_offset - 56] = (2**31 - 2).to_bytes(4, "big")
    data[name_offset + 260 : name_offset + 264] = (1 << 20).to_bytes(4, "big")
    files = Files({ROOT: bytes(data)})
    keyspace = files.open()
    with pytest.raises(NotListable):
        files.run(keyspace.children("v"))
