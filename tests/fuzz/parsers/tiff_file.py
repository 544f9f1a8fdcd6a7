"""Open TIFF files: chunks lie in the file and have the right length, or an error of this package is raised."""

from __future__ import annotations

import io
from contextlib import nullcontext as set_up

import numpy as np
import tifffile

from refshard_fs.errors import RefShardError
from refshard_fs.formats.tiff.source import open_
from tests.fuzz.array_files import choose_chunks, open_file

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = False
WORDS = (
    b"II*\0\x08\0\0\0",
    b"MM\0+\0\x08\0\0",
    b"\x11\x01\x04\0\x01\0\0\0",
    b"\x44\x01\x10\0\x01\0\0\0",
    b"\x4a\x01\x0d\0\x02\0\0\0",
    b"<OME>",
    b'SizeZ="9"',
    b"\xff" * 8,
    b"\x0e\x83\x0c\0\3\0\0\0",
    b"\xb0\x87\x0c\0",
    b"ESRI PE String = ",
    b"\0\0\0\0\0\0\xf8\x7f",
    b"\3\x0c\0\0\1\0\x18\0",
    b"\0" * 8,
)
_LARGEST = 1 << 20  # bytes of a chunk that is read
_OME = (
    '<OME><Image><Pixels DimensionOrder="XYCZT" SizeC="3" SizeZ="1" SizeT="1"><Channel SamplesPerPixel="1"/>'
    '<TiffData IFD="0" FirstC="0" PlaneCount="3"/></Pixels></Image></OME>'
)

_COLORS = np.arange(768, dtype="u2").reshape(3, 256) * 85
_METADATA = (
    '<GDALMetadata><Item name="a">5</Item><Item name="b" sample="0">x</Item>'
    '<Item name="c" sample="0" role="scale">0.5</Item></GDALMetadata>'
)
# GeoTIFF keys of an Albers projection on a geographic CRS without an EPSG code, as GDAL writes them.
_KEYS = (
    *(1, 1, 0, 12, 1024, 0, 1, 1, 1025, 0, 1, 2, 1026, 34737, 8, 0, 2048, 0, 1, 32767, 2049, 34737, 24, 8),
    *(2050, 0, 1, 6269, 2054, 0, 1, 9102, 2057, 34736, 1, 0, 2059, 34736, 1, 1, 3072, 0, 1, 32767, 3075, 0, 1, 11),
    *(3078, 34736, 1, 2, 3088, 34736, 1, 3),
)
_PLACE = [
    (34735, "H", len(_KEYS), _KEYS, True),
    (34736, "d", 4, (6378137.0, 298.257222101, 29.5, -96.0), True),
    (34737, "s", 0, "unknown|GCS Name = a|Datum = b |", True),
    (33922, "d", 12, (0, 0, 0, 10, 50, 0, 16, 12, 0, 11, 49, 0), True),
    (50844, "d", 92, tuple(range(92)), True),
    (42112, "s", 0, _METADATA, True),
]


def make_seeds() -> list[bytes]:
    values = np.arange(12 * 16 * 3, dtype="u2").reshape(12, 16, 3)
    found = []
    for options in (
        {"compression": "lzw", "predictor": 2, "tile": (16, 16)},
        {"compression": "packbits", "rowsperstrip": 5, "bigtiff": True},
        {"byteorder": ">", "rowsperstrip": 5},
        {"compression": "zstd", "subifds": 1},
    ):
        out = io.BytesIO()
        with tifffile.TiffWriter(
            out, bigtiff=options.pop("bigtiff", False), byteorder=options.pop("byteorder", "<")
        ) as w:
            w.write(values[..., 0], **options)
            w.write(values[::2, ::2, 0], subfiletype=1)
        found.append(out.getvalue())
    out = io.BytesIO()
    tifffile.imwrite(out, values[..., 0].astype("u1"), photometric="palette", colormap=_COLORS, extratags=_PLACE)
    found.append(out.getvalue())
    out = io.BytesIO()
    with tifffile.TiffWriter(out) as w:
        for plane in np.moveaxis(values, -1, 0):
            w.write(plane, description=_OME, compression="zlib", metadata=None)
    return [*found, out.getvalue()]


def check_input(data: bytes) -> None:
    found = open_file(open_, data)
    if found is None:
        return
    files, keys = found
    for key in choose_chunks(keys):
        try:
            entry = files.run(keys.lookup(key))
            if entry is not None and (entry.size or 0) <= _LARGEST:
                files.bytes(entry)
        except (RefShardError, ValueError):  # the engine adds the key to these errors
            pass
