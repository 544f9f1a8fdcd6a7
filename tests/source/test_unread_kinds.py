"""Errors for unsupported or damaged files name the kind of the file, and a remedy."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.core.compression import import_zstd
from refshard_fs.errors import ManifestError, UnknownSource

NOISE = np.random.default_rng(0).bytes(1 << 20)  # so that the first block of bzip2 is not in the first bytes


def card(text: str) -> bytes:
    return text.ljust(80).encode()


FILES = {
    "fits": b"".join(map(card, ["SIMPLE  =                    T", "BITPIX  =                    8", "END"])).ljust(
        2880
    ),
    "netcdf3": b"CDF\x01" + bytes(28),
    "tiff": b"II*\0" + struct.pack("<I", 8) + bytes(40),
    "grib2": b"GRIB\xff\xff\x00\x02" + struct.pack(">Q", 20) + b"7777",
    "hdf5": b"\x89HDF\r\n\x1a\n" + bytes(600),
}
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda data: bytes(import_zstd().compress(data)),
}


@pytest.mark.parametrize("codec", PACKERS)
def test_unsupported_kind_in_a_compressed_file_is_named(codec: str) -> None:
    with pytest.raises(UnknownSource, match=f"a PNG image, compressed as a whole with {codec}, which .*: convert"):
        RefShardFileSystem(PACKERS[codec](b"\x89PNG\r\n\x1a\n".ljust(600))).ls("")


@pytest.mark.parametrize("kind", FILES)
def test_error_of_a_cut_compressed_file_says_it_is_damaged(kind: str) -> None:
    packed = gzip.compress(FILES[kind] + NOISE[: 1 << 14])
    with pytest.raises(ManifestError, match="compressed as a whole, and is damaged: expected the end of its last"):
        RefShardFileSystem(packed[:-9]).ls("")


@pytest.mark.parametrize("codec", PACKERS)
def test_compressed_reference_set_opens(codec: str) -> None:
    document = json.dumps({"version": 1, "refs": {"a": "b", "pad": NOISE[:100_000].hex()}}).encode()
    assert RefShardFileSystem(PACKERS[codec](document)).cat("a") == b"b"
    with pytest.raises(UnknownSource, match=f"starts with b'plain text, .*compressed as a whole with {codec}: it fits"):
        RefShardFileSystem(PACKERS[codec](b"plain text, " * 20)).ls("")


@pytest.mark.parametrize(
    ("head", "named"),
    [
        (b'<VRTDataset rasterXSize="4" rasterYSize="4">', "a VRT of GDAL"),
        (b"\x89PNG\r\n\x1a\n", "a PNG image"),
        (b"\0" * 128 + b"DICM", "a DICOM file"),
        (b"PAR1", "a Parquet file.*the directory"),
        (b'{"type": "FeatureCollection", "features": []}', "a FeatureCollection as JSON.*refshard_fs.open"),
        (b"%PDF-1.7", "a PDF document"),
        (b"\xff\xd8\xff\xe0", "a JPEG image"),
        (b"BUFR\0\0\x30\x04", "a BUFR file.*eccodes"),
        (b"SQLite format 3\0", "GeoPackage"),
        (b"\0\0\x27\x0a" + bytes(24), "a shapefile"),
        (b"MATLAB 5.0 MAT-file, Platform: GLNXA64", "a MATLAB file of version 5.*7.3"),
        (b"X\n\0\0\0\x03\0\x04", "a file of R"),
        (b"1:0:d=2024010100:TMP:2 m above ground:anl:\n", "an index of a GRIB file.*open the GRIB file"),
        (b'{"domain": "g", "_offset": 0, "_length": 609}\n{"domain": "g"}\n', "an index of a GRIB file"),
        (b"\x80\x04\x95\0\0", "a pickle of Python.*never read"),
        (b"netcdf sst {\ndimensions:\n\tx = 4 ;\n", "as text .CDL.*ncgen"),
        (b'<?xml version="1.0"?>\n<netcdf xmlns="http://www.unidata.ucar.edu/namespaces/netcdf/ncml-2.2">', "NcML"),
        (b'<?xml version="1.0"?>\n<Error><Code>AccessDenied</Code></Error>', "an error of an object store"),
        (b'<?xml version="1.0"?>\n<OME xmlns="http://www.openmicroscopy.org/Schemas">', "OME-XML.*bfconvert"),
        (b'<?xml version="1.0"?>\n<NXroot NeXus_version="4.3.0">', "a NeXus file as XML.*nxconvert"),
        (b'<?xml version="1.0"?>\n<metadata><idinfo/></metadata>', "an XML document"),
        (b"<!DOCTYPE html><html><body>404", "It looks like a web page"),
        (b'<?xml version="1.0"?>\n<html xmlns="http://www.w3.org/1999/xhtml">', "It looks like a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "a pointer of Git LFS.*git lfs pull"),
    ],
)
def test_unsupported_kind_is_named(head: bytes, named: str) -> None:
    with pytest.raises(UnknownSource, match=named):
        RefShardFileSystem(head.ljust(600, b"\0")).ls("")


@pytest.mark.filterwarnings("ignore:Dataset has no geotransform")
def test_jpeg_and_png_images_of_gdal_are_named(tmp_path: Path) -> None:
    rasterio = pytest.importorskip("rasterio")
    profile: dict[str, Any] = {"width": 16, "height": 16, "count": 1, "dtype": "uint8"}
    for driver, named in {"JPEG": "JPEG", "PNG": "PNG"}.items():
        with rasterio.open(tmp_path / driver, "w", driver=driver, **profile) as image:
            image.write(np.zeros((1, 16, 16), "u1"))
        with pytest.raises(UnknownSource, match=named):
            RefShardFileSystem(str(tmp_path / driver)).ls("")


@pytest.mark.parametrize("position", [0, 4, None])
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_file_object_is_read_from_the_start(kind: str, position: int | None, tmp_path: Path) -> None:
    data = json.dumps({"version": 1, "refs": {"a": "b"}}).encode()
    (tmp_path / "refs.json").write_bytes(data)
    with io.BytesIO(data) if kind == "memory" else open(tmp_path / "refs.json", "rb") as file:
        at = file.seek(0, io.SEEK_END) if position is None else file.seek(position)
        for _ in range(2):
            assert RefShardFileSystem(file).cat("a") == b"b"
            assert file.tell() == at


def test_pipe_is_read_without_seeking() -> None:
    class Pipe(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readall(self) -> bytes:
            return b'{"version": 1, "refs": {"a": "b"}}'

    assert RefShardFileSystem(Pipe()).cat("a") == b"b"
