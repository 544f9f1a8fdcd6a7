"""HDF5 files as sources: what opening and reading them asks for, and that commands and sets take them as others."""

from __future__ import annotations

import gzip
import json
import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import ManifestError, NotListable, RefShardError, RefShardFileSystem, check
from refshard_fs.cli import main
from refshard_fs.core.zarrmeta import zarr_major
from refshard_fs.formats.hdf5 import heaps
from refshard_fs.source.collect import collected
from tests.servers.http import RangeServer
from tests.support.files_of_arrays import check_commands
from tests.support.shards_in_memory import Files

h5py = pytest.importorskip("h5py")
xr = pytest.importorskip("xarray")

STEPS = 300


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of four variables that was written step by step, so that its index lies among its chunks."""
    path = tmp_path_factory.mktemp("hdf5") / "steps.nc"
    rng = np.random.default_rng(0)
    with h5py.File(path, "w", libver=("earliest", "v108")) as file:
        scales = {"time": STEPS, "lat": 30, "lon": 40}
        for name, size in scales.items():
            file.create_dataset(name, (size,), "f8", maxshape=(None,) if name == "time" else None)
            file[name].make_scale(name)
        file["time"].attrs["units"] = "hours since 2000-01-01"
        for name in "abcd":
            file.create_dataset(name, (0, 30, 40), "f4", maxshape=(None, 30, 40), chunks=(1, 30, 40))
            for axis, scale in enumerate(scales):
                file[name].dims[axis].attach_scale(file[scale])
        for step in range(STEPS):
            file["time"][step] = step
            for name in "abcd":
                file[name].resize(step + 1, 0)
                file[name][step] = rng.random((30, 40))
    return path


@pytest.fixture
def served(http_server: RangeServer, steps: Path) -> str:
    url = http_server.put("/steps.nc", steps.read_bytes())
    http_server.clear()
    return url


def bytes_seen(server: RangeServer) -> int:
    """Return how many bytes a server was asked for."""
    return sum(request.sent for request in server.requests())


def test_one_step_is_read_in_few_rounds_and_few_bytes(served: str, http_server: RangeServer, steps: Path) -> None:
    with xr.open_dataset(served, engine="refshard") as found:
        values = found["c"][150].values
    assert bytes_seen(http_server) < 150_000
    with xr.open_dataset(steps, engine="h5netcdf") as expected:
        assert (values == expected["c"][150].values).all()
    files = Files.of(steps)
    keyspace = files.open()
    assert files.rounds <= 3  # and one for the coordinates
    assert files.read(keyspace, "c/150.0.0")
    assert files.rounds <= 6  # and one for the chunk


def test_every_node_of_the_index_is_read_once(served: str, http_server: RangeServer, steps: Path) -> None:
    fs = RefShardFileSystem(served)
    fs.ls("")
    http_server.clear()
    grid = [f"c/{step}.0.0" for step in range(STEPS)]
    places = [fs.resolve(key)[1:] for key in grid]
    assert {stop - start for start, stop in places} == {4800}
    nodes = [request.start for request in http_server.requests()]
    assert len(nodes) == len(set(nodes)) <= 8
    http_server.clear()
    fs.resolve("c/7.0.0")
    assert http_server.requests() == []


def test_the_whole_index_is_read_in_few_rounds(
    served: str, http_server: RangeServer, steps: Path, tmp_path: Path
) -> None:
    RefShardFileSystem(served).save(str(tmp_path / "refs.json"))
    assert bytes_seen(http_server) < steps.stat().st_size / 30
    files = Files.of(steps)
    files.run(collected(files.open()))
    assert files.rounds <= 8
    with xr.open_dataset(steps, engine="h5netcdf") as expected:
        found = xr.open_dataset(tmp_path / "refs.json", engine="refshard")
        xr.testing.assert_identical(found.load(), expected.load())


@pytest.mark.parametrize(("libver", "most"), [("latest", 9), ("earliest", 6)])
def test_many_groups_and_variables_are_opened_in_few_rounds(libver: str, most: int, tmp_path: Path) -> None:
    path = tmp_path / "groups.h5"
    with h5py.File(path, "w", libver=libver, track_order=libver == "latest") as file:
        for group in range(10):
            for name in range(25):
                file[f"group{group}/variable{name}"] = np.full(3000, name, "f8")
                for attribute in range(12):
                    file[f"group{group}/variable{name}"].attrs[f"attribute{attribute}"] = f"text {attribute} of {name}"
    files = Files.of(path)
    keyspace = files.open()
    assert files.rounds <= most
    assert b"text 11 of 24" in (files.read(keyspace, "group9/variable24/.zattrs") or b"")
    whole = Files.of(path)
    whole.open(head=path.stat().st_size)
    assert whole.rounds == 1
    with pytest.raises(ValueError, match="head=100"):
        RefShardFileSystem(str(path), head=100)


def test_commands_and_sets_take_files_as_they_take_sets(
    steps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refs = check_commands(steps, tmp_path, capsys, "lat")
    with xr.open_dataset(steps, engine="h5netcdf") as expected:
        for source in (steps, refs, steps.read_bytes()):
            with xr.open_dataset(source if isinstance(source, bytes) else str(source), engine="refshard") as found:
                xr.testing.assert_identical(found.load(), expected.load())


def test_a_file_in_an_archive_or_after_a_user_block_is_the_same(steps: Path, tmp_path: Path) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(steps, "in/steps.nc")
    moved = tmp_path / "moved.nc"
    moved.write_bytes(bytes(1024) + steps.read_bytes())
    expected = RefShardFileSystem(str(steps)).cat_file("b/17.0.0")
    for source in (f"zip://in/steps.nc::{archive}", str(moved)):
        assert RefShardFileSystem(source).cat_file("b/17.0.0") == expected, source


def test_a_file_behind_a_reference_is_the_same(tmp_path: Path) -> None:
    plain, refs, blob = tmp_path / "a.nc", tmp_path / "refs.json", tmp_path / "blob.bin"
    xr.Dataset({"v": ("x", np.arange(10.0))}).to_netcdf(plain, engine="h5netcdf")
    data = plain.read_bytes()
    blob.write_bytes(b"before" + data + b"behind")
    refs.write_text(json.dumps({"version": 1, "refs": {"inner.nc": [str(blob), 6, len(data)]}}))
    fs = RefShardFileSystem("reference://inner.nc", target_options={"fo": str(refs)})
    assert fs.cat_file("v/0") == RefShardFileSystem(str(plain)).cat_file("v/0") == np.arange(10.0).tobytes()


def test_snapshots_and_differences_are_made_of_files_as_of_sets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, snapshot = (str(tmp_path / name) for name in ("old.nc", "new.nc", "snapshot.json"))
    for path, start in ((old, 0.0), (new, 5.0)):
        xr.Dataset({"v": ("x", np.arange(10.0) + start)}).to_netcdf(path, engine="h5netcdf")
    assert main(["snapshot", old, snapshot]) == 0
    assert main(["check", snapshot]) == 0
    assert main(["diff", old, old]) == 0
    capsys.readouterr()
    assert main(["diff", old, new]) == 1
    assert "v/0" in capsys.readouterr().out


def test_what_cannot_be_opened_in_place_says_what_to_do(steps: Path, tmp_path: Path) -> None:
    packed = tmp_path / "steps.nc.gz"
    with gzip.open(packed, "wb", 1) as file, steps.open("rb") as plain:
        shutil.copyfileobj(plain, file)
    with pytest.raises(ManifestError, match=r"gzip compressed as a whole.*Decompress it"):
        RefShardFileSystem(str(packed)).ls("")
    cut = tmp_path / "cut.nc"
    cut.write_bytes(steps.read_bytes()[:-1])
    with pytest.raises(ManifestError, match="cut short"):
        RefShardFileSystem(str(cut)).ls("")


def test_links_are_followed_within_the_file_and_others_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "links.h5"
    with h5py.File(path, "w") as file:
        file["group/values"] = np.arange(5)
        file["soft"] = h5py.SoftLink("/group/values")
        file["soft_group"] = h5py.SoftLink("group")
        file["chain"] = h5py.SoftLink("/soft_group/values")
        file["hard"] = file["group/values"]
        file["group/loop"] = file["group"]
        file["group/up"] = h5py.SoftLink("/")
        file["nowhere"] = h5py.SoftLink("/nothing")
        file["outside"] = h5py.ExternalLink("other.h5", "/x")
    fs = RefShardFileSystem(str(path))
    expected = np.arange(5).tobytes()
    for name in ("group/values", "soft", "soft_group/values", "chain", "hard"):
        assert fs.cat_file(f"{name}/0") == expected, name
    reports: dict[str, Any] = dict(fs.left_whole)
    assert set(reports) == {f"{name}/{link}" for name in ("group", "soft_group") for link in ("loop", "up")} | {
        "nowhere",
        "outside",
    }
    assert "/x in other.h5" in reports["outside"]
    assert main(["check", str(path)]) == 0
    assert "outside: it is not shown: it is an external link" in capsys.readouterr().out


def test_texts_that_the_attributes_of_many_objects_share_are_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        for number in range(50):
            file.create_dataset(f"v{number}", data=[number]).attrs["units"] = "m"
    parsed: list[int] = []

    def counted(data: bytes, sizes: Any) -> Any:
        parsed.append(len(data))
        return parse_collection(data, sizes)

    parse_collection = heaps.parse_collection
    monkeypatch.setattr(heaps, "parse_collection", counted)
    Files.of(path).open()
    assert 0 < len(parsed) < 10


@pytest.mark.parametrize("name", ["a", "z"])  # before and after the scale's own
def test_a_dimension_is_not_called_as_a_soft_link_to_its_scale(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        file["m"], file["v"] = np.arange(3.0), np.arange(3)
        file["m"].make_scale("m")
        file["v"].dims[0].attach_scale(file["m"])
        file[name] = h5py.SoftLink("/m")
    attributes = json.loads(RefShardFileSystem(str(path)).cat_file("v/.zattrs"))
    assert attributes["_ARRAY_DIMENSIONS"] == ["m"]  # as h5netcdf has it


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_long_and_sparse_indexes_tell_of_the_chunks_that_were_written(libver: str, tmp_path: Path) -> None:
    cases: dict[str, tuple[tuple[int, ...], tuple[int | None, ...], tuple[int, ...]]] = {
        "pages": ((5000,), (5000,), (1,)),
        "sparse_pages": ((50000,), (60000,), (2,)),
        "extensible": ((9000,), (None,), (1,)),
        "sparse_extensible": ((3_000_000,), (None,), (2,)),
        "second_grows": ((40, 1700, 30), (50, None, 33), (7, 3, 4)),
        "both_grow": ((300, 400), (None, None), (30, 4)),
        "shrunk": ((100, 100), (None, 200), (3, 7)),
    }
    rng = np.random.default_rng(1)
    path = tmp_path / "indexes.h5"
    written: dict[str, set[str]] = {}
    with h5py.File(path, "w", libver=libver) as file:
        for name, (shape, maxshape, chunks) in cases.items():
            made = file.create_dataset(name, shape, "i4", maxshape=maxshape, chunks=chunks)
            cells = [tuple(int(rng.integers(0, extent)) for extent in shape) for _ in range(60)]
            for cell in cells:
                made[cell] = 7
            if name in ("pages", "extensible"):
                made[:] = rng.integers(0, 100, shape)
                cells = [(cell,) for cell in range(shape[0])]
            kept = (50, 10) if name == "shrunk" else shape
            starts = [tuple(at // size * size for at, size in zip(cell, chunks, strict=True)) for cell in cells]
            starts = [start for start in starts if all(at < extent for at, extent in zip(start, kept, strict=True))]
            written[name] = {
                ".".join(str(at // size) for at, size in zip(start, chunks, strict=True)) for start in starts
            }
        file["shrunk"].resize((50, 10))
    fs = RefShardFileSystem(str(path))
    with h5py.File(path) as file:
        for name, (_, _, chunks) in cases.items():
            if zarr_major() == 2 and name == "sparse_extensible":
                with pytest.raises(NotListable, match=f"1500000 chunks, of which {len(written[name])} were written"):
                    fs.ls(name)
                listed = written[name] | {"3", "1499999"}
            else:
                listed = {key.rpartition("/")[2] for key in fs.ls(name, detail=False)} - {".zarray", ".zattrs"}
            if zarr_major() == 2:  # which leaves a missing chunk uninitialised: all are shown
                assert listed >= written[name], name
            else:
                assert listed == written[name], name
            for key in sorted(listed)[:: max(len(listed) // 100, 1)]:
                steps = zip(key.split("."), chunks, strict=True)
                expected = file[name][tuple(slice(int(n) * size, (int(n) + 1) * size) for n, size in steps)]
                chunk = np.frombuffer(fs.cat_file(f"{name}/{key}"), "<i4").reshape(chunks)
                assert (chunk[tuple(map(slice, expected.shape))] == expected).all(), (name, key)


def test_an_index_whose_chunks_were_all_removed_tells_of_none(tmp_path: Path) -> None:
    """The header of a fixed array then counts elements for which the file never had room."""
    path = tmp_path / "emptied.h5"
    with h5py.File(path, "w", libver="latest") as file:
        made = file.create_dataset("a", (69, 82), "u1", maxshape=(69, 82), chunks=(1, 1), fillvalue=54)
        made[60:, 60:] = 5
        made.resize((69, 42))
    fs = RefShardFileSystem(str(path))
    assert path.stat().st_size < 69 * 82
    assert fs.cat_file("a/68.41") == b"\x36"


@pytest.mark.parametrize("version", [1, 2])
def test_a_fill_value_of_the_size_minus_one_is_none(version: int, tmp_path: Path) -> None:
    path = tmp_path / "undefined.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("a", (4,), "<i4", chunks=(2,), fillvalue=7)[:2] = 5
    data = bytearray(path.read_bytes())
    size = data.index(b"\4\0\0\0\7\0\0\0")
    data[size : size + 4] = b"\xff" * 4
    data[size - 4] = version
    path.write_bytes(data)
    with h5py.File(path) as file:
        expected = file["a"][:2]
    assert RefShardFileSystem(str(path)).cat_file("a/0") == expected.tobytes()


def test_a_huge_chunk_that_was_never_written_is_not_made(tmp_path: Path) -> None:
    """Its bytes would be made of nothing: few of the file claim any number of them."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, size in (("huge", (64 << 20) + 1), ("large", 1 << 20)):
            made = file.create_dataset(name, (size,), "u1", chunks=(size,), compression="gzip")
            made.attrs["_FillValue"] = np.uint8(7)  # which readers of zarr would take a missing chunk for
    fs = RefShardFileSystem(str(tmp_path / "a.h5"), skip_instance_cache=True)
    assert len(fs.cat_file("large/0")) < 1 << 16
    with pytest.raises(RefShardError, match="'huge/0'.* never written: they are too many to make"):
        fs.cat_file("huge/0")


