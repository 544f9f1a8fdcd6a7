"""The chunk shape of arrays whose own chunks do not align."""

from __future__ import annotations

from pathlib import Path

import pytest

import refshard_fs
from refshard_fs import ManifestError
from tests.support.day_sets import make_days, write_refs

xr = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")
pytest.importorskip("zarr")

from tests.support.gapped_files import write_days  # noqa: E402  # xarray may be absent


def test_unaligned_tiles_are_refused(tmp_path: Path) -> None:
    files = [write_days(tmp_path / f"{i}.nc", [i], xs=xs) for i, xs in enumerate(([0, 1, 2, 3], [1, 2, 3, 4]))]
    with pytest.raises(ManifestError, match=r"'v' of .*1\.nc\) has 4 elements along 'x' in chunks of 2"):
        refshard_fs.concat(files, "time", join="outer")
    files = [write_days(tmp_path / f"{i}.nc", [i], xs=xs) for i, xs in enumerate(([0, 2, 4, 6], [1, 3]))]
    with pytest.raises(ManifestError, match="its chunks begin inside other chunks"):
        refshard_fs.concat(files, "time", join="outer")


def test_recut_chunks_have_the_commonest_length(tmp_path: Path) -> None:
    sizes = {1: 3, 5: 2, 9: 2}
    files = [write_refs(tmp_path, f"{first}.json", make_days(first, 4, chunk=size)) for first, size in sizes.items()]
    assert refshard_fs.concat(files, "time", lazy=True).document.chunks == {"t": (2,)}


def test_aligned_arrays_are_recut_only_on_request(tmp_path: Path) -> None:
    files = [write_refs(tmp_path, f"{first}.json", make_days(first, 4, chunk=2)) for first in (1, 5)]
    assert refshard_fs.concat(files, "time", lazy=True).document.chunks == {}
    assert refshard_fs.concat(files, "time", lazy=True, chunks={"time": 3}).document.chunks == {"t": (3,)}
