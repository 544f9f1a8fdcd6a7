"""Files that are cut short or have bits flipped: errors of ours, or values that are there; never others."""

from __future__ import annotations

import json
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from numcodecs.checksum32 import jenkins_lookup3

from refshard_fs import DamagedIndex, ManifestError, ReferenceNotReachable, RefShardFileSystem
from refshard_fs.core.model import Inline
from refshard_fs.formats.hdf5.chunk_index import ChunkSpace, index_of
from refshard_fs.formats.hdf5.file import MetadataFile, Sizes
from tests.support import hdf5_corpus as corpus
from tests.support import netcdf_files
from tests.support.files_of_arrays import all_bytes, check_damage
from tests.support.hdf5_messages import in_memory
from tests.support.memory import taking
from tests.support.shards_in_memory import ROOT, Files

WRITERS = corpus.WRITERS | netcdf_files.WRITERS
NAMES = [
    "chunked earliest fixed shuffle gzip fletcher32",
    "chunked latest growing in all gzip",
    "chunked v110 extensible lzf",
    "typed latest chunked",
    "grouped latest False 40",
    "attributed latest True 7",
    "scaled earliest masked",
    "netcdf4 NETCDF4 shuffle ('time',)",
]


@pytest.mark.parametrize("name", NAMES)
def test_damaged_files_are_errors_of_ours_or_values_that_are_there(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    WRITERS[name](path)
    check_damage(path.read_bytes(), NAMES.index(name), times=20)


def test_the_b_tree_of_a_group_ends_where_a_node_has_no_children(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    WRITERS["scaled earliest plain"](path)
    data = bytearray(path.read_bytes())
    node = data.index(b"TREE\0")
    data[node + 5 : node + 8] = b"\1\0\0"  # a node of level 1 with no entries
    assert all_bytes(bytes(data)) == {}


def test_a_chunk_too_short_for_its_checksum_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("d", (4,), "<i4", chunks=(4,), compression="gzip", fletcher32=True)
        dataset.id.write_direct_chunk((0,), b"ab", filter_mask=1)  # not compressed
    with pytest.raises(ReferenceNotReachable, match="fletcher32"):
        RefShardFileSystem(str(path)).cat_file("d/0")


def test_an_attribute_of_millions_of_empty_rows_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        file.attrs.create("none", np.empty((1 << 26, 0)))
    with taking(4 << 20):
        assert json.loads(RefShardFileSystem(str(path)).cat_file(".zattrs")) == {"none": []}


def test_elements_larger_than_files_have_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("large", (1,), h5py.string_dtype(length=1 << 29), chunks=(1,))
        file["small"] = 1
    with taking(4 << 20):
        fs = RefShardFileSystem(str(path))
        assert fs.exists("small/.zarray")
        assert f"of {1 << 29} bytes" in fs.left_whole["large"]


def test_attributes_that_another_b_tree_is_said_to_list_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    with h5py.File(path, "w", libver="latest") as file:
        for number in range(10):
            file.attrs[str(number)] = number
    data = bytearray(path.read_bytes())
    head = data.index(b"BTHD")
    data[head + 10 : head + 12] = b"\x05\0"  # bytes of a record
    for signature, size in ((b"BTHD", 38), (b"BTLF", 4 + 2 + 5 * 10 + 4)):
        where = data.index(signature)
        end = where + size - 4
        data[end : end + 4] = jenkins_lookup3(bytes(data[where:end]), 0).to_bytes(4, "little")
    path.write_bytes(data)
    assert "no records of attributes" in RefShardFileSystem(str(path)).left_whole["attributes of '/'"]


def test_pages_that_no_bits_tell_of_are_damage_and_not_missing_chunks(tmp_path: Path) -> None:
    """Before it was mended: Chunks of an HDF5 dataset were missing, and so filled, where a damaged header says that
    its index has pages of which no bits tell.
    """
    path = tmp_path / "file.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("d", data=np.arange(100), chunks=(1,), maxshape=(None,))
    data = bytearray(path.read_bytes())
    header = data.index(b"EAHD")
    data[header + 11] = 1  # pages of two elements, also in blocks of which the index block tells
    data[header + 68 : header + 72] = jenkins_lookup3(bytes(data[header : header + 68]), 0).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(DamagedIndex, match="data blocks that have pages"):
        RefShardFileSystem(str(path)).cat_file("d/50")


def test_a_fixed_array_of_too_few_elements_is_damage_and_not_missing_chunks(tmp_path: Path) -> None:
    """Before it was mended: Chunks of an HDF5 dataset were missing, and so filled, where a damaged header says that
    its fixed array has fewer elements than the dataset has chunks.
    """
    path = tmp_path / "file.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("d", data=np.arange(100), chunks=(1,))
    data = bytearray(path.read_bytes())
    header = data.index(b"FAHD")
    data[header + 8] = 50  # elements
    data[header + 24 : header + 28] = jenkins_lookup3(bytes(data[header : header + 24]), 0).to_bytes(4, "little")
    block = data.index(b"FADB") + 14
    sum_at = block + 8 * 50
    data[sum_at : sum_at + 4] = jenkins_lookup3(bytes(data[block - 14 : sum_at]), 0).to_bytes(4, "little")
    path.write_bytes(data)
    fs = RefShardFileSystem(str(path))
    for key in ("d/20", "d/80"):
        with pytest.raises(DamagedIndex, match="50 elements, fewer than the 100 chunks"):
            fs.cat_file(key)


@pytest.mark.parametrize("kind", ["implicit", "fixed array"])
def test_an_index_of_so_many_chunks_is_none_of_a_dataset_without_limit(kind: str) -> None:
    space = ChunkSpace(Sizes(), 1000, (1, 1), (3, 3), (3, None), 1, False)
    with pytest.raises(ValueError, match=f"{kind}, which its extents"):
        index_of(MetadataFile(Inline(bytes(1000)), 1000, b""), space, kind, 100, (0,))


def test_a_damaged_index_does_not_keep_other_datasets_from_being_read(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        for name in ("damaged", "whole"):
            file.create_dataset(name, data=np.arange(9), chunks=(3,))
            file[f"{name}_contiguous"] = np.arange(3)
    data = bytearray(path.read_bytes())
    tree = data.index(b"TREE\1")
    data[tree : tree + 4] = b"EERT"
    path.write_bytes(data)
    fs = RefShardFileSystem(str(path))
    assert fs.cat_file("whole/1") == np.arange(3, 6).tobytes()
    assert fs.cat_file("damaged_contiguous/0") == fs.cat_file("whole_contiguous/0") == np.arange(3).tobytes()
    with pytest.raises(DamagedIndex, match="'damaged/1'.*EERT"):
        fs.cat_file("damaged/1")


def test_texts_may_be_longer_than_other_structures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        file["d"] = ["t" * 100_000]
    monkeypatch.setattr("refshard_fs.formats.hdf5.file.MOST", 1 << 16)
    assert RefShardFileSystem(str(path)).cat_file("d/0").endswith(b"t" * 100_000)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_damage_in_one_object_leaves_the_others(libver: str) -> None:
    """Whichever byte of an object's header is wrong, what is left out is named, and its keys are errors."""
    with in_memory(libver=libver) as file:
        file["a"] = np.arange(3, dtype="<i4")
        odd = file.create_dataset("odd", data=np.arange(4.0), chunks=(2,), compression="gzip", maxshape=(None,))
        odd.attrs["note"] = "text"
        odd.attrs["units"] = np.array(["m"], h5py.string_dtype())
        group = file.create_group("group")
        group["inner"] = np.arange(5)
        group.attrs["n"] = np.arange(2)
        file["z"] = np.arange(3, dtype="<i4")
        file.flush()
        data = bytes(file.id.get_file_image())
        headers = [h5py.h5o.get_info(file[name].id) for name in ("odd", "group", "group/inner")]
    for header in headers:
        for at in range(header.addr, header.addr + header.hdr.space.total, 5):
            damaged = bytearray(data)
            damaged[at] ^= 0xFF
            files = Files({ROOT: bytes(damaged)})
            keys = files.open()
            for name in ("a", "z"):
                assert files.read(keys, f"{name}/0") == np.arange(3, dtype="<i4").tobytes(), at
            for path in {"odd", "group/inner"} - set(keys.grids) if len(keys.grids) < 4 else ():  # none is renamed
                with pytest.raises(ManifestError, match="is not shown"):
                    files.read(keys, f"{path}/0")


def test_an_unreadable_attribute_is_left_out_by_name() -> None:
    with in_memory() as file:
        for name in ("note", "scale_factor"):
            file.create_dataset(f"d_{name}", data=np.arange(3)).attrs[name] = 2.5
            file.create_group(f"g_{name}").attrs[name] = 2.5
            file[f"d_{name}"].attrs["other"] = 1
        file.flush()
        data = bytes(file.id.get_file_image())
    for name in (b"note", b"scale_factor"):  # whose datatype, behind the name, becomes one that is not known
        data = re.sub(name + rb"\0+\x11(?=\x20\x3f\0)", lambda found: found[0][:-1] + b"\xff", data)
    files = Files({ROOT: data})
    keys = files.open()
    assert set(keys.grids) == {"d_note"}
    assert b'"other":1' in (files.read(keys, "d_note/.zattrs") or b"")
    assert set(keys.reports) == {
        "attribute 'note' of 'd_note'",
        "attribute 'note' of 'g_note'",
        "attribute 'scale_factor' of 'g_scale_factor'",
        "d_scale_factor",
    }


def test_links_of_a_group_that_cannot_be_read_are_named() -> None:
    with in_memory() as file:
        file["good"] = 1
        file.create_group("group")["inner"] = np.arange(5)
        file.flush()
        data = bytes(file.id.get_file_image())
    at = data.rindex(b"SNOD")
    files = Files({ROOT: data[:at] + b"X" + data[at + 1 :]})
    keys = files.open()
    assert set(keys.grids) == {"good"}
    assert "its members cannot all be found" in keys.reports["group"]
    assert files.read(keys, "group/.zgroup")
    assert files.read(keys, "group/zarr.json") is None
    with pytest.raises(ManifestError, match="members"):
        files.read(keys, "group/inner/0")