def test_files_are_concatenated_and_appended_as_sets_are(tmp_path: Path) -> None:
    parts = []
    for number in range(3):
        values = np.arange(200, dtype="f4").reshape(10, 20) + number
        variables = {"v": (("time", "x"), values), "time": ("time", np.arange(10.0) + 10 * number)}
        parts.append(tmp_path / f"{number}.nc")
        encoding = {"v": {"zlib": True, "chunksizes": (5, 20)}, "time": {"chunksizes": (10,)}}
        xr.Dataset(variables).to_netcdf(parts[-1], engine="h5netcdf", unlimited_dims=["time"], encoding=encoding)
    whole, lazy = str(tmp_path / "whole.json"), str(tmp_path / "lazy.json")
    first, second, third = map(str, parts)
    assert main(["concat", first, second, "--dim", "time", "-o", whole]) == 0
    assert main(["append", whole, third, "--dim", "time"]) == 0
    assert main(["concat", first, second, third, "--dim", "time", "--lazy", "-o", lazy]) == 0
    expected = xr.concat([xr.open_dataset(part, engine="h5netcdf").load() for part in parts], "time")
    for made in (whole, lazy):
        with xr.open_dataset(made, engine="refshard") as found:
            xr.testing.assert_identical(found.load(), expected)


def with_old_shared_datatype(data: bytes, header: int, shared: int) -> bytes:
    """Return a file whose object at ``header`` shares the datatype at ``shared`` as HDF5 1.2 to 1.4 wrote it."""
    count, links, size = struct.unpack_from("<HII", data, header + 2)
    messages, at = b"", header + 16
    for _ in range(count):
        kind, length, flags = struct.unpack_from("<HHB", data, at)
        body = data[at + 8 : at + 8 + length]
        at += 8 + length
        if kind == 3:
            assert flags & 2
            body = struct.pack("<BB6xQQ", 1, 0, 16, shared)  # with the offset of a name
        messages += struct.pack("<HHB3x", kind, len(body), flags) + body
    assert at == header + 16 + size
    moved = len(data) + -len(data) % 8
    out = bytearray(data.ljust(moved, b"\0"))
    out += struct.pack("<BBHII4x", 1, 0, count, links, len(messages)) + messages
    link = struct.pack("<Q", header)
    assert out.count(link) == 1
    out = out.replace(link, struct.pack("<Q", moved))
    struct.pack_into("<Q", out, 40, len(out))
    return bytes(out)


