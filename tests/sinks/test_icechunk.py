"""Saved Icechunk repositories have the same values in zarr-python."""

from __future__ import annotations

import json
import shutil
import time
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem
from refshard_fs.core.model import Inline, Pin
from refshard_fs.references.stream import ReferenceStream
from refshard_fs.sinks import icechunk as sinks_icechunk
from tests.servers.http import RangeServer
from tests.support.cdf_writer import read_real_file
from tests.support.dmrpp_writer import write_dmrpp
from tests.support.grib_messages import make_message
from tests.support.icechunk_repositories import open_session, read
from tests.support.jp2_files import encode, make_jp2_file, make_smooth_values

icechunk = pytest.importorskip("icechunk", minversion="2.3")
xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr", minversion="3")
pytest.importorskip("h5netcdf")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

AIR = np.arange(12 * 8 * 10, dtype="f4").reshape(12, 8, 10)


def make_dataset(start: int = 0, scale: float = 1.0) -> Any:
    coords = {"time": np.arange(start, start + 12), "y": np.arange(8.0)}
    air = xr.DataArray(AIR + start, dims=("time", "y", "x"), attrs={"units": "K"})
    return xr.Dataset({"air": air}, coords=coords).assign_attrs(title="air")


def write_netcdf(folder: Path, name: str = "a.nc", start: int = 0, **encoding: Any) -> str:
    path = folder / name
    encoding = {"chunksizes": (5, 8, 10), "zlib": True, **encoding}
    make_dataset(start).to_netcdf(path, engine="h5netcdf", encoding={"air": encoding})
    return str(path)


def write_store(folder: Path, version: int, **options: Any) -> str:
    path = str(folder / "a.zarr")
    encoding = {"air": {"chunks": (5, 8, 10), **options}}
    make_dataset().to_zarr(path, zarr_format=version, encoding=encoding, consolidated=False)
    return path


def write_zip(folder: Path) -> str:
    root = Path(write_store(folder, 3))
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(root.rglob("*")):
            if path.is_file():
                file.write(path, path.relative_to(root))
    return str(folder / "a.zip")


def make_cube(folder: Path) -> Any:
    packed = {"dtype": "i2", "_FillValue": -1}
    urls = [write_netcdf(folder, "0.nc", 0, **packed, scale_factor=0.5, add_offset=0.0)]
    urls += [write_netcdf(folder, "1.nc", 12, **packed, scale_factor=0.25, add_offset=100.0)]
    return refshard_fs.concat(urls, "time", lazy=True)


def save_set(folder: Path, name: str) -> str:
    RefShardFileSystem(write_netcdf(folder)).save(str(folder / name))
    return str(folder / name)


SOURCES: dict[str, Callable[[Path], Any]] = {
    "netcdf": write_netcdf,
    "netcdf without compression": lambda folder: write_netcdf(folder, zlib=False),
    "contiguous netcdf": lambda folder: write_netcdf(folder, zlib=False, chunksizes=None),
    "zarr 2": lambda folder: write_store(folder, 2),
    "zarr 3": lambda folder: write_store(folder, 3),
    "shards": lambda folder: write_store(folder, 3, shards=(10, 8, 10)),
    "json": lambda folder: save_set(folder, "refs.json"),
    "parquet": lambda folder: save_set(folder, "refs.parq"),
    "manifests": lambda folder: save_set(folder, "refs.zarr"),
    "zip": write_zip,
    "cube whose parts are recoded": make_cube,
    "dict": lambda folder: json.loads((folder / save_set(folder, "refs.json")).read_text()),
}

DOCUMENT = {"zarr_format": 2, "shape": [6], "chunks": [2], "dtype": "|u1", "order": "C", "fill_value": 0}
ONE_ARRAY = {
    ".zgroup": '{"zarr_format": 2}',
    "a/.zarray": json.dumps({**DOCUMENT, "filters": None, "compressor": None}),
}


