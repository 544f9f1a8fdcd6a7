"""Raster images become arrays; images that cannot be read are reported."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from tests.support.hdf4_files import make_hdf4_file, make_vdata
from tests.support.shard_writers import open_array
from tests.support.shards_in_memory import ROOT, Files

VALUES = np.arange(3 * 4 * 5, dtype="u1").reshape(4, 5, 3)  # y, x, band


def make_dimensions(bands: int, interlace: int = 0, compression: int = 0) -> bytes:
    return struct.pack(">iiHHhhHH", 5, 4, 106, 1, bands, interlace, compression, 0)


def make_group(name: str, members: list[tuple[int, int]]) -> bytes:
    tags, refs = zip(*members, strict=True)
    count = len(members)
    texts = [name.encode(), b"RI0.0"]
    head = struct.pack(f">{2 * count + 1}H", count, *tags, *refs)
    return head + b"".join(struct.pack(">H", len(text)) + text for text in texts) + bytes(9)


def write_file(elements: dict[tuple[int, int], bytes], tmp_path: Any) -> Any:
    path = tmp_path / "a.hdf"
    path.write_bytes(make_hdf4_file({(106, 1): bytes([1, 21, 8, 0]), **elements}))
    return path


@pytest.mark.parametrize(("interlace", "order"), [(0, "y x band"), (1, "y band x"), (2, "band y x")])
def test_bands_follow_the_interlace_of_the_image(tmp_path: Any, interlace: int, order: str) -> None:
    values = VALUES.transpose([["y", "x", "band"].index(axis) for axis in order.split()])
    members = struct.pack(">4H", 300, 2, 302, 2)
    path = write_file(
        {(306, 2): members, (300, 2): make_dimensions(3, interlace), (302, 2): values.tobytes()}, tmp_path
    )
    np.testing.assert_array_equal(open_array(path, "image 2")[...], values)
    assert open_array(path, "image 2").attrs["_ARRAY_DIMENSIONS"] == order.split()


def test_image_has_name_attributes_colours_and_fill_value(tmp_path: Any) -> None:
    fill_dtype = np.dtype([("FillValue", "u1")])
    note_dtype = np.dtype([("note", "S3")])
    elements = {
        (1965, 9): make_group("a picture", [(300, 2), (302, 2), (301, 2), (1962, 3), (1962, 4)]),
        (300, 2): make_dimensions(1),
        (302, 2): VALUES[..., 0].tobytes(),
        (301, 2): bytes(range(6)),
        (1962, 3): make_vdata("RIATTR0.0N", fill_dtype, 1, "RIATTR0.0C"),
        (1963, 3): bytes([7]),
        (1962, 4): make_vdata("RIATTR0.0N", note_dtype, 1, "RIATTR0.0C"),
        (1963, 4): b"abc",
    }
    image = open_array(write_file(elements, tmp_path), "a picture")
    np.testing.assert_array_equal(image[...], VALUES[..., 0])
    assert image.fill_value == 7
    assert dict(image.attrs) == {
        "note": "abc",
        "color_map": ["#000102", "#030405"],
        "_ARRAY_DIMENSIONS": ["y", "x"],
    }


def test_unsupported_and_damaged_images_are_reported() -> None:
    elements = {
        (106, 1): bytes([1, 21, 8, 0]),
        (1965, 1): make_group("jpeg", [(300, 2), (303, 2)]),
        (1965, 6): make_group("blocks", [(300, 5), (303, 2)]),
        (300, 5): make_dimensions(1, compression=12),
        (303, 2): bytes(20),
        (1965, 2): make_group("rle", [(300, 3), (302, 3)]),
        (1965, 3): make_group("lost", [(300, 4), (302, 4)]),
        (1965, 4): make_group("short", [(300, 4), (302, 5)]),
        (1965, 5): make_group("plain", [(300, 4), (302, 3)]),
        (300, 2): make_dimensions(1, compression=13),
        (300, 3): make_dimensions(1, compression=11),
        (300, 4): make_dimensions(1),
        (302, 3): bytes(20),
        (302, 5): bytes(19),
    }
    keyspace: Any = Files({ROOT: make_hdf4_file(elements)}).open()
    assert list(keyspace.grids) == ["plain"]
    assert "compression 13" in keyspace.reports["jpeg"]
    assert "has 4 rows and 5 columns" in keyspace.reports["blocks"]
    assert "compression 11" in keyspace.reports["rle"]
    assert "without values" in keyspace.reports["lost"]
    assert "19 bytes: expected 20" in keyspace.reports["short"]
