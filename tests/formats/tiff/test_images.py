"""TIFF images of many compressions, predictors and bit depths have the pixels that tifffile or GDAL reads."""

from __future__ import annotations

import itertools
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from refshard_fs import ManifestError, RefShardFileSystem
from refshard_fs.formats.tiff.images import TileRecipe
from tests.support.damage import check_beside
from tests.support.plain_tiff import make_tiff
from tests.support.shard_writers import open_array
from tests.support.shards_in_memory import ROOT, Files
from tests.support.tiff_files import RGB, RNG, check_pages, write

tifffile = pytest.importorskip("tifffile")
pytest.importorskip("imagecodecs")
pytestmark = [
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3"),
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),  # raised within rasterio
    pytest.mark.filterwarnings("ignore:Dataset has no geotransform"),
]


SAMPLES = {
    "grey": {"photometric": "minisblack"},
    "chunky": {"photometric": "rgb", "planarconfig": "contig"},
    "planar": {"photometric": "rgb", "planarconfig": "separate"},
}


LAYOUTS: dict[str, dict[str, Any]] = {"one strip": {}, "strips": {"rowsperstrip": 16}, "tiles": {"tile": (32, 16)}}


@pytest.mark.parametrize("compression", [None, "zlib", "zstd", "lzw", "packbits"])
@pytest.mark.parametrize("order", "<>")
def test_values_equal_tifffile(tmp_path: Path, order: str, compression: str | None) -> None:
    cases = itertools.product(["u1", "i2", "f4", "f8"], LAYOUTS, SAMPLES, [None, 2, 3])
    for number, (dtype, layout, samples, predictor) in enumerate(cases):
        unusual = (predictor == 3 and dtype[0] != "f") or (predictor == 2 and dtype[0] == "f")
        if unusual or (predictor and not compression) or number % 3 != len(compression or "") % 3:
            continue
        values = RGB.astype(dtype) * np.array(1 if dtype == "u1" else -117, dtype if dtype != "u1" else "u1")
        values = {"grey": values[..., 0], "chunky": values, "planar": np.moveaxis(values, -1, 0)}[samples]
        path = tmp_path / f"{number}.tif"
        options = {**SAMPLES[samples], **LAYOUTS[layout], **({"predictor": predictor} if predictor else {})}
        tifffile.imwrite(path, values, byteorder=order, compression=compression, bigtiff=number % 2 == 0, **options)
        check_pages(path)


