"""Chunks written by the HDF5 library's filters and plugins decode to the values that h5py reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
from numcodecs import get_codec

from refshard_fs import ManifestError
from refshard_fs.formats.hdf5 import filters
from refshard_fs.formats.hdf5.datatypes import Datatype, parse_datatype
from refshard_fs.formats.hdf5.filters import Codecs, Filter, parse_pipeline
from tests.support.hdf5_messages import DATATYPE, PIPELINE, open_in_memory, read_messages
from tests.support.memory import check_peak

ZFP: dict[str, dict[str, Any]] = {
    "rate": {"rate": 9},
    "precision": {"precision": 14},
    "accuracy": {"accuracy": 0.01},
    "reversible": {"reversible": True},
    "expert": {"minbits": 1, "maxbits": 900, "maxprec": 30, "minexp": -9},
}
PLUGINS: dict[str, dict[str, Any]] = {
    "deflate": {"compression": "gzip", "compression_opts": 3},
    "shuffle": {"shuffle": True},
    "shuffle, deflate": {"compression": "gzip", "shuffle": True},
    "fletcher32": {"fletcher32": True},
    "shuffle, deflate, fletcher32": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf": {"compression": "lzf"},
    "shuffle, lzf": {"compression": "lzf", "shuffle": True},
    "szip nn": {"compression": "szip", "compression_opts": ("nn", 16)},
    "szip ec": {"compression": "szip", "compression_opts": ("ec", 8), "fletcher32": True},
    "zstd": dict(hdf5plugin.Zstd(5)),
    "blosc2": dict(hdf5plugin.Blosc2()),
    "blosc2, lz4": dict(hdf5plugin.Blosc2("lz4", 3, hdf5plugin.Blosc2.BITSHUFFLE)),
    "shuffle, zstd": {**hdf5plugin.Zstd(), "shuffle": True},
    "bzip2": dict(hdf5plugin.BZip2()),
    "lz4": dict(hdf5plugin.LZ4()),
    "lz4 in blocks": dict(hdf5plugin.LZ4(nbytes=64)),
    "bitshuffle": dict(hdf5plugin.Bitshuffle(cname="none")),
    "bitshuffle, lz4": dict(hdf5plugin.Bitshuffle(cname="lz4")),
    "bitshuffle in blocks": dict(hdf5plugin.Bitshuffle(nelems=16, cname="lz4")),
    "bitshuffle, zstd": dict(hdf5plugin.Bitshuffle(cname="zstd")),
    **{
        f"blosc {codec} {shuffle}": dict(hdf5plugin.Blosc(codec, 5, shuffle))
        for codec in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
        for shuffle in (0, 1, 2)
    },
}
DTYPES = ["<i2", ">i4", "<u1", "<f4", ">f8", "<i8"]
SHAPES = [((40,), (16,)), ((9, 13), (4, 5)), ((3, 4, 5), (3, 4, 5))]


def make_sample(dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(3)
    return np.cumsum(rng.integers(0, 5, int(np.prod(shape)))).reshape(shape).astype(dtype)


def describe(dataset: h5py.Dataset) -> tuple[Datatype, tuple[Filter, ...]]:
    body_by_type = read_messages(dataset.id)
    return parse_datatype(body_by_type[DATATYPE]), parse_pipeline(
        body_by_type[PIPELINE]
    ) if PIPELINE in body_by_type else ()


def decode_by_zarr(codecs: Codecs, datatype: Datatype, data: bytes) -> np.ndarray[Any, Any]:
    """Decode the elements of a chunk as zarr does."""
    for codec in reversed(codecs.shown_codecs):
        data = bytes(get_codec(codec).decode(data))
    return np.frombuffer(data, datatype.shown)


def read_by_codecs(dataset: h5py.Dataset) -> np.ndarray[Any, Any]:
    """Return the values of a chunked dataset from its raw chunks."""
    datatype, pipeline = describe(dataset)
    codecs = filters.make_codecs(pipeline, datatype, dataset.chunks)
    values = np.zeros(
        tuple(
            -(-extent // chunk_size) * chunk_size
            for extent, chunk_size in zip(dataset.shape, dataset.chunks, strict=True)
        ),
        datatype.shown,
    )
    for number in range(dataset.id.get_num_chunks()):
        chunk = dataset.id.get_chunk_info(number)
        start = chunk.chunk_offset
        raw = dataset.id.read_direct_chunk(start)[1]
        recipe = codecs.make_recipe(chunk.filter_mask)
        data = raw if recipe is None else recipe.make(raw)
        assert recipe is None or recipe.result_size in (None, len(data))
        region = tuple(slice(first, first + size) for first, size in zip(start, dataset.chunks, strict=True))
        values[region] = decode_by_zarr(codecs, datatype, data).reshape(dataset.chunks)
    return values[tuple(map(slice, dataset.shape))]


@pytest.mark.parametrize("name", PLUGINS)
def test_decoded_chunks_equal_h5py(name: str) -> None:
    with open_in_memory("latest") as file:
        for dtype in DTYPES:
            for shape, chunks in SHAPES:
                values = make_sample(dtype, shape)
                dataset = file.create_dataset(f"{dtype}{shape}", data=values, chunks=chunks, **PLUGINS[name])
                assert read_by_codecs(dataset).tobytes() == values.tobytes(), (dtype, shape)


@pytest.mark.parametrize("mode", ZFP)
@pytest.mark.parametrize("dtype", ["<i4", "<i8", "<f4", "<f8"])
def test_zfp_values_equal_h5py(mode: str, dtype: str) -> None:
    with open_in_memory() as file:
        for shape, chunks in SHAPES:
            options = hdf5plugin.Zfp(**ZFP[mode])
            dataset = file.create_dataset(str(shape), data=make_sample(dtype, shape), chunks=chunks, **options)
            assert read_by_codecs(dataset).tobytes() == dataset[...].tobytes(), shape
        datatype, pipeline = describe(dataset)
        with pytest.raises(ValueError, match=r"expected \d+ bytes"):
            filters.FilterRecipe(Codecs(pipeline, datatype, 61, None)).make(b"\xff" * 9)


@pytest.mark.parametrize("name", ["deflate", "lzf", "blosc2", "blosc lz4 1", "bitshuffle, lz4", "lz4", "zstd"])
def test_chunks_of_noise_and_of_one_value_are_read(name: str) -> None:
    with open_in_memory() as file:
        noise = np.random.default_rng(1).integers(0, 1 << 63, 3000).astype("<u8")
        for number, values in enumerate([noise, np.full(3000, 7, "<u8"), noise[:5], noise[:1]]):
            chunks = (min(1000, len(values)),)
            dataset = file.create_dataset(str(number), data=values, chunks=chunks, **PLUGINS[name])
            assert read_by_codecs(dataset).tobytes() == values.tobytes()


@pytest.mark.parametrize("mask", range(8))
def test_filters_that_a_chunk_skips_are_not_decoded(mask: int) -> None:
    values = np.arange(100, dtype="<i4")
    with open_in_memory() as file:
        dataset = file.create_dataset(
            "a", (100,), "<i4", chunks=(50,), shuffle=True, compression="gzip", fletcher32=True
        )
        data = values[50:].tobytes()
        for number, codec in enumerate([{"id": "shuffle", "elementsize": 4}, {"id": "zlib"}, {"id": "fletcher32"}]):
            if not mask >> number & 1:
                data = bytes(get_codec(codec).encode(data))
        dataset.id.write_direct_chunk((50,), data, filter_mask=mask)
        dataset[:50] = values[:50]
        assert dataset[:].tolist() == values.tolist()
        assert read_by_codecs(dataset).tolist() == values.tolist()


def test_chunk_that_skips_the_filter_lzf_is_read() -> None:
    with open_in_memory() as file:
        dataset = file.create_dataset("a", (50,), "<i4", chunks=(50,), shuffle=True, compression="lzf")
        values = np.arange(50, dtype="<i4")
        dataset.id.write_direct_chunk((0,), bytes(get_codec({"id": "shuffle", "elementsize": 4}).encode(values)), 2)
        assert read_by_codecs(dataset).tolist() == values.tolist()


SCALED: list[tuple[str, int, Any]] = [
    *[(dtype, bits, None) for dtype in ("<i1", "<u1", "<i2", ">u2", "<i4", ">i4", "<i8", "<u8") for bits in (0, 6, 60)],
    *[(dtype, digits, None) for dtype in ("<f4", ">f4", "<f8", ">f8") for digits in (0, 2, 5)],
    ("<i4", 0, 9), ("<f4", 2, 9.0), (">f8", 3, -1.0), ("<u1", 0, 200),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "factor", "fill"), SCALED)
def test_scale_offset_values_equal_h5py(dtype: str, factor: int, fill: Any) -> None:
    if np.dtype(dtype).kind in "iu":
        factor = min(factor, np.dtype(dtype).itemsize * 8 - 2)
    rng = np.random.default_rng(5)
    low = -30 if np.dtype(dtype).kind != "u" else 3
    samples = [rng.integers(low, 30, 90).astype(dtype), np.full(90, 5, dtype), np.arange(90).astype(dtype)]
    if np.dtype(dtype).kind in "iu":
        samples.append(np.r_[np.iinfo(dtype).min, np.iinfo(dtype).max, np.zeros(88, dtype)].astype(dtype))
    else:
        samples += [rng.normal(0, 1, 90).astype(dtype), np.r_[rng.normal(0, 1e6, 45), np.zeros(45)].astype(dtype)]
    with open_in_memory() as file:
        for number, values in enumerate(samples):
            if fill is not None:
                values[3:7] = fill
            dataset = file.create_dataset(str(number), (90,), dtype, chunks=(40,), scaleoffset=factor, fillvalue=fill)
            dataset[:] = values
            assert read_by_codecs(dataset).tolist() == dataset[:].tolist()
            compressed = file.create_dataset(
                f"{number}z", (90,), dtype, chunks=(40,), scaleoffset=factor, compression="gzip"
            )
            compressed[:] = values
            assert read_by_codecs(compressed).tolist() == compressed[:].tolist()


def make_integer_type(base: h5py.h5t.TypeIntegerID, precision: int, offset: int) -> h5py.h5t.TypeIntegerID:
    tid = base.copy()
    tid.set_precision(precision)
    tid.set_offset(offset)
    return tid


NBIT: dict[str, Callable[[], h5py.h5t.TypeID]] = {
    "signed": lambda: make_integer_type(h5py.h5t.STD_I32LE, 17, 0),
    "big-endian, in the middle": lambda: make_integer_type(h5py.h5t.STD_I32BE, 19, 7),
    "unsigned": lambda: make_integer_type(h5py.h5t.STD_U16LE, 9, 3),
    "a byte": lambda: make_integer_type(h5py.h5t.STD_I8LE, 5, 1),
    "eight bytes": lambda: make_integer_type(h5py.h5t.STD_I64BE, 33, 20),
    "all bits": lambda: h5py.h5t.STD_I16LE.copy(),
    "a float": lambda: h5py.h5t.IEEE_F32LE.copy(),
    "an array": lambda: h5py.h5t.array_create(make_integer_type(h5py.h5t.STD_I32LE, 17, 2), (2, 3)),
}


def make_compound_type() -> h5py.h5t.TypeID:
    tid = h5py.h5t.create(h5py.h5t.COMPOUND, 24)
    tid.insert(b"a", 2, make_integer_type(h5py.h5t.STD_I16LE, 11, 0))
    tid.insert(b"b", 8, h5py.h5t.IEEE_F64BE)
    tid.insert(b"c", 16, make_integer_type(h5py.h5t.STD_U32BE, 20, 5))
    text = h5py.h5t.C_S1.copy()
    text.set_size(3)
    text.set_strpad(h5py.h5t.STR_NULLPAD)
    tid.insert(b"d", 20, text)
    return tid


@pytest.mark.parametrize("name", [*NBIT, "a compound"])
def test_nbit_values_equal_h5py(name: str) -> None:
    tid = make_compound_type() if name == "a compound" else NBIT[name]()
    create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    create.set_chunk((7,))
    create.set_filter(filters.NBIT, 0, ())
    with open_in_memory() as file:
        dataset_id = h5py.h5d.create(file.id, b"a", tid, h5py.h5s.create_simple((20,)), create)
        dataset = h5py.Dataset(dataset_id)
        if name == "a compound":
            values = np.zeros(20, [("a", "<i2"), ("b", "<f8"), ("c", "<u4"), ("d", "S3")])
            values["a"], values["b"] = np.arange(20) * -7, np.arange(20) / 3
            values["c"], values["d"] = np.arange(20) * 999, [b"abc", b"", b"x", b"yz"] * 5
            dataset[:] = values
            assert read_by_codecs(dataset).tolist() == dataset[:].tolist()
            return
        if name == "an array":
            dataset[:] = np.arange(120).reshape(20, 2, 3) - 60
            datatype, pipeline = describe(dataset)
            recipe = filters.make_codecs(pipeline, datatype, (7,)).make_recipe(0)
            assert recipe is not None
            data = recipe.make(dataset.id.read_direct_chunk((7,))[1])
            assert np.frombuffer(data, datatype.shown).reshape(7, 2, 3).tolist() == dataset[7:14].tolist()
            return
        dataset[:] = (np.arange(20) - (0 if name == "unsigned" else 10)).astype(dataset.dtype)
        assert read_by_codecs(dataset).tolist() == dataset[:].tolist()


def test_string_padding_is_removed_from_unfiltered_chunks() -> None:
    """zarr does not remove the padding of strings, so chunks are decoded and encoded without it."""
    tid = h5py.h5t.C_S1.copy()
    tid.set_size(4)
    create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    create.set_chunk((3,))
    with open_in_memory() as file:
        dataset = h5py.Dataset(h5py.h5d.create(file.id, b"a", tid, h5py.h5s.create_simple((3,)), create))
        dataset.id.write_direct_chunk((0,), b"ab\0xabc\0\0yyy")
        assert read_by_codecs(dataset).tolist() == dataset[:].tolist() == [b"ab", b"abc", b""]


def test_equivalent_filters_become_zarr_codecs() -> None:
    with open_in_memory() as file:
        options = {"chunks": (5,), "shuffle": True, "compression": "gzip", "fletcher32": True}
        datatype, pipeline = describe(file.create_dataset("a", (10,), "<f4", **options))
        codecs = filters.make_codecs(pipeline, datatype, (5,))
        names = [{"id": "shuffle", "elementsize": 4}, {"id": "zlib", "level": 4}, {"id": "fletcher32"}]
        assert list(codecs.shown_codecs) == names
        data = np.arange(5, dtype="<f4").tobytes()
        assert decode_by_zarr(codecs, datatype, codecs.encode(data)).tobytes() == data


def test_error_names_the_unsupported_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    datatype = parse_datatype(bytes.fromhex("1008000004000000 00002000"))
    for number, name in [(32017, "sz"), (32024, "sz3"), (40000, "custom")]:
        filter_ = Filter(number, filters.NAMES.get(number, "custom"), ())
        with pytest.raises(ManifestError, match=name):
            filters.make_codecs([filter_], datatype, (5,))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ManifestError, match=r"'lzf'.*refshard_fs\[hdf5\]"):
        filters.make_codecs([Filter(filters.LZF, "lzf", ())], datatype, (5,))


def test_huge_decoded_chunks_are_refused() -> None:
    datatype = parse_datatype(bytes.fromhex("1008000004000000 00002000"))
    scaled = Filter(filters.SCALEOFFSET, "scale-offset", (2, 0, 1 << 30, 0, 4, 1, 0, 0))
    with pytest.raises(ManifestError, match="bytes"):
        filters.make_codecs([scaled], datatype, (1 << 30,))


@pytest.mark.parametrize("name", [*PLUGINS, *ZFP, "scale-offset"])
def test_damaged_chunks_are_errors_or_decode_to_the_right_length(name: str) -> None:
    options: Any = hdf5plugin.Zfp(**ZFP[name]) if name in ZFP else PLUGINS.get(name, {"scaleoffset": 2})
    rng = np.random.default_rng(4)
    with open_in_memory() as file:
        dataset = file.create_dataset("a", data=make_sample("<i4", (200,)), chunks=(100,), **options)
        datatype, pipeline = describe(dataset)
        raw = dataset.id.read_direct_chunk((0,))[1]
    recipe = filters.FilterRecipe(Codecs(pipeline, datatype, 100, None))
    for number in range(60):
        damaged = bytearray(raw[: rng.integers(len(raw))] if number % 3 == 0 else raw)
        if number % 3 and damaged:
            damaged[rng.integers(min(len(damaged), 40))] ^= 1 << rng.integers(8)
        try:
            assert len(recipe.make(bytes(damaged))) == 400
        except ValueError:
            pass


@pytest.mark.parametrize("name", ["nbit", "scale-offset"])
def test_unpacking_takes_at_most_8_times_the_memory_of_a_chunk(name: str) -> None:
    values = np.arange(1 << 20, dtype="<u2") % 7
    tid = make_integer_type(h5py.h5t.STD_U16LE, 9, 0) if name == "nbit" else h5py.h5t.STD_U16LE
    create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    create.set_chunk(values.shape)
    if name == "nbit":
        create.set_filter(filters.NBIT, 0, ())
    else:
        create.set_scaleoffset(h5py.h5z.SO_INT, 0)
    with open_in_memory() as file:
        dataset = h5py.Dataset(h5py.h5d.create(file.id, b"a", tid, h5py.h5s.create_simple(values.shape), create))
        dataset[:] = values
        datatype, pipeline = describe(dataset)
        raw = dataset.id.read_direct_chunk((0,))[1]
    recipe = filters.make_codecs(pipeline, datatype, values.shape).make_recipe(0)
    assert recipe is not None
    with check_peak(8 * values.nbytes):
        decoded = recipe.make(raw)
    assert np.array_equal(np.frombuffer(decoded, "<u2"), values)


def test_bitshuffle_takes_at_most_6_times_the_memory_of_a_chunk() -> None:
    values = np.arange(1 << 20, dtype="<u2")
    with open_in_memory() as file:
        options = hdf5plugin.Bitshuffle(nelems=len(values), cname="none")
        dataset = file.create_dataset("a", data=values, chunks=values.shape, **options)
        datatype, pipeline = describe(dataset)
        raw = dataset.id.read_direct_chunk((0,))[1]
    recipe = filters.make_codecs(pipeline, datatype, values.shape).make_recipe(0)
    assert recipe is not None
    with check_peak(6 * values.nbytes):
        decoded = recipe.make(raw)
    assert np.array_equal(np.frombuffer(decoded, "<u2"), values)


@pytest.mark.parametrize("dtype", ["<u4", "<u8"])
def test_incomplete_szip_pixels_are_an_error(dtype: str) -> None:
    """The output of scale-offset is not a whole number of pixels: szip drops the incomplete pixel at its end."""
    create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    create.set_chunk((16,))
    create.set_scaleoffset(h5py.h5z.SO_INT, 0)
    create.set_szip(4, 4)
    with open_in_memory() as file:
        tid, space = h5py.h5t.py_create(np.dtype(dtype)), h5py.h5s.create_simple((16,))
        dataset_id = h5py.h5d.create(file.id, b"a", tid, space, create)
        dataset = h5py.Dataset(dataset_id)
        dataset[:] = np.arange(16) * 12  # scale-offset packs each number into 8 bits
        with pytest.raises(ValueError, match="an szip chunk decodes to 38 bytes"):
            read_by_codecs(dataset)


def test_truncated_pipeline_messages_raise_value_error() -> None:
    with open_in_memory() as file, open_in_memory("latest") as latest:
        for target in (file, latest):
            dataset = target.create_dataset("a", (10,), "<f4", chunks=(5,), shuffle=True, **hdf5plugin.Blosc())
            body = read_messages(dataset.id)[PIPELINE]
            parse_pipeline(body)
            for end in range(len(body) - 8):
                with pytest.raises(ValueError, match="pipeline"):
                    parse_pipeline(body[:end])


@pytest.mark.parametrize("number", [filters.BITGROOM, filters.BITROUND])
def test_lossy_rounding_filters_need_no_decoder(number: int) -> None:
    values = np.linspace(0, 1, 32).astype("f4")
    create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    create.set_chunk((32,))
    create.set_filter(number, h5py.h5z.FLAG_OPTIONAL, (3, 0, 4, 0, 0))
    create.set_shuffle()
    create.set_deflate(1)
    with open_in_memory() as file:
        space = h5py.h5s.create_simple((32,))
        dataset = h5py.Dataset(h5py.h5d.create(file.id, b"a", h5py.h5t.IEEE_F32LE, space, create))
        datatype, pipeline = describe(dataset)
    codecs = filters.make_codecs(pipeline, datatype, (32,))
    assert [codec["id"] for codec in codecs.shown_codecs] == ["shuffle", "zlib"]
    assert codecs.make_recipe(0) is None
    raw = codecs.encode(values.tobytes())
    assert filters.FilterRecipe(Codecs(pipeline, datatype, 32, None)).make(raw) == values.tobytes()
