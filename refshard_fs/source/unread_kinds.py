"""Recognise unsupported files by their first bytes, to name their kind and a remedy in errors. No I/O here."""

from __future__ import annotations

import re
from typing import Final

from refshard_fs.core.compression import inflate_head, is_compressed
from refshard_fs.core.format import LEAST_HEAD, Probe

_TO_COG: Final = "convert it (gdal_translate -of COG)"
_DECOMPRESS: Final = "decompress it"
_GRIB: Final = "open the GRIB file that it describes"
_NO_PICKLE: Final = f"pickles can run code, and are never read: {_GRIB}"

# The kind, the offset of its magic bytes, the bytes, and a remedy.
_KINDS: Final[tuple[tuple[str, int, bytes, str], ...]] = (
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
        "open the directory of a parquet set, in which .zmetadata lies; a table of URLs needs the option concat, which "
        "may be {}",
    ),
    ("an Arrow file", 0, b"ARROW1", "open it with pyarrow"),
    ("a Feather file", 0, b"FEA1", "open it with pyarrow"),
    ("an ORC file", 0, b"ORC", "open it with pyarrow"),
    ("an Avro file", 0, b"Obj\x01", "open it with fastavro"),
    ("a shapefile", 0, b"\0\0\x27\x0a\0\0\0\0", "open it with geopandas"),
    ("a FlatGeobuf file", 0, b"fgb\x03fgb", "open it with geopandas"),
    ("a file of R (.rds)", 0, b"X\n\0\0\0", "write its arrays as NetCDF (ncdf4) or GeoTIFF (terra)"),
    ("a file of R (.RData)", 0, b"RDX", "write its arrays as NetCDF (ncdf4) or GeoTIFF (terra)"),
    ("a pickle of Python, such as an index of cfgrib", 0, b"\x80\x04\x95", _NO_PICKLE),
    ("a pickle of Python, such as an index of cfgrib", 0, b"\x80\x05\x95", _NO_PICKLE),
    ("an index of a GRIB file", 0, b"1:0:d=", _GRIB),
    ("a NetCDF file as text (CDL)", 0, b"netcdf ", "make a NetCDF file of it (ncgen -4)"),
    ("the header of an ENVI image", 0, b"ENVI\n", _TO_COG),
    ("the header of an ENVI image", 0, b"ENVI\r\n", _TO_COG),
    ("an image of ERDAS (.img)", 0, b"EHFA_HEADER_TAG", _TO_COG),
    ("a grid of ESRI as text", 0, b"ncols ", _TO_COG),
    ("a PDS3 file", 0, b"PDS_VERSION_ID", _TO_COG),
    ("a JPEG XL image", 0, b"\0\0\0\x0cJXL \r\n\x87\n", _TO_COG),
    ("a WebP image", 8, b"WEBP", _TO_COG),
    ("an MRC volume", 208, b"MAP ", "convert it to zarr with mrcfile"),
    ("an SQLite database (GeoPackage, MBTiles)", 0, b"SQLite format 3\0", "open it with the library of its kind"),
    ("a PMTiles archive", 0, b"PMTiles", "open it with pmtiles"),
    ("a LAS file", 0, b"LASF", "open it with laspy"),
    ("a PDF document", 0, b"%PDF", "open the data file"),
    ("a tar archive", 257, b"ustar", "name a file in it (tar://NAME::URL); ZIP archives are read as they are"),
    ("a 7z archive", 0, b"7z\xbc\xaf\x27\x1c", _DECOMPRESS),
    ("a RAR archive", 0, b"Rar!\x1a\x07", _DECOMPRESS),
    ("a file compressed by lz4", 0, b"\x04\x22\x4d\x18", _DECOMPRESS),
    ("a file compressed by compress (.Z)", 0, b"\x1f\x9d", _DECOMPRESS),
    (
        "a pointer of Git LFS, not the file itself",
        0,
        b"version https://git-lfs.github.com/spec/",
        "fetch it (git lfs pull)",
    ),
)
# Text in an XML document, the kind, and a remedy.
_XML: Final = (
    (b"<VRTDataset", "a VRT of GDAL", f"open the files that it names (refshard concat joins them), or {_TO_COG}"),
    (b"<PAMDataset", "a sidecar of GDAL (.aux.xml)", "open the image beside it"),
    (b"/ncml-2.2", "an NcML document", "open the files that it names (refshard concat joins them)"),
    (b"<Error><Code>", "an error of an object store, stored as a file", "download the file again"),
    (b"<OME", "an OME-XML document", "open the OME-TIFF that it describes, or make one of it (bfconvert)"),
    (b"<NXroot", "a NeXus file as XML", "convert it to HDF5 (nxconvert)"),
    (b"<?xml", "an XML document", "open the file of data that it describes"),
)
_FEATURES: Final = re.compile(rb'\s*\{\s*"type"\s*:\s*"FeatureCollection"')
_COMPRESSORS: Final = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


def recognise_unsupported(head: bytes) -> tuple[str, str] | None:
    """Return the kind of an unsupported file by its first bytes, and a remedy; None if no such kind fits."""
    if head.lstrip()[:1] == b"<":
        if b"<html" in head.lower():
            return None
        return next(((kind, remedy) for tag, kind, remedy in _XML if tag in head), None)
    if _FEATURES.match(head):
        return "a FeatureCollection as JSON", "json.load it for refshard_fs.open, which joins the assets of STAC items"
    if head[:1] == b"{" and b'"_offset":' in head.partition(b"\n")[0]:
        return "an index of a GRIB file", _GRIB
    return next(((kind, remedy) for kind, at, magic, remedy in _KINDS if head.startswith(magic, at)), None)


def find_compressor(head: bytes) -> str | None:
    """Return the name of the compressor by the first bytes of a file; None if the file is not compressed."""
    return next((name for magic, name in _COMPRESSORS.items() if head.startswith(magic)), None)


def decompress_probe(probe: Probe) -> Probe:
    """Return a probe with the first decompressed bytes, if the file is compressed; otherwise ``probe``."""
    if not is_compressed(probe.head):
        return probe
    return Probe(probe.url, probe.facts, inflate_head(probe.head, LEAST_HEAD))