async def _interrupted(*arguments: Any) -> int:
    raise RuntimeError("copying has begun")


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.evidence(id="R5")
def test_repository_has_the_values_of_its_source(kind: str, tmp_path: Path) -> None:
    source = SOURCES[kind](tmp_path)
    there = str(tmp_path / "made.icechunk")
    fs = RefShardFileSystem(source)
    fs.save(there)
    expected = xr.open_dataset(source, engine="refshard", decode_times=False).load()
    xr.testing.assert_identical(read(there), expected)
    ours = xr.open_dataset(there, engine="refshard", decode_times=False).load()
    xr.testing.assert_identical(ours, expected)


def put(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def write_netcdf3(folder: Path) -> str:
    make_dataset().astype("f4").to_netcdf(folder / "a.nc", engine="scipy", format="NETCDF3_CLASSIC")
    return str(folder / "a.nc")


def write_tiff(folder: Path) -> str:
    values = np.arange(64 * 48, dtype="u2").reshape(64, 48)
    pytest.importorskip("tifffile").imwrite(folder / "a.tif", values, tile=(16, 16), compression="zlib")
    return str(folder / "a.tif")


def write_fits(folder: Path) -> str:
    fits = pytest.importorskip("astropy.io.fits")
    fits.HDUList([fits.PrimaryHDU(np.arange(60, dtype=">f4").reshape(6, 10))]).writeto(folder / "a.fits")
    return str(folder / "a.fits")


FILES: dict[str, Callable[[Path], str]] = {
    "NetCDF-3": write_netcdf3,
    "DMR++": lambda folder: str(write_dmrpp(Path(write_netcdf(folder)))),
    "TIFF": write_tiff,
    "FITS": write_fits,
    "GRIB1": lambda folder: put(folder / "a.grib", make_message(sample="regular_ll_pl_grib1")),
    "GRIB2": lambda folder: put(folder / "a.grib2", make_message(level=1) + make_message(level=2)),
    "JPEG 2000": lambda folder: put(folder / "a.jp2", make_jp2_file(encode(make_smooth_values(64, 48)))),
    "CDF": lambda folder: put(folder / "a.cdf", read_real_file(3)),
}


@pytest.mark.parametrize("kind", FILES)
def test_repository_has_the_arrays_of_each_kind_of_file(kind: str, tmp_path: Path) -> None:
    there = str(tmp_path / "made.icechunk")
    source = FILES[kind](tmp_path)
    RefShardFileSystem(source).save(there)
    expected, ours = (zarr.open_group(f"refshard::{url}", mode="r") for url in (source, there))
    theirs = zarr.open_group(open_session(there).store, mode="r")
    arrays = {path: member for path, member in expected.members(max_depth=None) if isinstance(member, zarr.Array)}
    assert arrays
    for path, array in arrays.items():
        np.testing.assert_array_equal(theirs[path][...], array[...], path)
        np.testing.assert_array_equal(ours[path][...], array[...], path)


def test_repository_of_unlike_files_has_their_values(tmp_path: Path) -> None:
    """A join that keeps only the first file's metadata gives wrong values for all other files (VirtualiZarr 1059)."""
    there = str(tmp_path / "made.icechunk")
    make_cube(tmp_path).save(there)
    files = [xr.open_dataset(tmp_path / f"{number}.nc", decode_times=False).load() for number in range(2)]
    xr.testing.assert_equal(read(there), xr.concat(files, "time", data_vars="minimal"))


def test_chunks_that_are_ranges_are_not_copied(tmp_path: Path) -> None:
    url = write_netcdf(tmp_path)
    copied = RefShardFileSystem(url).save(str(tmp_path / "made.icechunk"))
    assert "2 chunks" in copied, "the coordinates, which are padded, or none at all"
    locations = open_session(str(tmp_path / "made.icechunk")).all_virtual_chunk_locations()
    assert set(locations) == {f"file://{url}"}
    assert len(list(locations)) == 3


def test_save_reports_copies_before_and_after(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_cube(tmp_path)
    monkeypatch.setattr("refshard_fs.sinks.icechunk.COPIED", 1000)
    with monkeypatch.context() as patch:
        patch.setattr("refshard_fs.sinks.icechunk.put_native", _interrupted)
        with pytest.raises(RuntimeError, match="copying has begun"):
            made.save(str(tmp_path / "never.icechunk"))
    assert "are copied into" in caplog.text, "it was said before"
    assert "not ranges of objects that Icechunk can read" in caplog.text
    assert "were copied into the repository" in made.save(str(tmp_path / "made.icechunk"))
    xr.testing.assert_equal(read(str(tmp_path / "made.icechunk")), xr.open_dataset(made, engine="refshard").load())


def test_repository_is_replaced_only_on_request(tmp_path: Path) -> None:
    there = str(tmp_path / "made.icechunk")
    RefShardFileSystem(write_netcdf(tmp_path)).save(there)
    first = open_session(there).snapshot_id
    other = RefShardFileSystem(write_netcdf(tmp_path, "b.nc", 100))
    with pytest.raises(FileExistsError, match="overwrite=True"):
        other.save(there)
    other.save(there, overwrite=True, message="the second")
    assert read(there)["time"].values[0] == 100
    assert read(there, snapshot_id=first)["time"].values[0] == 0, "earlier snapshots stay"


def test_branch_is_written_beside_main(tmp_path: Path) -> None:
    there = str(tmp_path / "made.icechunk")
    RefShardFileSystem(write_netcdf(tmp_path)).save(there)
    RefShardFileSystem(write_netcdf(tmp_path, "b.nc", 100)).save(there, overwrite=True, branch="next")
    assert [read(there, branch=branch)["time"].values[0] for branch in ("main", "next")] == [0, 100]


def test_target_versions_become_icechunk_checks(tmp_path: Path, http_server: RangeServer) -> None:
    data = Path(write_netcdf(tmp_path)).read_bytes()
    http_server.put("/a.nc", data)
    there = str(tmp_path / "made.icechunk")
    pinned = refshard_fs.snapshot(f"{http_server.url}/a.nc")
    RefShardFileSystem(pinned).save(there)
    assert read(there)["air"].shape == (12, 8, 10)
    changed = bytearray(data)
    changed[-1] ^= 1
    http_server.put("/a.nc", bytes(changed), modified=time.time() + 60)
    with pytest.raises(Exception, match="(?i)modified|etag|checksum|changed"):
        read(there)


def test_saved_repository_keeps_the_version_of_each_chunk(tmp_path: Path) -> None:
    """Two chunks of one object may have different versions, which a set of references cannot hold."""
    url = "https://host/a.bin"
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer("https://host/", icechunk.http_store()))
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "old")), config)
    session = repository.writable_session("main")
    group = zarr.open_group(session.store, mode="w")
    group.create_array("a", shape=(5,), chunks=(1,), dtype="u1", compressors=None)[3] = 7
    for step, when in enumerate([datetime(2024, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC), None]):
        session.store.set_virtual_ref(f"a/c/{step}", url, offset=step, length=1, checksum=when)
    session.commit("made")
    RefShardFileSystem(str(tmp_path / "old")).save(str(tmp_path / "made.icechunk"))
    found = []
    for there in ("old", "made.icechunk"):
        source = RefShardFileSystem(str(tmp_path / there)).source
        found.append(source.run("", partial(source.open().find_entries, [f"a/c/{step}" for step in range(5)])))
    assert found[1] == found[0]
    assert [entry and entry.pin for entry in found[0][:3]] == [
        Pin(last_modified="1704067200"),
        Pin(last_modified="1735689600"),
        None,
    ]
    assert isinstance(found[0][3], Inline)
    assert found[0][4] is None


