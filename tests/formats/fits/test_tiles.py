"""Tiles have the pixels that astropy decodes; damaged tables of tiles are refused."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import RefShardError, RefShardFileSystem
from refshard_fs.formats.fits.tiles import TileRecipe, decode_plio
from tests.servers.http import RangeServer
from tests.support.fits_files import RNG, SKY, make_compressed, write
from tests.support.shard_writers import open_array
from tests.support.shards_in_memory import ROOT, Files

xr = pytest.importorskip("xarray")
fits = pytest.importorskip("astropy.io.fits")


CODED: list[tuple[str, str, dict[str, Any]]] = [
    ("RICE_1", "i2", {}),
    ("RICE_1", "i4", {}),
    ("RICE_1", "u1", {}),
    ("RICE_1", "u2", {}),
    ("RICE_1", "f4", {"quantize_method": 1, "dither_seed": 77}),
    ("RICE_1", "f4", {"quantize_method": 2, "dither_seed": 9999}),
    ("GZIP_1", "i4", {}),
    ("GZIP_2", "f8", {"quantize_level": 0}),
    ("NOCOMPRESS", "i2", {}),
    ("PLIO_1", "i2", {}),
    ("PLIO_1", "u1", {}),
    ("PLIO_1", "i4", {}),
]
TILES: list[tuple[int, ...] | None] = [(32, 32), None, (90, 70), (7, 70)]


@pytest.mark.parametrize(
    ("tile", "kind", "dtype", "options"),
    [*((TILES[0], *coded) for coded in CODED), *((tile, *CODED[4]) for tile in TILES[1:])],
)
def test_tiles_have_the_pixels_that_astropy_decodes(
    tmp_path: Path, tile: tuple[int, ...] | None, kind: str, dtype: str, options: dict[str, Any]
) -> None:
    path = write(tmp_path / "a.fits", make_compressed(kind, dtype, tile, **options))
    found = open_array(str(path), "TILES")
    with fits.open(path) as hdus:
        assert np.array_equal(found[...], hdus["TILES"].data)
    assert found.chunks == ((32, 32) if tile == (32, 32) else (90, 70) if tile != (7, 70) else (91, 70))


@pytest.mark.parametrize("kind", ["RICE_1", "GZIP_1", "GZIP_2"])
@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("i2", {}),
        ("u1", {}),
        ("f4", {"quantize_method": -1}),
        ("f4", {"quantize_method": 1, "dither_seed": 9999}),
        ("f8", {"quantize_method": 2}),
    ],
)
def test_tiles_are_decoded_without_a_table_of_astropy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, dtype: str, options: dict[str, Any]
) -> None:
    """astropy takes 3 ms to open a table, and 0.4 ms to decode a tile of 256 x 256 pixels."""
    path = write(tmp_path / "a.fits", make_compressed(kind, dtype, (32, 32), **options))
    with fits.open(path) as hdus:
        expected = np.array(hdus["TILES"].data)
    monkeypatch.setattr(TileRecipe, "make", lambda self, raw: pytest.fail("astropy opens a table"))
    assert np.array_equal(open_array(str(path), "TILES")[...], expected)


@pytest.mark.parametrize(("name", "value"), [("BYTEPIX", 8), ("BYTEPIX", 3), ("BLOCKSIZE", 0), ("BLOCKSIZE", -32)])
def test_invalid_settings_of_rice_are_refused(tmp_path: Path, name: str, value: int) -> None:
    """With 8 bytes for a pixel, astropy reads beyond its memory."""
    data = write(tmp_path / "a.fits", make_compressed("RICE_1", "i2", (32, 32))).read_bytes()
    at = data.index(f"'{name:8}'".encode()) // 80 * 80 + 80  # the next card has the value
    assert data[at : at + 4] == b"ZVAL"
    card = f"{data[at : at + 8].decode()}= {value:>20}".ljust(80).encode()
    (tmp_path / "a.fits").write_bytes(data[:at] + card + data[at + 80 :])
    fs = RefShardFileSystem(str(tmp_path / "a.fits"), skip_instance_cache=True)
    with pytest.raises(RefShardError, match="BYTEPIX .* and BLOCKSIZE .*: expected 1, 2 or 4 bytes"):
        fs.cat_file("TILES/0.0")


@pytest.mark.parametrize("compression", ["RICE_1", "GZIP_2"])
def test_zblank_marks_missing_pixels_of_integers(tmp_path: Path, compression: str) -> None:
    image = fits.CompImageHDU(np.arange(20, dtype="i2").reshape(4, 5), compression_type=compression)
    path = write(tmp_path / "a.fits", image)
    with fits.open(path, mode="update", disable_image_compression=True) as hdus:
        hdus[1].header["ZBLANK"] = 7
    [array] = xr.open_dataset(path, engine="refshard").data_vars.values()
    with fits.open(path) as hdus:
        np.testing.assert_array_equal(array.values, hdus[1].data)
    assert np.argwhere(np.isnan(array.values)).tolist() == [[1, 2]]


def test_unquantized_floats_and_blank_pixels_are_read(tmp_path: Path) -> None:
    values = SKY.copy()
    values[3:5, 10:20] = np.nan
    values[40:44] = RNG.normal(0, 1, (4, 70)) * 10.0 ** RNG.integers(
        -30, 30, (4, 70)
    )  # astropy does not quantize these rows
    for number, hdu in enumerate((fits.CompImageHDU(values), fits.CompImageHDU(values, quantize_level=-0.01))):
        path = write(tmp_path / f"{number}.fits", hdu)
        with fits.open(path) as hdus:
            np.testing.assert_array_equal(open_array(str(path), hdus[1].name)[...], hdus[1].data)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([0, 3], "has 2 words: expected at least 4, or 7 if the third word is not positive"),
        ([0, 7, -100, 7, 0, 0], "has 6 words: expected at least 4, or 7 if the third word"),
        ([0, 3, 9, 0], "states a header of 3 words, and a length of 9 words"),
        ([0, 3, 4, 0x7000 + 5, 0], None),
        ([0, 3, 4, -1], "has the instruction -1: expected 0 to 7"),
        ([0, 3, 4, 0x4FFF], "has 4095 pixels or more: expected at most 9"),
        ([0, 3, 5, 0x0009, 0x6001], "has 10 pixels or more"),
    ],
)
def test_plio_data_are_decoded_or_refused_with_the_reason(words: list[int], reason: str | None) -> None:
    if reason is None:
        assert decode_plio(words, 9).tolist() == [-4] + [0] * 8
        return
    with pytest.raises(ValueError, match=reason):
        decode_plio(words, 9)


def test_plio_data_with_a_long_header_are_decoded() -> None:
    instructions = [0x0002, 0x1003, 0x0001, 0x4002, 0x5003, 0x2002, 0x6001, 0x3001]
    words = [0, 7, -100, 15, 0, 0, 0, *instructions]
    value = (1 << 12) + 3
    assert decode_plio(words, 9).tolist() == [0, 0, value, value, 0, 0, value, value + 3, 0]


@pytest.mark.usefixtures("large_files")
def test_chunk_takes_one_request_if_the_table_was_read(http_server: RangeServer, tmp_path: Path) -> None:
    path = write(tmp_path / "a.fits", make_compressed("RICE_1", "i2", (32, 32)))
    fs = RefShardFileSystem(http_server.put("/a.fits", path.read_bytes()), skip_instance_cache=True)
    fs.cat_file("TILES/0.0")
    http_server.clear()
    assert len(fs.cat_file("TILES/1.2")) == 2048
    assert len(http_server.requests()) == 1


def test_tiles_outside_of_the_heap_are_refused(tmp_path: Path) -> None:
    data = write(tmp_path / "a.fits", make_compressed("RICE_1", "i2", (90, 70))).read_bytes()
    begin = data.index(b"END " + b" " * 76, 2880)
    begin += -begin % 2880
    files = Files({ROOT: data[:begin] + b"\x7f" + data[begin + 1 :]})
    with pytest.raises(RefShardError, match=r"HDU 1.*tile 0 has .* bytes at byte .* expected a range within"):
        files.read(files.open(), "TILES/0.0")


@pytest.mark.case(id="P26")
def test_tile_that_decompresses_to_too_many_bytes_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.fits", make_compressed("GZIP_1", "i2", (90, 70)))
    files = Files({ROOT: path.read_bytes()})
    entry = files.run(files.open().lookup("TILES/0.0"))
    with pytest.raises(ValueError, match="decode to too many bytes: expected at most 50400"):
        entry.recipe.make(gzip.compress(bytes(1 << 20)).ljust(entry.recipe.sizes[0], b"\0"))  # type: ignore[union-attr]
