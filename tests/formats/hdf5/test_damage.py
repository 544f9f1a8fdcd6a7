"""Files that are cut short or have flipped bits give an error of this package or correct values."""

from __future__ import annotations

from pathlib import Path

import h5py
import pytest

from refshard_fs import ReferenceNotReachable, RefShardFileSystem
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
