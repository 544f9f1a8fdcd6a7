"""Reading of a TIFF file's IFDs: damage and loops are reported, and few rounds of requests are needed."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest

from refshard_fs import ManifestError, ReferenceNotReachable, RefShardFileSystem
from tests.support.files_of_arrays import check_damage
from tests.support.plain_tiff import make_tiff
from tests.support.shards_in_memory import ROOT, Files
from tests.support.tiff_files import RGB

tifffile = pytest.importorskip("tifffile")
pytest.importorskip("imagecodecs")
pytestmark = [
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3"),
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),  # raised within rasterio
]


def write_samples(tmp_path: Path) -> list[bytes]:
    tifffile.imwrite(tmp_path / "a.tif", RGB, tile=(16, 16), compression="lzw", predictor=2, photometric="rgb")
    tifffile.imwrite(tmp_path / "b.tif", RGB[..., 0], rowsperstrip=16, bigtiff=True, byteorder=">")
    tifffile.imwrite(
        tmp_path / "c.ome.tif", RGB[:8].astype("f4"), compression="zlib", predictor=3, photometric="minisblack"
    )
    return [path.read_bytes() for path in sorted(tmp_path.glob("*.tif"))]


def test_damaged_files_raise_only_refshard_errors(tmp_path: Path) -> None:
    for seed, data in enumerate(write_samples(tmp_path)):
        check_damage(data, seed, times=120)


def test_errors_name_damaged_tiles_and_loops_of_ifds() -> None:
    data = make_tiff(b"12345678", 4, 2, t273=8)
    files = Files({ROOT: data[:8] + data[8:]})
    assert files.read(files.open(), "0/0.0") == b"12345678"
    looped = data[:-4] + struct.pack("<I", 16)
    assert "found the IFD at byte 16 again" in Files({ROOT: looped}).open().reports["1"]
    with pytest.raises(ManifestError, match="image 0: the file ends at byte .* up to byte 1008"):
        Files({ROOT: make_tiff(b"12345678", 4, 2, t273=1000)}).open()
    beyond = Files({ROOT: make_tiff(b"12345678", 4, 2, compression=8, t273=1000)})
    with pytest.raises(ReferenceNotReachable, match="expected 8 bytes at byte 1000, found"):
        beyond.read(beyond.open(), "0/0.0")
    short = Files({ROOT: make_tiff(b"1234", 4, 2)})
    with pytest.raises(ValueError, match="decompresses to 4 bytes: expected 8"):
        short.read(short.open(), "0/0.0")
    with pytest.raises(ManifestError, match="that can be shown, found none"):
        Files({ROOT: make_tiff(b"1", 1 << 30, 1 << 30)}).open()
    with pytest.raises(ManifestError, match="expected an IFD"):
        Files({ROOT: b"II*\0" + bytes(20)}).open()


def test_page_with_an_oversized_tag_is_left_out() -> None:
    data = make_tiff(b"1" * 300_000, 4, 2)
    entry = struct.pack("<HHII", 259, 4, 1, 1)
    with pytest.raises(ManifestError, match="its tag 259 has 70000 values of uint32: expected one or a few integers"):
        Files({ROOT: data.replace(entry, struct.pack("<HHII", 259, 4, 70_000, 8))}).open()


@pytest.mark.parametrize("damage", ["count", "tag", "place", "sub"])
def test_page_with_a_damaged_ifd_is_left_out(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "pages.tif"
    with tifffile.TiffWriter(path) as writer:
        for value in range(3):
            writer.write(np.full((8, 8), value, "u1"), metadata=None, subifds=int(value == 1))
            if value == 1:
                writer.write(np.full((4, 4), 9, "u1"), subfiletype=1, metadata=None)
    with tifffile.TiffFile(path) as tiff:
        page, first = tiff.pages[1], tiff.pages[0]
        at = {
            "count": page.offset, "tag": page.tags["Software"].offset + 8,
            "place": page.offset, "sub": page.tags["SubIFDs"].valueoffset
        }[damage]  # fmt: skip
        if damage == "place":
            at = first.offset + 2 + 12 * len(first.tags)
    data = bytearray(path.read_bytes())
    data[at : at + 4] = b"\xff\xff\xff\x7f" if damage != "count" else b"\xff\xff" + data[at + 2 : at + 4]
    path.write_bytes(data)
    fs = RefShardFileSystem(str(path))
    shown = {"count": "0", "place": "0", "tag": "023", "sub": "013"}[damage]
    assert fs.cat_file("0/0.0") == bytes(64)
    assert {name for name in fs.ls("", detail=False) if name.isdigit()} == set(shown)
    (lost,) = fs.left_whole.items()
    assert lost[0] == {"sub": "2"}.get(damage, "1")
    assert "damaged or cut short" in lost[1]
    with pytest.raises(ManifestError, match="damaged or cut short"):
        fs.cat_file(f"{lost[0]}/0.0")


def test_images_of_imagej_without_ifds_are_reported(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((3, 8, 8), "u1"), imagej=True)
    data = (tmp_path / "a.tif").read_bytes().replace(b"images=3", b"images=9")
    assert "it has 9 images" in Files({ROOT: data}).open().reports["ImageJ"]


def test_chain_of_ifds_at_various_distances_is_read_in_blocks() -> None:
    """All bytes between IFDs that are up to 256 KiB apart are read; each read has twice the bytes of the last read."""
    rng, file = np.random.default_rng(0), io.BytesIO()
    with tifffile.TiffWriter(file) as writer:
        for page in range(60):
            writer.write(rng.integers(0, 255, (400, 340 + page), "u1"), contiguous=False, compression="zlib")
    files = Files({ROOT: file.getvalue()})
    assert len(files.open().grids) == 60
    assert files.rounds <= 7
    assert len(files.wanted) <= 7
