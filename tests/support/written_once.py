"""Keep the NetCDF files that tests write with xarray, and copy their bytes if an equal dataset is written again.

Tests of sets write thousands of small files, in 30 milliseconds each, and most of them are equal to earlier ones.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from pathlib import Path
from typing import Any, Final

import pytest

KEPT: Final = 1 << 17  # the most bytes of a kept file
ALIKE: Final = frozenset(["encoding", "engine", "format", "unlimited_dims"])  # files with other arguments are not kept

_kept: dict[bytes, bytes] = {}  # files of this process by `_make_digest`


def keep_written_files(patch: pytest.MonkeyPatch, xarray: Any) -> None:
    """Make ``xarray.Dataset.to_netcdf`` copy the bytes of an equal file that was written before."""
    write = xarray.Dataset.to_netcdf

    def to_netcdf(dataset: Any, path: Any = None, *args: Any, **how: Any) -> Any:
        is_plain = isinstance(path, str | os.PathLike) and not args and how.keys() <= ALIKE and not dataset.chunks
        key = _make_digest(dataset, how) if is_plain else None
        if key is None:
            return write(dataset, path, *args, **how)
        if key in _kept:
            Path(path).write_bytes(_kept[key])
            return None
        found = write(dataset, path, **how)
        if Path(path).stat().st_size <= KEPT:
            _kept[key] = Path(path).read_bytes()
        return found

    patch.setattr(xarray.Dataset, "to_netcdf", to_netcdf)


def _make_digest(dataset: Any, how: dict[str, Any]) -> bytes | None:
    """Return a digest of a dataset and the arguments of its write; None if a part of them cannot be pickled."""
    try:
        content = pickle.dumps((dataset.to_dict(data="array", encoding=True), list(dataset.variables), how))
    except (pickle.PicklingError, TypeError, AttributeError):
        return None
    return hashlib.sha256(content).digest()
