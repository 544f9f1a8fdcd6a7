"""What the ecosystem takes for granted of a filesystem: paths, catalogs, open files, notebooks."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import pickle
import weakref
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from refshard_fs import RefShardFileSystem
from tests.support.reference_sets import VALUES, reference_set

ENTRIES = {
    (group, point.name)
    for group in ("fsspec.specs", "universal_pathlib.implementations")
    for point in metadata.entry_points(group=group)
}
not_installed = pytest.mark.skipif(
    ("fsspec.specs", "refshard") not in ENTRIES, reason="found by its entry point: install the package"
)
ZARR_2 = metadata.version("zarr").startswith("2.")


@pytest.fixture
def source(tmp_path: Path) -> str:
    refs, data = reference_set("x.bin")
    (tmp_path / "x.bin").write_bytes(data)
    (tmp_path / "refs.json").write_text(json.dumps(refs))
    return str(tmp_path / "refs.json")


# ------------------------------------------------------------------ universal_pathlib


@pytest.fixture
def root(source: str) -> Any:
    upath = pytest.importorskip("upath", reason="universal_pathlib is not installed")
    if ("universal_pathlib.implementations", "refshard") not in ENTRIES:
        pytest.skip("found by its entry point: install the package")
    return upath.UPath("refshard://", fo=source)


def test_a_path_is_made_without_a_warning_and_of_our_class(root: Any) -> None:
    from refshard_fs.universal_path import RefShardPath

    assert type(root) is RefShardPath
    assert type(root / "a") is RefShardPath
    assert str(root / "a" / "0.0") == "refshard://a/0.0"


def test_paths_list_read_and_tell(root: Any) -> None:
    assert {path.name for path in root.iterdir()} == {".zgroup", ".zattrs", "a", "g"}
    assert [path.name for path in sorted((root / "a").glob("3.*"))] == ["3.0", "3.1"]
    assert (root / "a" / "0.0").read_bytes() == VALUES[:2, :3].tobytes()
    assert json.loads((root / ".zattrs").read_text()) == {"title": "x"}
    assert (root / "a").is_dir()
    assert (root / "a" / "0.0").is_file()
    assert (root / "a" / "0.0").stat().st_size == 24
    assert not (root / "nope").exists()
    assert (root / "a" / "0.0").parent == root / "a"
    with (root / "a" / "0.0").open("rb") as file:
        file.seek(4)
        assert file.read(4) == VALUES[0, 1].tobytes()


@pytest.mark.parametrize("url", ["refshard::{}", "refshard::file://{}", "refshard://::{}", "refshard::http"])
def test_a_chain_without_a_path_is_the_root_of_the_set(url: str, root: Any, source: str, http_server: Any) -> None:
    from upath import UPath

    if url == "refshard::http":
        for name in ("refs.json", "x.bin"):
            http_server.put(f"/{name}", Path(source).with_name(name).read_bytes())
        url = f"refshard::{http_server.url}/refs.json"
    path = UPath(url.format(source))
    assert type(path) is type(root)
    assert {below.name for below in path.iterdir()} == {".zgroup", ".zattrs", "a", "g"}
    assert (path / "a" / "0.0").read_bytes() == VALUES[:2, :3].tobytes()
    assert path / "a" == UPath(url.format(source)) / "a"
    assert UPath(str(path / "a" / "0.0")).read_bytes() == VALUES[:2, :3].tobytes()
    assert pickle.loads(pickle.dumps(path)).is_dir()


def test_a_missing_key_is_a_missing_file(root: Any) -> None:
    with pytest.raises(FileNotFoundError):
        (root / "a" / "9.9").read_bytes()


def test_a_path_keeps_its_source_when_it_is_pickled(root: Any) -> None:
    again = pickle.loads(pickle.dumps(root / "a" / "0.0"))
    assert again.read_bytes() == VALUES[:2, :3].tobytes()


# ------------------------------------------------------------------ intake and STAC


@not_installed
@pytest.mark.skipif(ZARR_2, reason="intake opens a URL with zarr 3")
def test_an_intake_catalog_on_disk_opens_a_source(source: str, tmp_path: Path) -> None:
    pytest.importorskip("xarray")
    intake = pytest.importorskip("intake", minversion="2")
    from intake.readers.datatypes import Zarr
    from intake.readers.entry import Catalog
    from intake.readers.readers import XArrayDatasetReader

    catalog = Catalog()
    data = Zarr("refshard://", storage_options={"fo": source})
    catalog["field"] = XArrayDatasetReader(data, consolidated=False)
    catalog.to_yaml_file(str(tmp_path / "catalog.yaml"))
    ds = intake.open_catalog(str(tmp_path / "catalog.yaml"))["field"].read()
    np.testing.assert_array_equal(ds["a"].values, VALUES)


def asset(source: str) -> dict[str, Any]:
    """Return a STAC asset with the fields of the extension xarray-assets."""
    return {
        "href": source,
        "type": "application/vnd.zarr",
        "roles": ["data"],
        "xarray:open_kwargs": {"engine": "refshard", "chunks": {}},
        "xarray:storage_options": {"max_gap": 0},
    }


@not_installed
@pytest.mark.skipif(ZARR_2, reason="xarray opens URLs of a filesystem with zarr 3")
def test_a_stac_asset_says_how_to_open_it(source: str) -> None:
    xr = pytest.importorskip("xarray")
    pytest.importorskip("dask")
    found = json.loads(json.dumps(asset(source)))
    options = found["xarray:open_kwargs"] | {"storage_options": found["xarray:storage_options"]}
    ds = xr.open_dataset(found["href"], **options)
    np.testing.assert_array_equal(ds["a"].values, VALUES)


@not_installed
def test_xpystac_opens_a_stac_asset(source: str) -> None:
    pytest.importorskip("xpystac")
    import pystac
    import xarray as xr

    ds = xr.open_dataset(pystac.Asset.from_dict(asset(source)), engine="stac")
    np.testing.assert_array_equal(ds["a"].values, VALUES)


# ------------------------------------------------------------------ fsspec's own entrances


@not_installed
@pytest.mark.parametrize("url", ["refshard://a/*.0", "refshard://a/*.0::{}"])
def test_open_files_expands_a_pattern(url: str, source: str) -> None:
    options = {} if "::" in url else {"fo": source}
    files = fsspec.open_files(url.format(f"file://{source}"), **options)
    assert [file.path for file in files] == ["a/0.0", "a/1.0", "a/2.0", "a/3.0"]
    with files as opened:
        assert b"".join(file.read() for file in opened) == b"".join(
            VALUES[row : row + 2, :3].tobytes() for row in range(0, 8, 2)
        )


@not_installed
def test_open_files_finds_the_metadata_of_all_arrays(source: str) -> None:
    assert [file.path for file in fsspec.open_files("refshard://*/.zarray", fo=source)] == ["a/.zarray"]
    assert [file.path for file in fsspec.open_files("refshard://**/.zarray", fo=source)] == ["a/.zarray", "g/b/.zarray"]


@not_installed
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # older fsspec leaves a file open
def test_open_reads_text_and_a_local_copy_is_made(source: str) -> None:
    with fsspec.open("refshard://.zattrs", "rt", fo=source) as file:
        assert json.load(file) == {"title": "x"}
    copy = fsspec.open_local("simplecache::refshard://a/0.0", refshard={"fo": source})
    assert Path(copy).read_bytes() == VALUES[:2, :3].tobytes()


# ------------------------------------------------------------------ notebooks: an event loop is running


def test_an_asynchronous_filesystem_is_awaited_in_a_running_loop(source: str) -> None:
    async def cell() -> tuple[bytes, dict[str, bytes], list[str]]:
        fs = fsspec.filesystem("refshard", fo=source, asynchronous=True)
        keys = [f"a/{row}.0" for row in range(4)]
        return await fs._cat_file("a/0.0"), await fs._cat(keys), await fs._ls("g", detail=False)

    one, many, names = asyncio.run(cell())
    assert one == VALUES[:2, :3].tobytes()
    assert many["a/3.0"] == VALUES[6:, :3].tobytes()
    assert sorted(names) == ["g/.zgroup", "g/b"]


def test_a_synchronous_filesystem_works_in_a_cell_too(source: str) -> None:
    async def cell() -> bytes:
        fs = RefShardFileSystem(source)  # whose calls wait on fsspec's own loop, in another thread
        fs.prefetch(["a/0.0", "a/1.0"])
        return b"".join(fs.cat(["a/0.0", "a/1.0"]).values())

    assert asyncio.run(cell()) == VALUES[:2, :3].tobytes() + VALUES[2:4, :3].tobytes()


@pytest.mark.skipif(ZARR_2, reason="zarr 3 has an asynchronous interface")
def test_zarr_is_awaited_in_a_running_loop(source: str) -> None:
    zarr = pytest.importorskip("zarr")
    from zarr.storage import FsspecStore

    async def cell() -> Any:
        fs = RefShardFileSystem(source, asynchronous=True)
        group = await zarr.api.asynchronous.open_group(FsspecStore(fs, read_only=True, path=""), mode="r")
        return await (await group.getitem("a")).getitem(slice(2, 4))

    np.testing.assert_array_equal(asyncio.run(cell()), VALUES[2:4])


@pytest.fixture(params=["local", "memory", "http"])
def replaceable(request: pytest.FixtureRequest, tmp_path: Path, http_server: Any) -> Any:
    """Return the URL of an object of eight bytes, and what replaces its bytes by others."""
    match request.param:
        case "local":
            path = tmp_path / "data.bin"
            return str(path), lambda data, when: (path.write_bytes(data), os.utime(path, (when, when)))
        case "memory":
            memory = fsspec.filesystem("memory")
            return "memory://h24/data.bin", lambda data, when: memory.pipe_file("/h24/data.bin", data)
    url = f"{http_server.url}/data.bin"
    return url, lambda data, when: http_server.put("data.bin", data, modified=when)


def test_ukey_and_checksum_change_when_the_bytes_do(replaceable: Any) -> None:
    url, replace = replaceable
    replace(b"01234567", 1_000_000_000)
    references = {"a/0": [url, 0, 4], "a/1": "inline"}
    fs = RefShardFileSystem(references, skip_instance_cache=True)
    ukey, checksum, inline = fs.ukey("a/0"), fs.checksum("a/0"), fs.ukey("a/1")
    assert (fs.ukey("a/0"), fs.checksum("a/0")) == (ukey, checksum)
    assert RefShardFileSystem(references, skip_instance_cache=True).ukey("a/0") == ukey
    assert RefShardFileSystem({"a/0": [url, 4, 4]}).ukey("a/0") != ukey
    replace(b"76543210", 1_000_000_007)
    assert fs.ukey("a/0") != ukey
    assert fs.checksum("a/0") != checksum
    assert fs.ukey("a/1") == inline
    assert fs.ukey("a") == fs.ukey("a")
    with pytest.raises(FileNotFoundError):
        fs.ukey("a/2")


def test_modified_is_the_targets_time(replaceable: Any) -> None:
    url, replace = replaceable
    replace(b"01234567", 1_000_000_000)
    fs = RefShardFileSystem({"a/0": [url, 0, 4], "a/1": "inline"}, skip_instance_cache=True)
    own, path = fsspec.core.url_to_fs(url)
    told = own.modified(path) if own.protocol == "memory" else datetime.fromtimestamp(1_000_000_000, UTC)
    assert fs.modified("a/0") == told.replace(tzinfo=UTC)
    for key in ("a", "a/1"):
        with pytest.raises(NotImplementedError, match="nobody tells"):
            fs.modified(key)
    with pytest.raises(NotImplementedError, match=r"modified\(\)"):
        fs.created("a/0")


def test_inline_bytes_were_modified_when_their_manifest_was(source: str) -> None:
    own, path = fsspec.core.url_to_fs(source)
    assert abs(RefShardFileSystem(source).modified(".zgroup") - own.modified(path)) < timedelta(milliseconds=1)


def test_a_file_of_coroutines_reads_what_cat_does(source: str) -> None:
    async def read() -> tuple[bytes, bytes, bytes]:
        fs = RefShardFileSystem(source, asynchronous=True)
        key = next(name for name in await fs._find("") if name.endswith("0"))
        async with await fs.open_async(key) as file:
            parts = await file.read(3), await file.read()
        with pytest.raises(ValueError, match="_pipe_file"):
            await fs.open_async(key, "wb")
        with pytest.raises(FileNotFoundError):
            await fs.open_async("none")
        return *parts, await fs._cat_file(key)

    first, rest, whole = asyncio.run(read())
    assert (first, first + rest) == (whole[:3], whole)


def test_an_asynchronous_filesystem_answers_synchronous_calls_too(source: str) -> None:
    fs = RefShardFileSystem(source, asynchronous=True)
    assert fs.info(".zgroup") == RefShardFileSystem(source).info(".zgroup")
    assert fs.cat_file(".zgroup") == RefShardFileSystem(source).cat_file(".zgroup")

    async def within() -> Any:
        return fs.info(".zgroup")["type"], fs.ls("", detail=False)

    assert asyncio.run(within()) == ("file", RefShardFileSystem(source).ls("", detail=False))


def test_a_directory_is_no_file(source: str) -> None:
    with pytest.raises(IsADirectoryError, match=r"ls\(\)"):
        RefShardFileSystem(source).open("")


def test_a_filesystem_that_nobody_has_any_more_is_freed_at_once(source: str) -> None:
    """dask unpickles one for each task, and garbage may not be collected for a while."""
    gc.collect()
    gc.disable()
    try:
        fs = pickle.loads(pickle.dumps(RefShardFileSystem(source)))
        assert fs.ls("", detail=False)
        gone = weakref.ref(fs)
        del fs
        assert gone() is None
    finally:
        gc.enable()


def test_blocking_methods_call_the_coroutines_of_a_subclass(source: str) -> None:
    class Counting(RefShardFileSystem):
        calls = 0

        async def _ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
            self.calls += 1
            return await super()._ls(path, detail=detail, **kwargs)

    fs = Counting(source)
    assert fs.ls("", detail=False) == RefShardFileSystem(source).ls("", detail=False)
    assert fs.calls == 1
