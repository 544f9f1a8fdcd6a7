"""Recognise unsupported files by their first bytes, to name their kind and a remedy in errors. No I/O here."""

from __future__ import annotations

from typing import Final

from refshard_fs.core.compression import DamagedStream, Inflate, is_compressed
from refshard_fs.core.format import LEAST_HEAD, Probe

_TO_COG: Final = "convert it (gdal_translate -of COG)"
_DECOMPRESS: Final = "decompress it"

# The kind, the offset of its magic bytes, the bytes, and a remedy.
_KINDS: Final[tuple[tuple[str, int, bytes, str], ...]] = (
    ("a JPEG 2000 image", 0, b"\0\0\0\x0cjP  \r\n\x87\n", _TO_COG),
    ("a JPEG 2000 codestream", 0, b"\xff\x4f\xff\x51", _TO_COG),
    ("a CDF file of NASA", 0, b"\xcd\xf3\x00\x01", "convert it to NetCDF (cdf2nc, or cdflib.cdf_to_xarray)"),
    ("a CDF file of NASA", 0, b"\xcd\xf2\x60\x02", "convert it to NetCDF (cdf2nc, or cdflib.cdf_to_xarray)"),
    ("a CDF file of NASA", 0, b"\0\0\xff\xff\0\0\xff\xff", "convert it to NetCDF (cdf2nc, or cdflib.cdf_to_xarray)"),
    ("a BUFR file", 0, b"BUFR", "read it with eccodes"),
    ("a PNG image", 0, b"\x89PNG\r\n\x1a\n", _TO_COG),
    ("a JPEG image", 0, b"\xff\xd8\xff", _TO_COG),
    ("a GIF image", 0, b"GIF8", _TO_COG),
    ("a NITF file", 0, b"NITF0", _TO_COG),
    ("a CZI image of Zeiss", 0, b"ZISRAWFILE", "convert it to OME-Zarr or OME-TIFF (bioformats2raw)"),
    ("an ND2 image of Nikon", 0, b"\xda\xce\xbe\x0a", "convert it to OME-Zarr or OME-TIFF (bioformats2raw)"),
    ("a DICOM file", 128, b"DICM", "convert it to OME-TIFF or OME-Zarr"),
    ("a NIfTI file", 344, b"n+1\0", "convert it to zarr with nibabel"),
    ("a NIfTI file", 4, b"n+2\0", "convert it to zarr with nibabel"),
    ("an NRRD file", 0, b"NRRD000", "convert it to zarr with pynrrd"),
    ("a NumPy array (.npy)", 0, b"\x93NUMPY", "open it with numpy.load(..., mmap_mode='r')"),
    ("a MATLAB file of version 5", 0, b"MATLAB 5.0", "save it as version 7.3, which is HDF5"),
    ("an ASDF file", 0, b"#ASDF", "open it with asdf"),
    (
        *("a Parquet file", 0, b"PAR1"),
        "give the directory of a parquet set, in which .zmetadata lies; refshard_fs.open takes a table of URLs",
    ),
    ("an Arrow file", 0, b"ARROW1", "open it with pyarrow"),
    ("an SQLite database (GeoPackage, MBTiles)", 0, b"SQLite format 3\0", "open it with the library of its kind"),
    ("a PMTiles archive", 0, b"PMTiles", "open it with pmtiles"),
    ("a LAS file", 0, b"LASF", "open it with laspy"),
    ("a PDF document", 0, b"%PDF", "give the data file"),
    ("a tar archive", 257, b"ustar", "name a file in it (tar://NAME::URL); ZIP archives are read as they are"),
    ("a 7z archive", 0, b"7z\xbc\xaf\x27\x1c", _DECOMPRESS),
    ("a RAR archive", 0, b"Rar!\x1a\x07", _DECOMPRESS),
    ("a file compressed by lz4", 0, b"\x04\x22\x4d\x18", _DECOMPRESS),
    ("a file compressed by compress (.Z)", 0, b"\x1f\x9d", _DECOMPRESS),
    ("a pointer of Git LFS, not the file itself", 0, b"version https://git-lfs.github.com/spec/", "git lfs pull"),
)
_COMPRESSORS: Final = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


def unsupported_kind(head: bytes) -> tuple[str, str] | None:
    """Return the kind of an unsupported file by its first bytes, and a remedy; None for other files."""
    if head.lstrip()[:1] == b"<" and b"<VRTDataset" in head:
        return "a VRT of GDAL", "give the files that it names (refshard concat joins them), or " + _TO_COG
    return next(((kind, remedy) for kind, at, magic, remedy in _KINDS if head.startswith(magic, at)), None)


def compressor_of(head: bytes) -> str | None:
    """Return the name of the compressor by the first bytes of a file; None if the file is not compressed."""
    return next((name for magic, name in _COMPRESSORS.items() if head.startswith(magic)), None)


def decompress_probe(probe: Probe) -> Probe:
    """Return a probe with the first decompressed bytes, if the file is compressed; otherwise ``probe``."""
    if not is_compressed(probe.head):
        return probe
    made = b""
    try:
        for piece in Inflate(probe.head).feed(probe.head):
            made += bytes(piece[: LEAST_HEAD - len(made)])
            if len(made) >= LEAST_HEAD:
                break
    except DamagedStream:
        pass
    return Probe(probe.url, probe.facts, made)
