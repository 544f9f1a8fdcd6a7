"""Arrays of other formats are shown with nested groups, texts and filters; contiguous arrays are cut into chunks."""

from __future__ import annotations

import gc
import json
import weakref
from typing import Any

import numpy as np
import pytest
import zarr

from refshard_fs.core import zarrmeta
from refshard_fs.core.array_group import (
    ArrayDescription,
    ArrayGroup,
    ArrayGroupBuilder,
    Chunks,
    Contiguous,
    FilledChunks,
    choose_chunks,
    encode_fill_value,
)
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Inline, Listed, Packed, Span, Steps
from refshard_fs.errors import ManifestError


def run(steps: Steps[Any]) -> Any:
    """Return the result of steps that need no reads."""
    with pytest.raises(StopIteration) as done:
        next(steps)
    return done.value.value


class StoredChunks(Chunks):
    def __init__(self, *chunks: bytes | Span | None) -> None:
        self.chunks = chunks

    def find_entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        found = self.chunks[number]
        return Inline(found) if isinstance(found, bytes) else found


def describe_array(
    shape: tuple[int, ...], dtype: str, chunks: tuple[int, ...] | None = None, **more: Any
) -> ArrayDescription:
    names = [f"dim_{axis}" for axis in range(len(shape))]
    return ArrayDescription("test", shape, chunks or shape, np.dtype(dtype), names, {"units": "m"}, **more)


def open_group(group: ArrayGroup) -> Any:
    """Return the keys of a group as zarr reads them."""
    store: dict[str, bytes] = {}

    def walk(prefix: str) -> None:
        for child in run(group.children(prefix)):
            path = f"{prefix}/{child.name}" if prefix else child.name
            if child.is_directory:
                walk(path)
            else:
                store[path] = run(group.lookup(path)).data
                assert child.size in (None, len(store[path]))

    walk("")
    if int(zarr.__version__.partition(".")[0]) == 2:
        return zarr.open_group(store, mode="r")
    from zarr.core.buffer import default_buffer_prototype
    from zarr.storage import MemoryStore

    buffer = default_buffer_prototype().buffer
    return zarr.open_group(MemoryStore({key: buffer.from_bytes(data) for key, data in store.items()}), mode="r")


FORMATS = [2] if zarr.__version__.startswith("2.") else [2, 3]


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_groups_in_groups_have_their_arrays_and_attributes(zarr_format: int) -> None:
    arrays = {"a": describe_array((2,), "<i2"), "x/y/b": describe_array((), "<f8")}
    chunks = {"a": StoredChunks(b"\1\0\2\0"), "x/y/b": StoredChunks(np.array(0.5).tobytes())}
    group = ArrayGroup(arrays, chunks, zarr_format, {"title": "t"}, groups={"x": {"n": 1}, "empty": {}})
    root = open_group(group)
    assert root.attrs["title"] == "t"
    assert root["x"].attrs["n"] == 1
    assert sorted(root.group_keys()) == ["empty", "x"]
    assert root["a"][:].tolist() == [1, 2]
    assert root["x/y/b"][()] == 0.5
    assert run(group.children("x/z")) is None
    assert run(group.is_directory("x/y"))
    name = "zarr.json" if zarr_format == 3 else ".zmetadata"
    document = json.loads(run(group.lookup(name)).data)
    metadata = document["consolidated_metadata"]["metadata"] if zarr_format == 3 else document["metadata"]
    assert ("x/y/b" if zarr_format == 3 else "x/y/b/.zarray") in metadata


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_texts_of_variable_length_are_read(zarr_format: int) -> None:
    import numcodecs

    encoded = numcodecs.VLenUTF8().encode(np.array(["a", "épée"], dtype=object))
    text = describe_array((2,), "O", codecs=[{"id": "vlen-utf8"}], fill_value="")
    root = open_group(ArrayGroup({"s": text}, {"s": StoredChunks(bytes(encoded))}, zarr_format, {}))
    assert root["s"][:].tolist() == ["a", "épée"]


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
@pytest.mark.parametrize("zarr_format", FORMATS)
def test_shuffle_filter_is_decoded(zarr_format: int) -> None:
    import numcodecs

    values = np.arange(10, dtype="<i4")
    shuffle = numcodecs.Shuffle(4)
    array = describe_array((10,), "<i4", codecs=[shuffle.get_config()])
    root = open_group(ArrayGroup({"a": array}, {"a": StoredChunks(bytes(shuffle.encode(values)))}, zarr_format, {}))
    assert root["a"][:].tolist() == values.tolist()


