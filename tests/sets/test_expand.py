"""Patterns, and the sources that they match."""

from __future__ import annotations

from pathlib import Path

import pytest

from refshard_fs import ManifestError
from refshard_fs.sets.expand import expand

zarr = pytest.importorskip("zarr")


def test_recursive_pattern_lists_each_directory_once(tmp_path: Path) -> None:
    for name in ("a.nc", "2024/b.nc", "2024/01/c.nc", "2024/01/notes.txt", "2025/d.nc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = expand(f"{tmp_path}/**/*.nc", {})
    assert {Path(url).name for url in found} == {"a.nc", "b.nc", "c.nc", "d.nc"}
    assert expand(f"{tmp_path}/**/01/*.nc", {}) == [f"{tmp_path}/2024/01/c.nc"]


def test_sidecars_beside_their_files_are_left_out(tmp_path: Path) -> None:
    for name in ("gfs.f000", "gfs.f000.idx", "gfs.f003.idx"):
        (tmp_path / name).touch()
    assert [Path(url).name for url in expand(f"{tmp_path}/gfs*", {})] == ["gfs.f000", "gfs.f003.idx"]


def test_error_of_an_empty_pattern_names_similar_files(tmp_path: Path) -> None:
    for name in ("sst_2023.nc", "sst_2024.nc", "readme"):
        (tmp_path / name).touch()
    with pytest.raises(ManifestError, match=r"matches nothing: .* has sst_202\d\.nc.* and \d others"):
        expand(f"{tmp_path}/sst2024*.nc", {})


def test_missing_folder_is_named_with_similar_ones(tmp_path: Path) -> None:
    (tmp_path / "packed").mkdir()
    with pytest.raises(ManifestError, match=r"there is no directory .*/paked: did you mean packed\?"):
        expand(f"{tmp_path}/paked/*.nc", {})
