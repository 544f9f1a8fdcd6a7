"""Write FITS files by astropy, with each kind of image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

xr = pytest.importorskip("xarray")
fits = pytest.importorskip("astropy.io.fits")


RNG = np.random.default_rng(0)


SKY = RNG.normal(100, 5, (90, 70)).astype("f4")


def write(path: Path, *hdus: Any, primary: Any = None) -> Path:
    fits.HDUList([fits.PrimaryHDU(primary), *hdus]).writeto(path)
    return path


def make_images() -> list[Any]:
    """Return images of all types of numbers, with and without scale, blanks and coordinates."""
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


KINDS = ("u1", "i2", "i4", "i8", "f4", "f8", "i1", "u2", "u4", "u8")


def make_compressed(kind: str, dtype: str, tile: tuple[int, ...] | None, **options: Any) -> Any:
    values = (SKY * 10).astype(dtype)
    return fits.CompImageHDU(values, name="TILES", compression_type=kind, tile_shape=tile, **options)
