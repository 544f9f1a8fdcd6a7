"""``engine="refshard"``: xarray opens sources, and failed reads are errors, not values."""

from __future__ import annotations

import base64
import itertools
import json
import warnings
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import refshard_fs
from refshard_fs import ManifestError, ReferenceNotReachable, RefShardError, RefShardFileSystem, concat

np = pytest.importorskip("numpy")
xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr")
codecs = pytest.importorskip("numcodecs")
fsspec = pytest.importorskip("fsspec")


from refshard_fs.source import source as source_module  # noqa: E402
from refshard_fs.tools.info import make_tree, summarise  # noqa: E402  # after importorskip
from refshard_fs.xarray_backend import RefShardBackend, _is_in_memory  # noqa: E402  # xarray may be absent

NEWEST = 2 if zarr.__version__.startswith("2.") else 3  # the newest version that zarr writes
VALUES = np.arange(12, dtype="<i2").reshape(4, 3)


def array(shape: list[int], chunks: list[int], dtype: str = "<i2", **more: Any) -> str:
    meta = {"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": dtype, "order": "C", "fill_value": None}
    return json.dumps(meta | {"filters": None, "compressor": None} | more)


def make_group(prefix: str = "") -> dict[str, Any]:
    """Return a group with ``t`` (4 × 3, two chunks in data.bin) and its coordinate ``time``, inline."""
    return {
        f"{prefix}.zgroup": '{"zarr_format": 2}',
        f"{prefix}.zattrs": '{"title": "small"}',
        f"{prefix}t/.zarray": array([4, 3], [2, 3]),
        f"{prefix}t/.zattrs": '{"_ARRAY_DIMENSIONS": ["time", "x"], "scale_factor": 0.5}',
        f"{prefix}t/0.0": ["data.bin", 0, 12],
        f"{prefix}t/1.0": ["data.bin", 12, 12],
        f"{prefix}time/.zarray": array([4], [4], "|u1"),
        f"{prefix}time/.zattrs": '{"_ARRAY_DIMENSIONS": ["time"], "units": "days since 2000-01-01"}',
        f"{prefix}time/0": "\x00\x01\x02\x03",
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data.bin").write_bytes(VALUES.tobytes())
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": make_group() | make_group("sub/")}))
    return tmp_path


def check_values(ds: Any) -> None:
    assert ds.attrs["title"] == "small"
    np.testing.assert_array_equal(ds["t"].values, VALUES * 0.5)
    assert str(ds["time"].values[1]).startswith("2000-01-02")


def test_path_as_a_text_is_opened(folder: Path) -> None:
    with xr.open_dataset(str(folder / "refs.json"), engine=RefShardBackend) as ds:
        check_values(ds)


def test_pathlib_path_is_opened(folder: Path) -> None:
    with xr.open_dataset(folder / "refs.json", engine=RefShardBackend) as ds:
        check_values(ds)


def test_dict_opens_with_options_of_the_filesystem(folder: Path) -> None:
    refs = {"version": 1, "refs": make_group()}
    options = {"base_url": str(folder), "remote_protocol": "file"}
    with xr.open_dataset(refs, engine=RefShardBackend, storage_options=options) as ds:
        check_values(ds)


@pytest.mark.parametrize("open_", [xr.open_dataset, xr.open_datatree, xr.open_groups])
def test_misplaced_option_error_names_the_right_place(folder: Path, open_: Any) -> None:
    with pytest.raises(TypeError, match=r"no argument 'anon'. .* storage_options=\{'anon': \.\.\.\}"):
        open_(str(folder / "refs.json"), engine="refshard", anon=True)


def test_refshard_urls_are_opened(folder: Path) -> None:
    fsspec.register_implementation("refshard", RefShardFileSystem, clobber=True)
    path = folder / "refs.json"
    with xr.open_dataset("refshard://", engine=RefShardBackend, storage_options={"fo": str(path)}) as ds:
        check_values(ds)
    with xr.open_dataset(f"refshard::{path.as_uri()}", engine=RefShardBackend) as ds:
        check_values(ds)


def test_local_file_is_opened_without_an_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(6.0).reshape(2, 3)
    xr.Dataset({"a": (("y", "x"), values)}, {"x": [1, 2, 3]}).to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    monkeypatch.setattr(source_module, "sync", lambda *_: pytest.fail("an event loop is used"))
    with xr.open_dataset(tmp_path / "a.nc", engine="refshard") as ds:
        assert ds["a"].values.tolist() == values.tolist()
        assert ds["x"].values.tolist() == [1, 2, 3]


def test_dask_chunks_align_with_stored_chunks(folder: Path) -> None:
    pytest.importorskip("dask.array")
    with xr.open_dataset(folder / "refs.json", engine=RefShardBackend, chunks={}) as ds:
        assert ds["t"].chunks == ((4,), (3,))
        check_values(ds)
    with xr.open_dataset(folder / "refs.json", engine=RefShardBackend, chunks={}, task_size=0) as ds:
        assert ds["t"].chunks == ((2, 2), (3,))


def test_options_of_kerchunks_engine_are_accepted(folder: Path) -> None:
    pytest.importorskip("dask.array")
    options = {"chunks": {}, "drop_variables": ["time"], "decode_cf": False}
    with xr.open_dataset(folder / "refs.json", engine=RefShardBackend, open_dataset_options=options) as ds:
        assert list(ds.variables) == ["t"]
        np.testing.assert_array_equal(ds["t"].values, VALUES)


def test_decode_cf_and_mask_and_scale_turn_decoding_off(folder: Path) -> None:
    with xr.open_dataset(folder / "refs.json", engine=RefShardBackend, decode_cf=False) as ds:
        np.testing.assert_array_equal(ds["t"].values, VALUES)
    with xr.open_dataset(folder / "refs.json", engine=RefShardBackend, mask_and_scale=False) as ds:
        np.testing.assert_array_equal(ds["t"].values, VALUES)
        assert ds["time"].dtype.kind == "M"


def test_variables_are_dropped_and_groups_chosen(folder: Path) -> None:
    with xr.open_dataset(folder / "refs.json", engine=RefShardBackend, group="sub", drop_variables="time") as ds:
        assert list(ds.variables) == ["t"]


@pytest.mark.parametrize("opened", [xr.open_dataset, xr.open_groups])
def test_missing_group_error_lists_groups(opened: Any, folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no group 'nope': the groups at the root are sub"):
        opened(folder / "refs.json", engine=RefShardBackend, group="nope")


@pytest.mark.parametrize("opened", [xr.open_dataset, xr.open_groups])
def test_damaged_group_is_not_reported_as_missing(opened: Any) -> None:
    refs = make_group() | make_group("sub/") | {"sub/.zgroup": '{"zarr_format": 9}'}
    with pytest.raises(Exception, match=r".") as error:
        opened(refs, engine=RefShardBackend, group="sub")
    assert not isinstance(error.value, FileNotFoundError)


def test_opened_dataset_is_written_in_both_zarr_formats(folder: Path) -> None:
    """xarray does not take over codecs of zarr format 2 when it writes format 3, which has other codecs."""
    zlib = json.dumps(json.loads(array([4, 3], [4, 3])) | {"compressor": {"id": "zlib", "level": 1}})
    chunk = "base64:" + base64.b64encode(codecs.Zlib(1).encode(VALUES.tobytes())).decode()
    refs = make_group() | {"z/.zarray": zlib, "z/.zattrs": '{"_ARRAY_DIMENSIONS": ["time", "x"]}', "z/0.0": chunk}
    versions = {} if zarr.__version__.startswith("2.") else {"2": {"zarr_format": 2}, "3": {"zarr_format": 3}}
    with xr.open_dataset(refs, engine=RefShardBackend, drop_variables=["t"]) as ds:
        for name, how in (versions or {"2": {}}).items():
            ds.to_zarr(folder / name, consolidated=False, **how)
            with xr.open_zarr(folder / name, consolidated=False) as found:
                xr.testing.assert_identical(found.load(), ds.load())


def test_all_groups_open_as_a_tree(folder: Path) -> None:
    with xr.open_datatree(folder / "refs.json", engine=RefShardBackend) as tree:
        assert [node.path for node in tree.subtree] == ["/", "/sub"]
        check_values(tree["sub"].to_dataset())
    for ds in xr.open_groups(folder / "refs.json", engine=RefShardBackend).values():
        check_values(ds)
        ds.close()


def test_failed_read_of_a_chunk_is_an_error(folder: Path) -> None:
    (folder / "data.bin").unlink()
    with xr.open_dataset(folder / "refs.json", engine=RefShardBackend) as ds, pytest.raises(ReferenceNotReachable):
        ds["t"].load()


def test_missing_source_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RefShardError, match=r"gone\.json"):
        xr.open_dataset(tmp_path / "gone.json", engine=RefShardBackend)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("refshard://", True),
        ("refshard::s3://bucket/refs.json", True),
        ("refs.json", False),
        ("reference://", False),
        ({"version": 1}, False),
    ],
)
def test_guess_can_open_accepts_only_refshard_urls(name: object, ours: bool) -> None:
    assert RefShardBackend().guess_can_open(name) is ours