@pytest.mark.parametrize(
    "beginning", ["s3://b/", "s3a://b/", "gs://b/", "https://h/", "http://h:80/", "S3://b/", "/a/"]
)
@pytest.mark.parametrize("names", [["x/0.0", "y/0.1"], ["x/0", "y/%/1 é"], ["x", "a:b"], ["x", "a::b"], ["a?b#c", "d"]])
@pytest.mark.parametrize("user_stores", [(), ("s3://b/x/",), ("s3://b/",), ("https://h/y/",)])
def test_urls_of_one_server_are_located_as_single_urls(
    beginning: str, names: list[str], user_stores: tuple[str, ...]
) -> None:
    stores = {url: icechunk.http_store() if "http" in url else icechunk.s3_store("r") for url in user_stores}
    together, single = (sinks_icechunk.VirtualStores(stores, lambda url: {}) for _ in range(2))
    urls = [beginning + name for name in names]
    assert list(together.locate(urls)) == [location for url in urls for location in single.locate([url])]
    assert list(together.find()) == list(single.find())


def test_versions_of_single_chunks_are_kept(tmp_path: Path) -> None:
    """Each chunk is an object: with an ETag, with a time, or without a pin; one array has no dimensions."""
    pins = {"etag": ['"1"', None, None, '"2"'], "last_modified": [None, "1704067200", None, None]}
    urls = [*(f"s3://b/a/{step}" for step in range(3)), "s3://b/scalar/0"]
    refs: dict[str, Any] = {
        ".zgroup": {"zarr_format": 2},
        "a/.zarray": make_metadata(shape=[3]),
        "scalar/.zarray": make_metadata(shape=[]),
        "scalar/0": [urls[3], 0, 1],
        **{f"a/{step}": [urls[step], 0, 1] for step in range(3)},
    }
    fs = RefShardFileSystem({"version": 1, "refs": refs, "refshard": {"pins": {"url": urls, **pins}}})
    fs.save(str(tmp_path / "made.icechunk"))
    source = RefShardFileSystem(str(tmp_path / "made.icechunk")).source
    keys = ["a/c/0", "a/c/1", "a/c/2", "scalar/c"]
    entries = source.run("", partial(source.open().find_entries, keys))
    assert [entry.url for entry in entries] == urls
    expected = [Pin(etag='"1"'), Pin(last_modified="1704067200"), None, Pin(etag='"2"')]
    assert [entry.pin for entry in entries] == expected


