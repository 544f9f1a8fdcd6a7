"""YCbCr samples in TIFF files are shown as RGB with the values of libtiff, which GDAL uses, too."""

from __future__ import annotations

import itertools
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from refshard_fs import ManifestError
from tests.support.plain_tiff import make_tiff
from tests.support.shard_writers import open_array
from tests.support.shards_in_memory import ROOT, Files

rasterio = pytest.importorskip("rasterio")
codecs = pytest.importorskip("imagecodecs")
pytestmark = [
    pytest.mark.filterwarnings("ignore:Dataset has no geotransform"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3"),
]

ENCODERS = {1: bytes, 5: codecs.lzw_encode, 8: zlib.compress}


def pack_blocks(values: npt.NDArray[np.uint8], across: int, down: int) -> bytes:
    """Pack an array (rows, columns, 3) of YCbCr to blocks: the Y of all pixels of the block, then one Cb and one Cr."""
    rows, columns, _ = values.shape
    values = np.pad(values, ((0, -rows % down), (0, -columns % across), (0, 0)), mode="edge")
    rows, columns, _ = values.shape
    luma = values[..., 0].reshape(rows // down, down, columns // across, across).swapaxes(1, 2)
    luma = luma.reshape(rows // down, columns // across, -1)
    return np.concatenate([luma, values[::down, ::across, 1:]], axis=2).tobytes()


def write(path: Path, across: int, down: int, compression: int, *, is_tiled: bool, **tags: tuple[float, ...]) -> None:
    """Write an image of random samples in 37 rows and 41 columns, with further ``tags`` by number, as in ``t529``."""
    values = np.random.default_rng(5).integers(0, 256, (37, 41, 3), "u1")
    if is_tiled:
        values = np.pad(values, ((0, 11), (0, 7), (0, 0)), mode="edge")
        parts = [values[row : row + 16, at : at + 16] for row in range(0, 48, 16) for at in range(0, 48, 16)]
    else:
        parts = [values[row : row + 16] for row in range(0, 37, 16)]
    encoded = [ENCODERS[compression](pack_blocks(part, across, down)) for part in parts]
    places, start = [], 8
    for part in encoded:
        places.append(start)
        start += len(part)
    if is_tiled:
        layout = {"t322": 16, "t323": 16, "t324": tuple(places), "t325": tuple(map(len, encoded))}
    else:
        layout = {"t278": 16}
    three = (8, 8, 8)
    data = make_tiff(encoded, 41, 37, 8, compression, t258=three, t262=6, t277=3, t530=(across, down), **layout, **tags)
    path.write_bytes(data)


@pytest.mark.parametrize("compression", ENCODERS)
@pytest.mark.parametrize(("across", "down"), [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4)])
def test_blocks_of_samples_have_the_colours_of_gdal(tmp_path: Path, across: int, down: int, compression: int) -> None:
    # GDAL does not read uncompressed tiles of YCbCr. It mixes up blocks of 4 by 4 that the edge of a tile or the right
    # edge of the image cuts, so these pixels are not compared.
    for is_tiled in (False, True) if compression != 1 and down != 4 else (False,):
        path = tmp_path / f"{is_tiled}.tif"
        write(path, across, down, compression, is_tiled=is_tiled)
        with rasterio.open(path) as dataset:
            known = np.s_[:, :40] if down == 4 else np.s_[:]
            np.testing.assert_array_equal(open_array(path, "0")[known], np.moveaxis(dataset.read(), 0, 2)[known])


@pytest.mark.parametrize(
    "tags",
    [
        {"t529": (0.2125, 0.7154, 0.0721)},
        {"t532": (16.0, 235.0, 128.0, 240.0, 128.0, 240.0)},
        {"t529": (0.2125, 0.7154, 0.0721), "t532": (15.0, 235.0, 120.0, 240.0, 130.0, 250.5)},
    ],
)
def test_colours_follow_the_coefficients_of_the_file(tmp_path: Path, tags: dict[str, tuple[float, ...]]) -> None:
    path = tmp_path / "colours.tif"
    write(path, 2, 2, 5, is_tiled=False, **tags)
    with rasterio.open(path) as dataset:
        np.testing.assert_array_equal(open_array(path, "0")[...], np.moveaxis(dataset.read(), 0, 2))


def test_unsupported_layouts_of_samples_are_refused() -> None:
    cases = itertools.chain(
        ((8, {"t277": 4, "t338": 0}), (16, {"t277": 3}), (8, {"t277": 3, "t284": 2}), (8, {"t277": 3, "t530": (3, 1)})),
        ((8, {"t277": 3, "t529": (0.5, 0.0, 0.5)}), (8, {"t277": 3, "t317": 2})),
    )
    for bits, tags in cases:
        data = make_tiff(zlib.compress(bytes(1 << 10)), 4, 2, bits, 8, t262=6, **tags)  # type: ignore[arg-type]
        with pytest.raises(ManifestError, match="YCbCr"):
            Files({ROOT: data}).open()