def test_reference_urls_are_accepted() -> None:
    ds = xr.open_dataset("reference://", engine=RefShardBackend, storage_options={"fo": make_group()})
    assert ds.sizes == xr.open_dataset(make_group(), engine=RefShardBackend).sizes


def test_error_of_a_source_after_two_slashes_says_what_to_pass() -> None:
    with pytest.raises(
        ValueError, match=r"pass 'refs\.json' or 'refshard::refs\.json', or pass 'refshard://' with storage_options"
    ):
        xr.open_dataset("refshard://refs.json", engine=RefShardBackend)


def test_empty_pattern_error_lists_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(ManifestError, match=r"\*\.nc' matches nothing: .* has a\.txt"):
        xr.open_dataset(f"{tmp_path}/*.nc", engine=RefShardBackend)


def test_root_without_arrays_warning_lists_groups() -> None:
    refs = {".zgroup": '{"zarr_format": 2}', **make_group("inner/")}
    with pytest.warns(UserWarning, match="it has groups: inner. Open one with group='inner'"):
        xr.open_dataset(refs, engine=RefShardBackend)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        xr.open_dataset(refs, engine=RefShardBackend, group="inner")


@pytest.mark.skipif(zarr.__version__.startswith("2"), reason="zarr 2 has no version 3")
@pytest.mark.parametrize("version", [2, 3])
def test_missing_text_is_masked_as_in_xarray(tmp_path: Path, version: int) -> None:
    netCDF4 = pytest.importorskip("netCDF4")
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("x", 3)
        file.createVariable("station", str, ("x",), fill_value="NA")[0] = "q"
        file.createVariable("code", "S1", ("x",), fill_value=b"-")[0] = b"q"
    found = xr.open_dataset(path, engine=RefShardBackend, storage_options={"zarr_format": version})
    assert found["station"].values.tolist()[0] == "q"
    assert found["station"].isnull().values.tolist() == [False, True, True]
    code = [b"q", b"-", b"-"] if version == 3 else [b"q", np.nan, np.nan]  # of bytes, xarray takes no fill value there
    assert str(found["code"].values.tolist()) == str(code)


