"""Small files that describe much data are refused, or open with little memory."""

from __future__ import annotations

import struct
from pathlib import Path

import h5py
import numpy as np
import pytest

from refshard_fs.core.array_group import UNWRITTEN
from refshard_fs.errors import NotListable
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.tools.info import summarise
from tests.support.hdf5_messages import make_file
from tests.support.memory import check_peak

pytestmark = pytest.mark.case(id="P32")


def test_too_many_unwritten_chunks_are_not_listed(tmp_path: Path) -> None:
    """zarr does not fill these chunks itself, so a listing would have to name each unwritten chunk."""
    count = UNWRITTEN + 17

    def fill(file: h5py.File) -> None:
        file.create_dataset("plain", data=np.arange(5))
        file.create_dataset("sparse", (count,), "i4", chunks=(1,), fillvalue=7)[3] = 5

    path = tmp_path / "sparse.h5"
    path.write_bytes(make_file(fill))
    fs = RefShardFileSystem(str(path))
    with check_peak(8 << 20):
        counts = {array.name: (array.present, array.possible) for array in summarise(fs).arrays}
    assert counts == {"plain": (1, 1), "sparse": (None, count)}
    assert fs.cat("sparse/3") == struct.pack("<i", 5)
    assert fs.cat(f"sparse/{count - 1}") == struct.pack("<i", 7)
    with pytest.raises(NotListable, match=f"{count} chunks .1 written. are too many to list"):
        fs.ls("sparse")