def test_datatypes_that_objects_share_are_read_and_not_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "shared.h5"
    with h5py.File(path, "w") as file:
        file["type"] = np.dtype("<f4")
        file.create_dataset("d", (3,), dtype=file["type"], track_times=False)[:] = [1, 2, 3]
        header, shared = (h5py.h5o.get_info(file[name].id).addr for name in ("d", "type"))
    for data in (path.read_bytes(), with_old_shared_datatype(path.read_bytes(), header, shared)):
        path.write_bytes(data)
        with h5py.File(path) as file:
            assert file["d"][:].tolist() == [1, 2, 3]
        fs = RefShardFileSystem(str(path), skip_instance_cache=True)
        assert np.frombuffer(fs.cat_file("d/0"), "<f4").tolist() == [1, 2, 3]
        assert fs.left_whole == {}
        assert not check(fs).findings


def test_attributes_of_one_element_are_as_stored_and_single_to_xarray(tmp_path: Path) -> None:
    path = tmp_path / "single.h5"
    text = h5py.string_dtype()
    with h5py.File(path, "w") as file:
        file.attrs["order"] = np.array(["root"], text)
        file["d"] = np.zeros(3)
        given = {"n": np.array([1.5]), "order": np.array(["sym"], text), "units": np.array(["K"], text), "s": 2}
        file["d"].attrs.update(given)
    stored = {"n": [1.5], "order": ["sym"], "units": "K", "s": 2, "_ARRAY_DIMENSIONS": ["phony_dim_0"]}
    fs = RefShardFileSystem(str(path))
    assert json.loads(fs.cat_file("d/.zattrs")) == stored
    assert json.loads(fs.cat_file(".zattrs")) == {"order": ["root"]}
    with (
        xr.open_dataset(path, engine="refshard") as got,
        xr.open_dataset(path, engine="h5netcdf", phony_dims="sort") as want,
    ):
        assert got.attrs == want.attrs
        assert got["d"].attrs == want["d"].attrs == {"n": 1.5, "order": "sym", "units": "K", "s": 2}
    with h5py.File(path, "a") as file:
        file["d"].make_scale("d")
    fs = RefShardFileSystem(str(path), skip_instance_cache=True)
    assert json.loads(fs.cat_file("d/.zattrs"))["n"] == 1.5


