"""Datatype messages written by the HDF5 library, damaged messages, and values of elements, as h5py reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from refshard_fs.formats.hdf5 import datatypes
from refshard_fs.formats.hdf5.datatypes import Datatype, parse_datatype
from tests.support.hdf5_messages import DATATYPE, open_in_memory, read_messages

PLAIN = [
    f"{order}{code}"
    for order in "<>"
    for code in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
]
COMPOUND = np.dtype(
    [("a", "<i4"), ("b", ">f8"), ("name", "S7"), ("grid", "<i2", (2, 3)), ("in", [("x", "?"), ("y", "<c8")])]
)
GAPS = np.dtype({"names": ["a", "b"], "formats": ["<i2", ">f4"], "offsets": [3, 8], "itemsize": 16})


def make_message(tid: h5py.h5t.TypeID, libver: str = "earliest") -> bytes:
    """Return the datatype message of a dataset of this type."""
    with open_in_memory(libver) as file:
        return read_messages(h5py.h5d.create(file.id, b"a", tid, h5py.h5s.create(h5py.h5s.SCALAR)))[DATATYPE]


def parse(dtype: Any) -> Datatype:
    tid = h5py.h5t.py_create(dtype, logical=True)
    datatype, latest_datatype = parse_datatype(make_message(tid)), parse_datatype(make_message(tid, "latest"))
    assert datatype == latest_datatype
    return datatype


@pytest.mark.parametrize("name", [*PLAIN, "S1", "S12", "?", "V6"])
def test_plain_types_become_numpy_types(name: str) -> None:
    datatype = parse(np.dtype(name))
    assert (datatype.dtype, datatype.shown, datatype.refusal, datatype.is_recast) == (
        np.dtype(name),
        np.dtype(name),
        None,
        False,
    )


def test_compounds_arrays_and_times_become_numpy_types() -> None:
    compound = parse(COMPOUND)
    assert compound.shown == COMPOUND
    assert not compound.is_recast
    array = parse(np.dtype(("<f4", (3, 2))))
    assert (array.dtype, array.shape, array.size) == (np.dtype("<f4"), (3, 2), 24)
    nested = parse_datatype(make_message(h5py.h5t.array_create(h5py.h5t.py_create(np.dtype(("<i2", (3,)))), (4,))))
    assert (nested.dtype, nested.shape) == (np.dtype("<i2"), (4, 3))
    assert parse(h5py.opaque_dtype(np.dtype("<M8[s]"))).dtype == np.dtype("<M8[s]")


def test_enums_have_member_names() -> None:
    enum = parse(h5py.enum_dtype({"red": 1, "green": -2}, "<i2"))
    assert (enum.kind, enum.dtype, enum.members) == ("enum", np.dtype("<i2"), {"red": 1, "green": -2})


@pytest.mark.parametrize(
    ("dtype", "reason"),
    [
        (h5py.vlen_dtype(h5py.string_dtype()), "variable-length sequence of 'vlen-string'"),
        (np.dtype((h5py.vlen_dtype(np.int32), (2,))), "an array of elements of the kind 'vlen-sequence'"),
        (np.dtype("g"), "float of"),
    ],
)
def test_types_that_zarr_lacks_are_refused(dtype: Any, reason: str) -> None:
    assert reason in str(parse(dtype).refusal)


def test_unusual_number_types_are_parsed_or_refused() -> None:
    wide = h5py.h5t.STD_I32BE.copy()
    wide.set_precision(21)
    wide.set_offset(3)
    datatype = parse_datatype(make_message(wide))
    assert datatype.bits == (3, 21)
    raw = np.array([5 << 3, ((-7) & 0x1FFFFF) << 3], ">u4").tobytes()
    assert datatypes.recast(datatype, raw).tolist() == [5, -7]
    brain = h5py.h5t.IEEE_F16LE.copy()
    brain.set_fields(15, 7, 8, 0, 7)
    brain.set_ebias(127)
    assert "bfloat16" in str(parse_datatype(make_message(brain)).refusal)
    assert parse_datatype(make_message(h5py.h5t.STD_B16BE)).dtype == np.dtype(">u2")
    assert parse_datatype(make_message(h5py.h5t.UNIX_D32LE)).dtype == np.dtype("<i4")
    three = h5py.h5t.STD_I32LE.copy()
    three.set_precision(24)
    three.set_size(3)
    assert "3 bytes" in str(parse_datatype(make_message(three)).refusal)


def test_native_complex_numbers_become_complex() -> None:
    create = getattr(h5py.h5t, "complex_create", None)
    if create is None:
        body = bytes([0x5B, 0, 0, 0]) + (16).to_bytes(4, "little") + make_message(h5py.h5t.IEEE_F64BE)
    else:
        body = make_message(create(h5py.h5t.IEEE_F64BE))
    assert parse_datatype(body).dtype == np.dtype(">c16")


@pytest.mark.parametrize("padding", [h5py.h5t.STR_NULLTERM, h5py.h5t.STR_NULLPAD, h5py.h5t.STR_SPACEPAD])
@pytest.mark.parametrize(
    "texts",
    [
        (b"abc\0de", b"f \0  a", b"     \0", b" zz\0z ", b"\0     ", b"      ", b"abcdef"),
        (b"a", b" ", b"\0", b"\xe9"),
    ],
    ids=["texts", "characters"],
)
def test_fixed_strings_equal_h5py(tmp_path: Path, texts: tuple[bytes, ...], padding: int) -> None:
    """Fortran pads single characters with spaces. h5py reads such a space as an empty text, and so do we."""
    size = len(texts[0])
    raw = b"".join(texts)
    tid = h5py.h5t.C_S1.copy()
    tid.set_size(size)
    tid.set_strpad(padding)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        space = h5py.h5s.create_simple((len(texts),))
        dataset = h5py.h5d.create(file.id, b"a", tid, space)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.frombuffer(raw, f"V{size}"), mtype=tid)
        expected = h5py.Dataset(dataset)[:]
    datatype = parse_datatype(make_message(tid))
    assert datatypes.recast(datatype, raw).tolist() == expected.tolist()


def test_compounds_with_gaps_are_packed() -> None:
    values = np.zeros(3, GAPS)
    values["a"], values["b"] = [1, 2, 3], [0.5, 1.5, 2.5]
    datatype = parse(GAPS)
    assert datatype.size == 16
    assert datatype.is_recast
    converted = datatypes.recast(datatype, values.tobytes())
    assert converted.dtype == np.dtype([("a", "<i2"), ("b", ">f4")])
    assert converted.tolist() == values.tolist()


def test_attributes_become_texts_numbers_and_lists() -> None:
    text = parse(np.dtype("S4"))
    assert datatypes.decode_attribute(text, (), b"ab\0\0", {}, {}) == "ab"
    assert datatypes.decode_attribute(text, (2,), b"ab\0\0\xc3\xa9\0\0", {}, {}) == ["ab", "é"]
    assert datatypes.decode_attribute(parse(np.dtype("S1")), (2,), b"ab", {}, {}).tolist() == [b"a", b"b"]
    assert datatypes.decode_attribute(parse(np.dtype(">i2")), (2, 1), b"\0\1\0\2", {}, {}).tolist() == [[1], [2]]
    assert datatypes.decode_attribute(parse(np.dtype("S1")), None, b"", {}, {}) == ""
    assert datatypes.decode_attribute(parse(np.dtype("<f4")), None, b"", {}, {}).size == 0
    vlen = parse(h5py.string_dtype())
    raw = b"\2\0\0\0" + (96).to_bytes(8, "little") + b"\1\0\0\0" + bytes(16)
    assert datatypes.list_heap_ids(vlen, raw) == [(96, 1, 2)]
    assert datatypes.decode_attribute(vlen, (2,), raw, {(96, 1): "é".encode()}, {}) == ["é", ""]
    with pytest.raises(ValueError, match="object 1 of the global heap at 96: expected this object"):
        datatypes.decode_attribute(vlen, (2,), raw, {}, {})
    with pytest.raises(ValueError, match="has 1 bytes: expected at least 2"):
        datatypes.decode_attribute(vlen, (2,), raw, {(96, 1): b"a"}, {})


def test_repeated_long_text_is_refused() -> None:
    text = b"x" * (1 << 20)
    raw = (len(text).to_bytes(4, "little") + (96).to_bytes(8, "little") + b"\1\0\0\0") * 300
    with pytest.raises(ValueError, match="bytes or more"):
        datatypes.decode_objects(parse(h5py.string_dtype()), raw, {(96, 1): text}, {})


def test_elements_that_were_never_written_take_no_time_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 800 bytes may have chunks of half a million empty texts."""
    datatype = parse(h5py.string_dtype())
    monkeypatch.setattr(datatypes, "_iter_descriptors", None)
    raw = bytes(1000 * datatype.size)
    assert datatypes.list_heap_ids(datatype, raw) == []
    assert datatypes.decode_objects(datatype, raw, {}, {}) == [""] * 1000


