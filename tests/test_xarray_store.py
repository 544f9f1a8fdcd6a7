"""Variables of a group equal those that xarray makes with zarr, and have suitable chunks for dask."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr")

from refshard_fs.xarray_backend import RefShardBackend  # noqa: E402  # xarray may be absent

IS_ZARR_2 = zarr.__version__.startswith("2.")
SHAPES: list[tuple[int, ...]] = [(), (5,), (4, 3), (2, 3, 4), (0, 3)]
DTYPES = ["?", "i1", ">i4", "<u8", "<f2", ">f8", "<c8", "S4", "<U3", "<M8[ns]", "<m8[s]", "str"]


def make_native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type that `DirectArray` shows: it converts numbers to the machine's byte order."""
    return dtype.newbyteorder("=") if dtype.kind in "biufc" else dtype


def make_values(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Any:
    numbers = rng.integers(0, 2 if dtype == "?" else 100, shape)
    if dtype == "str":
        return numbers.astype(str).astype(object)
    return numbers.astype(str).astype(dtype) if dtype in ("S4", "<U3") else numbers.astype(dtype)


@pytest.mark.skipif(IS_ZARR_2, reason="zarr 2 writes other metadata")
@pytest.mark.filterwarnings("ignore:.*(specification|performance).*")
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_variables_equal_those_of_xarrays_zarr_engine(tmp_path: Path, version: int, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(shape))
    dims = [f"d{axis}" for axis in range(len(shape))]
    group = zarr.open_group(tmp_path, mode="w", zarr_format=version, attributes={"title": "x", "_NCProperties": "y"})
    for number, dtype in enumerate(DTYPES):
        attributes = {"units": "m"} if version == 3 else {"units": "m", "_ARRAY_DIMENSIONS": dims}
        named = {"dimension_names": dims} if version == 3 else {}
        chunks = {"chunks": tuple(min(2, length) or 1 for length in shape)} if shape else {}
        array = group.create_array(f"v{number}", shape=shape, dtype=dtype, attributes=attributes, **chunks, **named)
        if 0 not in shape:
            array[...] = make_values(rng, dtype, shape)
    for is_masked in (True, False):
        options: dict[str, Any] = {"consolidated": False, "mask_and_scale": is_masked, "decode_times": False}
        with (
            xr.open_dataset(tmp_path, engine="zarr", **options) as theirs,
            xr.open_dataset(tmp_path, engine=RefShardBackend, **options) as ours,
        ):
            assert ours.attrs == theirs.attrs
            assert set(ours.variables) == set(theirs.variables)
            for name in theirs.variables:
                one, other = ours[name].variable, theirs[name].variable
                assert (one.dims, one.shape) == (other.dims, other.shape)
                assert one.dtype == make_native(other.dtype)
                assert repr(one.attrs) == repr(other.attrs)
                codecs = {"compressors", "filters", "shards"} if version == 2 else {}
                assert one.encoding.keys() >= other.encoding.keys() - codecs
                for key in other.encoding.keys() - codecs:
                    if key == "serializer":  # of elements of one byte, some versions of zarr set the byte order
                        assert type(one.encoding[key]) is type(other.encoding[key])
                        continue
                    if key == "dtype":
                        assert one.encoding[key] == make_native(other.encoding[key])
                        continue
                    assert (
                        str(one.encoding[key]) == str(other.encoding[key]) or one.encoding[key] == other.encoding[key]
                    )
                assert one.equals(other)  # also where objects are NaN


@pytest.mark.skipif(IS_ZARR_2, reason="zarr 2 leaves the memory of chunks without a fill value as it is")
@pytest.mark.parametrize("fill", [None, -(2**63), 1])
@pytest.mark.parametrize("dtype", ["<M8[ns]", ">M8[ns]", "<m8[s]", ">m8[s]", ">i8"])
def test_missing_chunk_holds_the_fill_value_of_zarr(tmp_path: Path, dtype: str, fill: int | None) -> None:
    for key, document in make_small_array(dtype, fill_value=fill).items():
        path = tmp_path / key
        path.parent.mkdir(exist_ok=True)
        path.write_text(document)
    options: dict[str, Any] = {"consolidated": False, "decode_cf": False}
    with (
        xr.open_dataset(tmp_path, engine="zarr", **options) as theirs,
        xr.open_dataset(tmp_path, engine=RefShardBackend, **options) as ours,
    ):
        assert repr(ours["a"].attrs) == repr(theirs["a"].attrs)
        assert ours["a"].dtype == theirs["a"].dtype
        np.testing.assert_array_equal(ours["a"].values, theirs["a"].values)


def make_array_3(**members: Any) -> dict[str, str]:
    """Return references to an array of version 3 with the big-endian numbers 1 and 2."""
    meta = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [2],
        "data_type": "int16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default"},
        "codecs": [{"name": "bytes", "configuration": {"endian": "big"}}],
        "fill_value": 0,
        "dimension_names": ["x"],
        **members,
    }
    meta = {name: value for name, value in meta.items() if value != "absent"}
    group = {"zarr_format": 3, "node_type": "group"}
    return {"zarr.json": json.dumps(group), "a/zarr.json": json.dumps(meta), "a/c/0": "\0\1\0\2"}


