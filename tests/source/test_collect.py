"""Chunks that no reference can describe are copied beside the set; an interrupted save leaves no partial copy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.callbacks import Callback

import refshard_fs
from refshard_fs import ManifestError, ReferenceNotReachable, RefShardFileSystem, concat
from refshard_fs.cli.program import main
from refshard_fs.formats.tiff.images import TileChunks
from refshard_fs.source import collect
from tests.servers.http import RangeServer
from tests.support.memory import check_peak
from tests.support.shard_writers import IS_ZARR_2, open_array

tifffile = pytest.importorskip("tifffile")
pytest.importorskip("imagecodecs")

RNG = np.random.default_rng(22)
SETS = ["refs.json", "refs.parquet", *([] if IS_ZARR_2 else ["refs.zarr"])]  # zarr 2 cannot open version 3
VALUES = RNG.integers(0, 99, (160, 64), "u2")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file of ten strips. These exceed what a set may hold, so they are copied beside it, two at a time."""
    monkeypatch.setattr(collect, "MAX_INLINE", 4000)
    monkeypatch.setattr(collect, "COPY_BATCH", 2 * 16 * 64 * 2)
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, VALUES, compression="lzw", rowsperstrip=16)
    return path


def open_fs(path: Path) -> RefShardFileSystem:
    return RefShardFileSystem(str(path), skip_instance_cache=True)


