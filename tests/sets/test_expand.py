"""Patterns, and the sources that they match."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from refshard_fs import ManifestError, RefShardError
from refshard_fs.sets.expand import expand
from tests.servers.http import RangeServer
from tests.servers.nginx import NginxServer

zarr = pytest.importorskip("zarr")


def test_recursive_pattern_matches_files_in_nested_directories(tmp_path: Path) -> None:
    for name in ("a.nc", "2024/b.nc", "2024/01/c.nc", "2024/01/notes.txt", "2025/d.nc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = expand(f"{tmp_path}/**/*.nc", {})
    assert {Path(url).name for url in found} == {"a.nc", "b.nc", "c.nc", "d.nc"}
    assert expand(f"{tmp_path}/**/01/*.nc", {}) == [f"{tmp_path}/2024/01/c.nc"]


def test_sidecars_beside_their_files_are_left_out(tmp_path: Path) -> None:
    for name in ("gfs.f000", "gfs.f000.idx", "gfs.f000.5b7b6.idx", "gfs.f003.idx"):
        (tmp_path / name).touch()
    assert [Path(url).name for url in expand(f"{tmp_path}/gfs*", {})] == ["gfs.f000", "gfs.f003.idx"]
    for name in ("era5.grib", "era5.grib.5b7b6.idx", "oper.grib2", "oper.index", "eps.12345", "eps.12345.idx"):
        (tmp_path / name).touch()
    assert [Path(url).name for url in expand(f"{tmp_path}/[eo]*", {})] == ["eps.12345", "era5.grib", "oper.grib2"]


def test_error_of_a_pattern_without_matches_names_files(tmp_path: Path) -> None:
    for name in ("sst_2023.nc", "sst_2024.nc", "readme"):
        (tmp_path / name).touch()
    with pytest.raises(ManifestError, match=r"matches nothing: .* has sst_202\d\.nc.* and \d others"):
        expand(f"{tmp_path}/sst2024*.nc", {})


def test_missing_folder_is_named_with_similar_ones(tmp_path: Path) -> None:
    (tmp_path / "packed").mkdir()
    with pytest.raises(ManifestError, match=r"there is no directory .*/paked: did you mean packed\?"):
        expand(f"{tmp_path}/paked/*.nc", {})


def test_pattern_on_a_web_server_is_listed_by_its_pages() -> None:
    files = {
        f"/sst/{name}": b"x" for name in ("day10.nc", "day2.nc", "a b.nc", "notes.txt", "2024/day1.nc", "2025/c.nc")
    }
    with RangeServer(files, listing=True) as server:
        assert expand(f"{server.url}/sst/*.nc", {}) == [f"{server.url}/sst/{n}.nc" for n in ("a%20b", "day2", "day10")]
        assert len(server.requests()) == 1
        assert expand(f"{server.url}/sst/a b*.nc", {}) == [f"{server.url}/sst/a%20b.nc"]
        assert expand(f"{server.url}/**/day1*.nc", {}) == [
            f"{server.url}/sst/2024/day1.nc", f"{server.url}/sst/day10.nc",
        ]  # fmt: skip
        with pytest.raises(ManifestError, match=r"matches nothing: http.*/sst has .*day10\.nc"):
            expand(f"{server.url}/sst/dya*.nc", {})


def test_pattern_on_nginx_matches_its_files(nginx_server: Callable[[Path], NginxServer], tmp_path: Path) -> None:
    (tmp_path / "2024").mkdir()
    for name in ("a.nc", "b c.nc", "2024/d.nc"):
        (tmp_path / name).touch()
    server = nginx_server(tmp_path)
    assert expand(f"{server.url}/*.nc", {}) == [f"{server.url}/a.nc", f"{server.url}/b%20c.nc"]
    assert expand(f"{server.url}/**/*.nc", {})[0] == f"{server.url}/2024/d.nc"


@pytest.mark.parametrize("answer", [404, 403, "binary"])
def test_pattern_on_a_server_without_link_pages_is_an_error(answer: int | str) -> None:
    with RangeServer({"/day/": b"CDF"} if answer == "binary" else {}) as server:
        if isinstance(answer, int):
            server.fault(answer)
        with pytest.raises(
            RefShardError, match=r"day/ is not a page of links .* pass a list of URLs|day/ cannot be read: HTTP 403"
        ):
            expand(f"{server.url}/day/*.nc", {})
