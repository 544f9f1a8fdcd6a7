"""Scans by the workers of an executor."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import refshard_fs
from refshard_fs.errors import RefShardError
from tests.support.set_files import read_days, write_day_files


def test_scan_by_workers_gives_the_same_document(tmp_path: Path) -> None:
    files = write_day_files(tmp_path, "scipy", 70)
    expected = refshard_fs.concat(files, "time", lazy=True).content
    with ThreadPoolExecutor(2) as executor:
        assert refshard_fs.concat(files, "time", lazy=True, executor=executor).content == expected
        Path(files[3]).write_bytes(b"no file")
        with pytest.raises(RefShardError, match=r"day3\.nc3"):
            refshard_fs.concat(files, "time", executor=executor)
        with pytest.warns(UserWarning, match=r"set 3 is left out: .*day3\.nc3"):
            made = refshard_fs.concat(files, "time", executor=executor, on_error="skip")
    assert len(read_days(made)) == 69


def test_resume_refuses_other_options(tmp_path: Path) -> None:
    files = write_day_files(tmp_path, "scipy", 2)
    with pytest.raises(ValueError, match="accept few other options"):
        refshard_fs.concat(files, "time", resume=tmp_path / "scans", zarr_format=3)