@pytest.mark.parametrize(
    ("value", "spelled"),
    [
        (np.float32("nan"), "NaN"),
        (np.float64("-inf"), "-Infinity"),
        (np.complex64(complex(1, float("inf"))), [1.0, "Infinity"]),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bytes_(b"ab"), "YWI="),
        (np.datetime64("1970-01-02", "D"), 1),
    ],
)
def test_fill_values_are_encoded_as_in_zarr_metadata(value: Any, spelled: Any) -> None:
    for order in "<>":
        dtype = value.dtype.newbyteorder(order)
        assert encode_fill_value(np.array(value, dtype).tobytes(), dtype) == spelled


@pytest.mark.parametrize("shape", [(), (0,), (7,), (5, 3), (2, 5, 3), (3, 1, 11), (4, 0, 2)])
@pytest.mark.parametrize("most", [1, 8, 12, 40, 1000])
def test_contiguous_array_cut_into_chunks_keeps_its_values(shape: tuple[int, ...], most: int) -> None:
    values = np.arange(np.prod(shape, dtype=int), dtype="<i4").reshape(shape)
    data = b"head" + values.tobytes()
    chunks = choose_chunks(shape, 4, most)
    assert np.prod(chunks) * 4 <= max(most, 4)
    array = describe_array(shape, "<i4", chunks)
    root = open_group(ArrayGroup({"a": array}, {"a": Contiguous(Inline(data), 4, shape, chunks, 4, "a")}, 2, {}))
    np.testing.assert_array_equal(root["a"][...], values)


def test_interleaved_records_are_read_by_stride() -> None:
    records = np.zeros(5, [("a", "<i2", 3), ("b", "<f8")])
    records["a"] = np.arange(15).reshape(5, 3)
    source = Inline(records.tobytes())
    chunks = Contiguous(source, 0, (5, 3), (1, 3), 2, "a", stride=14)
    root = open_group(ArrayGroup({"a": describe_array((5, 3), "<i2", (1, 3))}, {"a": chunks}, 2, {}))
    np.testing.assert_array_equal(root["a"][...], records["a"])


def test_short_last_chunk_is_padded() -> None:
    chunks = Contiguous(Span("file", 0, 100), 10, (5,), (2,), 8, "a")
    assert run(chunks.find_entry(1)) == Span("file", 26, 42)
    last = run(chunks.find_entry(2))
    assert isinstance(last, Packed)
    assert last.spans == (Span("file", 42, 50),)
    assert last.finish([b"12345678"]) == b"12345678" + bytes(8)


def test_array_larger_than_its_file_or_stride_is_refused() -> None:
    with pytest.raises(ManifestError, match="the file ends at byte 49"):
        Contiguous(Span("file", 0, 49), 10, (5,), (2,), 8, "a")
    with pytest.raises(ManifestError, match="its records begin every"):
        Contiguous(Span("file", 0, 1000), 10, (5,), (1,), 8, "a", stride=4)


@pytest.mark.parametrize(
    ("shape", "chunks", "names"),
    [((4, 6), (2, 3), ["y"]), ((4, 6), (2,), ["y", "x"]), ((4, 6), (2, -3), ["y", "x"]), ((4, 6), (2, 0), ["y", "x"]),
     ((4, -6), (2, 3), ["y", "x"])],
)  # fmt: skip
def test_invalid_shape_chunks_or_dimension_names_are_reported(
    shape: tuple[int, ...], chunks: tuple[int, ...], names: list[str]
) -> None:
    builder = ArrayGroupBuilder("file")
    builder.add("empty", ArrayDescription("a", (0, 2), (0, 1), np.dtype("<i2"), ["y", "x"]), StoredChunks())
    with builder.report_errors("b"):
        builder.add("b", ArrayDescription("'b' of file", shape, chunks, np.dtype("<i2"), names), StoredChunks())
    assert list(builder.arrays) == ["empty"]
    assert builder.reports["b"].startswith("'b' of file: ")


def test_data_of_a_reported_error_are_freed_at_once() -> None:
    """The data are in a local variable of the function that raises the error."""
    held = []

    def fail() -> None:
        data = np.zeros(10)
        held.append(weakref.ref(data))
        raise ValueError("damaged")

    builder = ArrayGroupBuilder("file")
    gc.disable()
    try:
        with builder.report_errors("b"):
            fail()
        assert held[0]() is None
    finally:
        gc.enable()
    assert builder.reports == {"b": "damaged"}


@pytest.mark.parametrize(
    "path",
    ["..", "a/../b", "a//b", "a/", ".zarray", "g/zarr.json", "a\\b", "a\0b", "a::b", "x" * 5000, "d/" * 100 + "d"],
)
@pytest.mark.case(id="P21")
def test_invalid_names_are_reported_and_left_out(path: str) -> None:
    arrays = {"a": describe_array((2,), "<i2"), path: describe_array((2,), "<i2")}
    group = ArrayGroup(arrays, {name: StoredChunks(b"abcd") for name in arrays}, 2, {}, groups={path: {}, "g": {}})
    assert set(group.grids) == {"a"}
    assert {listed.name for listed in run(group.children(""))} >= {"a", "g"}
    if len(path) > 100:  # the report shows only the beginning of a long path
        assert run(group.lookup(f"{path}/0")) is None
    else:
        with pytest.raises(ManifestError, match="expected a path that can be a key"):
            run(group.lookup(f"{path}/0"))
    assert list(group.reports) == [path[:100]]


