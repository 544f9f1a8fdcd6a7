"""Grids parsed from metadata agree with zarr's own, and contradictory metadata raise a clear error."""

from __future__ import annotations

import gc
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding
from refshard_fs.core.zarrmeta import (
    array_meta,
    dumps,
    is_metadata,
    is_nested_deeply,
    iterate_consolidated_arrays,
    loads,
    make_strict,
    parse_plain_grid,
)
from refshard_fs.errors import ManifestError


@pytest.fixture(scope="module", autouse=True)
def _no_collection_on_a_full_stack() -> Iterator[None]:
    """Disable the garbage collector: finalizers of other tests would fail while deep JSON fills the stack."""
    gc.disable()
    yield
    gc.enable()


SHARED = Path(os.environ.get("REFSHARD_SHARED", Path(__file__).parents[3] / "shared"))

# Written by zarr-python 2.18.7.
WRITTEN_BY_ZARR_2 = {
    "plain": """{
    "chunks": [10, 20],
    "compressor": {"blocksize": 0, "clevel": 5, "cname": "lz4", "id": "blosc", "shuffle": 1},
    "dtype": "<f4",
    "fill_value": NaN,
    "filters": null,
    "order": "C",
    "shape": [25, 20],
    "zarr_format": 2
}""",
    "nested": """{
    "chunks": [1, 2, 3],
    "compressor": null,
    "dimension_separator": "/",
    "dtype": [["a", "<i4"], ["b", "|S3"]],
    "fill_value": null,
    "filters": null,
    "order": "F",
    "shape": [2, 4, 7],
    "zarr_format": 2
}""",
    "scalar": """{
    "chunks": [],
    "compressor": null,
    "dtype": "<f8",
    "fill_value": -Infinity,
    "filters": null,
    "order": "C",
    "shape": [],
    "zarr_format": 2
}""",
}
V2 = {"zarr_format": 2, "shape": [10, 5], "chunks": [4, 5], "dtype": "<i2", "order": "C"}
V3 = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [10, 5],
    "data_type": "int16",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 5]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
}


def grid_of(doc: dict[str, Any]) -> ChunkGrid:
    meta = array_meta(doc, "'a/zarr.json' of x")
    assert meta is not None
    assert meta.grid is not None
    return meta.grid


# JSON


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": Infinity, "b": [-Infinity, 1.5, true, null]}', {"a": math.inf, "b": [-math.inf, 1.5, True, None]}),
        (b"\xef\xbb\xbf {} \n", {}),
        ("\ufeff[]", []),
        ('"a\tb\nc"', "a\tb\nc"),
        ('"\\ud83d\\ude00 \\u00e9 é"'.encode(), "😀 é é"),
        ("9223372036854775808", 2**63),
        ("18446744073709551615.0", 2.0**64),
        ("1e999", math.inf),
        ('{"a": 1, "a": 2}', {"a": 2}),
    ],
)
def test_unusual_and_lenient_json_is_parsed(text: bytes | str, value: object) -> None:
    assert loads(text) == value


def test_bare_nan_and_infinity_are_read_and_written() -> None:
    assert math.isnan(loads('{"fill_value": NaN}')["fill_value"])
    assert dumps({"fill_value": math.nan, "b": [math.inf, -math.inf]}) == b'{"fill_value":NaN,"b":[Infinity,-Infinity]}'


@pytest.mark.parametrize(
    "text",
    [
        *("", "-", "01", "1.", ".5", "+1", "nan", "Inf", "-NaN", "tru", "[1,]", "[1 2]", "{'a': 1}", "{a: 1}", "{} {}"),
        *(
            "{}\0",
            '"\\x41"',
            '"a',
            "/**/1",
            b'"\xff"',
            b"\xff\xfe{\0}\0",
            "[" * 100_000,
            '{"a":' * 100_000,
            "9" * 5_000,
        ),
    ],
)
def test_invalid_json_is_a_value_error(text: bytes | str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        loads(text)
    assert len(str(caught.value)) < 300


texts = st.text(st.characters(codec=None))
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=10,
)