def make_metadata(shape: list[int]) -> dict[str, Any]:
    """Return the metadata of an array of bytes, of zarr version 2, with a chunk for each element."""
    fixed = {"zarr_format": 2, "dtype": "|u1", "compressor": None, "filters": None, "fill_value": 0, "order": "C"}
    return {**fixed, "shape": shape, "chunks": [1] * len(shape)}


def test_chunks_of_one_version_are_set_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects for single chunks take 1.8 times the CPU."""
    calls: list[tuple[Any, ...]] = []
    set_arrays, set_objects = icechunk.IcechunkStore.set_virtual_refs_arr, icechunk.IcechunkStore.set_virtual_refs

    def count_boxes(store: Any, array: str, shape: tuple[int, ...], *columns: Any, **options: Any) -> Any:
        calls.append((array, shape, options["arr_offset"], options["checksum"]))
        return set_arrays(store, array, shape, *columns, **options)

    def count_objects(store: Any, array: str, specs: Any, **options: Any) -> Any:
        calls.append((array, len(specs)))
        return set_objects(store, array, specs, **options)

    monkeypatch.setattr(icechunk.IcechunkStore, "set_virtual_refs_arr", count_boxes)
    monkeypatch.setattr(icechunk.IcechunkStore, "set_virtual_refs", count_objects)
    meta = {"zarr_format": 2, "shape": [6, 5], "chunks": [1, 1], "dtype": "|u1", "order": "C", "fill_value": 0}
    meta |= {"filters": None, "compressor": None}
    file_of = {"runs": lambda number: number // 13, "singles": lambda number: number % 3}
    refs: dict[str, Any] = {".zgroup": '{"zarr_format": 2}'}
    for array, find_file in file_of.items():
        refs[f"{array}/.zarray"] = json.dumps(meta)
        refs |= {f"{array}/{n // 5}.{n % 5}": [f"s3://b/{find_file(n)}", n, 1] for n in range(30) if n != 7}
    pins = {"url": [f"s3://b/{file}" for file in range(3)], "etag": ['"a"', '"b"', None], "size": [99, 99, 99]}
    RefShardFileSystem({"version": 1, "refs": refs, "refshard": {"pins": pins}}).save(str(tmp_path / "made.icechunk"))
    assert calls == [
        ("runs", (2, 5), (0, 0), '"a"'),
        ("runs", (1, 3), (2, 0), '"a"'),
        ("runs", (1, 2), (2, 3), '"b"'),
        ("runs", (2, 5), (3, 0), '"b"'),
        ("runs", (1, 1), (5, 0), '"b"'),
        ("runs", (1, 4), (5, 1), None),
        ("singles", 29),
    ]
    source = RefShardFileSystem(str(tmp_path / "made.icechunk")).source
    for array, find_file in file_of.items():
        keys = [f"{array}/c/{n // 5}/{n % 5}" for n in range(30)]
        entries = source.run("", partial(source.open().find_entries, keys))
        for number, entry in enumerate(entries):
            file = find_file(number)
            expected = None if number == 7 else (f"s3://b/{file}", number, pins["etag"][file])
            assert (entry and (entry.url, entry.start, entry.pin and entry.pin.etag)) == expected


def read_stores(url: str) -> dict[str, str]:
    config = icechunk.Repository.fetch_config(icechunk.local_filesystem_storage(url))
    return {prefix: repr(container.store) for prefix, container in config.virtual_chunk_containers.items()}


def test_repository_has_the_endpoints_of_its_source(tmp_path: Path) -> None:
    there = str(tmp_path / "made.icechunk")
    client = {"endpoint_url": "http://127.0.0.1:9", "region_name": "eu-here-1"}
    refs = {**ONE_ARRAY, "a/0": ["s3://own/x", 0, 2], "a/1": ["s3://other/x", 0, 2]}
    fs = RefShardFileSystem(refs, options={"s3://own/": {"client_kwargs": client, "key": "k", "secret": "hidden"}})
    assert fs.save(there) == (
        "other readers need AWS_REGION for s3://other/, or save with "
        "virtual_stores={'s3://other/': icechunk.s3_store(region=...)}"
    )
    stores = read_stores(there)
    assert "http://127.0.0.1:9" in stores["s3://own/"]
    assert "eu-here-1" in stores["s3://own/"]
    assert "hidden" not in stores["s3://own/"]
    assert "127.0.0.1" not in stores["s3://other/"]


def test_saved_store_settings_change_only_by_virtual_stores(tmp_path: Path) -> None:
    there = str(tmp_path / "made.icechunk")
    refs = {**ONE_ARRAY, "a/0": ["s3://own/x", 0, 2]}
    for number, region in enumerate(("eu-1", None, "eu-2")):
        stores = {} if region is None else {"virtual_stores": {"s3://own/": icechunk.s3_store(region=region)}}
        refs["a/1"] = [f"s3://other{number}/x", 0, 2]  # a bucket that the configuration does not have
        RefShardFileSystem(refs).save(there, overwrite=True, **stores)
        assert (region or "eu-1") in read_stores(there)["s3://own/"]
    assert set(read_stores(there)) == {"s3://own/", *(f"s3://other{number}/" for number in range(3))}


@pytest.mark.parametrize(
    ("name", "given", "why"),
    [
        ("a.icechunk", {"branch": 3}, "invalid branch=3: expected a text"),
        ("a.icechunk", {"brnch": "next"}, "no argument brnch=: did you mean branch="),
        (
            "a.json",
            {"message": "text"},
            "no argument message= for format='json': leave it out, or save with format='icechunk'",
        ),
        ("a.icechunk", {"virtual_stores": {"s3://b/": "eu"}}, "invalid virtual_stores=.*expected an object such as"),
    ],
)
def test_invalid_icechunk_setting_is_a_type_error(name: str, given: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=why):
        RefShardFileSystem(ONE_ARRAY).save(str(tmp_path / name), **given)


def test_sparse_array_of_wide_rows_is_saved_and_appended_to(tmp_path: Path) -> None:
    """A block of chunks of whole rows would take 20 GB of memory."""
    there, width = str(tmp_path / "made.icechunk"), 10**9
    meta = {**DOCUMENT, "shape": [3, width], "chunks": [1, 1], "filters": None, "compressor": None}
    refs = {".zgroup": '{"zarr_format": 2}', "a/.zarray": json.dumps(meta)}
    places = {f"{row}.{column}": row * 100 + column % 100 for row in (0, 2) for column in (0, 1, 7, width - 1)}
    RefShardFileSystem(refs | {f"a/{place}": ["s3://b/k", at, 1] for place, at in places.items()}).save(there)
    fs = RefShardFileSystem(there, mode="a")
    fs.pipe_file(f"a/c/1/{width - 2}", b"x")
    fs.commit()
    source = RefShardFileSystem(there).source
    keys = ["a/c/" + place.replace(".", "/") for place in places]
    entries = source.run("", partial(source.open().find_entries, [*keys, f"a/c/1/{width - 2}"]))
    assert [entry and entry.start for entry in entries[:-1]] == [*places.values()]
    assert isinstance(entries[-1], Inline)


def test_failed_save_commits_nothing(tmp_path: Path) -> None:
    there = str(tmp_path / "made.icechunk")
    RefShardFileSystem(write_netcdf(tmp_path)).save(there)
    before = open_session(there).snapshot_id
    refs = json.loads(Path(save_set(tmp_path, "refs.json")).read_text())["refs"]
    refs["air/0.0.0"] = [str(tmp_path / "gone.nc")]  # a whole object, whose size has to be requested
    with pytest.raises((OSError, refshard_fs.RefShardError)):
        RefShardFileSystem(refs).save(there, "icechunk", overwrite=True)
    assert open_session(there).snapshot_id == before
    assert fsspec.filesystem("file").exists(there)


@pytest.mark.parametrize("name", ["a b", "ü", "a%20b", "a#b", "a?b"])
def test_target_whose_name_is_quoted_in_urls_is_virtual(name: str, tmp_path: Path, http_server: RangeServer) -> None:
    there = str(tmp_path / "made.icechunk")
    (tmp_path / name).mkdir()
    (tmp_path / name / name).write_bytes(bytes(range(100)))
    url = http_server.put(f"/{name}/{name}", bytes(range(100)))
    refs = {**ONE_ARRAY, "a/0": [str(tmp_path / name / name), 10, 2], "a/1": [url, 20, 2]}
    assert RefShardFileSystem(refs).save(there) is None, "nothing is copied"
    assert zarr.open_array(open_session(there).store, path="a", mode="r")[:4].tolist() == [10, 11, 20, 21]


def test_keys_beside_arrays_are_reported(tmp_path: Path) -> None:
    """OME-Zarr has such keys (``OME/METADATA.ome.xml``), which only JSON can hold."""
    path = Path(write_store(tmp_path, 3))
    (path / "OME").mkdir()
    (path / "OME" / "METADATA.ome.xml").write_text("<OME/>")
    (path / "README").write_text("air")
    said = RefShardFileSystem(str(path)).save(str(tmp_path / "made.icechunk"))
    assert said == "2 keys are left out, since they are neither metadata nor chunks: OME/METADATA.ome.xml, README"
    xr.testing.assert_equal(read(str(tmp_path / "made.icechunk")), make_dataset())
    (path / "air" / "notes").write_text("of an array")
    with pytest.raises(refshard_fs.ManifestError, match="'air/notes' is neither metadata nor a chunk"):
        RefShardFileSystem(str(path)).save(str(tmp_path / "other.icechunk"))


def test_array_without_elements_is_saved(tmp_path: Path) -> None:
    zarr.open_group(str(tmp_path / "a.zarr"), mode="w").create_array("a", shape=(3, 0), chunks=(1, 1), dtype="i4")
    RefShardFileSystem(str(tmp_path / "a.zarr")).save(str(tmp_path / "made.icechunk"))
    assert zarr.open_array(open_session(str(tmp_path / "made.icechunk")).store, path="a", mode="r").shape == (3, 0)


@pytest.mark.parametrize("value", [["s3://b/k", 0, 1], "x"], ids=["range", "inline"])
def test_error_names_an_array_with_too_many_chunks(value: Any, tmp_path: Path) -> None:
    meta = {**DOCUMENT, "shape": [3, 5 * 10**9], "chunks": [1, 1], "filters": None, "compressor": None}
    refs = {".zgroup": '{"zarr_format": 2}', "a/.zarray": json.dumps(meta), "a/1.4999999999": value}
    with pytest.raises(refshard_fs.ManifestError, match=r"'a' has \(3, 5000000000\) chunks: .* at most 4294967296"):
        RefShardFileSystem(refs).save(str(tmp_path / "made.icechunk"))


@pytest.mark.parametrize("value", [["memory://a", 5, 0], ""], ids=["range", "inline"])
def test_error_names_an_empty_chunk(value: Any, tmp_path: Path) -> None:
    with pytest.raises(refshard_fs.ManifestError, match="'a/1' has no bytes"):
        RefShardFileSystem({**ONE_ARRAY, "a/1": value}).save(str(tmp_path / "made.icechunk"))


def test_failed_save_does_not_block_the_next(tmp_path: Path) -> None:
    there = str(tmp_path / "made.icechunk")
    with pytest.raises(refshard_fs.ManifestError):
        RefShardFileSystem({**ONE_ARRAY, "a/1": ""}).save(there)
    RefShardFileSystem({**ONE_ARRAY, "a/1": "ok"}).save(there)
    assert zarr.open_array(open_session(there).store, path="a", mode="r")[2:4].tolist() == [*b"ok"]


def test_attributes_that_json_lacks_are_saved_as_texts(tmp_path: Path) -> None:
    """Icechunk accepts only strict JSON; many NetCDF files have the attribute ``missing_value = NaN``."""
    values = np.array([1, np.nan, 3], "f4")
    attributes = {"missing_value": np.float32("nan"), "valid_range": [np.nan, np.inf]}
    xr.Dataset({"t": ("x", values, attributes)}).to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    RefShardFileSystem(str(tmp_path / "a.nc")).save(str(tmp_path / "made.icechunk"))
    found = read(str(tmp_path / "made.icechunk"))["t"]
    np.testing.assert_array_equal(found, values)
    assert found.attrs == {"valid_range": ["NaN", "Infinity"]}


def test_error_names_the_document_that_icechunk_refuses(tmp_path: Path) -> None:
    refs = {**ONE_ARRAY, "a/.zattrs": '{"missing_value": Infinity}'}
    with pytest.raises(
        refshard_fs.ManifestError, match="'a/zarr.json': Icechunk refuses its metadata .*missing_value': inf"
    ):
        RefShardFileSystem(refs).save(str(tmp_path / "made.icechunk"))


def test_whole_objects_become_virtual_chunks(tmp_path: Path) -> None:
    """Their lengths are not in a listing, and have to be requested."""
    root = write_store(tmp_path, 2)
    RefShardFileSystem(root).save(str(tmp_path / "refs.zarr"))
    assert RefShardFileSystem(str(tmp_path / "refs.zarr")).save(str(tmp_path / "made.icechunk")) is None
    xr.testing.assert_identical(read(str(tmp_path / "made.icechunk")), xr.open_dataset(root, engine="refshard").load())


def test_stores_of_many_local_directories_are_merged(tmp_path: Path) -> None:
    """Readers authorise each store, and each chunk of a store of version 3 may lie in a directory of its own."""
    array = zarr.create_array(str(tmp_path / "a.zarr"), shape=(40, 2), chunks=(1, 1), dtype="u1", compressors=None)
    array[:] = np.arange(1, 81).reshape(40, 2)
    fs = RefShardFileSystem(str(tmp_path / "a.zarr"))
    fs.save(str(tmp_path / "a.icechunk"))
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path / "a.icechunk")))
    assert list(repository.config.virtual_chunk_containers) == [f"file://{tmp_path}/a.zarr/c/"]
    assert np.array_equal(zarr.open_array(open_session(tmp_path / "a.icechunk").store, mode="r")[:], array[:])


def test_save_looks_up_the_chunks_of_an_array_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Joined sets look chunks up in each of their inputs."""
    files = [write_netcdf(tmp_path, f"{start}.nc", start, chunksizes=(4, 8, 10)) for start in (0, 12)]
    fs = RefShardFileSystem(files)
    found: list[Any] = []
    locate = ReferenceStream._locate

    def count(stream: ReferenceStream, array: str, numbers: range) -> Any:
        found.append((array, numbers))
        return locate(stream, array, numbers)

    monkeypatch.setattr(ReferenceStream, "_locate", count)
    fs.save(str(tmp_path / "ab.icechunk"))
    assert found.count(("air", range(6))) == 1  # native chunks are looked up again before they are read


