"""Files that are cut short or have flipped bits give an error of this package or correct values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from refshard_fs import ReferenceNotReachable, RefShardFileSystem
from tests.support.damage import check_beside
from tests.support.files_of_arrays import check_damage
from tests.support.hdf5_files import WRITERS

NAMES = [
    "chunked earliest fixed shuffle gzip fletcher32",
    "chunked latest growing in all gzip",
    "chunked v110 extensible lzf",
    "typed latest chunked",
    "grouped latest False 40",
    "attributed latest True 7",
    "scaled earliest masked",
    "netcdf4 NETCDF4 shuffle ('time',)",
]


@pytest.mark.parametrize("times", [10, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_damaged_files_give_refshard_errors_or_values(name: str, times: int, tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    WRITERS[name](path)
    check_damage(path.read_bytes(), NAMES.index(name), times)


def test_chunk_too_short_for_its_checksum_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("d", (4,), "<i4", chunks=(4,), compression="gzip", fletcher32=True)
        dataset.id.write_direct_chunk((0,), b"ab", filter_mask=1)  # the chunk skips compression
    with pytest.raises(ReferenceNotReachable, match="fletcher32"):
        RefShardFileSystem(str(path)).cat_file("d/0")


def read_by_h5py(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[...]} if isinstance(item, h5py.Dataset) else {}))
    return found


@pytest.mark.parametrize("libver", ["earliest", "v108", "latest"])
@pytest.mark.parametrize("times", [25, pytest.param(500, marks=pytest.mark.slow)])
def test_damaged_files_give_no_values_of_their_own(libver: str, times: int, tmp_path: Path) -> None:
    values = np.arange(600).reshape(20, 30)
    with h5py.File(tmp_path / "a.h5", "w", libver=libver) as file:
        file["plain"] = values[:5].astype("f4")
        file.create_dataset("deflated", data=values, chunks=(7, 10), compression="gzip", shuffle=True)
        file.create_dataset("checked", data=values.astype("i2"), chunks=(10, 10), fletcher32=True)
        file.create_dataset("growing", data=values.astype("f8"), chunks=(10, 10), maxshape=(None, 30))
        file.create_dataset("sparse", (20, 20), "i4", chunks=(10, 10), fillvalue=7)[:5] = 3
        for number in range(9):
            file[f"group/{number}"] = values[number]
    check_beside(tmp_path / "a.h5", read_by_h5py, seed=len(libver), times=times)