@given(json_values)
def test_dumped_json_loads_again(value: object) -> None:
    data = dumps(value)
    assert repr(loads(data)) == repr(value)  # compared by repr, because NaN is not equal to itself
    assert loads(data.decode()) == value or "nan" in repr(value)


def test_dumped_text_is_compact_utf8() -> None:
    assert dumps({"a": ["é", {"b": 1}]}) == '{"a":["é",{"b":1}]}'.encode()
    assert dumps(9.969209968386869e36) == b"9.969209968386869e+36"


@pytest.mark.parametrize(
    ("document", "strict"),
    [
        (
            '{"a": NaN, "b": [-Infinity, {"c": Infinity}], "d": "NaN"}',
            b'{"a":"NaN","b":["-Infinity",{"c":"Infinity"}],"d":"NaN"}',
        ),
        ('{"a": [ 1 ]}', b'{"a": [ 1 ]}'),
    ],
)
def test_numbers_that_json_lacks_become_texts(document: str, strict: bytes) -> None:
    assert make_strict(document.encode()) == strict


@pytest.mark.parametrize(
    ("document", "strict"),
    [
        ('{"missing_value": NaN, "_FillValue": [NaN], "a": 1.5}', b'{"a":1.5}'),
        ('{"missing_value": [NaN, -9.0], "_FillValue": Infinity}', b'{"missing_value":[-9.0],"_FillValue":Infinity}'),
    ],
)
def test_fill_attributes_lose_nan_and_keep_infinity(document: str, strict: bytes) -> None:
    """As a text, a number in missing_value would no longer mask values in xarray."""
    assert make_strict(document.encode()) == strict


def test_dumping_deep_nesting_is_a_value_error() -> None:
    deep: list[Any] = []
    for _ in range(200_000):
        deep = [deep]
    with pytest.raises(ValueError, match="too deep"):
        dumps(deep)
    while deep:  # from the outside inwards, because freeing the whole value would recurse too deeply
        deep = deep[0]


@pytest.mark.parametrize("key", [".zarray", "a/.zgroup", "a/b/.zattrs", ".zmetadata", "a/zarr.json"])
def test_metadata_keys_are_known_by_their_last_segment(key: str) -> None:
    assert is_metadata(key)
    assert not is_metadata(key + "/0")
    assert not is_metadata(key + "x")
    assert not is_metadata("x" + key.rpartition("/")[2])


# Version 2


def test_arrays_written_by_zarr_2_are_parsed() -> None:
    plain = array_meta(loads(WRITTEN_BY_ZARR_2["plain"]), "x")
    assert plain is not None
    assert (plain.zarr_format, plain.shape, plain.chunks, plain.dtype, plain.order) == (
        2,
        (25, 20),
        (10, 20),
        "<f4",
        "C",
    )
    assert plain.grid == ChunkGrid((3, 1), ChunkKeyEncoding("v2", "."))
    assert plain.raw["compressor"]["id"] == "blosc"
    nested = array_meta(loads(WRITTEN_BY_ZARR_2["nested"]), "x")
    assert nested is not None
    assert (nested.dtype, nested.order) == ('[["a","<i4"],["b","|S3"]]', "F")
    assert nested.grid == ChunkGrid((2, 2, 3), ChunkKeyEncoding("v2", "/"))
    scalar = array_meta(loads(WRITTEN_BY_ZARR_2["scalar"]), "x")
    assert scalar is not None
    assert scalar.grid is not None
    assert list(scalar.grid.tails()) == ["0"]


def test_empty_dimension_has_no_chunks() -> None:
    assert grid_of(V2 | {"shape": [0, 5]}).counts == (0, 1)
    assert grid_of(V2 | {"shape": [0, 5], "chunks": [0, 5]}).counts == (0, 1)


