"""Many files are scanned together: in few requests, and in little memory."""

from __future__ import annotations

import gc
import importlib
import io
import itertools
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem
from refshard_fs.errors import ManifestError
from refshard_fs.sets import scanning
from refshard_fs.sets.sources import read_sets
from refshard_fs.source.collect import UnreadArrays
from tests.servers.http import RangeServer
from tests.support.joined_sets import make_day_set
from tests.support.memory import check_peak
from tests.support.set_files import PLACES, WRITERS, make_plain_file, read_days, read_first_values, write_day_files


@pytest.mark.parametrize(("writer", "lazy"), list(zip(WRITERS, itertools.cycle([False, True]), strict=False)))
def test_files_of_several_writers_make_a_cube(tmp_path: Path, writer: str, lazy: bool) -> None:
    files = write_day_files(tmp_path, writer, 40)
    cube: Any = refshard_fs.concat(files, "time", lazy=lazy)
    assert read_days(cube) == list(range(40))
    assert read_first_values(cube, 40) == list(range(40))


@pytest.mark.parametrize("writer", ["h5py", "scipy"])
def test_small_file_takes_one_request_with_same_and_two_without(
    tmp_path: Path, writer: str, http_server: RangeServer
) -> None:
    urls = [
        http_server.put(f"day{n}.nc", Path(path).read_bytes())
        for n, path in enumerate(write_day_files(tmp_path, writer, 40))
    ]
    cube = refshard_fs.concat(urls, "time", same=["x_bounds"], lazy=True)
    assert len(http_server.requests()) == len(urls)
    assert len(cube) == 40
    refshard_fs.concat(urls, "time", lazy=True)
    assert len(http_server.requests()) == 3 * len(urls)


def test_first_bytes_of_too_many_files_are_not_kept(http_server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("refshard_fs.sets.concat"), "KEPT", 3)
    urls = [http_server.put(f"{n}.nc", make_plain_file(n)) for n in range(4)]
    few, many = (refshard_fs.concat(some, "time", lazy=True, same=["x_bounds"]) for some in (urls[:3], urls))
    assert few.ranges is not None
    assert many.ranges is None


def test_bounds_that_differ_between_files_are_refused(tmp_path: Path) -> None:
    paths = write_day_files(tmp_path, "scipy", 4)
    bounds = (np.arange(PLACES) - 0.5).astype(">f4").tobytes()
    Path(paths[2]).write_bytes(Path(paths[2]).read_bytes().replace(bounds, bytes(len(bounds))))
    with pytest.raises(ManifestError, match=r"day2\.nc3.* different bytes of 'x_bounds'"):
        refshard_fs.concat(paths, "time", lazy=True)


def test_scan_takes_less_memory_than_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "ROUNDS", 1)
    for number in range(80):
        (tmp_path / f"{number}.nc").write_bytes(make_plain_file(number) + bytes(60_000))
    refshard_fs.concat(f"{tmp_path}/1?.nc", "time", lazy=True)
    with check_peak(3_000_000):
        cube = refshard_fs.concat(f"{tmp_path}/*.nc", "time", lazy=True)
    assert len(cube.document.dumps()) < 200 * 80


def test_scanned_file_takes_at_most_12_kb_of_memory(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number}.nc").write_bytes(make_plain_file(number))
    refshard_fs.concat(f"{tmp_path}/1?.nc", "time", lazy=True, same=["x_bounds"])
    with check_peak(300 * 12_000):
        cube = refshard_fs.concat(f"{tmp_path}/*.nc", "time", lazy=True, same=["x_bounds"])
    assert len(cube) == 300


def test_saved_cube_reads_its_times_by_one_request(http_server: RangeServer, tmp_path: Path) -> None:
    urls = [http_server.put(f"{n}.nc", make_plain_file(n)) for n in range(30)]
    refshard_fs.concat(urls, "time", lazy=True).save(str(tmp_path / "cube.refshard"))
    before = len(http_server.requests())
    fs = refshard_fs.RefShardFileSystem(str(tmp_path / "cube.refshard"))
    assert len(fs.cat_file("time/0")) == 4 * 30
    assert len(http_server.requests()) - before == 1


