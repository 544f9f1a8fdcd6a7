"""A bcolz rootdir or bloscpack file that is cut short or has a flipped bit gives the written values or an error.

Without checksums, wrong bits in two bytes of a frame's header are not noticed: its flags and its typesize.
Tests that are marked slow try every cut and bit, the others try some.
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
from tests.support.blosc_sources import make_carray, make_numpy_metadata, make_table, pack_values
from tests.support.shards_in_memory import ROOT, Files

ERRORS = (RefShardError, EOFError, ValueError, RuntimeError)  # files in memory raise EOFError beyond their end

RANDOM = np.random.default_rng(3).integers(0, 1000, 700)
MATRIX = np.arange(700.0).reshape(100, 7)
STRUCTS = np.zeros(40, [("a", "<i4"), ("b", "<f8", (2,))])
STRUCTS["a"] = np.arange(40)
STRUCTS["b"] = RANDOM[:80].reshape(40, 2)


def make_bloscpack(values: np.ndarray[Any, Any], frame_size: int, order: str = "C", **options: Any) -> dict[str, bytes]:
    metadata = make_numpy_metadata(values, order)
    if values.dtype.names:
        metadata["dtype"] = repr(values.dtype.descr)
    flat = np.ascontiguousarray(values.T if order == "F" else values).ravel()
    return {ROOT: pack_values(flat, frame_size, metadata=metadata, **options)}


def make_source(name: str) -> tuple[dict[str, bytes], dict[str, np.ndarray[Any, Any]]]:
    """Make an undamaged source. Return its files and its arrays."""
    match name:
        case "carray":
            return make_carray(RANDOM, 256), {"data": RANDOM}
        case "plain carray":
            return make_carray(np.arange(25), 10), {"data": np.arange(25)}
        case "rows":
            return make_carray(MATRIX, 30), {"data": MATRIX}
        case "table":
            table = make_table(a=make_carray(np.arange(25), 10), b=make_carray(STRUCTS[:25], 10))
            return table, {"a": np.arange(25), "b": STRUCTS[:25]}
        case "offsets":
            return make_bloscpack(RANDOM, 2048, checksum=1, spare=3), {"data": RANDOM}
        case "no offsets":
            return make_bloscpack(RANDOM, 2048, checksum=6, offsets=False), {"data": RANDOM}
        case "unchecked":
            return make_bloscpack(RANDOM, 2048), {"data": RANDOM}
        case "unaligned":
            return make_bloscpack(MATRIX, 1000, checksum=2), {"data": MATRIX}
        case "Fortran":
            return make_bloscpack(MATRIX, 800, "F", checksum=2), {"data": MATRIX}
        case "structs":
            return make_bloscpack(STRUCTS, 280, checksum=3), {"data": STRUCTS}
    raise AssertionError(name)


BCOLZ = ["carray", "plain carray", "rows", "table"]
CHECKED = ["offsets", "no offsets", "unaligned", "Fortran", "structs"]
EVERY = [*BCOLZ, *CHECKED, "unchecked"]


def read_arrays(files: Mapping[str, bytes], **options: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Read all arrays, chunk by chunk. Raise the first error."""
    memory = Files(dict(files))
    keyspace = memory.open("bloscpack" if ROOT in files else "bcolz", **options)
    arrays = {}
    for path, grid in keyspace.grids.items():
        doc = json.loads(memory.read(keyspace, f"{path}/.zarray") or b"")
        kind = doc["dtype"]
        dtype = np.dtype(kind if isinstance(kind, str) else [_parse_field(field) for field in kind])
        array = np.zeros(doc["shape"], dtype)
        assert array.nbytes < 1 << 20, "the shape is damaged, and much larger than the array"
        for number in range(grid.size):
            frame = memory.read(keyspace, f"{path}/{grid.tail(number)}")
            assert frame is not None, "a chunk is missing: zarr would fill it"
            flat = np.frombuffer(blosc.decompress(frame), dtype)
            chunk = flat.reshape(doc["chunks"], order=doc["order"])
            begin = [
                int(coord) * chunk_size
                for coord, chunk_size in zip(grid.tail(number).split("."), doc["chunks"], strict=True)
            ]
            region = tuple(
                slice(start, start + chunk_size) for start, chunk_size in zip(begin, doc["chunks"], strict=True)
            )
            part = array[region]
            array[region] = chunk[tuple(slice(0, extent) for extent in part.shape)]
        arrays[path] = array
    if keyspace.reports:  # reading the reported array is an error
        raise ManifestError(str(keyspace.reports))
    return arrays


def _parse_field(field: list[Any]) -> tuple[Any, ...]:
    name, kind, *shape = field
    dtype = [_parse_field(inner) for inner in kind] if isinstance(kind, list) else kind
    return (name, dtype, *(tuple(dims) for dims in shape))


def classify(files: Mapping[str, bytes], expected: Mapping[str, np.ndarray[Any, Any]], **options: Any) -> str:
    """Classify the result of reading as "values", "error", "other arrays", "another shape" or "other values"."""
    try:
        actual = read_arrays(files, **options)
    except ERRORS:
        return "error"
    if actual.keys() != expected.keys():
        return "other arrays"
    for path, values in expected.items():
        if actual[path].shape != values.shape:
            return "another shape"
        if actual[path].tobytes() != values.tobytes():
            return "other values"
    return "values"


@pytest.fixture(autouse=True)
def _for_zarr_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refshard_fs.core.dtypes.zarr_major", lambda: 2)