def test_array_that_version_3_cannot_hold_is_left_out() -> None:
    numbers = describe_array((2,), "<i2")
    sequences = describe_array((2,), "|O", codecs=[{"id": "vlen-array", "dtype": "<i4"}])
    chunks = {"a": StoredChunks(b"abcd"), "g/b": StoredChunks(b"")}
    group = ArrayGroup({"a": numbers, "g/b": sequences}, chunks, 3, {}, groups={"g": {"k": 1}})
    assert run(group.lookup("a/c.0")) == Inline(b"abcd")
    assert json.loads(run(group.lookup("g/zarr.json")).data)["attributes"] == {"k": 1}
    assert list(group.reports) == ["g/b"]
    with pytest.raises(ManifestError, match="open the source with zarr_format=2"):
        run(group.lookup("g/b/zarr.json"))
    assert set(ArrayGroup({"a": numbers, "g/b": sequences}, chunks, 2, {}).grids) == {"a", "g/b"}
    for arrays in ({"g/b": sequences}, {"g/b": sequences, "g/c": sequences}):
        with pytest.raises(ManifestError, match="open the source with zarr_format=2"):
            ArrayGroup(arrays, {}, 3, {})


class Sparse(StoredChunks):
    def list_existing(self) -> Steps[list[Listed] | None]:
        yield from ()
        return [Listed(str(number), None) for number, chunk in enumerate(self.chunks) if chunk is not None]


@pytest.mark.parametrize("written", [[1, 2], np.flatnonzero([0, 1, 1]), np.array([1, 2], np.uint64)])
def test_list_written_takes_integers_of_any_type(written: Any) -> None:
    described = describe_array((6,), "<i2", (2,))
    chunks = FilledChunks("'a'", described.grid(2), 4, fills_itself=True)
    assert chunks.list_written(written) == [Listed("1", None), Listed("2", None)]


@pytest.mark.parametrize("prefix", ["", "g", "g/b", "g.a", "z", "none"])
def test_contents_and_chunks_agree_with_listings(prefix: str) -> None:
    """`ArrayGroup` makes both from its arrays; the base class lists directories, and looks up each key."""
    some = Span("file", 0, 4), None, *(Span("other", at, at + 4) for at in range(10)), b"abcd"
    chunks = {
        "z": StoredChunks(*some),
        "g/b": Sparse(*some),
        "g/h/a": StoredChunks(b"abcd"),
        "g.a": StoredChunks(b"abcd"),
        "0": StoredChunks(b""),
    }
    counts = {"z": 13, "g/b": 13, "0": 0}
    arrays = {path: describe_array((2 * counts.get(path, 1),), "<i2", (2,)) for path in chunks}
    group = ArrayGroup(arrays, chunks, 2, {"title": "t"})
    own, listed = run(group.contents(prefix)), run(KeySpace.contents(group, prefix))
    assert own.members == listed.members
    assert own.others == listed.others
    assert own.indexes == listed.indexes
    assert [*own.arrays] == [path for path in chunks if path in listed.arrays], "in the order of the file"
    for path, array in own.arrays.items():
        assert array.grid == listed.arrays[path].grid
        assert sorted(array.column.tolist()) == sorted(listed.arrays[path].column.tolist())
        found, one_by_one = run(group.chunks(path, array.column)), run(KeySpace.chunks(group, path, array.column))
        assert found.inline == one_by_one.inline
        assert found.urls == one_by_one.urls
        for column, expected in zip(found.ranges, one_by_one.ranges, strict=True):
            np.testing.assert_array_equal(column, expected)


def test_documents_are_encoded_when_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cube of many files reads only the documents of one array of each file."""
    encoded: list[Any] = []

    def encode(document: Any) -> bytes:
        encoded.append(document)
        return dumps(document)

    dumps = zarrmeta.dumps
    arrays = {
        f"a{n}": ArrayDescription("", (4,), (2,), np.dtype("<i2"), ["x"], {"long_name": f"number {n}"})
        for n in range(50)
    }
    monkeypatch.setattr(zarrmeta, "dumps", encode)
    group = ArrayGroup(arrays, {}, 2, {})
    assert not encoded
    assert json.loads(run(group.read("a7/.zattrs")))["long_name"] == "number 7"
    assert run(group.lookup("a7/x")) is None
    run(group.read("a7/.zattrs"))
    assert len(encoded) == 1
    consolidated = json.loads(run(group.read(".zmetadata")))["metadata"]
    assert consolidated == {key: json.loads(run(group.read(key))) for key in consolidated}
    assert len(consolidated) == 102
