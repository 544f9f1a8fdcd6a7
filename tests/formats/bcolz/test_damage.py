"""Damage to bcolz rootdirs and bloscpack files, by cuts and flipped bits, gives the written values or an error.

The suite takes samples; tests marked slow try every cut and bit.
"""

from __future__ import annotations

import json
import struct
import tracemalloc
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from numcodecs import blosc

from refshard_fs import ManifestError, RefShardError
from tests.support.blosc_sources import carray_of, numpy_metadata, superchunk, table_of
from tests.support.shards_in_memory import ROOT, Files

ERRORS = (RefShardError, EOFError, ValueError, RuntimeError)  # EOFError: in memory, of a range past the end

RANDOM = np.random.default_rng(3).integers(0, 1000, 700)
MATRIX = np.arange(700.0).reshape(100, 7)
STRUCTS = np.zeros(40, [("a", "<i4"), ("b", "<f8", (2,))])
STRUCTS["a"] = np.arange(40)
STRUCTS["b"] = RANDOM[:80].reshape(40, 2)


def packed(values: np.ndarray[Any, Any], frame_size: int, order: str = "C", **options: Any) -> dict[str, bytes]:
    metadata = numpy_metadata(values, order)
    if values.dtype.names:
        metadata["dtype"] = repr(values.dtype.descr)
    lying = np.ascontiguousarray(values.T if order == "F" else values).ravel()
    return {ROOT: superchunk(lying, frame_size, metadata=metadata, **options)}


def files_of(name: str) -> tuple[dict[str, bytes], dict[str, np.ndarray[Any, Any]]]:
    """Return the files of an undamaged source, and its arrays."""
    match name:
        case "carray":
            return carray_of(RANDOM, 256), {"data": RANDOM}
        case "plain carray":
            return carray_of(np.arange(25), 10), {"data": np.arange(25)}
        case "rows":
            return carray_of(MATRIX, 30), {"data": MATRIX}
        case "table":
            table = table_of(a=carray_of(np.arange(25), 10), b=carray_of(STRUCTS[:25], 10))
            return table, {"a": np.arange(25), "b": STRUCTS[:25]}
        case "offsets":
            return packed(RANDOM, 2048, checksum=1, spare=3), {"data": RANDOM}
        case "no offsets":
            return packed(RANDOM, 2048, checksum=6, offsets=False), {"data": RANDOM}
        case "unchecked":
            return packed(RANDOM, 2048), {"data": RANDOM}
        case "unaligned":
            return packed(MATRIX, 1000, checksum=2), {"data": MATRIX}
        case "Fortran":
            return packed(MATRIX, 800, "F", checksum=2), {"data": MATRIX}
        case "structs":
            return packed(STRUCTS, 280, checksum=3), {"data": STRUCTS}
    raise AssertionError(name)


BCOLZ = ["carray", "plain carray", "rows", "table"]
CHECKED = ["offsets", "no offsets", "unaligned", "Fortran", "structs"]
EVERY = [*BCOLZ, *CHECKED, "unchecked"]