def test_null_separator_means_the_default() -> None:
    assert grid_of(V2 | {"dimension_separator": None}).encoding.separator == "."


def test_v2_prototype_grid_counts_shards() -> None:
    meta = array_meta(V2 | {"shape": [20, 20], "chunks": [4, 5], "shards": [2, 2], "shard_format": "indexed"}, "x")
    assert meta is not None
    assert meta.chunks == (8, 10)
    assert meta.grid == ChunkGrid((3, 2), ChunkKeyEncoding("v2", "."))


def test_whole_floats_count_as_integers() -> None:
    assert grid_of(V2 | {"shape": [10.0, 5], "chunks": [4.0, 5.0]}).counts == (3, 1)


# Version 3


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        ({"name": "default", "configuration": {"separator": "/"}}, "c/1/0"),
        ({"name": "default", "configuration": {"separator": "."}}, "c.1.0"),
        ({"name": "default", "configuration": {}}, "c/1/0"),
        ({"name": "default"}, "c/1/0"),
        ({"name": "default", "separator": "."}, "c.1.0"),
        ("default", "c/1/0"),
        (None, "c/1/0"),
        ({"name": "v2", "configuration": {"separator": "/"}}, "1/0"),
        ({"name": "v2", "configuration": {"separator": "."}}, "1.0"),
        ({"name": "v2"}, "1.0"),
        ("v2", "1.0"),
    ],
)
def test_chunk_key_encodings_are_parsed(spec: object, key: str) -> None:
    assert grid_of(V3 | {"chunk_key_encoding": spec}).number(key) == 1


@pytest.mark.parametrize(
    ("edges", "extent", "count"),
    [
        (4, 10, 3),
        (4, 0, 0),
        ([4, 4, 2], 10, 3),
        ([[4, 2], 2], 10, 3),
        ([[5, 2]], 10, 2),
        ([[1, 10]], 10, 10),
        ([10, 10, 10], 10, 1),  # edges beyond the extent have no chunks
        ([[4, 1000]], 10, 3),
        ([2, [4, 10**15]], 10, 3),
        ([4.0, [6, 1.0]], 10, 2),
        ([3], 0, 0),
    ],
)
def test_rectilinear_grids_count_their_chunks(edges: object, extent: int, count: int) -> None:
    grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [edges, 5]}}
    meta = array_meta(V3 | {"shape": [extent, 5], "chunk_grid": grid}, "x")
    assert meta is not None
    assert meta.chunks is None
    assert meta.grid is not None
    assert meta.grid.counts == (count, 1)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=6), st.data())
def test_run_lengths_expand_to_edges(runs: list[tuple[int, int]], data: st.DataObject) -> None:
    edges = [size for size, times in runs for _ in range(times)]
    extent = data.draw(st.integers(0, sum(edges)))
    starts = [sum(edges[:number]) for number in range(len(edges))]
    expected = sum(start < extent for start in starts)
    for spelled in (
        edges,
        [list(run) for run in runs],
        [size if times == 1 else [size, times] for size, times in runs],
    ):
        grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [spelled]}}
        assert grid_of(V3 | {"shape": [extent], "chunk_grid": grid}).counts == (expected,)


@pytest.mark.parametrize(
    "change",
    [
        {"chunk_grid": {"name": "hexagonal", "configuration": {}}},
        {"chunk_grid": "hexagonal"},
        {"chunk_grid": {"name": "rectilinear", "configuration": {"kind": "external", "path": "x"}}},
        {"chunk_key_encoding": {"name": "suffix", "configuration": {"suffix": ".tif"}}},
        {"chunk_key_encoding": "fanout"},
    ],
)
def test_array_with_an_unknown_extension_has_no_grid(change: dict[str, Any]) -> None:
    meta = array_meta(V3 | change, "x")
    assert meta is not None
    assert meta.grid is None
    assert meta.shape == (10, 5)


