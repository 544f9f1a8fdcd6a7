"""Images of FITS files have the shapes, data types, values and attributes that astropy reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.fits_files import KINDS, make_images, write
from tests.support.shard_writers import IS_ZARR_2

xr = pytest.importorskip("xarray")
fits = pytest.importorskip("astropy.io.fits")


ZARR_FORMATS = [2] if IS_ZARR_2 else [2, 3]


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
@pytest.mark.filterwarnings("ignore:.*Numcodecs codecs are not in the Zarr version 3.*:UserWarning")
def test_xarray_reads_the_images_that_astropy_reads(tmp_path: Path, zarr_format: int) -> None:
    path = write(tmp_path / "a.fits", *make_images(), primary=np.arange(5, dtype="i2"))
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
def test_datatree_has_the_values_that_astropy_reads(tmp_path: Path) -> None:
    path = write(tmp_path / "a.fits", *make_images(), primary=np.arange(5, dtype="i2"))
    tree = xr.open_datatree(path, engine="refshard")
    with fits.open(path) as hdus:
        for name, hdu in (("PRIMARY", 0), ("SCI", ("SCI", 1)), ("SCI_2", ("SCI", 2)), ("SCALED", "SCALED"), ("4", 4)):
            np.testing.assert_allclose(tree[name].values, hdus[hdu].data, rtol=1e-6, err_msg=name)