def test_byte_order_of_a_codec_is_not_shown() -> None:
    """In version 3, a codec stores numbers big-endian, and zarr shows them as the machine's."""
    with xr.open_dataset(make_array_3(attributes={"scale_factor": 2.0}), engine=RefShardBackend) as ds:
        assert ds["a"].encoding["dtype"] == np.dtype("<i2")
        assert ds["a"].values.tolist() == [2, 4]


@pytest.mark.skipif(IS_ZARR_2, reason="zarr 2 reads no metadata of version 3")
@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"novel": 1}, "novel"),
        ({"novel": {"must_understand": True}}, "novel"),
        ({"codecs": "absent"}, "a: its metadata have no member 'codecs'"),
        ({"fill_value": None}, "None"),
        ({"fill_value": 1.5}, "1.5"),
        ({"shape": 2}, "its shape is 2: expected a list"),
    ],
    ids=str,
)
def test_damaged_or_unknown_metadata_of_an_array_are_an_error(members: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        xr.open_dataset(make_array_3(**members), engine=RefShardBackend)


def test_metadata_that_need_not_be_understood_are_ignored() -> None:
    with xr.open_dataset(make_array_3(novel={"must_understand": False}), engine=RefShardBackend) as ds:
        assert ds["a"].values.tolist() == [1, 2]


def test_times_with_attribute_unsigned_keep_their_unit() -> None:
    refs = make_small_array(">M8[s]")
    refs["a/.zattrs"] = '{"_ARRAY_DIMENSIONS": ["x"], "_Unsigned": "true"}'
    with xr.open_dataset(refs, engine=RefShardBackend, decode_cf=False) as ds:
        assert ds["a"].dtype == np.dtype(">M8[s]")


def make_small_array(dtype: str, **more: Any) -> dict[str, str]:
    """Return references to an array of two elements without chunks."""
    meta = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": dtype, "order": "C", "fill_value": None}
    return {
        ".zgroup": '{"zarr_format": 2}',
        "a/.zarray": json.dumps({**meta, "filters": None, "compressor": None, **more}),
        "a/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}',
    }


def test_numbers_are_read_without_zarr() -> None:
    """Importing zarr takes longer than opening a file. `xr.open_dataset` lists engines, of which some import zarr."""
    program = f"""
import sys
from refshard_fs.xarray_backend import RefShardBackend
ds = RefShardBackend().open_dataset({ {**make_small_array("<i2"), "a/0": "abcd"}!r})
assert ds["a"].values.tolist() == [0x6261, 0x6463]
assert "zarr" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_array_without_names_of_dimensions_is_an_error() -> None:
    with pytest.raises(KeyError, match="xarray needs names of dimensions, but the array 'a' has none"):
        xr.open_dataset({**make_small_array("|u1"), "a/.zattrs": "{}"}, engine=RefShardBackend)


def test_dimension_names_of_nczarr_are_read() -> None:
    refs = make_small_array("|u1", _NCZARR_ARRAY={"dimrefs": ["/x"]})
    refs["a/.zattrs"] = '{"_NCZARR_ATTR": {}}'
    with xr.open_dataset(refs, engine=RefShardBackend) as ds:
        assert (ds["a"].dims, ds["a"].attrs) == (("x",), {})


def make_arrays(shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return references to arrays of a hundred steps of bytes, with a chunk of the given shape for each step."""
    refs: dict[str, Any] = {".zgroup": '{"zarr_format": 2}'}
    for name, shape in shapes.items():
        meta = {"zarr_format": 2, "shape": [100, *shape], "chunks": [1, *shape], "dtype": "|u1", "order": "C"}
        refs[f"{name}/.zarray"] = json.dumps({**meta, "fill_value": None, "filters": None, "compressor": None})
        dims = ["time", *(f"{name}{axis}" for axis in range(len(shape)))]
        refs[f"{name}/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": dims})
        for step in range(100 if name != "large" else 0):
            refs[f"{name}/{'.'.join([str(step), *'0' * len(shape)])}"] = bytes([step]) * int(np.prod(shape))
    return refs


