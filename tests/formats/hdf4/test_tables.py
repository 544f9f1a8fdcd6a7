"""Vdatas are groups of arrays, with the values that pyhdf reads."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.formats.hdf4.tables import FieldRecipe
from tests.support.files_of_arrays import check_commands, check_damage
from tests.support.hdf4_files import make_hdf4_file, make_vdata
from tests.support.shards_in_memory import ROOT, Files

xr = pytest.importorskip("xarray")

KIND = np.dtype([("time", ">f8"), ("name", "S5"), ("counts", ">i2", (3,)), ("a/b", "u1")])
ROWS = np.zeros(40, KIND)
ROWS["time"] = np.arange(40) / 7
ROWS["name"] = [f"n{number}".encode() for number in range(40)]
ROWS["counts"] = np.arange(120).reshape(40, 3) - 50
ROWS["a/b"] = np.arange(40)


def join_fields(rows: Any) -> bytes:
    return b"".join(np.ascontiguousarray(rows[name]).tobytes() for name in rows.dtype.names)


def make_table_file(interlace: int = 0) -> bytes:
    values = join_fields(ROWS) if interlace else ROWS.tobytes()
    return make_hdf4_file({(1962, 3): make_vdata("Soundings", KIND, 40, "Point", interlace), (1963, 3): values})


@pytest.mark.parametrize("interlace", [0, 1])
def test_fields_of_a_vdata_are_arrays_of_a_group(tmp_path: Path, interlace: int) -> None:
    path = tmp_path / "a.hdf"
    path.write_bytes(make_table_file(interlace))
    with xr.open_dataset(path, engine="refshard", group="Soundings") as group:
        assert list(group.variables) == ["time", "name", "counts", "a_b"]
        assert group.counts.dims == ("record", "counts_x")
        assert group.time.dims == ("record",)
        for name in KIND.names or ():
            actual = group[name.replace("/", "_")].values
            assert actual.dtype.newbyteorder("=") == KIND[name].base.newbyteorder("=")
            np.testing.assert_array_equal(actual, ROWS[name])


def test_fields_in_linked_blocks_are_joined(tmp_path: Path) -> None:
    data, half = ROWS.tobytes(), 333
    blocks = {(20, 5): struct.pack(">HHHH", 0, 6, 7, 0), (20, 6): data[:half], (20, 7): data[half:]}
    header = struct.pack(">HiiiH", 1, len(data), len(data), 3, 5)
    elements = {(1962, 3): make_vdata("T", KIND, 40), (1963 | 0x4000, 3): header, **blocks}
    path = tmp_path / "a.hdf"
    path.write_bytes(make_hdf4_file(elements))
    with xr.open_dataset(path, engine="refshard", group="T") as group:
        np.testing.assert_array_equal(group.counts.values, ROWS["counts"])


def test_unsupported_tables_are_reported() -> None:
    dtype = np.dtype([("x", ">i4")])
    unknown = make_vdata("unknown", dtype, 2)
    outside = struct.pack(">Hiii", 2, 8, 0, 4) + b"file"
    elements = {
        (1962, 2): unknown.replace(struct.pack(">H", 24), struct.pack(">H", 99), 1),
        (1962, 3): make_vdata("outside", dtype, 2),
        (1963, 2): bytes(8),
        (1963 | 0x4000, 3): outside,
        (1962, 4): make_vdata("lost", dtype, 2),
        (1962, 5): make_vdata("here", dtype, 2),
        (1963, 5): bytes(8),
    }
    reports = Files({ROOT: make_hdf4_file(elements)}).open().reports
    assert sorted(reports) == ["lost", "outside", "unknown"]
    assert "a field of an unknown type" in reports["unknown"]
    assert "external" in reports["outside"]
    assert "the element (1963, 4)" in reports["lost"]


def test_tables_with_equal_names_get_numbers() -> None:
    dtype = np.dtype([("x", ">i4")])
    elements = {(1962, ref): make_vdata("T", dtype, 1) for ref in (2, 3)} | {(1963, ref): bytes(4) for ref in (2, 3)}
    keyspace: Any = Files({ROOT: make_hdf4_file(elements)}).open()
    assert sorted(keyspace.grids) == ["T/x", "T_2/x"]


def test_commands_accept_tables_and_damage_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_damage(make_table_file(), seed=4, times=40)
    path = tmp_path / "a.hdf"
    path.write_bytes(make_table_file())
    assert RefShardFileSystem(str(path)).left_whole == {}
    refs = check_commands(path, tmp_path, capsys, "counts")
    trees = [xr.open_dataset(fo, engine="refshard", group="Soundings").load() for fo in (path, refs)]
    xr.testing.assert_identical(*trees)


def test_field_recipe_cuts_each_record_and_pads_the_chunk() -> None:
    assert FieldRecipe(4, 1, 2, 8).make(b"abcdefgh") == b"bcfg\0\0\0\0"


def test_tables_equal_pyhdf(tmp_path: Path) -> None:
    hdf: Any = pytest.importorskip("pyhdf.HDF", reason="pyhdf is not installed")
    pytest.importorskip("pyhdf.VS")
    path = str(tmp_path / "a.hdf")
    file = hdf.HDF(path, hdf.HC.WRITE | hdf.HC.CREATE)
    tables = file.vstart()
    table = tables.create("T", (("x", hdf.HC.FLOAT32, 1), ("y", hdf.HC.INT16, 2), ("z", hdf.HC.CHAR8, 4)))
    rows = [[number / 3, [number, -number], f"z{number:03}"] for number in range(30)]
    table.write(rows[:10])
    table.write(rows[10:])
    table.detach()
    tables.end()
    file.close()
    with xr.open_dataset(path, engine="refshard", group="T") as actual:
        np.testing.assert_array_equal(actual.x.values, np.array([row[0] for row in rows], "f4"))
        np.testing.assert_array_equal(actual.y.values, [row[1] for row in rows])
        assert [text.decode() for text in actual.z.values.tolist()] == [row[2] for row in rows]