def test_target_options_are_used_for_all_sources(http_server: RangeServer) -> None:
    urls = [http_server.put(f"{n}.nc", make_plain_file(n)) for n in range(3)]
    refshard_fs.concat(urls, "time", lazy=True, target_options={"headers": {"x-mine": "yes"}})
    assert {request.headers.get("x-mine") for request in http_server.requests()} == {"yes"}


def make_scene(number: int) -> bytes:
    """Return a georeferenced TIFF of 512 KiB whose chunks this package decodes, since zarr has no predictor."""
    tifffile = pytest.importorskip("tifffile")
    file = io.BytesIO()
    values = np.random.default_rng(number).integers(0, 60_000, (512, 512), dtype="u2")
    place = [(33550, "d", 3, (10.0, 10.0, 0.0), True), (33922, "d", 6, (0, 0, 0, number * 5120.0, 0, 0), True)]
    place.append((34735, "H", 8, (1, 1, 0, 1, 3072, 0, 1, 32633), True))
    tifffile.imwrite(file, values, tile=(128, 128), compression="zlib", predictor=True, extratags=place)
    return file.getvalue()


def test_document_of_files_takes_few_of_their_bytes(http_server: RangeServer, tmp_path: Path) -> None:
    pytest.importorskip("imagecodecs")
    urls, resume = [http_server.put(f"{n}.tif", make_scene(n), modified=1e9) for n in range(3)], tmp_path / "scans"
    how: dict[str, Any] = {"resume": resume, "same": ["spatial_ref"]}
    refshard_fs.concat(urls[:2], "x", lazy=True, **how).save(str(tmp_path / "all.refshard"))
    assert refshard_fs.append(str(tmp_path / "all.refshard"), urls[2], "x", same=["spatial_ref"]) == 512
    assert sum(request.sent for request in http_server.requests()) < 500_000
    eager = refshard_fs.RefShardFileSystem(refshard_fs.concat(urls, "x", **how))
    fs = refshard_fs.RefShardFileSystem(str(tmp_path / "all.refshard"))
    chunks = [key for key in eager.find("") if ".z" not in key and len(eager.cat_file(key)) == 128 * 128 * 2]
    assert len(chunks) == 3 * 16
    assert fs.cat(chunks) == eager.cat(chunks)


def test_references_of_similar_files_take_little_memory(tmp_path: Path) -> None:
    """Files of one writer share metadata and variables, so that a hundred thousand are joined in about 300 MB."""
    netcdf = pytest.importorskip("h5netcdf.legacyapi")
    with netcdf.Dataset(tmp_path / "0.nc", "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 4)
        for name in "abcdefgh":
            file.createVariable(name, "f4", ("time", "x"))[:] = np.zeros((1, 4), "f4")
        file.createVariable("time", "f8", ("time",))[:] = [12345.0]
    content = (tmp_path / "0.nc").read_bytes()
    assert content.count(struct.pack("<d", 12345.0)) == 1
    for day in range(192):
        own = content.replace(struct.pack("<d", 12345.0), struct.pack("<d", 1000.0 + day))
        (tmp_path / f"{day}.nc").write_bytes(own)
    urls = [str(tmp_path / f"{day}.nc") for day in range(192)]

    def measure(count: int) -> int:
        tracemalloc.start()
        try:
            sets = read_sets(urls[:count], {}, lambda _: None, unread=UnreadArrays(frozenset(["time"]), frozenset()))
            times = [one.decode_values("time") for one in sets]
            assert [float(own[0]) for own in times if own is not None] == list(range(1000, 1000 + count))
            gc.collect()
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    measure(64)
    assert (measure(192) - measure(96)) / 96 < 3300  # bytes a file; 5000 without sharing


def test_selection_error_names_the_source(tmp_path: Path) -> None:
    for day in range(2):
        RefShardFileSystem(make_day_set(day, 1)).select(drop="x" if day else ()).save(str(tmp_path / f"{day}.json"))
    with pytest.raises(ManifestError, match=r"/1\.json: drop= names 'x', which the source does not have"):
        refshard_fs.concat(f"{tmp_path}/*.json", "time", select=[{"drop": ["x"]}])
