"""DMR++ documents give the values of the files that they describe. Remote documents cannot name local files."""

from __future__ import annotations

import base64
import re
import zlib
from pathlib import Path
from typing import Any

import fsspec
import numcodecs
import numpy as np
import pytest

from refshard_fs import ManifestError, RefShardError, RefShardFileSystem, TargetNotAllowed
from tests.servers.http import RangeServer
from tests.support.files_of_arrays import check_commands, check_same
from tests.support.shard_writers import IS_ZARR_2, open_array
from tests.support.shards_in_memory import ROOT, Files

xr = pytest.importorskip("xarray")
netcdf4 = pytest.importorskip("netCDF4")
h5py = pytest.importorskip("h5py")

from tests.support.dmrpp_writer import make_document, write_dmrpp  # noqa: E402  # h5py may be absent

ZARR_FORMATS = [2] if IS_ZARR_2 else [2, 3]


def open_document(body: str, **targets: bytes) -> Any:
    files = Files({ROOT: make_document(body), **{f"files://{name}": data for name, data in targets.items()}})
    return files, files.open()


def write_file(path: Path, *, texts: bool = True) -> Path:
    """Write a file with all kinds of chunks, fill values and groups of NetCDF-4, and its DMR++ document."""
    with netcdf4.Dataset(path, "w") as ds:
        for name, size in (("time", None), ("y", 30), ("x", 40)):
            ds.createDimension(name, size)
        ds.setncatts({"title": "Grüße & <co>", "numbers": np.array([1.5, 2], "f4"), "one": np.int16(3)})
        time = ds.createVariable("time", "f8", ("time",))
        time.units = "hours since 2000-01-01"
        time[:] = np.arange(7)
        air: dict[str, Any] = {"zlib": True, "shuffle": True, "fletcher32": True, "chunksizes": (2, 20, 20)}
        packed = ds.createVariable("packed", "i2", ("time", "y", "x"), fill_value=-99, **air)
        packed.scale_factor = np.float32(0.1)
        packed[:] = np.arange(7 * 1200).reshape(7, 30, 40) % 1000
        ds.createVariable("plain", "f4", ("y", "x"), contiguous=True)[:] = np.linspace(0, 1, 1200).reshape(30, 40)
        big = ds.createVariable("big", ">i4", ("y", "x"), zlib=True, chunksizes=(7, 9), endian="big")
        big[:] = np.arange(1200).reshape(30, 40)
        ds.createVariable("holes", "f4", ("time", "x"), chunksizes=(2, 10), fill_value=np.float32("nan"))[4:6, 3] = 1
        ds.createVariable("unset", "i4", ("time", "x"), chunksizes=(2, 10), zlib=True)[4:6, 3] = 1
        ds.createVariable("zipped", "i4", ("y", "x"), zlib=True, chunksizes=(7, 9))[:] = np.arange(1200).reshape(30, 40)
        ds.createVariable("scalar", "i4", ())[...] = 7
        group = ds.createGroup("deep").createGroup("er")
        group.createDimension("z", 3)
        group.note = "far down"
        group.createVariable("z", "f8", ("z",))[:] = [1, 2, 3]
        group.createVariable("both", "u1", ("z", "x"), zlib=True)[:] = np.arange(120).reshape(3, 40)
        if texts:
            names = ds.createVariable("names", str, ("y",))
            for number in range(30):
                names[number] = f"é{number}"
    return write_dmrpp(path)


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
@pytest.mark.filterwarnings("ignore:.*Numcodecs codecs are not in the Zarr version 3.*:UserWarning")
@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification.*")
def test_values_and_attributes_equal_the_file(tmp_path: Path, zarr_format: int) -> None:
    path = write_file(tmp_path / "air.nc")
    options: dict[str, Any] = {"engine": "refshard", "storage_options": {"zarr_format": zarr_format}}
    for group in ("", "deep/er"):
        for decode in (True, False):
            if zarr_format == 3 and decode:
                continue  # xarray decodes the fill value of texts as a number
            actual = xr.open_dataset(path, group=group, decode_cf=decode, **options).drop_vars("names", errors="ignore")
            expected = xr.open_dataset(path.with_suffix(""), engine="h5netcdf", group=group, decode_cf=decode)
            check_same(actual, expected.drop_vars("names", errors="ignore"))
    tree = xr.open_datatree(path, engine="refshard")
    file_tree = xr.open_datatree(path.with_suffix(""), engine="refshard")
    assert {node.path for node in tree.subtree} == {"/", "/deep", "/deep/er"}
    xr.testing.assert_equal(tree["/deep/er"].to_dataset(), file_tree["/deep/er"].to_dataset())
    assert tree["/names"].values.tolist() == [f"é{number}" for number in range(30)]