def test_a_scale_of_another_length_is_no_dimension(tmp_path: Path) -> None:
    path = tmp_path / "odd.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(8.0)
        file["x"].make_scale("x")
        for name, size in (("good", 8), ("odd", 4)):
            file[name] = np.arange(size)
            file[name].dims[0].attach_scale(file["x"])
    with xr.open_dataset(path, engine="refshard") as ds:
        assert ds["good"].dims == ("x",)
        assert ds["odd"].dims == ("phony_dim_0",)
        assert ds["odd"].values.tolist() == [0, 1, 2, 3]


def test_texts_of_attributes_keep_their_shape(tmp_path: Path) -> None:
    path = tmp_path / "texts.h5"
    texts = np.array([["a", "bc"], ["d", ""], ["e", "f"]], object)
    with h5py.File(path, "w") as file:
        file.attrs.create("texts", texts, dtype=h5py.string_dtype())
        file.attrs["fixed"] = np.array([[b"ab", b"c"]])
        file["d"] = 1
    attributes = json.loads(RefShardFileSystem(str(path)).cat_file(".zattrs"))
    assert attributes == {"texts": texts.tolist(), "fixed": ["ab", "c"]}
    with (
        xr.open_dataset(path, engine="refshard") as got,
        xr.open_dataset(path, engine="h5netcdf", phony_dims="sort") as want,
    ):
        assert {name: np.asarray(value).tolist() for name, value in want.attrs.items()} == got.attrs