@pytest.mark.parametrize("name", SETS)
def test_unreferable_chunks_are_copied_beside_the_set(
    file: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refs = file.with_name(name)
    assert main(["convert", str(file), str(refs)]) == 0
    printed = capsys.readouterr().out
    (copied,) = file.with_name(f"{name}.data").iterdir()
    assert copied.stat().st_size == VALUES.nbytes
    assert str(copied) in printed
    assert "since references cannot describe them" in printed
    file.unlink()
    np.testing.assert_array_equal(open_array(refs, "0")[...], VALUES)
    assert main(["check", str(refs)]) == 0


def test_copied_chunks_up_to_a_limit_are_stored_inline(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "MAX_INLINE", VALUES.nbytes)
    assert open_fs(file).save(str(file.with_name("refs.json"))) is None
    assert sorted(path.name for path in file.parent.iterdir()) == ["a.tif", "refs.json"]


def test_copies_are_stored_beside_a_set_in_memory(file: Path) -> None:
    remark = open_fs(file).save("memory://copies/refs.json")
    fs = fsspec.filesystem("memory")
    try:
        (copied,) = fs.ls("/copies/refs.json.data", detail=False)
        assert remark is not None
        assert copied in remark
        assert fs.size(copied) == VALUES.nbytes
        other = fsspec.filesystem("reference", fo="memory://copies/refs.json", remote_protocol="memory")
        assert other.cat("0/3.0") == VALUES[48:64].tobytes(), "other readers of sets find them too"
    finally:
        fs.rm("/copies", recursive=True)


def test_join_of_sources_that_need_copies_is_refused(file: Path) -> None:
    with pytest.raises(
        ManifestError,
        match=r"'0/1.0' is computed from other bytes.*Convert this source alone.*read the source in place",
    ):
        concat([str(file), str(file)], "y")


class Breaking(Callback):  # type: ignore[misc, unused-ignore]
    """Interrupt the save after ``after`` chunks."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def relative_update(self, inc: int = 1) -> None:
        super().relative_update(inc)
        if self.value == self.after:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", SETS)
def test_interrupted_save_keeps_the_old_set(file: Path, name: str) -> None:
    refs = file.with_name(name)
    for after in (5, 10):  # in the middle of copying, and at its end
        with pytest.raises(KeyboardInterrupt):
            open_fs(file).save(str(refs), callback=Breaking(after))
        assert [path.name for path in file.parent.iterdir()] == ["a.tif"]
    open_fs(file).save(str(refs))
    before = {path: path.stat().st_mtime_ns for path in refs.parent.rglob("*")}
    with pytest.raises(KeyboardInterrupt):
        open_fs(file).save(str(refs), overwrite=True, callback=Breaking(5))
    assert {path: path.stat().st_mtime_ns for path in refs.parent.rglob("*") if path.is_file()} == {
        path: time for path, time in before.items() if path.is_file()
    }
    np.testing.assert_array_equal(open_array(refs, "0")[...], VALUES)


def test_damaged_chunk_leaves_no_set(file: Path) -> None:
    with tifffile.TiffFile(file) as tiff:
        at = tiff.pages[0].dataoffsets[6]
    data = bytearray(file.read_bytes())
    data[at : at + 40] = bytes(40)
    file.write_bytes(data)
    with pytest.raises((ReferenceNotReachable, ValueError), match="damaged|decompressed"):
        open_fs(file).save(str(file.with_name("refs.json")))
    assert [path.name for path in file.parent.iterdir()] == ["a.tif"]


KILLED = """
import os, sys
from fsspec.callbacks import Callback
from refshard_fs import RefShardFileSystem
from refshard_fs.formats.tiff.images import TileChunks
from refshard_fs.source import collect
from tests.servers.http import RangeServer
collect.MAX_INLINE = 4000
class Kill(Callback):
    def relative_update(self, inc=1):
        os._exit(7)
RefShardFileSystem(sys.argv[1]).save(sys.argv[2], callback=Kill())
"""


def test_killed_save_keeps_the_old_set(file: Path) -> None:
    refs = file.with_name("refs.json")
    open_fs(file).save(str(refs))
    before = refs.read_bytes()
    done = subprocess.run([sys.executable, "-c", KILLED, str(file), str(refs)], check=False)
    assert done.returncode == 7
    assert refs.read_bytes() == before
    np.testing.assert_array_equal(open_array(refs, "0")[...], VALUES)


def test_copies_take_at_most_8_batches_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "MAX_INLINE", 1 << 20)
    monkeypatch.setattr(collect, "COPY_BATCH", 1 << 20)
    values = np.tile(np.arange(1024, dtype="u2"), (16384, 1))
    tifffile.imwrite(tmp_path / "a.tif", values, compression="lzw", rowsperstrip=128)
    with check_peak(8 << 20):
        open_fs(tmp_path / "a.tif").save(str(tmp_path / "refs.json"))
    assert open_array(tmp_path / "refs.json", "0")[16000].tolist() == list(range(1024))


def test_progress_counts_the_copied_chunks(file: Path) -> None:
    calls: list[Any] = []

    class Recording(Callback):  # type: ignore[misc, unused-ignore]
        def call(self, *args: Any, **kwargs: Any) -> None:
            calls.append((self.value, self.size))

    open_fs(file).save(str(file.with_name("refs.json")), callback=Recording())
    assert (10, 10) in calls
    assert (5, 10) in calls
    assert calls[-1] == (10, 10)


def test_unlistable_stores_are_joined(http_server: RangeServer, tmp_path: Path) -> None:
    """A server over HTTP cannot list directories, so a join must not list those of the joined arrays."""
    xr = pytest.importorskip("xarray")
    urls = []
    for day in range(2):
        ds = xr.Dataset({"t": (("time", "x"), np.full((1, 3), day))}, {"time": [day], "x": [1, 2, 3], "height": 2.0})
        ds.to_zarr(tmp_path / f"{day}.zarr", consolidated=True, zarr_format=2)
        for path in (tmp_path / f"{day}.zarr").rglob("*"):
            if path.is_file():
                http_server.put(str(path.relative_to(tmp_path)), path.read_bytes())
        urls.append(f"{http_server.url}/{day}.zarr")
    with xr.open_dataset(refshard_fs.open(urls), engine="refshard") as found:
        assert found["t"].values.tolist() == [[0, 0, 0], [1, 1, 1]]
        assert (found["x"].values.tolist(), float(found["height"])) == ([1, 2, 3], 2.0)


def test_join_looks_up_one_tile_of_unread_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scene has hundreds of tiles, and the document of a cube only names the scene."""
    looked_up: list[int] = []

    def check(chunks: Any, page: Any, tile: int, values: Any) -> Any:
        looked_up.append(tile)
        return check_place(chunks, page, tile, values)

    check_place = TileChunks._check_place
    monkeypatch.setattr(TileChunks, "_check_place", check)
    for day in range(3):
        tifffile.imwrite(tmp_path / f"2024010{day + 1}.tif", VALUES + day, tile=(16, 16), compression="zlib")
    cube: Any = concat(f"{tmp_path}/{{time:%Y%m%d}}.tif", dims=["time"], lazy=True)
    assert looked_up == [0], "all three files have the same IFDs"
    shown = open_array(cube, "0")
    assert [int(shown[day, 5, 6]) - int(VALUES[5, 6]) for day in range(3)] == [0, 1, 2]
    looked_up.clear()
    concat(f"{tmp_path}/{{time:%Y%m%d}}.tif", dims=["time"])
    assert len(looked_up) == 3 * 40


def test_join_compares_tiles_of_files_with_same_ifds(tmp_path: Path) -> None:
    """If files are joined along the rows of their second image, their first image must be the same in all files."""
    for number, first in enumerate((0, 0, 1)):
        with tifffile.TiffWriter(tmp_path / f"{number}.tif") as writer:
            writer.write(VALUES + first, tile=(16, 16), compression="zlib", metadata=None)
            writer.write(VALUES[:32, :32] + number, tile=(16, 16), compression="zlib", metadata=None)
    paths = [str(tmp_path / f"{number}.tif") for number in range(3)]
    cube: Any = concat(paths[:2], "y_1", lazy=True)
    np.testing.assert_array_equal(open_array(cube, "1")[...], np.concatenate([VALUES[:32, :32], VALUES[:32, :32] + 1]))
    with pytest.raises(ManifestError, match="different"):
        concat(paths, "y_1", lazy=True)