@pytest.mark.parametrize("bits", [1, 2, 4, 7, 12, 14])
@pytest.mark.parametrize("compression", [None, "deflate"])
def test_samples_of_various_bit_depths_are_unpacked(tmp_path: Path, bits: int, compression: str | None) -> None:
    values = RNG.integers(0, 1 << bits, (21, 37), "u2" if bits > 8 else "u1")
    packed = np.zeros((21, -(-37 * bits // 8)), "u1")
    every = (values[..., None] >> np.arange(bits)[::-1]).astype("u1") & 1
    packed = np.packbits(every.reshape(21, -1), axis=1)
    path = tmp_path / "bits.tif"
    path.write_bytes(make_tiff(packed.tobytes(), 37, 21, bits))
    if compression:
        import zlib

        path.write_bytes(make_tiff(zlib.compress(packed.tobytes()), 37, 21, bits, 8))
    assert open_array(path, "0").dtype == values.dtype
    np.testing.assert_array_equal(open_array(path, "0")[...], values)


@pytest.mark.parametrize("bits", [1, 2, 8, 16])
@pytest.mark.parametrize("compression", ["", "lzw", "zlib", "packbits"])
def test_reversed_fill_order_is_decoded(tmp_path: Path, bits: int, compression: str) -> None:
    rasterio = pytest.importorskip("rasterio")
    codecs = pytest.importorskip("imagecodecs")
    values = RNG.integers(0, 1 << bits, (21, 40), "u2" if bits > 8 else "u1")
    every = (values[..., None] >> np.arange(bits)[::-1]).astype("u1") & 1
    data = values.tobytes() if bits >= 8 else np.packbits(every.reshape(21, -1), axis=1).tobytes()
    data = getattr(codecs, f"{compression}_encode")(data) if compression else data
    number = {"": 1, "lzw": 5, "zlib": 8, "packbits": 32773}[compression]
    path = tmp_path / "bits.tif"
    turned = bytes(int(f"{byte:08b}"[::-1], 2) for byte in data)
    path.write_bytes(make_tiff(turned, 40, 21, bits, number, t266=2))
    np.testing.assert_array_equal(open_array(path, "0")[...], values)
    with rasterio.open(path) as ds:
        np.testing.assert_array_equal(ds.read(1), values)


def test_reversed_fill_order_with_jpeg_is_refused() -> None:
    with pytest.raises(ManifestError, match="its FillOrder is 2 with jpeg"):
        Files({ROOT: make_tiff(b"1234", 8, 2, 8, 7, t266=2)}).open()


@pytest.mark.parametrize("dtype", ["complex_int16", "complex64"])
@pytest.mark.parametrize("options", [{}, {"compress": "DEFLATE"}, {"tiled": True, "ENDIANNESS": "BIG"}], ids=str)
def test_complex_integers_become_complex_floats(tmp_path: Path, dtype: str, options: dict[str, Any]) -> None:
    """Single-look SAR images, such as Sentinel-1's, have complex numbers of two 16-bit integers."""
    rasterio = pytest.importorskip("rasterio")
    values = RNG.integers(-(1 << 15), 1 << 15, (2, 40, 50)).view("i8")
    path = write(tmp_path / "a.tif", (values[0] + 1j * values[1]).astype("c8"), **{"dtype": dtype, **options})
    with rasterio.open(path) as ds:
        assert ds.dtypes == (dtype,)
        np.testing.assert_array_equal(open_array(path, "0")[...], ds.read(1))
    assert open_array(path, "0").dtype == np.dtype("c8").newbyteorder(">" if "tiled" in options else "<")


def test_complex_integers_of_32_bits_keep_their_precision(tmp_path: Path) -> None:
    values = RNG.integers(-(1 << 31), 1 << 31, (3, 4, 2)).astype("<i4")
    path = tmp_path / "a.tif"
    path.write_bytes(make_tiff(values.tobytes(), 4, 3, 64, t339=5))
    assert open_array(path, "0").dtype == np.dtype("c16")
    np.testing.assert_array_equal(open_array(path, "0")[...], values[..., 0] + 1j * values[..., 1])


def test_opaque_tiles_of_webp_with_alpha_are_read(tmp_path: Path) -> None:
    rasterio = pytest.importorskip("rasterio")
    values = np.concatenate([np.moveaxis(RGB, -1, 0), np.full((1, *RGB.shape[:2]), 255, "u1")])
    values[3, :16, :16] = 7
    options = {"compress": "WEBP", "WEBP_LOSSLESS": True, "tiled": True, "blockxsize": 16, "blockysize": 16}
    path = write(tmp_path / "a.tif", values, interleave="pixel", photometric="RGB", **options)
    with rasterio.open(path) as ds:
        np.testing.assert_array_equal(np.moveaxis(open_array(path, "0")[...], -1, 0), ds.read())


@pytest.mark.parametrize("predictor", [1, 2])
def test_local_strips_of_one_row_are_read_together(tmp_path: Path, predictor: int) -> None:
    """GDAL writes a strip for each row of a wide image."""
    xr = pytest.importorskip("xarray")
    values = np.arange(600 * 70, dtype="u2").reshape(600, 70)
    tifffile.imwrite(tmp_path / "a.tif", values, compression="zlib", rowsperstrip=1, predictor=predictor)
    fs = RefShardFileSystem(str(tmp_path / "a.tif"))
    with xr.open_dataset(fs, engine="refshard") as ds:
        before = fs.stats()["requests"]
        np.testing.assert_array_equal(ds["0"].values, values)
    assert fs.stats()["requests"] - before == 1


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "lzw", "predictor": 2, "tile": (32, 16)},
        {"compression": "zlib", "predictor": 2, "rowsperstrip": 13},
        {"compression": "zlib", "rowsperstrip": 13},
        {"compression": "jpeg", "rowsperstrip": 16},
    ],
)
def test_xarray_reads_tiles_without_making_bytes_of_a_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """The samples are decoded into xarray's array."""
    xr = pytest.importorskip("xarray")
    tifffile = pytest.importorskip("tifffile")
    pytest.importorskip("imagecodecs")
    tifffile.imwrite(tmp_path / "a.tif", RGB, photometric="rgb", **options)
    monkeypatch.setattr(TileRecipe, "make", lambda self, raw: pytest.fail("bytes of a chunk are made"))
    with xr.open_dataset(tmp_path / "a.tif", engine="refshard") as ds:
        np.testing.assert_array_equal(ds["0"][1:69, 3:].values, tifffile.imread(tmp_path / "a.tif")[1:69, 3:])