@pytest.mark.filterwarnings("ignore:.*Numcodecs codecs are not in the Zarr version 3.*:UserWarning")
def test_datatree_has_values_that_netcdf4_reads_in_every_group(tmp_path: Path) -> None:
    path = write_file(tmp_path / "air.nc", texts=False)
    tree = xr.open_datatree(path, engine="refshard")
    for group in ("/", "/deep", "/deep/er"):
        with xr.open_dataset(path.with_suffix(""), engine="netcdf4", group=group) as expected:
            for name, variable in expected.variables.items():
                np.testing.assert_array_equal(tree[group][name].values, variable.values, err_msg=name)


@pytest.mark.filterwarnings("ignore:.*Numcodecs codecs are not in the Zarr version 3.*:UserWarning")
def test_values_of_three_variables_equal_virtualizarr(tmp_path: Path) -> None:
    parsers = pytest.importorskip("virtualizarr.parsers")
    stores = pytest.importorskip("obstore.store")
    registry = pytest.importorskip("obspec_utils.registry").ObjectStoreRegistry()
    path = write_file(tmp_path / "air.nc", texts=False)
    registry.register("file://", stores.LocalStore())
    store = parsers.DMRPPParser(skip_variables=["packed", "holes", "unset"])(path.as_uri(), registry)
    expected = xr.open_zarr(store, consolidated=False, zarr_format=3, decode_cf=False)
    actual = xr.open_dataset(path, engine="refshard", decode_cf=False)
    for name in ("time", "plain", "zipped"):
        np.testing.assert_array_equal(actual[name].values, expected[name].values, err_msg=name)


