"""Precomputed volumes have the values that tensorstore wrote; chunks of truncated files are right or errors."""

from __future__ import annotations

import gzip
import itertools
import json
import shutil
from pathlib import Path

import fsspec
import numpy as np
import pytest

from refshard_fs import DamagedIndex, ManifestError, ReferenceNotReachable, RefShardError
from refshard_fs.formats.neuroglancer.volume import EdgeRecipe
from tests.servers.http import RangeServer
from tests.support.neuroglancer_info import SAMPLES, VALUES, make_info
from tests.support.shard_writers import open_array, open_source
from tests.support.volumes import KEY


@pytest.mark.parametrize("kind", ["files", "identity", "murmur"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_volumes_written_by_tensorstore_have_their_values(kind: str, zarr_format: int) -> None:
    zarr = pytest.importorskip("zarr")
    if zarr_format == 3 and zarr.__version__.startswith("2."):
        pytest.skip("zarr 2 reads no version 3")
    actual = open_array(str(SAMPLES / kind), KEY, zarr_format=zarr_format)
    assert actual.chunks == (4, 4, 4, 2)
    assert np.array_equal(actual[...], VALUES)
    assert np.array_equal(actual[5:7, 8, 1:, 0], VALUES[5:7, 8, 1:, 0])
    assert actual.attrs["voxel_offset"] == [10, -3, 7]
    assert actual.attrs["resolution"] == [8, 8, 8]


def test_only_existing_chunk_files_are_listed(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "files", tmp_path, dirs_exist_ok=True)
    gone = tmp_path / KEY / "10-14_-3-1_7-11"
    edge = tmp_path / KEY / "18-21_5-6_11-12"
    gone.unlink()
    edge.unlink()
    (tmp_path / KEY / "11-14_-3-1_7-11").write_bytes(b"no chunk of this grid")
    fs = open_source(str(tmp_path))
    names = [name.rpartition("/")[2] for name in fs.ls(KEY, detail=False)]
    assert len([n for n in names if n[0] != "."]) == 18 - 2
    for key in (f"{KEY}/0.0.0.0", f"{KEY}/2.2.1.0"):
        assert not fs.exists(key)
        with pytest.raises(FileNotFoundError):
            fs.cat_file(key)
    values = VALUES.copy()
    values[:4, :4, :4] = values[8:, 8:, 4:] = 0
    assert np.array_equal(open_array(str(tmp_path), KEY)[...], values)


@pytest.mark.parametrize("kind", ["files", "murmur"])
def test_scale_without_a_folder_has_no_chunks(tmp_path: Path, kind: str) -> None:
    shutil.copy(SAMPLES / kind / "info", tmp_path)
    fs = open_source(str(tmp_path))
    assert {name.rpartition("/")[2] for name in fs.find(KEY)} == {".zarray", ".zattrs"}
    assert not open_array(str(tmp_path), KEY)[...].any()


def test_volume_is_opened_by_xarray() -> None:
    """With zarr format 3, integers stay integers; with format 2, xarray masks the fill value 0."""
    xarray = pytest.importorskip("xarray")
    zarr = pytest.importorskip("zarr")
    options = {"fo": str(SAMPLES / "murmur"), "zarr_format": 2 if zarr.__version__.startswith("2.") else 3}
    masked = {"mask_and_scale": False} if options["zarr_format"] == 2 else {}
    actual = xarray.open_zarr("refshard://", storage_options=options, **masked)[KEY]
    assert actual.dims == ("x", "y", "z", "channel")
    assert actual.dtype == "uint16"
    assert actual.chunks == ((4, 4, 3), (4, 4, 1), (4, 1), (2,))
    assert np.array_equal(actual.values, VALUES)


def test_misplaced_chunks_in_a_shard_are_not_listed(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "murmur", tmp_path, dirs_exist_ok=True)
    first, *others = sorted((tmp_path / KEY).iterdir())
    for other in others:
        shutil.copy(first, other)
    fs = open_source(str(tmp_path))
    keys = [key for key in fs.ls(KEY, detail=False) if not key.endswith((".zarray", ".zattrs"))]
    assert len(keys) == len(set(keys)) > 0
    assert all(map(fs.exists, keys))


def test_file_name_of_many_digits_is_not_a_chunk() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/digits/info", json.dumps(make_info()).encode())
    memory.pipe(f"/digits/{KEY}/0-4_0-4_0-4", bytes(64))
    memory.pipe(f"/digits/{KEY}/{'9' * 5000}-4_0-4_0-4", bytes(64))
    assert open_source("memory://digits").ls(KEY, detail=False)[-1:] == [f"{KEY}/0.0.0.0"]


def test_edge_chunk_is_padded_and_wrong_size_refused() -> None:
    recipe = EdgeRecipe((2, 1, 1, 1), (3, 2, 1, 1), 1, is_gzip=False)
    assert recipe.make(b"ab") == b"ab\0\0\0\0"
    for raw in (b"a", b"abc"):
        with pytest.raises(ValueError, match="expected 2 at"):
            recipe.make(raw)
    packed = EdgeRecipe((2, 1, 1, 1), (3, 2, 1, 1), 1, is_gzip=True)
    assert gzip.decompress(packed.make(gzip.compress(b"ab"))) == b"ab\0\0\0\0"
    with pytest.raises(ValueError, match="expected at most 2"):
        packed.make(gzip.compress(b"abc"))


def test_chunks_of_truncated_files_are_right_or_errors(tmp_path: Path) -> None:
    for kind in ("files", "identity", "murmur"):
        shutil.copytree(SAMPLES / kind, tmp_path / kind)
        for path in (tmp_path / kind / KEY).iterdir():
            path.write_bytes(path.read_bytes()[:-3])
        fs = open_source(str(tmp_path / kind))
        failed = 0
        for i, j, k in itertools.product(range(3), range(3), range(2)):
            try:
                data = fs.cat_file(f"{KEY}/{i}.{j}.{k}.0")
            except RefShardError:
                failed += 1
            else:
                assert data == open_source(str(SAMPLES / kind)).cat_file(f"{KEY}/{i}.{j}.{k}.0")
        assert failed


def test_error_of_wrong_chunk_size_names_the_shard(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "identity", tmp_path, dirs_exist_ok=True)
    doc = json.loads((tmp_path / "info").read_text())
    doc["data_type"] = "uint8"
    (tmp_path / "info").write_text(json.dumps(doc))
    with pytest.raises(DamagedIndex, match=r"0\.shard.*expected"):
        open_source(str(tmp_path)).cat_file(f"{KEY}/0.0.0.0")


def test_unreachable_shard_is_not_a_missing_chunk(http_server: RangeServer) -> None:
    for path in (SAMPLES / "identity").rglob("*"):
        if path.is_file():
            http_server.put(f"/v/{path.relative_to(SAMPLES / 'identity')}", path.read_bytes())
    fs = open_source(f"{http_server.url}/v", retries=0)
    assert fs.ls("", detail=False)
    http_server.fault(403, "*.shard")
    with pytest.raises(ReferenceNotReachable):
        fs.cat_file(f"{KEY}/0.0.0.0")


def test_obsolete_two_file_shards_are_an_error(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "identity", tmp_path, dirs_exist_ok=True)
    for path in list((tmp_path / KEY).iterdir()):
        path.rename(path.with_suffix(".index"))
    with pytest.raises(ManifestError, match=r"obsolete.*0\.index"):
        open_source(str(tmp_path)).cat_file(f"{KEY}/0.0.0.0")
    with pytest.raises(ManifestError, match=r"obsolete.*\d\.index"):
        open_source(str(tmp_path)).find(KEY)


def test_missing_shard_does_not_hide_the_obsolete_form_of_others(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "identity", tmp_path, dirs_exist_ok=True)
    for path in list((tmp_path / KEY).iterdir()):
        path.rename(path.with_suffix(".index"))
    (tmp_path / KEY / "0.index").unlink()
    fs = open_source(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        fs.cat_file(f"{KEY}/0.0.0.0")
    with pytest.raises(ManifestError, match="obsolete"):
        fs.cat_file(f"{KEY}/2.2.1.0")