@pytest.mark.parametrize(
    ("shapes", "steps"),
    [
        ({"a": (256, 256)}, {"a": 16}),
        ({"a": (256, 256), "bounds": (2,)}, {"a": 16, "bounds": 16}),  # cut alike before and after
        ({"a": (256, 256), "large": (2048, 2048)}, {"a": 4, "large": 4}),
        ({"large": (2048, 1024)}, {"large": 1}),
        ({"bounds": (2,)}, {"bounds": 100}),
    ],
)
def test_dask_gets_chunks_of_a_mebibyte(shapes: dict[str, Any], steps: dict[str, int]) -> None:
    pytest.importorskip("dask.array")
    refs = make_arrays(shapes)
    with xr.open_dataset(refs, engine=RefShardBackend, chunks={}) as ds, warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert {name: ds[name].data.chunksize[0] for name in ds} == steps
        assert ds.chunks["time"][0] == next(iter(steps.values()))
        first = next(iter(shapes))
        assert ds[first].encoding["chunks"] == (1, *shapes[first])
        if first != "large":
            np.testing.assert_array_equal(ds[first].values.reshape(100, -1)[:, 0], np.arange(100))
        for chunks in ({"time": 7}, {"time": 1}):  # no warning: they do not divide stored ones
            own = xr.open_dataset(refs, engine=RefShardBackend, chunks=chunks)
            assert own[first].data.chunksize[0] == chunks["time"]
    with xr.open_dataset(refs, engine=RefShardBackend, chunks={}, task_size=0) as ds:
        assert ds[first].data.chunksize[0] == 1


@pytest.mark.skipif(not hasattr(xr, "open_groups"), reason="this version of xarray opens no groups")
@pytest.mark.parametrize(("group", "path"), [(None, "/"), ("", "/"), ("/", ".")])
def test_group_paths_equal_those_of_xarray(group: str | None, path: str) -> None:
    """A path is relative to the argument ``group``, also if this names the root."""
    assert [*xr.open_groups(make_small_array("|u1"), engine=RefShardBackend, group=group)] == [path]


def test_older_pickles_of_chunks_are_read() -> None:
    old = b"crefshard_fs.xarray_store\n_Preferred\n((dS'x'\nI1\ns(dS'x'\nI4\nstR."
    chunks = pickle.loads(old)  # it is made above
    assert (chunks["x"], chunks.get("x", 2)) == (1, 4)