def iterate_cuts(name: str, step: int) -> Iterator[tuple[str, int, dict[str, bytes]]]:
    files, _ = make_source(name)
    for url, data in files.items():
        for length in range(zlib.crc32(url.encode()) % step, len(data), step):
            yield url, length, {**files, url: data[:length]}


def check_cuts(name: str, step: int) -> None:
    expected = make_source(name)[1]
    for url, length, files in iterate_cuts(name, step):
        for verify in (False, True):
            assert classify(files, expected, verify=verify) == "error", (url, length, verify)


@pytest.mark.parametrize("name", EVERY)
def test_undamaged_sources_have_their_values(name: str) -> None:
    files, expected = make_source(name)
    assert classify(files, expected) == classify(files, expected, verify=True) == "values"


@pytest.mark.parametrize("name", EVERY)
def test_truncated_file_gives_an_error_at_sampled_lengths(name: str) -> None:
    check_cuts(name, 41)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_truncated_file_gives_an_error_at_every_length(name: str) -> None:
    check_cuts(name, 1)


def find_headers(name: str, files: Mapping[str, bytes]) -> Iterator[tuple[str, range]]:
    """Yield the URL of each file with the positions of the bytes of each header in it."""
    for url, data in files.items():
        if name in BCOLZ:
            if "/data/" in url:
                yield url, range(32)
            continue
        frames = [
            position for position in range(len(data)) if data[position : position + 2] == b"\2\1" and position > 64
        ]
        yield url, range(frames[0] if frames else len(data))
        for position in frames:
            yield url, range(position, position + 16)


# The bytes of a frame's header that say how it was compressed: flags and typesize. Only the codec or a checksum can
# notice wrong bits in them.
MEANING = {2, 3}


def check_flips(name: str, step: int, *, verify: bool) -> set[tuple[str, int, int, str]]:
    files, expected = make_source(name)
    wrong = set()
    for url, positions in find_headers(name, files):
        for bit in range(zlib.crc32(url.encode()) % step, len(positions) * 8, step):
            position = positions[bit // 8]
            damaged = bytearray(files[url])
            damaged[position] ^= 1 << bit % 8
            outcome = classify({**files, url: bytes(damaged)}, expected, verify=verify)
            if outcome not in ("values", "error"):
                wrong.add((url, position - positions.start, bit % 8, outcome))
    return wrong


@pytest.mark.parametrize("step", [37, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", EVERY)
def test_header_bit_flips_are_harmless_except_flags_and_typesize(name: str, step: int) -> None:
    """The result is an error or the written values."""
    assert {place[1] % 16 for place in check_flips(name, step, verify=False)} <= MEANING


@pytest.mark.parametrize("step", [31, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CHECKED)
def test_header_bit_flips_are_harmless_with_checksums(name: str, step: int) -> None:
    """The result is an error or the written values."""
    assert check_flips(name, step, verify=True) == set()


NUMBERS = [-(2**63), -1, 0, 1, 2, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1]


@pytest.mark.parametrize("name", ["offsets", "no offsets", "unaligned", "carray"])
def test_forged_number_is_harmless_and_takes_little_memory(name: str) -> None:
    files, expected = make_source(name)
    url = f"{ROOT}/data/__1.blp" if name == "carray" else ROOT
    data = files[url]
    frame = (
        16
        if name == "carray"
        else next(position for position in range(64, len(data)) if data[position : position + 2] == b"\2\1")
    )
    fields = [(8, "<q"), (frame + 4, "<I"), (frame + 8, "<I"), (frame + 12, "<I")]
    if name != "carray":
        fields = [(8, "<i"), (12, "<i"), (16, "<q"), (24, "<q"), (44, "<I"), (48, "<I"), (52, "<I"), *fields[1:]]
        fields += [(position, "<q") for position in range(frame - 3 * 8 - 3 * 8, frame, 8) if name == "offsets"]
    tracemalloc.start()
    try:
        for position, kind in fields:
            for number in NUMBERS:
                forged = bytearray(data)
                try:
                    struct.pack_into(kind, forged, position, number)
                except struct.error:
                    continue  # the number does not fit the field
                assert classify({**files, url: bytes(forged)}, expected) in ("error", "values"), (
                    position,
                    kind,
                    number,
                )
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("field", "numbers"),
    [("chunklen", [1, 2**31, 2**62]), ("shape", [[2**31], [2**55], [701], [512], [256], [0]])],
)
def test_forged_count_of_a_carray_is_an_error(field: str, numbers: list[Any]) -> None:
    expected = {"data": RANDOM}
    tracemalloc.start()
    try:
        for number in numbers:
            files = make_carray(RANDOM, 256, **{field: number})  # nbytes is unchanged
            assert classify(files, expected) == "error", number
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["carray", "plain carray", "rows"])
def test_missing_file_is_an_error_and_extra_file_is_ignored(name: str) -> None:
    files, expected = make_source(name)
    for url in files:
        remaining = {other: data for other, data in files.items() if other != url}
        assert classify(remaining, expected) == "error", url
    last = max(url for url in files if "/data/" in url)
    assert classify({**files, f"{ROOT}/data/__9.blp": files[last]}, expected) == "values"


def test_column_of_another_length_is_an_error() -> None:
    files, expected = make_source("table")
    for stale in (24, 26, 20, 30):
        other_table = make_table(a=make_carray(np.arange(stale), 10), b=make_carray(STRUCTS[:25], 10))
        assert classify(other_table, expected) == "error"
        mixed = {**files, f"{ROOT}/a/meta/sizes": other_table[f"{ROOT}/a/meta/sizes"]}
        assert classify(mixed, expected) == "error"