@pytest.mark.parametrize("compression", [5, 32773])
def test_last_tiles_may_end_with_the_image(tmp_path: Path, compression: int) -> None:
    """Some writers leave out the rows of a tile that lie below the image; a tile of another size is an error."""
    codecs = pytest.importorskip("imagecodecs")
    encode = codecs.lzw_encode if compression == 5 else codecs.packbits_encode
    values = RNG.integers(0, 9, (37, 64), "u1")
    data = encode(values.tobytes())
    path = tmp_path / "a.tif"
    path.write_bytes(make_tiff(data, 35, 37, 8, compression, t322=64, t323=64, t324=8, t325=len(data)))
    np.testing.assert_array_equal(open_array(path, "0")[...], values[:, :35])
    short = encode(values[:-1].tobytes())
    path.write_bytes(make_tiff(short, 35, 37, 8, compression, t322=64, t323=64, t324=8, t325=len(short)))
    with pytest.raises(Exception, match="a strip or tile decompresses to 2304 bytes: expected 2368"):
        open_array(path, "0")[...]
    longer = encode(values.tobytes() + b"\0")  # Photoshop adds a byte
    path.write_bytes(make_tiff(longer, 35, 37, 8, compression, t322=64, t323=64, t324=8, t325=len(longer)))
    np.testing.assert_array_equal(open_array(path, "0")[...], values[:, :35])
    damaged = encode(np.concatenate([values, values[:1]]).tobytes())
    path.write_bytes(make_tiff(damaged, 35, 37, 8, compression, t322=64, t323=64, t324=8, t325=len(damaged)))
    with pytest.raises(Exception, match="decompresses to 2432 bytes: expected 2368 .* or 4096"):
        open_array(path, "0")[...]


@pytest.mark.parametrize("compression", [1, 5, 8])
def test_single_strip_is_read_if_its_size_is_zero(tmp_path: Path, compression: int) -> None:
    rasterio = pytest.importorskip("rasterio")
    codecs = pytest.importorskip("imagecodecs")
    values = RNG.integers(0, 255, (11, 13), "u1")
    data = {1: values.tobytes(), 5: codecs.lzw_encode(values.tobytes()), 8: zlib.compress(values.tobytes())}[
        compression
    ]
    path = tmp_path / "a.tif"
    path.write_bytes(make_tiff(data, 13, 11, 8, compression, t279=0))
    np.testing.assert_array_equal(open_array(path, "0")[...], values)
    with rasterio.open(path) as dataset:
        np.testing.assert_array_equal(dataset.read(1), values)


def test_last_jpeg_strip_may_have_rows_beyond_the_image() -> None:
    codecs = pytest.importorskip("imagecodecs")
    data = codecs.jpeg_encode(np.ascontiguousarray(RGB[:64, :, 0]))
    recipe = TileRecipe(7, 1, 8, "|u1", (64, 50, 1), 61, 1, b"")
    assert recipe.make(data) == codecs.jpeg_decode(data).tobytes()
    with pytest.raises(ValueError, match="invalid out.shape"):
        msgspec.structs.replace(recipe, shape=(63, 50, 1)).make(data)


@pytest.mark.parametrize("samples", [1, 2, 4])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("kind", ["one band", "all bands", "rows"])
def test_lerc_with_nan_in_interleaved_bands_equals_gdal(tmp_path: Path, samples: int, dtype: str, kind: str) -> None:
    rasterio = pytest.importorskip("rasterio")
    values = RNG.normal(size=(samples, 35, 20)).astype(dtype)
    values[{"one band": slice(1), "all bands": slice(None), "rows": slice(1, None)}[kind], 3:5] = np.nan
    for number, options in enumerate([{}, {"tiled": True, "blockxsize": 16, "blockysize": 16}]):
        path = write(tmp_path / f"{number}.tif", values, compress="lerc", interleave="pixel", **options)
        with rasterio.open(path) as ds:
            want = ds.read()
        found = open_array(path, "0")[...]
        np.testing.assert_array_equal(np.moveaxis(found, -1, 0) if samples > 1 else found[None], want)


