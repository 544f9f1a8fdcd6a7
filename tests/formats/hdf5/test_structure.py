"""Attributes keep the shape of their texts, and sizes in a file are compared with the file's size."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import RefShardFileSystem, check
from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf5 import heaps
from refshard_fs.formats.hdf5.structure import parse_attribute
from tests.support.hdf5_comparison import check_attributes, open_arrays
from tests.support.hdf5_messages import make_file_of_shared_messages, open_in_memory
from tests.support.memory import check_peak
from tests.support.shards_in_memory import ROOT, Files

h5py = pytest.importorskip("h5py")
xr = pytest.importorskip("xarray")
DIMS = ["phony_dim_0", "phony_dim_1"]


def test_global_heap_is_parsed_few_times_for_many_attributes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        for number in range(50):
            file.create_dataset(f"v{number}", data=[number]).attrs["units"] = "m"
    lengths: list[int] = []

    def parse_and_count(data: bytes, sizes: Any) -> Any:
        lengths.append(len(data))
        return parse_collection(data, sizes)

    parse_collection = heaps.parse_collection
    monkeypatch.setattr(heaps, "parse_collection", parse_and_count)
    Files.of(path).open()
    assert 0 < len(lengths) < 10


def share_datatype_as_old_hdf5(data: bytes, header: int, shared: int) -> bytes:
    """Make the object at ``header`` share the datatype at ``shared``, as HDF5 1.2 to 1.4 did. Return the new file."""
    count, links, size = struct.unpack_from("<HII", data, header + 2)
    messages, position = b"", header + 16
    for _ in range(count):
        kind, length, flags = struct.unpack_from("<HHB", data, position)
        body = data[position + 8 : position + 8 + length]
        position += 8 + length
        if kind == 3:
            assert flags & 2
            body = struct.pack("<BB6xQQ", 1, 0, 16, shared)  # 16 is the offset of a name, which readers ignore
        messages += struct.pack("<HHB3x", kind, len(body), flags) + body
    assert position == header + 16 + size
    new_header = len(data) + -len(data) % 8
    result = bytearray(data.ljust(new_header, b"\0"))
    result += struct.pack("<BBHII4x", 1, 0, count, links, len(messages)) + messages
    link = struct.pack("<Q", header)
    assert result.count(link) == 1
    result = result.replace(link, struct.pack("<Q", new_header))
    struct.pack_into("<Q", result, 40, len(result))
    return bytes(result)


def test_shared_datatypes_are_read_without_findings(tmp_path: Path) -> None:
    path = tmp_path / "shared.h5"
    with h5py.File(path, "w") as file:
        file["type"] = np.dtype("<f4")
        file.create_dataset("d", (3,), dtype=file["type"], track_times=False)[:] = [1, 2, 3]
        header, shared = (h5py.h5o.get_info(file[name].id).addr for name in ("d", "type"))
    for data in (path.read_bytes(), share_datatype_as_old_hdf5(path.read_bytes(), header, shared)):
        path.write_bytes(data)
        with h5py.File(path) as file:
            assert file["d"][:].tolist() == [1, 2, 3]
        fs = RefShardFileSystem(str(path), skip_instance_cache=True)
        assert np.frombuffer(fs.cat_file("d/0"), "<f4").tolist() == [1, 2, 3]
        assert fs.left_whole == {}
        assert not check(fs).findings


@pytest.mark.parametrize("low", ["earliest", "latest"])
@pytest.mark.parametrize("types", [[1 << 1 | 1 << 3 | 1 << 5 | 1 << 11 | 1 << 12], [1 << 3, 1 << 5 | 1 << 11, 1 << 12]])
def test_shared_messages_are_read(types: list[int], low: str, tmp_path: Path) -> None:
    """Objects share dataspaces, datatypes, fill values, filters and attributes, in and outside of headers."""
    path = tmp_path / "table.h5"
    with make_file_of_shared_messages(types, low) as file:
        for number in range(60):
            options = {"chunks": (2, 5), "compression": "gzip", "shuffle": True, "fillvalue": 2.5}
            dataset = file.create_dataset(f"d{number}", (4, 5), "f8", **options)
            dataset[:2] = number
            dataset.attrs.update({"units": "a long text of units", "v": np.array(["x", "y"], h5py.string_dtype())})
        for number in range(12):
            dataset.attrs[f"many{number}"] = np.arange(9) + number
        file.flush()
        path.write_bytes(file.id.get_file_image())
    fs, arrays = open_arrays(path)
    assert not fs.left_whole
    with h5py.File(path) as file:
        for name, dataset in file.items():
            assert (arrays[name][...] == dataset[...]).all()
            check_attributes(json.loads(fs.cat(f"{name}/.zattrs")), {**dataset.attrs, "_ARRAY_DIMENSIONS": DIMS}, name)


def test_text_attributes_keep_their_shape(tmp_path: Path) -> None:
    path = tmp_path / "texts.h5"
    texts = np.array([["a", "bc"], ["d", ""], ["e", "f"]], object)
    with h5py.File(path, "w") as file:
        file.attrs.create("texts", texts, dtype=h5py.string_dtype())
        file.attrs["fixed"] = np.array([[b"ab", b"c"]])
        file["d"] = 1
    attributes = json.loads(RefShardFileSystem(str(path)).cat_file(".zattrs"))
    assert attributes == {"texts": texts.tolist(), "fixed": ["ab", "c"]}
    with (
        xr.open_dataset(path, engine="refshard") as actual,
        xr.open_dataset(path, engine="h5netcdf", phony_dims="sort") as expected,
    ):
        assert {name: np.asarray(value).tolist() for name, value in expected.attrs.items()} == actual.attrs


def test_attribute_of_millions_of_empty_rows_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        file.attrs.create("none", np.empty((1 << 26, 0)))
    with check_peak(4 << 20):
        assert json.loads(RefShardFileSystem(str(path)).cat_file(".zattrs")) == {"none": []}


def test_datasets_of_huge_elements_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("large", (1,), h5py.string_dtype(length=1 << 29), chunks=(1,))
        file["small"] = 1
    with check_peak(4 << 20):
        fs = RefShardFileSystem(str(path))
        assert fs.exists("small/.zarray")
        assert f"have {1 << 29} bytes" in fs.left_whole["large"]


def test_unreadable_attribute_is_reported() -> None:
    with open_in_memory() as file:
        for name in ("note", "scale_factor"):
            file.create_dataset(f"d_{name}", data=np.arange(3)).attrs[name] = 2.5
            file.create_group(f"g_{name}").attrs[name] = 2.5
            file[f"d_{name}"].attrs["other"] = 1
        file.flush()
        data = bytes(file.id.get_file_image())
    for name in (b"note", b"scale_factor"):  # the datatype after the name becomes an unknown one
        data = re.sub(name + rb"\0+\x11(?=\x20\x3f\0)", lambda match: match[0][:-1] + b"\xff", data)
    files = Files({ROOT: data})
    keyspace = files.open()
    assert set(keyspace.grids) == {"d_note"}
    assert b'"other":1' in (files.read(keyspace, "d_note/.zattrs") or b"")
    assert set(keyspace.reports) == {
        "attribute 'note' of 'd_note'",
        "attribute 'note' of 'g_note'",
        "attribute 'scale_factor' of 'g_scale_factor'",
        "d_scale_factor",
    }


def test_short_attribute_message_is_an_error() -> None:
    with pytest.raises(ValueError, match="an attribute has 5 bytes: expected at least 8"):
        parse_attribute(bytes(5))


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_parts_of_a_family_are_refused_until_joined(tmp_path: Path, libver: str) -> None:
    values = np.arange(4000)
    with h5py.File(tmp_path / "part%d.h5", "w", driver="family", memb_size=4096, libver=libver) as file:
        file["a"] = values
    with pytest.raises(ManifestError, match="the first of several files of 4096 bytes.* cat NAME0.h5"):
        RefShardFileSystem(str(tmp_path / "part0.h5")).ls("")
    parts = sorted(tmp_path.glob("part*.h5"))
    assert len(parts) == 9
    (tmp_path / "joined.h5").write_bytes(b"".join(part.read_bytes() for part in parts))
    assert RefShardFileSystem(str(tmp_path / "joined.h5")).cat("a/0") == values.tobytes()


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_file_of_the_split_driver_is_refused(tmp_path: Path, libver: str) -> None:
    with h5py.File(tmp_path / "parts", "w", driver="split", libver=libver) as file:
        file["a"] = np.arange(4000)
    with pytest.raises(ManifestError, match="split or multi driver .* driver='split'"):
        RefShardFileSystem(str(tmp_path / "parts-m.h5")).ls("")


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_file_that_is_cut_short_is_refused(tmp_path: Path, libver: str) -> None:
    with h5py.File(tmp_path / "a.h5", "w", libver=libver) as file:
        file["a"] = np.arange(4000)
    data = (tmp_path / "a.h5").read_bytes()
    for size in (100, 200, len(data) - 1):
        (tmp_path / "a.h5").write_bytes(data[:size])
        with pytest.raises(ManifestError, match=f"cut short: expected {len(data)} bytes, found {size}"):
            RefShardFileSystem(str(tmp_path / "a.h5")).ls("")