SIZE = 1 << 26  # bytes to which a chunk of 80 bytes is decoded
HUGE = bytes(SIZE)


def compress(codec: dict[str, Any]) -> bytes:
    return bytes(codecs.get_codec(codec).encode(HUGE))


BOMBS: dict[str, dict[str, Any]] = {
    "zlib": {"compressor": {"id": "zlib", "level": 1}},
    "gzip": {"compressor": {"id": "gzip", "level": 1}},
    "bz2": {"compressor": {"id": "bz2", "level": 1}},
    "lzma": {"compressor": {"id": "lzma", "preset": 0}},
    "zstd": {"compressor": {"id": "zstd", "level": 1}},
    "lz4": {"compressor": {"id": "lz4"}},
    "blosc": {"compressor": {"id": "blosc", "cname": "lz4", "clevel": 1, "shuffle": 0}},
    "filter": {"filters": [{"id": "zlib", "level": 1}]},
}


def make_bomb(name: str, units: str | None = None, dims: str = "t") -> dict[str, Any]:
    (codec,) = [spec if isinstance(spec, dict) else spec[0] for spec in BOMBS[name].values()]
    attributes = {"_ARRAY_DIMENSIONS": [dims], **({} if units is None else {"units": units})}
    chunk = "base64:" + base64.b64encode(compress(codec)).decode()
    members = {"t/.zarray": array([10], [10], "<i8", **BOMBS[name]), "t/.zattrs": json.dumps(attributes), "t/0": chunk}
    return {".zgroup": '{"zarr_format": 2}', **members}