def test_damaged_messages_raise_only_value_errors() -> None:
    rng = np.random.default_rng(1)
    samples = [
        COMPOUND,
        GAPS,
        "<f8",
        "S5",
        h5py.enum_dtype({"a": 1}, "<i2"),
        np.dtype(("<i2", (3,))),
        h5py.string_dtype(),
    ]
    for sample in samples:
        whole = make_message(h5py.h5t.py_create(np.dtype(sample), logical=True), "latest")
        for end in range(len(whole)):
            with pytest.raises(ValueError, match=r"cut short|a NUL at its end|whole number"):
                parse_datatype(whole[:end])
        for _ in range(200):
            changed = bytearray(whole)
            changed[rng.integers(len(changed))] ^= 1 << rng.integers(8)
            try:
                parse_datatype(bytes(changed))
            except ValueError:
                pass


def test_overlapping_members_of_a_compound_are_refused() -> None:
    """zarr stores members one after the other, so overlapping members of a small file could take gigabytes."""
    name, opaque = b"%d\0", bytes([0x35, 0, 0, 0, 0, 0, 16, 0])  # an opaque type of 1 MiB
    members = [name % number + bytes(3) + opaque for number in range(1500)]
    compound = bytes([0x36, *len(members).to_bytes(3, "little"), 0, 0, 16, 0])
    assert parse_datatype(compound[:1] + bytes([1, 0, 0]) + compound[4:] + members[0]).shown is not None
    with pytest.raises(ValueError, match="have 1572864000 bytes"):
        parse_datatype(compound + b"".join(members))


def test_deeply_nested_types_are_refused() -> None:
    array = bytes([0x3A, 0, 0, 0, 4, 0, 0, 0, 1, 1, 0, 0, 0])
    with pytest.raises(ValueError, match="nested too deeply: expected at most 16"):
        parse_datatype(array * 100)