@pytest.mark.parametrize("samples", [2, 4])
@pytest.mark.parametrize("alpha", [(0, 255), (255, 255), (0, 200)])
def test_lerc_with_alpha_as_a_mask_equals_gdal(tmp_path: Path, samples: int, alpha: tuple[int, int]) -> None:
    rasterio = pytest.importorskip("rasterio")
    values = RNG.integers(0, 256, (samples, 35, 20), "u1")
    values[-1] = np.where(RNG.random((35, 20)) < 0.4, *alpha)
    path = write(tmp_path / "a.tif", values, compress="lerc", interleave="pixel", alpha="NON-PREMULTIPLIED")
    with rasterio.open(path) as ds:
        np.testing.assert_array_equal(np.moveaxis(open_array(path, "0")[...], -1, 0), ds.read())


def test_lerc_with_a_predictor_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lerc.tif"
    tifffile.imwrite(path, RGB[..., 0], compression="lerc", predictor=2)
    with pytest.raises(ManifestError, match="its Predictor is 2 with LERC"):
        Files.of(path).open()


@pytest.mark.parametrize(
    ("dtype", "options", "reason"),
    [
        ("f4", {"compress": "LERC", "ENDIANNESS": "BIG"}, "big-endian floats in LERC"),
        ("u4", {"nbits": 24, "ENDIANNESS": "BIG"}, "24 bits in a big-endian file"),
        ("u1", {"compress": "WEBP", "count": 3, "interleave": "band"}, "WebP have 1 samples for a pixel"),
    ],
)
def test_unsupported_samples_are_refused(tmp_path: Path, dtype: str, options: dict[str, Any], reason: str) -> None:
    pytest.importorskip("rasterio")
    values = np.zeros((options.pop("count", 1), 20, 30), dtype)
    with pytest.raises(ManifestError, match=reason):
        Files.of(write(tmp_path / "a.tif", values, **options)).open()


@pytest.mark.parametrize(("bits", "samples", "compression"), [((8, 8), 3, 1), ((8, 8, 8), 1, 7)])
def test_contradicting_numbers_of_samples_are_refused(bits: tuple[int, ...], samples: int, compression: int) -> None:
    data = make_tiff(bytes(60), 5, 4, compression=compression, t258=bits, t277=samples)
    reason = f"its BitsPerSample has {len(bits)} values: expected 1 or SamplesPerPixel, {samples}"
    with pytest.raises(ManifestError, match=reason):
        Files({ROOT: data}).open()


def test_sizes_of_more_samples_than_stated_are_ignored() -> None:
    files = Files({ROOT: make_tiff(bytes(range(60)), 5, 4, t258=(8, 8, 8, 1), t277=3)})
    assert files.read(files.open(), "0/0.0.0") == bytes(range(60))