def arrays_in(files: Mapping[str, bytes], **options: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Read the arrays with zarr. Errors of the read are raised."""
    opened = Files(dict(files))
    keyspace = opened.open("bloscpack" if ROOT in files else "bcolz", **options)
    found = {}
    for path, grid in keyspace.grids.items():
        doc = json.loads(opened.read(keyspace, f"{path}/.zarray") or b"")
        spelled = doc["dtype"]
        dtype = np.dtype(spelled if isinstance(spelled, str) else [_field(field) for field in spelled])
        out = np.zeros(doc["shape"], dtype)
        assert out.nbytes < 1 << 20, "a forged shape: nobody would take this for the array"
        for number in range(grid.size):
            frame = opened.read(keyspace, f"{path}/{grid.tail(number)}")
            assert frame is not None, "a chunk is missing: that would be the fill value"
            flat = np.frombuffer(blosc.decompress(frame), dtype)
            chunk = flat.reshape(doc["chunks"], order=doc["order"])
            begin = [int(i) * c for i, c in zip(grid.tail(number).split("."), doc["chunks"], strict=True)]
            at = tuple(slice(b, b + c) for b, c in zip(begin, doc["chunks"], strict=True))
            room = out[at]
            out[at] = chunk[tuple(slice(0, n) for n in room.shape)]
        found[path] = out
    if keyspace.reports:  # an array is left out by name: reading it is an error
        raise ManifestError(str(keyspace.reports))
    return found


def _field(field: list[Any]) -> tuple[Any, ...]:
    name, spelled, *shape = field
    kind = [_field(inner) for inner in spelled] if isinstance(spelled, list) else spelled
    return (name, kind, *(tuple(s) for s in shape))


def outcome(files: Mapping[str, bytes], due: Mapping[str, np.ndarray[Any, Any]], **options: Any) -> str:
    """Classify the result of a read as "values", "error" or "other values"."""
    try:
        found = arrays_in(files, **options)
    except ERRORS:
        return "error"
    if found.keys() != due.keys():
        return "other arrays"
    for path, values in due.items():
        if found[path].shape != values.shape:
            return "another shape"
        if found[path].tobytes() != values.tobytes():
            return "other values"
    return "values"


@pytest.fixture(autouse=True)
def _for_zarr_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refshard_fs.core.dtypes.zarr_major", lambda: 2)


def cut(name: str, step: int) -> Iterator[tuple[str, int, dict[str, bytes]]]:
    files, _ = files_of(name)
    for url, data in files.items():
        for length in range(zlib.crc32(url.encode()) % step, len(data), step):
            yield url, length, {**files, url: data[:length]}


def check_cuts(name: str, step: int) -> None:
    due = files_of(name)[1]
    for url, length, files in cut(name, step):
        for verify in (False, True):
            assert outcome(files, due, verify=verify) == "error", (url, length, verify)


@pytest.mark.parametrize("name", EVERY)
def test_undamaged_sources_have_their_values(name: str) -> None:
    files, due = files_of(name)
    assert outcome(files, due) == outcome(files, due, verify=True) == "values"


@pytest.mark.parametrize("name", EVERY)
def test_file_cut_at_some_byte_gives_an_error(name: str) -> None:
    check_cuts(name, 41)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_file_cut_at_any_byte_gives_an_error(name: str) -> None:
    check_cuts(name, 1)


def headers(name: str, files: Mapping[str, bytes]) -> Iterator[tuple[str, range]]:
    """Yield each file with its header bytes."""
    for url, data in files.items():
        if name in BCOLZ:
            if "/data/" in url:
                yield url, range(32)
            continue
        frames = [at for at in range(len(data)) if data[at : at + 2] == b"\2\1" and at > 64]
        yield url, range(frames[0] if frames else len(data))
        for at in frames:
            yield url, range(at, at + 16)


# Of a frame: which bits tell how it was compressed. Only the codec, or a checksum, notices that they are others.
MEANING = {2, 3}  # flags and typesize, from the header on


def check_flips(name: str, step: int, *, verify: bool) -> set[tuple[str, int, int, str]]:
    files, due = files_of(name)
    wrong = set()
    for url, places in headers(name, files):
        for bit in range(zlib.crc32(url.encode()) % step, len(places) * 8, step):
            at = places[bit // 8]
            damaged = bytearray(files[url])
            damaged[at] ^= 1 << bit % 8
            found = outcome({**files, url: bytes(damaged)}, due, verify=verify)
            if found not in ("values", "error"):
                wrong.add((url, at - places.start, bit % 8, found))
    return wrong


@pytest.mark.parametrize("name", EVERY)
def test_flipped_header_bit_is_noticed_except_of_shuffling(name: str) -> None:
    assert {place[1] % 16 for place in check_flips(name, 37, verify=False)} <= MEANING


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_any_flipped_header_bit_is_noticed_except_of_shuffling(name: str) -> None:
    assert {place[1] % 16 for place in check_flips(name, 1, verify=False)} <= MEANING


@pytest.mark.parametrize("name", CHECKED)
def test_flipped_header_bit_is_noticed_where_verified(name: str) -> None:
    assert check_flips(name, 31, verify=True) == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKED)
def test_any_flipped_header_bit_is_noticed_where_verified(name: str) -> None:
    assert check_flips(name, 1, verify=True) == set()


NUMBERS = [-(2**63), -1, 0, 1, 2, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1]


@pytest.mark.parametrize("name", ["offsets", "no offsets", "unaligned", "carray"])
def test_forged_number_gives_error_or_values_and_takes_no_memory(name: str) -> None:
    files, due = files_of(name)
    url = f"{ROOT}/data/__1.blp" if name == "carray" else ROOT
    data = files[url]
    frame = 16 if name == "carray" else next(at for at in range(64, len(data)) if data[at : at + 2] == b"\2\1")
    fields = [(8, "<q"), (frame + 4, "<I"), (frame + 8, "<I"), (frame + 12, "<I")]
    if name != "carray":
        fields = [(8, "<i"), (12, "<i"), (16, "<q"), (24, "<q"), (44, "<I"), (48, "<I"), (52, "<I"), *fields[1:]]
        fields += [(at, "<q") for at in range(frame - 3 * 8 - 3 * 8, frame, 8) if name == "offsets"]
    tracemalloc.start()
    try:
        for at, kind in fields:
            for number in NUMBERS:
                forged = bytearray(data)
                try:
                    struct.pack_into(kind, forged, at, number)
                except struct.error:
                    continue  # no number of that field's width
                assert outcome({**files, url: bytes(forged)}, due) in ("error", "values"), (at, kind, number)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("field", "numbers"),
    [("chunklen", [1, 2**31, 2**62]), ("shape", [[2**31], [2**55], [701], [512], [256], [0]])],
)
def test_forged_counts_of_carray_give_error_and_take_no_memory(field: str, numbers: list[Any]) -> None:
    due = {"data": RANDOM}
    tracemalloc.start()
    try:
        for number in numbers:
            files = carray_of(RANDOM, 256, **{field: number})  # nbytes is what it was
            assert outcome(files, due) == "error", number
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["carray", "plain carray", "rows"])
def test_missing_file_is_an_error_and_extra_file_is_ignored(name: str) -> None:
    files, due = files_of(name)
    for url in files:
        rest = {other: data for other, data in files.items() if other != url}
        assert outcome(rest, due) == "error", url
    last = max(url for url in files if "/data/" in url)
    assert outcome({**files, f"{ROOT}/data/__9.blp": files[last]}, due) == "values"


def test_column_of_another_length_is_noticed() -> None:
    files, due = files_of("table")
    for stale in (24, 26, 20, 30):
        other = table_of(a=carray_of(np.arange(stale), 10), b=carray_of(STRUCTS[:25], 10))
        assert outcome(other, due) == "error"
        mixed = {**files, f"{ROOT}/a/meta/sizes": other[f"{ROOT}/a/meta/sizes"]}
        assert outcome(mixed, due) == "error"