def test_failed_save_removes_its_branch(tmp_path: Path) -> None:
    there = str(tmp_path / "made.icechunk")
    RefShardFileSystem(write_netcdf(tmp_path)).save(there)
    with pytest.raises(refshard_fs.ManifestError):
        RefShardFileSystem({**ONE_ARRAY, "a/1": ""}).save(there, overwrite=True, branch="next")
    own = icechunk.Repository.open(icechunk.local_filesystem_storage(there))
    assert own.list_branches() == {"main"}


def test_branch_appears_with_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed before its commit leaves no branch."""
    there = str(tmp_path / "made.icechunk")
    RefShardFileSystem(write_netcdf(tmp_path)).save(there)
    own = icechunk.Repository.open(icechunk.local_filesystem_storage(there))
    put_native, seen = sinks_icechunk.put_native, []

    def look(*given: Any) -> Any:
        seen.append(own.list_branches())
        return put_native(*given)

    monkeypatch.setattr(sinks_icechunk, "put_native", look)
    RefShardFileSystem({**ONE_ARRAY, "a/1": "ok"}).save(there, overwrite=True, branch="next")
    assert seen == [{"main"}]
    assert own.list_branches() == {"main", "next"}


def test_unfinished_repository_is_replaced(tmp_path: Path) -> None:
    there = tmp_path / "made.icechunk"
    RefShardFileSystem({**ONE_ARRAY, "a/1": "ok"}).save(str(there))
    for path in there.iterdir():
        if path.name not in ("snapshots", "transactions"):
            path.unlink() if path.is_file() else shutil.rmtree(path)
    (there / "repo#1").write_bytes(b"half")
    RefShardFileSystem({**ONE_ARRAY, "a/1": "ok"}).save(str(there))
    assert zarr.open_array(open_session(str(there)).store, path="a", mode="r")[2:4].tolist() == [*b"ok"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("mine")
    with pytest.raises(FileExistsError, match="give another place"):
        RefShardFileSystem({**ONE_ARRAY, "a/1": "ok"}).save(str(tmp_path / "other"), "icechunk")


def test_repository_of_another_writer_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = str(tmp_path / "made.icechunk")
    RefShardFileSystem({**ONE_ARRAY, "a/1": "ok"}).save(there)
    monkeypatch.setattr(icechunk.Repository, "exists", lambda storage: False)
    with pytest.raises(refshard_fs.ConflictError, match="another process created the repository"):
        RefShardFileSystem({**ONE_ARRAY, "a/1": "no"}).save(there)
    assert zarr.open_array(open_session(there).store, path="a", mode="r")[2:4].tolist() == [*b"ok"]


def test_error_of_an_old_icechunk_has_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(icechunk, "__version__", "1.1.21")
    with pytest.raises(ImportError, match=r"needs icechunk 2\.3 or later, .* found 1\.1\.21"):
        RefShardFileSystem(write_netcdf(tmp_path)).save(str(tmp_path / "made.icechunk"))


@pytest.mark.parametrize(
    ("url", "option"), [("s3://b/a.icechunk", "profile"), ("gs://b/a.icechunk", "token"), ("az://b/a", "sas_token")]
)
def test_credentials_that_icechunk_cannot_take_are_refused(url: str, option: str) -> None:
    """Otherwise it would write with the credentials of the environment."""
    with pytest.raises(ValueError, match=f"cannot write to {url} with {option}=.*expected"):
        RefShardFileSystem(ONE_ARRAY).save(url, "icechunk", account_name="me", **{option: "mine"})


def test_errors_of_icechunk_have_one_line_and_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OSError, match="cannot write to s3://b/a.icechunk: .*region_name") as caught:
        RefShardFileSystem(ONE_ARRAY).save("s3://b/a.icechunk", key="me", secret="mine")
    assert "\n" not in str(caught.value)
