"""Open FITS files: chunks lie in the file and have a bounded size, or an error of this package is raised."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from refshard_fs.core.model import Packed
from refshard_fs.errors import RefShardError
from refshard_fs.formats.fits.header import BLOCK
from refshard_fs.formats.fits.source import open_
from refshard_fs.formats.fits.tiles import LARGEST, TileRecipe, encode_header
from tests.fuzz.array_files import choose_chunks, open_file

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = False
WORDS = tuple(
    word.encode()
    for word in (
        "NAXIS   =                    3",
        "BITPIX  =                  -64",
        "BZERO   =                32768",
        "ZTILE1  =           2000000000",
        "THEAP   =                   64",
        "1QB(9)",
        "XTENSION",
        "END" + " " * 77,
        "CONTINUE  'more'",
        "HIERARCH A B = 4",
        "TFORM1  = '9999999M'",
        "TDIM1   = '(2,2)   '",
        "TSCAL1  =                  0.5",
        "-",
        "9223372036854775807",
    )
)
_LARGEST = 1 << 20  # bytes of a chunk that is read


@contextmanager
def set_up() -> Iterator[None]:
    """Import astropy's decoders before an input needs them: that takes half of the time that an input may take."""
    with suppress(ImportError):
        for name in ("_codecs", "_quantization"):
            importlib.import_module(f"astropy.io.fits.hdu.compressed.{name}")
    yield


def make_seeds() -> list[bytes]:
    primary = encode_header({"SIMPLE": True, "BITPIX": 8, "NAXIS": 0, "EXTEND": True})
    axes = {"NAXIS": 2, "NAXIS1": 5, "NAXIS2": 3, "PCOUNT": 0, "GCOUNT": 1}
    image = encode_header({"XTENSION": "IMAGE", "BITPIX": 16, **axes, "EXTNAME": "SCI", "BLANK": -1, "BZERO": 32768})
    pixels = bytes(range(30)).ljust(BLOCK, b"\0")
    table = {"XTENSION": "BINTABLE", "BITPIX": 8, "NAXIS": 2, "NAXIS1": 8, "NAXIS2": 3, "PCOUNT": 30, "GCOUNT": 1}
    column = {"TFIELDS": 1, "TTYPE1": "COMPRESSED_DATA", "TFORM1": "1PB(10)"}
    tiles = {"ZIMAGE": True, "ZBITPIX": 16, "ZNAXIS": 2, "ZNAXIS1": 5, "ZNAXIS2": 3, "ZTILE1": 5, "ZTILE2": 1}
    rows = b"".join((10).to_bytes(4, "big") + (10 * row).to_bytes(4, "big") for row in range(3))
    heap = (rows + bytes(range(30))).ljust(BLOCK, b"\0")
    compressed = encode_header({**table, **column, **tiles, "ZCMPTYPE": "NOCOMPRESS", "EXTNAME": "TILES"}) + heap
    varying = encode_header({**table, "TFIELDS": 1, "TFORM1": "1PB(10)", "EXTNAME": "LISTS"}) + heap
    forms = {"TFIELDS": 4, "TFORM1": "2I", "TFORM2": "3A", "TDIM2": "(1,3)", "TFORM3": "5X", "TFORM4": "PE(3)"}
    records = {"XTENSION": "BINTABLE", "BITPIX": 8, "NAXIS": 2, "NAXIS1": 16, "NAXIS2": 9, "PCOUNT": 0, "GCOUNT": 1}
    binary = encode_header({**records, **forms, "TZERO1": 32768, "TNULL1": 3}) + bytes(range(144)).ljust(BLOCK, b"\0")
    lines = {**records, "XTENSION": "TABLE", "TFIELDS": 2, "TBCOL1": 1, "TFORM1": "I6", "TBCOL2": 7, "TFORM2": "E10.2"}
    text = encode_header({**lines, "TNULL1": "-"}) + (b" 12345" + b" 1.50D+02 ") * 9 + bytes(BLOCK - 144)
    lists = [
        b"\0\0\0\3\0\5\x40\5\0\0",
        b"\0\0\0\3\0\4\x60\7",
        b"\0\0\0\7\xff\x9c\0\7\0\0\0\0\0\0",
    ]
    places = [sum(map(len, lists[:row])) for row in range(3)]
    pairs = zip(lists, places, strict=True)
    rows = b"".join((len(words) // 2).to_bytes(4, "big") + at.to_bytes(4, "big") for words, at in pairs)
    heap = (rows + b"".join(lists)).ljust(BLOCK, b"\0")
    plio = encode_header({**table, "PCOUNT": 32, **column, "TFORM1": "1PI(7)", **tiles, "ZCMPTYPE": "PLIO_1"}) + heap
    return [
        primary + plio,
        primary + binary,
        primary + text,
        primary + image + pixels,
        primary + compressed,
        primary + varying,
        primary + image + pixels + compressed + image + pixels,
    ]


def check_input(data: bytes) -> None:
    found = open_file(open_, data)
    if found is None:
        return
    files, keys = found
    for key in choose_chunks(keys):
        try:
            entry = files.run(keys.lookup(key))
        except RefShardError:
            continue
        assert entry is not None
        assert (entry.size or 0) <= 8 * max(LARGEST, len(data))
        if isinstance(entry, Packed) and isinstance(entry.recipe, TileRecipe):
            assert all(span.stop is not None and span.stop <= len(data) for span in entry.spans)
        elif (entry.size or 0) <= _LARGEST:
            with suppress(ValueError):  # the engine adds the key to this error
                files.bytes(entry)