def test_commands_read_a_document_and_convert_it_to_references(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_file(tmp_path / "air.nc")
    refs = check_commands(path, tmp_path, capsys, "deep/er/both")
    datasets = (xr.open_dataset(fo, engine="refshard", decode_cf=False).load() for fo in (path, refs))
    xr.testing.assert_identical(*datasets)


def test_opening_and_reading_a_chunk_take_one_request_each(http_server: RangeServer, tmp_path: Path) -> None:
    path = write_file(tmp_path / "air.nc")
    http_server.put("/air.nc", path.with_suffix("").read_bytes())
    fs = RefShardFileSystem(http_server.put("/air.nc.dmrpp", path.read_bytes()), skip_instance_cache=True)
    assert "packed" in fs.ls("", detail=False)
    assert len(http_server.requests()) == 1
    assert {request.path for request in http_server.requests()} == {"/air.nc.dmrpp"}
    http_server.clear()
    assert fs.cat_file("packed/3.1.1")
    (request,) = http_server.requests()
    assert request.path == "/air.nc"


def test_described_file_is_found_by_href_by_name_and_by_target(http_server: RangeServer, tmp_path: Path) -> None:
    path = write_file(tmp_path / "air.nc")
    data = path.with_suffix("").read_bytes()
    expected = open_array(str(path), "plain")[...]
    url = http_server.put("/elsewhere.nc", data)
    elsewhere = write_dmrpp(path.with_suffix(""), href=url).rename(tmp_path / "moved.xml")
    assert np.array_equal(open_array(str(elsewhere), "plain")[...], expected)
    moved = path.with_suffix("").rename(tmp_path / "other.nc")
    beside = write_dmrpp(moved, href="data/other.nc")
    assert np.array_equal(open_array(str(beside), "plain")[...], expected)
    assert np.array_equal(open_array(beside.read_bytes(), "plain", target=str(moved))[...], expected)
    with pytest.raises(ManifestError, match="target="):
        RefShardFileSystem(fo=beside.read_bytes()).ls("")


def test_remote_document_cannot_point_to_local_files(http_server: RangeServer, tmp_path: Path) -> None:
    path = write_file(tmp_path / "air.nc")
    document = write_dmrpp(path.with_suffix(""), href=path.with_suffix("").as_uri()).read_bytes()
    fs = RefShardFileSystem(http_server.put("/a.dmrpp", document), skip_instance_cache=True)
    with pytest.raises(TargetNotAllowed):
        fs.cat_file("plain/0.0")


def test_chunks_without_a_parent_element_are_read() -> None:
    files, keyspace = open_document(
        '<Int16 name="a"><Dim size="3"/><dmrpp:chunk offset="2" nBytes="6" href="files://one"/></Int16>'
        '<Int16 name="b"><Dim size="4"/><Dim size="3"/><dmrpp:chunks deflate_level="6" compressionType="deflate">'
        "<dmrpp:chunkDimensionSizes>2 3</dmrpp:chunkDimensionSizes>"
        '<dmrpp:chunk offset="0" nBytes="9" chunkPositionInArray="[2,0]" href="files://two"/></dmrpp:chunks></Int16>',
        one=b"..abcdef",
        two=b"012345678",
    )
    assert files.read(keyspace, "a/0") == b"abcdef"
    assert files.read(keyspace, "b/1.0") == b"012345678"
    assert zlib.decompress(files.read(keyspace, "b/0.0") or b"") == bytes(12)
    assert list(keyspace.urls) == ["files://one", "files://two"]
    assert b'"phony_dim_0"' in (files.read(keyspace, "a/.zattrs") or b"")
    assert b'["phony_dim_1","phony_dim_0"]' in (files.read(keyspace, "b/.zattrs") or b"")


def test_inline_values_are_read() -> None:
    missing = base64.b64encode(zlib.compress(np.arange(4, dtype="<f8").tobytes())).decode()
    long = base64.b64encode(zlib.compress(b"abc" * 200)).decode()
    files, keyspace = open_document(
        f'<String name="long"><Dim size="2"/><dmrpp:vlsa><v c="2" s="600">{long}</v></dmrpp:vlsa></String>'
        '<Byte name="single"><dmrpp:missingdata>cw==</dmrpp:missingdata></Byte>'
        '<String name="quality"><dmrpp:compact>R29vZA==</dmrpp:compact></String>'
        f'<Float64 name="lat"><Dim size="4"/><dmrpp:missingdata>\n  {missing[:9]}\n  {missing[9:]}\n'
        '</dmrpp:missingdata></Float64><String name="words"><Dim size="4"/><dmrpp:vlsa><v>a</v><v c="3">so</v>'
        '</dmrpp:vlsa></String><Int8 name="byte"><dmrpp:compact>/w==</dmrpp:compact></Int8>'
    )
    assert files.read(keyspace, "quality/0") == b"Good"
    assert np.frombuffer(files.read(keyspace, "lat/0") or b"").tolist() == [0, 1, 2, 3]
    assert files.read(keyspace, "byte/0") == b"\xff"
    assert files.read(keyspace, "single/0") == b"s"
    assert numcodecs.VLenUTF8().decode(files.read(keyspace, "long/0")).tolist() == ["abc" * 200] * 2
    assert numcodecs.VLenUTF8().decode(files.read(keyspace, "words/0")).tolist() == ["a", "so", "so", "so"]


@pytest.mark.parametrize("suffix", ["", ".dmrpp"])
@pytest.mark.parametrize("fs_kind", ["instance", "mapping"])
def test_session_token_is_sent_for_document_and_file(
    suffix: str, fs_kind: str, http_server: RangeServer, tmp_path: Path
) -> None:
    """earthaccess makes such a filesystem, which sends a token to the server."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("v", data=np.arange(300.0), chunks=(100,), compression="gzip")
    write_dmrpp(tmp_path / "a.h5")
    for path in tmp_path.iterdir():
        http_server.put(f"/{path.name}", path.read_bytes())
    session = fsspec.filesystem(
        "https", client_kwargs={"headers": {"Authorization": "Bearer t"}}, skip_instance_cache=True
    )
    options = {"fs": session if fs_kind == "instance" else {"http": session}}
    with xr.open_dataset(f"{http_server.url}/a.h5{suffix}", engine="refshard", storage_options=options) as ds:
        assert float(ds["v"].sum()) == 44850
    assert {request.headers.get("authorization") for request in http_server.requests()} == {"Bearer t"}


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
@pytest.mark.filterwarnings("ignore:.*Numcodecs codecs are not in the Zarr version 3.*:UserWarning")
@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification.*")
def test_structures_and_enumerations_equal_h5py(tmp_path: Path, zarr_format: int) -> None:
    gaps = {"names": ["a", "b"], "formats": [">i2", (">f8", (2,))], "offsets": [0, 8], "itemsize": 32}
    kinds = {
        "plain": np.dtype([("a", "<i4"), ("b", "<f4", (3,)), ("c", "S1")]),
        "gaps": np.dtype(gaps),
    }
    random = np.random.default_rng(0)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, dtype in kinds.items():
            values = np.zeros(7, dtype)
            for member in dtype.names or ():
                values[member] = random.integers(0, 9, values[member].shape).astype(values[member].dtype)
            file.create_dataset(f"{name} contiguous", data=values)
            file.create_dataset(f"{name} chunked", (7,), dtype, chunks=(2,), compression="gzip", shuffle=True)[2:6] = (
                values[2:6]
            )
            file.create_dataset(f"{name} scalar", data=values[0])
        file.create_dataset("group/flag", data=[1, 5], dtype=h5py.enum_dtype({"cloud": 1, "no data": 5}, "<i2"))
        masked = file.create_dataset("masked", (4, 4), "<i4", chunks=(2, 4), compression="gzip", shuffle=True)
        masked[:] = np.arange(16).reshape(4, 4)
        masked.id.write_direct_chunk((0, 0), np.arange(8, dtype="<i4").tobytes(), filter_mask=3)
    path = write_dmrpp(tmp_path / "a.h5")
    fs = RefShardFileSystem(str(path), zarr_format=zarr_format)
    assert not fs.left_whole
    with h5py.File(tmp_path / "a.h5") as file:
        for name in (member_name for member_name in file if member_name != "group"):
            actual, expected = (
                np.asarray(open_array(path, name, zarr_format=zarr_format)[...]),
                np.asarray(file[name][()]),
            )
            little = expected.astype(
                np.dtype(
                    [(member_name, expected.dtype[member_name]) for member_name in expected.dtype.names or ()]
                    or expected.dtype
                ).newbyteorder("<")
            )
            assert actual.tobytes() == little.tobytes(), name
    flag = open_array(path, "group/flag", zarr_format=zarr_format)
    assert flag[:].tolist() == [1, 5]
    assert {"flag_values": [1, 5], "flag_meanings": "cloud no_data"}.items() <= dict(flag.attrs).items()


def test_inline_structures_and_fill_values_are_read() -> None:
    members = '<Int16 name="a"/><Float32 name="b"><Dim size="2"/></Float32><Dim size="2"/>'
    data = np.array([(1, (2, 3)), (4, (5, 6))], [("a", "<i2"), ("b", "<f4", (2,))]).tobytes()
    inline = f"<dmrpp:specialstructuredata>{base64.b64encode(data).decode()}</dmrpp:specialstructuredata>"
    files, keyspace = open_document(
        f'<Structure name="s">{members}{inline}</Structure>'
        f'<Structure name="f">{members}<dmrpp:chunks fillValue="7 8" structOffset="4 12">'
        "<dmrpp:chunkDimensionSizes>2</dmrpp:chunkDimensionSizes></dmrpp:chunks></Structure>"
        f'<Structure name="odd">{members}<dmrpp:chunks structOffset="1 12"/></Structure>'
    )
    assert files.read(keyspace, "s/0") == data
    assert files.read(keyspace, "f/0") == np.array([(7, (8, 8))] * 2, [("a", "<i2"), ("b", "<f4", (2,))]).tobytes()
    assert "structOffset" in keyspace.reports["odd"]


def test_structures_with_texts_in_the_document_are_read() -> None:
    data = base64.b64encode(b"\5\0TWpBeU13PT0=;" + b"\6\0;").decode()
    inline = f"<dmrpp:chunks/><dmrpp:specialstructuredata>{data}</dmrpp:specialstructuredata>"
    files, keyspace = open_document(
        f'<Structure name="s"><Int16 name="a"/><String name="t"/><Dim size="2"/>{inline}</Structure>'
        '<Structure name="f"><Int16 name="a"/><String name="t"/><dmrpp:chunks fillValue="0"/></Structure>'
        '<Structure name="one"><String name="t"/><dmrpp:specialstructuredata>ZUE9PTs=</dmrpp:specialstructuredata>'
        "</Structure>"
    )
    assert files.read(keyspace, "one/0") == b"x"
    assert files.read(keyspace, "s/0") == np.array([(5, b"MjAyMw=="), (6, b"")], [("a", "<i2"), ("t", "S8")]).tobytes()
    assert "member 't' is a text" in keyspace.reports["f"]


def test_length_of_texts_follows_from_their_chunks() -> None:
    size = "<dmrpp:chunkDimensionSizes>2</dmrpp:chunkDimensionSizes>"
    chunk = '<dmrpp:chunk offset="0" nBytes="6" chunkPositionInArray="[0]"/>'
    files, keyspace = open_document(
        f'<String name="a"><Dim size="3"/><dmrpp:chunks fillValue="x">{size}{chunk}</dmrpp:chunks></String>'
        '<String name="b"><Dim size="3"/><dmrpp:chunks fillValue="none"/></String>'
        '<String name="c"><Dim size="9999999999"/><dmrpp:chunks fillValue="none"/></String>'
        '<String name="d"><dmrpp:chunks fillValue="unsupported-string"/></String>',
        data=b"abcdef",
    )
    assert files.read(keyspace, "a/0") == b"abcdef"
    assert files.read(keyspace, "a/1") == b"x\0\0x\0\0"
    assert (files.read(keyspace, "b/0") or b"").count(b"none") == 3
    assert set(keyspace.reports) == {"c", "d"}


@pytest.mark.parametrize(
    ("fill", "element"), [("0", (0, (0, 0))), ("7 8 9", (7, (8, 9))), ("7 8", (7, (8, 8))), ("-1 nan 2.5", None)]
)
def test_fill_values_of_structures_are_parsed(fill: str, element: Any) -> None:
    members = '<Int16 name="a"/><Float32 name="b"><Dim size="2"/></Float32><Dim size="2"/>'
    size = "<dmrpp:chunkDimensionSizes>2</dmrpp:chunkDimensionSizes>"
    chunks = f'<dmrpp:chunks fillValue="{fill}" structOffset="4 12">{size}</dmrpp:chunks>'
    files, keyspace = open_document(f'<Structure name="f">{members}{chunks}</Structure>')
    expected = np.array([element or (-1, (np.nan, 2.5))] * 2, [("a", "<i2"), ("b", "<f4", (2,))])
    assert files.read(keyspace, "f/0") == expected.tobytes()


def test_fill_value_of_another_length_is_reported() -> None:
    members = '<Int16 name="a"/><Float32 name="b"><Dim size="2"/></Float32>'
    _, keyspace = open_document(f'<Structure name="f">{members}<dmrpp:chunks fillValue="1 2 3 4"/></Structure>')
    assert "has 4 values: expected one for each of 2 members, or 3 in all" in keyspace.reports["f"]


def test_chunks_of_linked_blocks_are_joined() -> None:
    values = np.arange(12, dtype=">i2").reshape(4, 3)
    packed = zlib.compress(values[2:].tobytes())
    data = b"xx" + packed[5:] + values[:2].tobytes()[:5] + packed[:5] + values[:2].tobytes()[5:]
    after = 2 + len(packed) - 5
    blocks = f'<dmrpp:block offset="{after}" nBytes="5"/><dmrpp:block offset="{after + 10}" nBytes="7"/>'
    chunks = (
        f'<dmrpp:chunk offset="{after + 5}" nBytes="5" chunkPositionInArray="[2,0]" LinkedBlockIndex="0"/>'
        f'<dmrpp:chunk offset="2" nBytes="{len(packed) - 5}" chunkPositionInArray="[2,0]" LinkedBlockIndex="1"/>'
    )
    size = "<dmrpp:chunkDimensionSizes>2 3</dmrpp:chunkDimensionSizes>"
    files, keyspace = open_document(
        f'<Int16 name="a"><Dim size="2"/><Dim size="3"/><dmrpp:chunks byteOrder="BE">{blocks}</dmrpp:chunks></Int16>'
        '<Int16 name="b"><Dim size="4"/><Dim size="3"/><dmrpp:chunks byteOrder="BE" compressionType="deflate" '
        f'LBChunk="true">{size}{chunks}</dmrpp:chunks></Int16>',
        data=data,
    )
    assert files.read(keyspace, "a/0.0") == values[:2].tobytes()
    assert files.read(keyspace, "b/1.0") == values[2:].tobytes()
    assert files.read(keyspace, "b/0.0") is None


def test_unsupported_variables_are_reported() -> None:
    _, keyspace = open_document(
        '<Int16 name="a"><dmrpp:chunks compressionType="szip"/></Int16>'
        '<Int16 name="g"><dmrpp:chunks fillValue="99999"/></Int16>'
        '<Int16 name="b"><dmrpp:chunk offset="0" nBytes="2" fm="x"/></Int16><Enum name="i" enum="/none"/>'
        '<Int16 name="c"/><Structure name="d"><String name="inner"/></Structure><Sequence name="j"/>'
        '<String name="e"><Dim size="2"/><dmrpp:chunks compressionType="deflate"/></String>'
        '<Int16 name="f"><dmrpp:chunks><dmrpp:chunk offset="0" nBytes="2" LinkedBlockIndex="1"/></dmrpp:chunks></Int16>'
        '<Int16 name=".zattrs"><dmrpp:chunk offset="0" nBytes="2"/></Int16>'
        '<Float64 name="h"><Dim size="2"/><dmrpp:chunks compressionType="fletcher32 shuffle"/></Float64>'
    )
    assert not keyspace.grids
    words = {
        "a": "szip",
        "b": "fm",
        "c": "expected its chunks, its bytes or its values",
        "d": "expected its chunks, its bytes or its values",
        "e": "text",
        "f": "block",
        "i": "the Enumeration '/none', to which it refers",
        "j": "Sequence",
        "h": "with a checksum of 4 bytes",
        ".zattrs": "name",
    }
    assert {path: word in keyspace.reports[path] for path, word in words.items()} == dict.fromkeys(words, True)


CHUNKED = (
    '<Int16 name="a"><Dim name="/x"/><dmrpp:chunks {}><dmrpp:chunkDimensionSizes>{}</dmrpp:chunkDimensionSizes>'
    '<dmrpp:chunk offset="{}" nBytes="{}" chunkPositionInArray="{}"/>{}</dmrpp:chunks></Int16>'
)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (("", "2", "0", "4", "[1]", ""), r"begins at \[1\]: "),
        (("", "2", "0", "4", "[6]", ""), r"begins at \[6\]: "),
        (("", "2", "0", "4", "[0,0]", ""), r"begins at \[0,0\]"),
        (("", "0", "0", "4", "[0]", ""), "sizes"),
        (("", "2 2", "0", "4", "[0]", ""), "sizes"),
        (("", "2", "0", "5", "[0]", ""), "have 5 to 5 bytes"),
        (('compressionType="deflate"', "2", "0", "9999999", "[0]", ""), "have 9999999 to 9999999 bytes"),
        (("", "2", "9223372036854775807", "4", "[0]", ""), "to end before byte"),
        (("", "2", "-4", "4", "[0]", ""), "offset is '-4'"),
        (
            ("", "2", "0", "4", "[0]", '<dmrpp:chunk offset="8" nBytes="4" chunkPositionInArray="[0]"/>'),
            "chunk 0 twice",
        ),
    ],
)
def test_chunks_at_impossible_places_are_reported(parts: tuple[str, ...], reason: str) -> None:
    check_report('<Dimension name="x" size="5"/>' + CHUNKED.format(*parts), "a", reason)


def check_report(body: str, path: str, reason: str) -> None:
    """Check that other variables can be read, and that a read of ``path`` raises an error with the reason."""
    files, keyspace = open_document(body + '<Int8 name="good"><dmrpp:chunk offset="0" nBytes="1"/></Int8>', data=b"7")
    assert list(keyspace.grids) == ["good"]
    assert files.read(keyspace, "good/0") == b"7"
    assert re.search(reason, keyspace.reports[path])
    for name in (".zarray", "0"):
        with pytest.raises(ManifestError, match=reason):
            files.read(keyspace, f"{path}/{name}")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            '<Int16 name="a"><Dim name="/y"/><dmrpp:chunk offset="0" nBytes="2"/></Int16>',
            "the Dimension 'y', to which it refers",
        ),
        (
            '<Dimension name="y" size="-1"/><Int16 name="a"><Dim name="/y"/></Int16>',
            "expected its chunks, its bytes or its values",
        ),
        ('<Int16 name="a"><Dim/></Int16>', "expected a name or a size"),
        ('<Int16 name="a"/><Int16 name="a"/>', "another variable"),
        ('<Group name="a"/><Int16 name="a"/>', "a group of the same name"),
        ('<Int16 name="a"><dmrpp:compact>!</dmrpp:compact></Int16>', "base64"),
        ('<Int16 name="a"><Dim size="3"/><dmrpp:compact>AAA=</dmrpp:compact></Int16>', "expected 6"),
        ('<Int16 name="a"><dmrpp:missingdata>AAAAAA==</dmrpp:missingdata></Int16>', "expected a zlib stream"),
        ('<String name="a"><dmrpp:vlsa><v c="9999999999">x</v></dmrpp:vlsa></String>', "texts"),
        ('<String name="a"><dmrpp:vlsa><v s="9">AAAA</v></dmrpp:vlsa></String>', "decompress"),
        ('<String name="a"><Dim size="2"/><dmrpp:vlsa>eA==;eQ==;</dmrpp:vlsa></String>', "0 texts"),
        ('<Int16 name="a"><Dim size="3"/><dmrpp:chunk offset="0" nBytes="2"/></Int16>', "expected 3 elements of 2"),
        ('<Group name="a/b"><Int16 name="c"/></Group>', "that can be part of a key"),
    ],
)
def test_contradictory_variables_are_reported(body: str, reason: str) -> None:
    if "Group" in body:
        _, keyspace = open_document(body)
        assert not keyspace.grids
        assert any(reason in report for report in keyspace.reports.values())
    else:
        check_report(body, "a", reason)


def test_padding_of_texts_is_removed() -> None:
    texts = "<String name='t'><Dim size='2'/>{}<dmrpp:FixedLengthStringArray string_length='3' pad='{}'/></String>"
    chunk = "<dmrpp:chunks {}><dmrpp:chunkDimensionSizes>2</dmrpp:chunkDimensionSizes>{}</dmrpp:chunks>"
    chunk_format = '<dmrpp:chunk offset="0" nBytes="{}" chunkPositionInArray="[0]"/>'
    for padding, raw in (
        ("space_pad", b"a  bc "),
        ("null_term", b"a\0xbc\0"),
        ("null_pad", b"a\0\0bc\0"),
        ("", b"a  bc "),
    ):
        expected = b"a  bc " if not padding else b"a\0\0bc\0"
        files, keyspace = open_document(texts.format(chunk_format.format(6), padding), data=raw)
        assert files.read(keyspace, "t/0") == expected
        deflated = zlib.compress(raw)
        body = texts.format(chunk.format("compressionType='deflate'", chunk_format.format(len(deflated))), padding)
        files, keyspace = open_document(body, data=deflated)
        actual = files.read(keyspace, "t/0") or b""
        assert (actual if padding in ("space_pad", "null_term") else zlib.decompress(actual)) == expected
    for fill in ("aa", "é"):
        files, keyspace = open_document(texts.format(chunk.format(f"fillValue='{fill}'", ""), "null_term"))
        assert np.frombuffer(files.read(keyspace, "t/0") or b"", "S3").tolist() == [fill.encode()] * 2
    chunks = chunk.format("fillValue='unsupported-string'", chunk_format.format(6))
    files, keyspace = open_document(texts.format(chunks, "null_pad"), data=b"abcdef")
    assert files.read(keyspace, "t/0") == b"abcdef"
    files, keyspace = open_document(texts.format(chunk.format("fillValue='unsupported-string'", ""), "null_term"))
    with pytest.raises(ManifestError, match="never written, and its fillValue is 'unsupported-string'"):
        files.read(keyspace, "t/0")


def test_texts_that_may_be_references_are_reported() -> None:
    _, keyspace = open_document(
        '<String name="t"><Dim size="2"/><dmrpp:chunk offset="0" nBytes="32"/></String>', data=bytes(32)
    )
    assert "references to texts" in keyspace.reports["t"]


def test_damaged_document_opens_or_is_a_refshard_error(tmp_path: Path) -> None:
    data = write_file(tmp_path / "air.nc").read_bytes()
    rng = np.random.default_rng(0)
    for length in rng.integers(600, len(data) - 12, 40).tolist():
        with pytest.raises(ManifestError, match="whole XML document"):
            Files({ROOT: data[:length]}).open("dmrpp")
    failed = 0
    for bit in rng.integers(0, len(data) * 8, 200).tolist():
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            Files({ROOT: bytes(flipped), "files://x.nc": b""}).open("dmrpp", target="files://x.nc")
        except RefShardError as e:
            failed += 1
            assert ROOT in str(e)
    assert failed