@pytest.mark.parametrize(
    ("compression", "values", "options"),
    [
        ("jpeg2000", RGB, {"photometric": "rgb"}),
        ("jpeg2000", RGB[..., 0].astype("u2") * 99, {"tile": (16, 32)}),
        ("aperio_jp2000_rgb", RGB, {"photometric": "rgb"}),
        ("jpegxl", RGB, {"photometric": "rgb", "compressionargs": {"lossless": True}}),
        ("jpegxl", RGB[..., 0].astype("f4") / 255, {"compressionargs": {"lossless": True}}),
        ("png", RGB, {"photometric": "rgb", "tile": (16, 16)}),
        ("png", RGB[..., 0].astype("u2") * 201, {}),
        ("lzma", RGB, {"photometric": "rgb"}),
        ("lzma", RGB[..., 0].astype("f4") / 7, {"predictor": 3}),
        ("lzma", RGB[..., 0].astype(">i4"), {"predictor": 2, "byteorder": ">"}),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_image_codecs_and_lzma_equal_tifffile(
    tmp_path: Path, compression: str, values: Any, options: dict[str, Any]
) -> None:
    path = tmp_path / "x.tif"
    strips = {} if "tile" in options else {"rowsperstrip": len(values) // 2 + 1}
    tifffile.imwrite(path, values, compression=compression, **strips, **options)
    np.testing.assert_array_equal(open_array(path, "0")[...], tifffile.imread(path))


@pytest.mark.parametrize("compression", ["CCITTRLE", "CCITTFAX3", "CCITTFAX4"])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_faxes_equal_gdal(tmp_path: Path, compression: str, is_reversed: bool) -> None:
    rasterio = pytest.importorskip("rasterio")
    values = (np.add.outer(np.arange(70), np.arange(50)) // 7 % 2).astype("u1")
    for number, photometric in enumerate(["MINISWHITE", "MINISBLACK"]):
        options = {"compress": compression, "photometric": photometric, "nbits": 1, "blockysize": 16}
        path = write(
            tmp_path / f"{number}.tif", values, **options, **({"tiled": True, "blockxsize": 32} if number else {})
        )
        if is_reversed:
            data = bytearray(path.read_bytes())
            with tifffile.TiffFile(path) as tiff:
                page = tiff.pages[0]
                for at, size in zip(page.dataoffsets, page.databytecounts, strict=True):
                    data[at : at + size] = bytes(int(f"{byte:08b}"[::-1], 2) for byte in data[at : at + size])
                # Replace PlanarConfiguration, which an image of one sample does not need, by FillOrder 2.
                at = page.tags[284].offset
            data[at : at + 12] = struct.pack("<HHII", 266, 3, 1, 2)
            path.write_bytes(data)
        np.testing.assert_array_equal(open_array(path, "0")[...], values)
        with rasterio.open(path) as ds:
            np.testing.assert_array_equal(ds.read(1), values)


def test_fax_of_several_samples_is_refused() -> None:
    with pytest.raises(ManifestError, match="its Compression 4 is for faxes: expected 1 sample of 1 bit, found"):
        Files({ROOT: make_tiff(b"1234", 4, 2, 8, 4)}).open()


def test_jpeg_2000_of_another_shape_is_refused(tmp_path: Path) -> None:
    """The decoder would allocate memory for the size that the code stream states."""
    path = tmp_path / "x.tif"
    tifffile.imwrite(path, RGB[..., 0], compression="jpeg2000")
    data = path.read_bytes()
    size = data.index(b"\xff\x4f\xff\x51") + 8
    files = Files({ROOT: data[:size] + (1 << 24).to_bytes(4) + data[size + 4 :]})
    with pytest.raises(ValueError, match=f"columns and samples .{len(RGB)}, {1 << 24}, 1"):
        files.read(files.open(), "0/0.0")


def test_large_strips_are_cut_and_small_strips_joined(tmp_path: Path) -> None:
    values = RNG.integers(0, 255, (2100, 4000), "u1")
    for rows in (1, 2100):
        path = tmp_path / f"{rows}.tif"
        tifffile.imwrite(path, values, rowsperstrip=rows)
        found = open_array(path, "0")
        assert 1 << 20 < np.prod(found.chunks) <= 4 << 20
        np.testing.assert_array_equal(found[...], values)


def test_strip_that_decompresses_to_too_many_bytes_is_refused() -> None:
    import zlib

    files = Files({ROOT: make_tiff(zlib.compress(bytes(1 << 20)), 4, 2, 4, 8)})
    with pytest.raises(ValueError, match="expected at most 4"):
        files.read(files.open(), "0/0.0")


def test_tile_recipes_with_equal_fields_are_equal() -> None:
    recipe = TileRecipe(5, 2, 8, "|u1", (2, 2, 1), 2, 1, b"")
    assert pickle.loads(pickle.dumps(recipe)) == recipe
    assert hash(recipe) == hash(TileRecipe(5, 2, 8, "|u1", (2, 2, 1), 2, 1, b""))


@pytest.mark.parametrize("compression", ["none", "zlib", "lzw", "packbits"])
def test_damaged_files_give_no_values_of_their_own(tmp_path: Path, compression: str) -> None:
    tifffile = pytest.importorskip("tifffile")
    pytest.importorskip("imagecodecs")
    values = np.arange(1920, dtype="u2").reshape(40, 48)
    options = {} if compression == "none" else {"compression": compression, "predictor": None}
    tifffile.imwrite(tmp_path / "a.tif", values, rowsperstrip=10, **options)

    def read(path: Path) -> dict[str, Any]:
        return {"0": tifffile.imread(path)}

    check_beside(tmp_path / "a.tif", read, seed=1, times=25)