@pytest.mark.parametrize(
    "doc",
    [
        {"zarr_format": 3, "node_type": "group", "attributes": {}},
        {"zarr_format": 2},
        {},
        {"zarr_format": 1, "shape": [1], "chunks": [1]},
        {"zarr_format": 4, "node_type": "array"},
        {"zarr_format": "2", "shape": [1]},
        {"shape": [5], "chunks": [5]},
    ],
)
def test_groups_and_other_versions_are_not_arrays(doc: dict[str, Any]) -> None:
    assert array_meta(doc, "x") is None


def test_dtype_of_an_extension_is_its_json() -> None:
    meta = array_meta(V3 | {"data_type": {"name": "datetime64", "configuration": {"unit": "s"}}}, "x")
    assert meta is not None
    assert meta.dtype == '{"name":"datetime64","configuration":{"unit":"s"}}'


def _regular(chunk_shape: object) -> dict[str, Any]:
    return {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk_shape}}}


def _rectilinear(*edges: object) -> dict[str, Any]:
    return {"chunk_grid": {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": list(edges)}}}


BAD: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (V2, {"shape": None}, "its shape is missing: expected a list"),
    (V2, {"shape": 5}, "its shape is 5: expected a list"),
    (V2, {"shape": "55"}, "its shape is '55': expected a list"),
    (V2, {"shape": [10, -5]}, "its shape contains -5"),
    (V2, {"shape": [10, 5.5]}, "its shape contains 5.5"),
    (V2, {"shape": [10, math.nan]}, "its shape contains nan"),
    (V2, {"shape": [10, True]}, "its shape contains True"),
    (V2, {"shape": [10, "5"]}, "its shape contains '5'"),
    (V2, {"shape": [10, None]}, "its shape contains missing"),
    (V2, {"shape": [10, 2**63]}, "its shape contains 9223372036854775808"),
    (V2, {"shape": [10, 10**5000]}, "its shape contains a huge integer"),
    (V2, {"shape": [2**62, 2**62], "chunks": [1, 1]}, "2\\*\\*63 chunks"),
    (V2, {"chunks": None}, "its chunks is missing"),
    (V2, {"chunks": [10]}, "its chunks has 1 dimensions: expected 2"),
    (V2, {"chunks": [0, 5]}, "its chunks is 0 for a dimension of 10"),
    (V2, {"chunks": [-4, 5]}, "its chunks contains -4"),
    (V2, {"chunks": [[4], 5]}, r"its chunks contains \[4\]"),
    (V2, {"shards": [2]}, "its shards has 1 dimensions"),
    (V2, {"shards": [0, 2]}, "its shards is 0"),
    (V2, {"dimension_separator": "-"}, "dimension_separator has the separator '-'"),
    (V2, {"dimension_separator": 5}, "dimension_separator has the separator 5"),
    (V2, {"order": "A"}, "its order is 'A'"),
    (V2, {"order": []}, "its order is "),
    (V2, {"dtype": None}, "its dtype is missing"),
    (V2, {"dtype": 5}, "its dtype is 5"),
    (V3, {"shape": None}, "its shape is missing"),
    (V3, {"data_type": None}, "its data_type is missing"),
    (V3, {"chunk_grid": None}, "its chunk_grid is missing"),
    (V3, {"chunk_grid": 5}, "its chunk_grid is 5"),
    (V2, {"dtype": "<m8[s/0]"}, "a unit of time without a divisor"),  # numpy divides by it, and the process ends
    (V2, {"dtype": [["speed [m/s]", "<f4"], ["at", "M8[D/ 00]"]]}, "a unit of time without a divisor"),
    (V3, {"data_type": "timedelta64[25s/4294967296]"}, "a unit of time without a divisor"),
    (V3, {"chunk_grid": {}}, "its chunk_grid is {}"),
    (V3, {"chunk_grid": {"name": "regular"}}, "expected a configuration"),
    (V3, {"chunk_grid": {"name": "regular", "configuration": {}}}, "expected a configuration"),
    (V3, {"chunk_grid": {"name": "rectilinear", "configuration": {"kind": "inline"}}}, "expected a configuration"),
    (
        V3,
        {"chunk_grid": {"name": "rectilinear", "configuration": {"chunk_shapes": [1, 1]}}},
        "expected a configuration",
    ),
    (V3, _regular([4]), "its chunk_shape has 1 dimensions"),
    (V3, _regular([4, 0]), "its chunk_shape is 0"),
    (V3, _regular(4), "its chunk_shape is 4: expected a list"),
    (V3, _rectilinear([4, 6]), "its chunk_shapes have 1 dimensions"),
    (V3, _rectilinear([4, 4], 5), "its chunk_shapes cover 8 elements: expected at least 10"),
    (V3, _rectilinear([], 5), r"its chunk_shapes contains \[\]"),
    (V3, _rectilinear(0, 5), "its chunk_shapes is 0"),
    (V3, _rectilinear([0, 10], 5), "expected positive numbers"),
    (V3, _rectilinear([[10, 0]], 5), "expected positive numbers"),
    (V3, _rectilinear([[5, 2, 1]], 5), "its chunk_shapes contains"),
    (V3, _rectilinear([-1, 11], 5), "its chunk_shapes contains -1"),
    (V3, _rectilinear("55", 5), "its chunk_shapes contains '55'"),
    (V3, {"chunk_key_encoding": 5}, "its chunk_key_encoding is 5"),
    (V3, {"chunk_key_encoding": {}}, "its chunk_key_encoding is {}"),
    (V3, {"chunk_key_encoding": {"name": "v2", "configuration": {"separator": ""}}}, "has the separator ''"),
    (V3, {"chunk_key_encoding": {"name": "default", "separator": None}}, "has the separator missing"),
]


@pytest.mark.parametrize(("doc", "change", "reason"), BAD)
def test_error_of_invalid_metadata_names_the_key(doc: dict[str, Any], change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ManifestError, match=rf"^'a/b' of x: .*{reason}") as caught:
        array_meta({**doc, **change}, "'a/b' of x")
    assert len(str(caught.value)) < 300


def test_quick_parser_leaves_unsafe_dtype_to_full_parser() -> None:
    assert parse_plain_grid(dumps({**V2, "dtype": "m8[s/0]"}).decode()) is None


def test_field_names_with_brackets_and_slashes_are_accepted() -> None:
    meta = array_meta({**V2, "dtype": [["speed [m/s]", "<f4"], ["m[1/s]", "<f4"]]}, "'a/b' of x")
    assert meta is not None


fields = st.sampled_from([*V2, *V3, "dimension_separator", "shards"])


@given(st.sampled_from([V2, V3]), st.dictionaries(fields, json_values, max_size=3))
def test_changed_metadata_have_a_valid_grid_or_are_refused(doc: dict[str, Any], change: dict[str, Any]) -> None:
    try:
        meta = array_meta({**doc, **change}, "x")
    except ManifestError:
        return
    if meta is not None and meta.grid is not None:
        assert 0 <= meta.grid.size < 2**63
        assert meta.grid.size == 0 or meta.grid.number(meta.grid.tail(meta.grid.size - 1)) == meta.grid.size - 1


# Consolidated metadata


def test_v2_consolidated_metadata_gives_its_arrays() -> None:
    doc = {
        "zarr_consolidated_format": 1,
        "metadata": {
            ".zgroup": {"zarr_format": 2},
            ".zarray": V2 | {"order": "F"},
            "a/.zattrs": {},
            "a/.zarray": V2,
            "g/b/.zarray": json.dumps(V2),  # some programs write the document as text
            "g/c/zarr.json": V3,
        },
    }
    assert dict(iterate_consolidated_arrays(doc)) == {"": V2 | {"order": "F"}, "a": V2, "g/b": V2, "g/c": V3}


def test_v3_inline_metadata_gives_arrays_of_groups_too() -> None:
    def group(members: dict[str, Any] | None) -> dict[str, Any]:
        inline = None if members is None else {"kind": "inline", "must_understand": False, "metadata": members}
        return {"zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": inline}

    inner = group({"deep": V3, "more": group({"deeper": V3})})
    doc = group({"a": V3, "g": inner, "g/deep": V3, "empty": group({}), "none": group(None)})
    assert sorted(path for path, _ in iterate_consolidated_arrays(doc)) == ["a", "g/deep", "g/more/deeper"]
    assert list(iterate_consolidated_arrays(group(None))) == []
    assert list(iterate_consolidated_arrays({"zarr_format": 3, "node_type": "group"})) == []


@pytest.mark.parametrize(
    "doc",
    [
        {"metadata": []},
        {"metadata": {"a/.zarray": 5}},
        {"metadata": {"a/.zarray": "{"}},
        {"metadata": {"a/.zarray": "[]"}},
        {"zarr_format": 3, "consolidated_metadata": 5},
        {"zarr_format": 3, "consolidated_metadata": {"metadata": {"a": None}}},
    ],
)
def test_damaged_consolidated_metadata_is_a_manifest_error(doc: dict[str, Any]) -> None:
    with pytest.raises(ManifestError, match=r"in m|m: |m is "):
        list(iterate_consolidated_arrays(doc, "m"))


def test_deeply_nested_groups_do_not_exhaust_the_stack() -> None:
    doc: dict[str, Any] = V3
    for _ in range(5_000):
        doc = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": {"metadata": {"g": doc}}}
    with pytest.raises(ManifestError, match="expected at most 100 names"):  # found without recursion
        list(iterate_consolidated_arrays(doc))


# Compared with zarr


def _stored(store: dict[str, Any]) -> tuple[dict[str, bytes], set[str]]:
    data = {key: bytes(value if isinstance(value, bytes) else value.to_bytes()) for key, value in store.items()}
    return data, {key for key in data if not is_metadata(key)}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize(
    ("shape", "chunks", "shards"),
    [((), (), None), ((7,), (3,), None), ((5, 4), (2, 4), None), ((9, 8), (2, 2), (4, 4)), ((0, 4), (2, 2), None)],
)
def test_zarr_stores_chunks_where_the_grid_says(
    zarr_format: int, separator: str, shape: tuple[int, ...], chunks: tuple[int, ...], shards: tuple[int, ...] | None
) -> None:
    zarr = pytest.importorskip("zarr", minversion="3.0")
    if shards and zarr_format == 2:
        pytest.skip("zarr v2 has no shards")
    store: dict[str, Any] = {}
    array = zarr.create_array(
        store=zarr.storage.MemoryStore(store),
        name="a",
        shape=shape,
        chunks=chunks or "auto",
        shards=shards,
        dtype="int16",
        zarr_format=zarr_format,
        chunk_key_encoding={"name": "v2" if zarr_format == 2 else "default", "separator": separator},
    )
    array[...] = 1
    data, keys = _stored(store)
    meta = array_meta(loads(data["a/.zarray" if zarr_format == 2 else "a/zarr.json"]), "a")
    assert meta is not None
    assert meta.grid is not None
    assert {f"a/{tail}" for tail in meta.grid.tails()} == keys
    assert (meta.shape, meta.chunks) == (shape, shards or chunks)


@pytest.mark.parametrize("shapes", [[[4, 4, 2], [5]], [[1] * 10, [2, 3]], [[2, 2, 2, 4], [1, 4]]])
def test_zarr_stores_rectilinear_chunks_where_the_grid_says(shapes: list[list[int]]) -> None:
    zarr = pytest.importorskip("zarr", minversion="3.2")
    store: dict[str, Any] = {}
    with zarr.config.set({"array.rectilinear_chunks": True}):
        array = zarr.create_array(
            store=zarr.storage.MemoryStore(store), name="a", shape=(10, 5), chunks=shapes, dtype="int16"
        )
        array[...] = 1
    data, keys = _stored(store)
    doc = loads(data["a/zarr.json"])
    assert doc["chunk_grid"]["name"] == "rectilinear"
    assert {f"a/{tail}" for tail in grid_of(doc).tails()} == keys


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part:UserWarning")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_metadata_consolidated_by_zarr_gives_its_arrays(zarr_format: int) -> None:
    zarr = pytest.importorskip("zarr", minversion="3.0")
    store: dict[str, Any] = {}
    memory = zarr.storage.MemoryStore(store)
    root = zarr.create_group(store=memory, zarr_format=zarr_format)
    root.create_array("a", shape=(4,), chunks=(2,), dtype="f8", fill_value=math.nan)
    root.create_group("g").create_group("h").create_array("b", shape=(4,), chunks=(2,), dtype="i4")
    root.create_group("empty")
    zarr.consolidate_metadata(memory)
    data, _ = _stored(store)
    found = dict(iterate_consolidated_arrays(loads(data[".zmetadata" if zarr_format == 2 else "zarr.json"])))
    assert set(found) == {"a", "g/h/b"}
    assert [grid_of(doc).counts for doc in found.values()] == [(2,), (2,)]


def test_arrays_of_the_shared_data_have_grids() -> None:
    paths = [
        path
        for name in (".zarray", "zarr.json", ".zmetadata")
        for part in ("shards", "shards-v2", "refs", "values", "manifests")
        for path in (SHARED / "data" / part).rglob(name)
    ]
    if not paths:
        pytest.skip("the shared data is not here")
    found = 0
    for path in paths:
        doc = loads(path.read_bytes())
        docs = [doc, *(inner for _, inner in iterate_consolidated_arrays(doc, str(path)))]
        metas = [meta for each in docs if (meta := array_meta(each, str(path))) is not None]
        assert all(meta.grid is not None for meta in metas)
        found += len(metas)
    assert found > 5


_numbers = st.one_of(st.integers(-1, 40), st.just(2**63), st.just(2.0), st.just(True), st.none())


@given(
    st.fixed_dictionaries(
        {"shape": st.lists(_numbers, max_size=3), "chunks": st.lists(_numbers, max_size=3)},
        optional={
            "zarr_format": st.sampled_from([2, 2, 2, 3, "2"]),
            "dtype": st.sampled_from(["<f4", "<i2", None, [["a", "<i2"]]]),
            "order": st.sampled_from(["C", "F", "K"]),
            "dimension_separator": st.sampled_from([".", "/", None, "-"]),
            "shards": st.sampled_from([[2], None]),
            "fill_value": st.sampled_from([0, float("nan")]),
        },
    )
)
def test_quick_parser_agrees_with_full_parser(doc: dict[str, Any]) -> None:
    found = parse_plain_grid(json.dumps(doc))
    if found is not None:
        meta = array_meta(doc, "here")
        assert meta is not None
        assert meta.grid == found


@pytest.mark.parametrize(
    ("document", "is_deep"),
    [
        ('{"a": ' + "[" * 199 + "]" * 199 + "}", False),
        ('{"a": ' + "[" * 200 + "]" * 200 + "}", True),
        ('{"a": ' * 5000, True),
        ('{"a": "' + "[" * 500 + r"\"{" * 500 + '"}', False),
        ('{"]]]]": ' + "[" * 201, True),
        ("[" + "[{}]," * 500 + "1]", False),
    ],
)
def test_json_nested_too_deeply_for_zarr_is_found(document: str, is_deep: bool) -> None:
    assert is_nested_deeply(document.encode()) is is_deep
