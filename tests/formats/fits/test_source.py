"""FITS files: the images that astropy shows; damage never gives data that is not there."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import ManifestError, RefShardError, RefShardFileSystem
from refshard_fs.formats.fits.header import parse_header
from tests.servers.http import RangeServer
from tests.support.files_of_arrays import check_commands, check_damage, rounds_to_open
from tests.support.shard_writers import IS_ZARR_2, array
from tests.support.shards_in_memory import ROOT, Files

xr = pytest.importorskip("xarray")
fits = pytest.importorskip("astropy.io.fits")

RNG = np.random.default_rng(0)
SKY = RNG.normal(100, 5, (90, 70)).astype("f4")
ZARR_FORMATS = [2] if IS_ZARR_2 else [2, 3]


def write(path: Path, *hdus: Any, primary: Any = None) -> Path:
    fits.HDUList([fits.PrimaryHDU(primary), *hdus]).writeto(path)
    return path


def images() -> list[Any]:
    """Return images of all kinds of numbers, with and without scale, blanks and coordinates."""
    sky = fits.ImageHDU(SKY, name="SCI")
    wcs = {"CTYPE1": "RA---TAN", "CTYPE2": "DEC--TAN", "CRVAL1": 10.5, "CRPIX1": 35, "CD1_1": -1e-5, "CUNIT1": "deg"}
    sky.header.update(wcs)
    sky.header["OBSERVER"] = "Miss O'Neil / others"
    sky.header["LONG"] = "word " * 40
    sky.header["HIERARCH ESO DET GAIN"] = 4.5
    sky.header["DONE"] = True
    sky.header["HISTORY"] = "was flat"
    sky.header["HISTORY"] = "was dark"
    scaled = fits.ImageHDU(RNG.integers(-99, 99, (90, 70)).astype("i2"), name="SCALED")
    scaled.header["BSCALE"], scaled.header["BZERO"], scaled.header["BLANK"] = 0.25, 3.5, -99
    again = fits.ImageHDU(SKY[:3] + 1, name="SCI", ver=2)
    numbers = [fits.ImageHDU(np.arange(12).reshape(3, 4).astype(f">{kind}"), name=kind) for kind in KINDS]
    return [sky, again, scaled, fits.ImageHDU(np.arange(24, dtype="i4").reshape(2, 3, 4)), *numbers]


KINDS = ("u1", "i2", "i4", "i8", "f4", "f8", "i1", "u2", "u4")


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
@pytest.mark.filterwarnings("ignore:.*Numcodecs codecs are not in the Zarr version 3.*:UserWarning")
def test_xarray_shows_the_images_that_astropy_shows(tmp_path: Path, zarr_format: int) -> None:
    path = write(tmp_path / "a.fits", *images(), primary=np.arange(5, dtype="i2"))
    ds = xr.open_dataset(path, engine="refshard", storage_options={"zarr_format": zarr_format})
    with fits.open(path) as hdus:
        names = ["PRIMARY", "SCI", "SCI_2", "SCALED", "4", *map(str.upper, KINDS)]
        assert set(ds.data_vars) == set(names)
        for name, hdu in zip(names, hdus, strict=True):
            np.testing.assert_array_equal(ds[name].values, hdu.data, err_msg=name)
            assert ds[name].dtype.newbyteorder("=") == hdu.data.dtype.newbyteorder("="), name
        shown, header = ds["SCI"].attrs, hdus["SCI"].header
        for keyword in ("CTYPE1", "CRVAL1", "CRPIX1", "CD1_1", "CUNIT1", "OBSERVER", "LONG", "ESO DET GAIN", "DONE"):
            assert shown[keyword] == header[keyword]
        assert shown["HISTORY"] == " was flat\n was dark".replace("\n ", "\n").strip() == str(header["HISTORY"])
    assert ds["SCI"].dims == ds["SCALED"].dims == ("SCI_y", "SCI_x")
    assert ds["U2"].dims == ("y", "x"), "most images have those lengths"
    assert ds["4"].dims == ("z", "y", "x")
    raw = xr.open_dataset(path, engine="refshard", mask_and_scale=False)
    assert raw["SCALED"].attrs["_FillValue"] == -99
    tree = xr.open_datatree(path, engine="refshard")
    assert set(tree["/"].data_vars) == set(names)


@pytest.mark.filterwarnings("ignore:.*Numcodecs codecs are not in the Zarr version 3.*:UserWarning")
def test_a_datatree_has_the_values_that_astropy_reads(tmp_path: Path) -> None:
    path = write(tmp_path / "a.fits", *images(), primary=np.arange(5, dtype="i2"))
    tree = xr.open_datatree(path, engine="refshard")
    with fits.open(path) as hdus:
        for name, hdu in (("PRIMARY", 0), ("SCI", ("SCI", 1)), ("SCI_2", ("SCI", 2)), ("SCALED", "SCALED"), ("4", 4)):
            np.testing.assert_allclose(tree[name].values, hdus[hdu].data, rtol=1e-6, err_msg=name)


def compressed(kind: str, dtype: str, tile: tuple[int, ...] | None, **options: Any) -> Any:
    values = (SKY * 10).astype(dtype)
    return fits.CompImageHDU(values, name="TILES", compression_type=kind, tile_shape=tile, **options)


@pytest.mark.parametrize("tile", [None, (32, 32), (90, 70), (7, 70)])
@pytest.mark.parametrize(
    ("kind", "dtype", "options"),
    [
        ("RICE_1", "i2", {}),
        ("RICE_1", "u2", {}),
        ("RICE_1", "f4", {"quantize_method": 1, "dither_seed": 77}),
        ("RICE_1", "f4", {"quantize_method": 2, "dither_seed": 9999}),
        ("GZIP_1", "i4", {}),
        ("GZIP_2", "f8", {"quantize_level": 0}),
        ("NOCOMPRESS", "i2", {}),
    ],
)
def test_tiles_have_the_pixels_that_astropy_finds(
    tmp_path: Path, tile: tuple[int, ...] | None, kind: str, dtype: str, options: dict[str, Any]
) -> None:
    path = write(tmp_path / "a.fits", compressed(kind, dtype, tile, **options))
    found = array(str(path), "TILES")
    with fits.open(path) as hdus:
        assert np.array_equal(found[...], hdus["TILES"].data)
    assert found.chunks == ((32, 32) if tile == (32, 32) else (90, 70) if tile != (7, 70) else (91, 70))


def test_floats_that_were_not_quantized_and_blanks_are_read(tmp_path: Path) -> None:
    values = SKY.copy()
    values[3:5, 10:20] = np.nan
    values[40:44] = RNG.normal(0, 1, (4, 70)) * 10.0 ** RNG.integers(-30, 30, (4, 70))  # rows that lose all bits
    for number, hdu in enumerate((fits.CompImageHDU(values), fits.CompImageHDU(values, quantize_level=-0.01))):
        path = write(tmp_path / f"{number}.fits", hdu)
        with fits.open(path) as hdus:
            np.testing.assert_array_equal(array(str(path), hdus[1].name)[...], hdus[1].data)


def test_other_hdus_are_reported(tmp_path: Path) -> None:
    table = fits.BinTableHDU.from_columns([fits.Column("a", "J", array=[1, 2])], name="CATALOGUE")
    masks = compressed("PLIO_1", "i2", None)
    path = write(tmp_path / "a.fits", table, masks, fits.ImageHDU(SKY, name="SCI"))
    path.write_bytes(path.read_bytes() + b"\0" * 2880)
    files = Files({ROOT: path.read_bytes()})
    keyspace = files.open()
    assert list(keyspace.grids) == ["SCI"]
    assert "BINTABLE" in keyspace.reports["CATALOGUE"]
    assert "not safe" in keyspace.reports["TILES"]
    assert "begin like no HDU" in keyspace.reports["4"]
    with pytest.raises(ManifestError, match="no image that can be shown.*CATALOGUE.*BINTABLE"):
        Files({ROOT: write(tmp_path / "b.fits", table).read_bytes()}).open()


def test_commands_take_a_file_and_convert_it_to_references(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.fits", *images(), compressed("RICE_1", "i2", None))
    refs = check_commands(path, tmp_path, capsys, "SCALED")
    xr.testing.assert_identical(*(xr.open_dataset(fo, engine="refshard").load() for fo in (path, refs)))


@pytest.mark.parametrize("kinds", [("i4",) * 5, ("f4", "f4", "i2") * 2])
def test_opening_takes_few_rounds_and_a_piece_one_request(
    http_server: RangeServer, tmp_path: Path, kinds: tuple[str, ...]
) -> None:
    large = np.arange(360_000, dtype="i4").reshape(450, 800)
    path = write(
        tmp_path / "a.fits", *(fits.ImageHDU((large + i).astype(k), name=f"I{i}") for i, k in enumerate(kinds))
    )
    url = http_server.put("/a.fits", path.read_bytes())
    fs = RefShardFileSystem(url, skip_instance_cache=True)
    assert "I4" in fs.ls("", detail=False)
    assert rounds_to_open(path) <= 3
    assert sum(request.sent for request in http_server.requests()) < 1 << 19
    http_server.clear()
    assert fs.cat_file("I3/0.0") == (large + 3).astype(f">{kinds[3]}").tobytes()
    assert len(http_server.requests()) == 1


@pytest.mark.usefixtures("large_files")
def test_a_chunk_of_tiles_takes_a_request_once_their_rows_are_known(http_server: RangeServer, tmp_path: Path) -> None:
    path = write(tmp_path / "a.fits", compressed("RICE_1", "i2", (32, 32)))
    fs = RefShardFileSystem(http_server.put("/a.fits", path.read_bytes()), skip_instance_cache=True)
    fs.cat_file("TILES/0.0")
    http_server.clear()
    assert len(fs.cat_file("TILES/1.2")) == 2048
    assert len(http_server.requests()) == 1


def test_damage_ends_in_errors_that_name_the_file(tmp_path: Path) -> None:
    check_damage(write(tmp_path / "a.fits", *images()).read_bytes(), seed=1, times=100)
    check_damage(write(tmp_path / "b.fits", compressed("RICE_1", "i2", None)).read_bytes(), seed=2, times=15)
    check_damage(write(tmp_path / "c.fits", compressed("GZIP_2", "i4", (32, 32))).read_bytes(), seed=3, times=15)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"BITPIX  =                  -32", b"BITPIX  =                   33", "BITPIX is 33"),
        (b"NAXIS1  =                   70", b"NAXIS1  =                   -7", "NAXIS1 is -7"),
        (b"NAXIS1  =                   70", b"NAXIS1  =             70000000", "cut short: its data end at byte"),
        (b"NAXIS2  =                   90", b"NAXIS2  = 9223372036854775807", "more than 63 bits"),
        (b"NAXIS   =                    2", b"NAXIS   =                  900", "900, and 32 axes"),
    ],
)
def test_a_header_that_cannot_be_true_is_refused_by_its_card(
    tmp_path: Path, old: bytes, new: bytes, reason: str
) -> None:
    data = write(tmp_path / "a.fits", fits.ImageHDU(SKY, name="SCI")).read_bytes()
    assert old in data
    files = Files({ROOT: data.replace(old, new.ljust(len(old)))})
    with pytest.raises(ManifestError, match=reason):
        files.open()


@pytest.mark.parametrize(
    ("old", "new", "shown", "lost"),
    [
        (b"EXTNAME = 'B       '", b"EXTNAME = 'B       ", ["A", "C"], {}),
        (b"BITPIX  =                   16", b"BITPIX  =                   17", ["A"], {"2": "BITPIX is 17"}),
        (b"NAXIS1  =                   40", b"NAXIS1  =             40000000", ["A"], {"2": "cut short"}),
        (b"BSCALE  =                  2.0", b"BSCALE  =               'two'", ["A", "C"], {"B": "BSCALE is 'two'"}),
    ],
)
def test_a_damaged_hdu_leaves_the_others(
    tmp_path: Path, old: bytes, new: bytes, shown: list[str], lost: dict[str, str]
) -> None:
    odd = fits.ImageHDU(np.zeros((30, 40), "i2"), name="B")
    odd.header["BSCALE"] = 2.0
    path = write(tmp_path / "a.fits", fits.ImageHDU(SKY, name="A"), odd, fits.ImageHDU(SKY, name="C"))
    data = path.read_bytes()
    if b"BSCALE" in old and old not in data:
        pytest.skip("this astropy writes no BSCALE")
    assert old in data
    files = Files({ROOT: data.replace(old, new.ljust(len(old)))})
    keys = files.open()
    assert set(shown) <= set(keys.grids)
    assert len(keys.grids) + len(lost) == (3 if "C" in shown else 2)
    assert all(lost[name] in keys.reports[name] for name in lost)
    for name in lost:
        with pytest.raises(ManifestError, match="is not shown"):
            files.read(keys, f"{name}/0.0")


def test_tiles_that_lie_outside_of_the_heap_are_refused(tmp_path: Path) -> None:
    data = write(tmp_path / "a.fits", compressed("RICE_1", "i2", (90, 70))).read_bytes()
    begin = data.index(b"END " + b" " * 76, 2880)
    begin += -begin % 2880
    files = Files({ROOT: data[:begin] + b"\x7f" + data[begin + 1 :]})
    with pytest.raises(RefShardError, match=r"HDU 1.*tile 0 has bytes .* of a heap"):
        files.read(files.open(), "TILES/0.0")


def test_a_tile_that_inflates_to_more_than_it_has_pixels_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.fits", compressed("GZIP_1", "i2", (90, 70)))
    files = Files({ROOT: path.read_bytes()})
    entry = files.run(files.open().lookup("TILES/0.0"))
    with pytest.raises(ValueError, match="inflates to more than"):
        entry.recipe.make(gzip.compress(bytes(1 << 20)).ljust(entry.recipe.sizes[0], b"\0"))  # type: ignore[union-attr]


def test_a_text_is_continued_over_as_many_cards_as_it_has() -> None:
    cards = ["SIMPLE  =                    T", "BITPIX  =                    8", "NAXIS   =                    0"]
    cards += ["LONG    = 'first&'", *["CONTINUE  'more&'"] * 20_000, "CONTINUE  'last'", "CONTINUE  'stray'", "END"]
    data = b"".join(card.ljust(80).encode() for card in cards)
    data += b" " * (-len(data) % 2880)
    assert parse_header(data, 0, len(data), "x").cards["LONG"] == "first" + "more" * 20_000 + "last"