@pytest.fixture
def decoded_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The decoded sizes of chunks that numcodecs was called for."""
    made: list[int] = []
    for name in ("Zlib", "GZip", "BZ2", "LZMA", "Zstd", "LZ4", "Blosc"):
        kind = getattr(codecs, name)
        decode = kind.decode

        def watched(self: Any, *arguments: Any, decode: Any = decode, **more: Any) -> Any:
            found = decode(self, *arguments, **more)
            made.append(len(bytes(found)))
            return found

        monkeypatch.setattr(kind, "decode", watched)
    return made


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.case(id="P28")
def test_remote_coordinate_bomb_is_refused(name: str, http_server: Any, decoded_sizes: list[int]) -> None:
    http_server.put("/refs.json", json.dumps({"version": 1, "refs": make_bomb(name)}).encode())
    with pytest.raises(RefShardError, match=r"xarray would load 't'.*drop_variables='t'"):
        xr.open_dataset(http_server.url + "/refs.json", engine="refshard", chunks={})
    assert not decoded_sizes
    ds = xr.open_dataset(http_server.url + "/refs.json", engine="refshard", drop_variables="t")
    assert not ds.variables


@pytest.mark.parametrize("how", ["options", "tree", "times", "shape"])
@pytest.mark.case(id="P28")
def test_coordinate_bombs_of_several_forms_are_refused(how: str, http_server: Any, decoded_sizes: list[int]) -> None:
    refs = make_bomb("zlib", "days since 2000-01-01" if how == "times" else None, "n" if how == "times" else "t")
    if how == "shape":  # no chunk is there: the fill value would be made 10^11 times
        refs = {**refs, "t/.zarray": array([10**11], [10], "<i8"), "t/0": ""}
    http_server.put("/refs.json", json.dumps({"version": 1, "refs": refs}).encode())
    url = http_server.url + "/refs.json"
    options = {"open_dataset_options": {"decode_cf": False}} if how == "options" else {}
    open_ = RefShardBackend().open_groups_as_dict if how == "tree" else partial(xr.open_dataset, engine="refshard")
    with pytest.raises(RefShardError, match="xarray would load 't'"):
        open_(url, **options)
    assert not decoded_sizes


@pytest.mark.case(id="P28")
def test_coordinate_of_an_unsafe_codec_is_tried_in_a_process(http_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def problems(meta: Any, chunks: Any) -> list[Any]:
        tried.append(chunks[0][0])
        return [ValueError("it takes all memory")]

    monkeypatch.setattr("refshard_fs.tools.trial._find_problems_apart", problems)
    refs = make_bomb("zlib") | {"t/.zarray": array([10], [10], "<i8", filters=[{"id": "packbits"}])}
    http_server.put("/refs.json", json.dumps({"version": 1, "refs": refs}).encode())
    with pytest.raises(RefShardError, match="it takes all memory"):
        xr.open_dataset(http_server.url + "/refs.json", engine="refshard")
    assert tried == ["0"]


def test_plain_remote_coordinates_are_opened(http_server: Any) -> None:
    codec = codecs.Zlib(1)
    refs = make_bomb("zlib") | {"t/0": "base64:" + base64.b64encode(codec.encode(np.arange(10, dtype="<i8"))).decode()}
    http_server.put("/refs.json", json.dumps({"version": 1, "refs": refs}).encode())
    url = http_server.url + "/refs.json"
    assert xr.open_dataset(url, engine="refshard")["t"].values.tolist() == [*range(10)]
    assert xr.open_dataset(make_bomb("zlib") | {"t/0": refs["t/0"]}, engine="refshard")["t"].size == 10


@pytest.mark.parametrize("format", ["NETCDF4", "NETCDF3_CLASSIC"])
def test_variables_keep_the_order_of_the_file(format: Any, tmp_path: Path) -> None:
    pytest.importorskip("netCDF4")
    names = ["zeta", "alpha", "mid", "x", "t"]
    ds = xr.Dataset({name: (("t", "x"), np.ones((2, 3))) for name in names[:3]}, {"x": [1, 2, 3], "t": [0, 1]})
    for number in range(2):
        path = tmp_path / f"{number}.nc"
        ds.assign_coords(t=ds.t + 2 * number).to_netcdf(path, engine="netcdf4", format=format, unlimited_dims=["t"])
    file = str(tmp_path / "0.nc")
    with xr.open_dataset(file, engine="netcdf4") as theirs:
        names = list(theirs.variables)
    pattern = str(tmp_path / "*.nc")
    sources: list[Any] = [file, pattern, concat(pattern, dim="t", lazy=True), concat(pattern, dim="t")]
    fs = RefShardFileSystem(file)
    for name in ("a.json", "a.parq"):
        fs.save(str(tmp_path / name))
        sources.append(str(tmp_path / name))
    for source in sources:
        with xr.open_dataset(source, engine="refshard") as ours:
            assert list(ours.variables) == names, source
    listed = [array.name for array in summarise(fs).arrays]
    assert listed == [node.path for node in make_tree(fs).children]
    assert [name for name in listed if name not in ds.coords] == ["zeta", "alpha", "mid"]


def test_groups_keep_the_order_of_the_set() -> None:
    if zarr.__version__.startswith("2."):
        pytest.skip("xarray's older versions, which are used with zarr 2, list the groups by name")
    refs = {".zgroup": '{"zarr_format": 2}', **make_group("z/"), **make_group("a/"), **make_group("z/inner/")}
    found = RefShardBackend().open_groups_as_dict(refs)
    assert list(found) == ["/", "/z", "/z/inner", "/a"]


@pytest.mark.parametrize("kind", ["tiff", "jp2", "n5"])
def test_images_of_several_sizes_become_netcdf(tmp_path: Path, kind: str) -> None:
    """Attributes with objects, which NetCDF cannot hold, become texts, also in the set that `save` makes."""
    pytest.importorskip("h5netcdf")
    path = tmp_path / f"image.{kind}"
    if kind == "tiff":
        axes = {"axes": "YX", "Channel": {"Name": ["red"]}}
        with pytest.importorskip("tifffile").TiffWriter(path, ome=True) as writer:
            writer.write(np.zeros((64, 64), "u1"), subifds=1, metadata=axes)
            writer.write(np.zeros((32, 32), "u1"), subfiletype=1)
    elif kind == "jp2":
        files = pytest.importorskip("tests.support.jp2_files")
        path.write_bytes(files.make_jp2_file(files.encode(files.make_smooth_values(64, 64), levels=2)))
    else:
        levels = {f"s{n}": {"dimensions": [4, 4], "blockSize": [4, 4], "dataType": "uint8"} for n in range(2)}
        levels["s0"] |= {"transform": {"scale": [1, 1]}}
        documents = {"": {"n5": "2.5.0", "scales": [[1, 1], [2, 2]]}} | levels
        for name, document in documents.items():
            (path / name).mkdir(parents=True, exist_ok=True)
            (path / name / "attributes.json").write_text(json.dumps(document | {"compression": {"type": "raw"}}))
    fs = RefShardFileSystem(str(path), skip_instance_cache=True)
    assert json.loads(fs.cat(".zattrs"))["multiscales"][0]["datasets"]
    fs.save(str(tmp_path / "saved.json"))
    with (
        xr.open_dataset(str(path), engine="refshard") as ds,
        xr.open_dataset(str(tmp_path / "saved.json"), engine="refshard") as saved,
    ):
        assert ds.identical(saved)
        assert json.loads(ds.attrs["multiscales"])[0]["datasets"]
        ds.to_netcdf(tmp_path / "saved.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "saved.nc", engine="h5netcdf") as written:
        assert written.attrs["multiscales"] == ds.attrs["multiscales"]


def test_objects_in_attributes_of_zarr_stay_objects() -> None:
    """`xarray.open_zarr` shows objects, too; an invalid attribute `_refshard_objects` makes no difference."""
    for names in (None, 1, [1, ["multiscales"]]):
        attributes = {"multiscales": [{"datasets": []}]} | ({} if names is None else {"_refshard_objects": names})
        refs = make_group() | {".zattrs": json.dumps(attributes)}
        assert xr.open_dataset(refs, engine="refshard").attrs == {"multiscales": [{"datasets": []}]}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("decode_tims", r"'decode_tims': did you mean decode_times=\?$"),
        ("format", r"storage_options=\{'format': ...\}$"),
        ("join", r"storage_options=\{'join': ...\}$"),
        ("combine", "as xarray.open_mfdataset has: coordinates give the order"),
    ],
)
def test_error_says_where_an_unknown_argument_belongs(name: str, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        xr.open_dataset({}, engine="refshard", **{name: "x"})


def test_missing_group_error_lists_groups_beside_it() -> None:
    refs = dict.fromkeys((".zgroup", "a/.zgroup", "a/b/.zgroup", "c/.zgroup"), '{"zarr_format": 2}')
    with pytest.raises(FileNotFoundError, match="there is no group 'a/x': the groups in 'a' are b$"):
        xr.open_dataset(refs, engine="refshard", group="a/x")


def test_variable_that_cannot_be_shown_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for name in ("a/b", "g/b"):
            file[name] = np.arange(3)
        for name in ("g/wide", "g/w2", "g/w3", "g/w4"):
            file[name] = np.zeros(3, np.longdouble)
    with xr.open_dataset(path, engine="refshard", group="a") as ds:
        assert list(ds) == ["b"]
    assert not caplog.records
    with xr.open_dataset(path, engine="refshard", group="g") as ds:
        assert list(ds) == ["b"]
    (record,) = caplog.records
    assert record.name == "refshard_fs"
    assert record.levelname == "WARNING"
    text = record.getMessage()
    assert text.startswith(f"{path} is opened without 'g/w2' (its datatype is a float of 80 bits")
    assert text.endswith("; and 1 other")


def write_tree(path: Path, first: int, **how: Any) -> None:
    """Write two times of a tree of two groups, from time ``first``, in the root."""
    values = np.arange(first, first + 2) * 1.0
    tree = {
        name: xr.Dataset({name: (("time", "x"), (values * 10 + number)[:, None])}, {"time": values})
        for number, name in enumerate("rgh")
    }
    datatree = xr.DataTree.from_dict({"/": tree["r"], "/g": tree["g"], "/g/h": tree["h"]})
    if path.suffix == ".zarr":
        datatree.to_zarr(path, write_inherited_coords=True, **how)
    else:
        datatree.to_netcdf(path, engine="h5netcdf", write_inherited_coords=True)


def make_sources_with_groups(folder: Path) -> dict[str, Any]:
    """Return sources of each kind with the groups "g" and "g/h", of two or four times."""
    for day in range(2):
        write_tree(folder / f"n{day}.nc", 2 * day)
        for version, consolidated in itertools.product({2, NEWEST}, (False, True)):
            name = f"z{version}{'c' if consolidated else ''}{day}.zarr"
            write_tree(folder / name, 2 * day, zarr_format=version, consolidated=consolidated)
    names = ("n0.nc", "z20.zarr", "z2c0.zarr", f"z{NEWEST}0.zarr", f"z{NEWEST}c0.zarr")
    sources: dict[str, Any] = {name: str(folder / name) for name in names}
    for name in ("n0.nc", "z2c0.zarr", f"z{NEWEST}0.zarr"):
        for suffix in (".json", ".parquet") if name[0] != "z" or "2" in name else (".json",):
            sources[name + suffix] = str(folder / (name + suffix))
            RefShardFileSystem(str(folder / name)).save(sources[name + suffix])
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        for file in filter(Path.is_file, (folder / "z20.zarr").rglob("*")):
            archive.write(file, str(file.relative_to(folder / "z20.zarr")))
    sources |= {"zip": str(folder / "a.zip"), "bytes": (folder / "n0.nc").read_bytes()}
    sources |= {"pattern": f"{folder}/n*.nc", "list": [f"{folder}/z{NEWEST}{day}.zarr" for day in range(2)]}
    refshard_fs.open(f"{folder}/z2?.zarr").save(str(folder / "cube.refshard"))
    sources |= {"cube": str(folder / "cube.refshard"), "refshard": f"refshard::{folder}/z{NEWEST}0.zarr"}
    sources |= {"fs": RefShardFileSystem(str(folder / "z20.zarr")), "pipe": f"{folder}/n0.nc|refshard:"}
    return sources


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
def test_group_is_opened_from_each_kind_of_source(tmp_path: Path) -> None:
    for name, source in make_sources_with_groups(tmp_path).items():
        times = 4 if name in ("pattern", "list", "cube") else 2
        for group, number in (("g", 1), ("/g/h/", 2)):
            for words in ({"group": group}, {"storage_options": {"group": group}}):
                with xr.open_dataset(source, engine="refshard", decode_times=False, **words) as ds:
                    variable = group.strip("/")[-1]
                    assert set(ds.variables) == {variable, "time"}, (name, words)
                    assert ds[variable].values[:, 0].tolist() == [10.0 * time + number for time in range(times)]
                tree = xr.open_datatree(source, engine="refshard", decode_times=False, **words)
                assert set(tree.to_dataset(inherit=False).variables) == {variable, "time"}, (name, words)
                tree.close()
        with pytest.raises(FileNotFoundError, match="there is no group 'nope'"):
            xr.open_dataset(source, engine="refshard", group="nope")
    with xr.open_dataset(RefShardFileSystem(str(tmp_path / "n0.nc"), group="g"), engine="refshard") as ds:
        assert set(ds.data_vars) == {"g"}
    with xr.open_dataset(str(tmp_path / "z20.zarr"), engine="refshard", group="", storage_options={"group": "g"}) as ds:
        assert set(ds.data_vars) == {"r"}


def test_group_of_a_file_of_pyramids_is_opened(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    with tifffile.TiffWriter(tmp_path / "a.ome.tif", ome=True) as file:
        for number in (1, 2):
            image = number * np.arange(64 * 64, dtype="u2").reshape(64, 64)
            file.write(image, subifds=1, tile=(32, 32))
            file.write(image[::2, ::2], subfiletype=1, tile=(32, 32))
    for words in ({"group": "1"}, {"storage_options": {"group": "1"}}):
        with xr.open_dataset(str(tmp_path / "a.ome.tif"), engine="refshard", **words) as ds:
            assert set(ds.variables) == {"0", "1"}
            assert ds["1"].values[0, :3].tolist() == [0, 4, 8]


def test_variables_count_as_unread_without_the_name_of_xarray() -> None:
    """xarray has no public name for this; loading a variable that is in memory does no harm."""
    assert _is_in_memory(xr.Variable("x", [1]))
    assert not _is_in_memory(object())  # type: ignore[arg-type]
