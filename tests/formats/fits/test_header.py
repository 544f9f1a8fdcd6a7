"""Headers of FITS files: texts that continue over several cards, and values that are not possible."""

from __future__ import annotations

from pathlib import Path

import pytest

from refshard_fs import ManifestError
from refshard_fs.formats.fits.header import parse_header
from tests.support.fits_files import SKY, write
from tests.support.shards_in_memory import ROOT, Files

xr = pytest.importorskip("xarray")
fits = pytest.importorskip("astropy.io.fits")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"BITPIX  =                  -32", b"BITPIX  =                   33", "BITPIX is 33"),
        (b"NAXIS1  =                   70", b"NAXIS1  =                   -7", "NAXIS1 is -7"),
        (b"NAXIS1  =                   70", b"NAXIS1  =             70000000", "cut short: expected data up to byte"),
        (b"NAXIS2  =                   90", b"NAXIS2  = 9223372036854775807", r"expected less than 2\*\*60 elements"),
        (b"NAXIS   =                    2", b"NAXIS   =                  900", "NAXIS is 900: expected at most 32"),
    ],
)
def test_impossible_value_in_a_header_is_an_error(tmp_path: Path, old: bytes, new: bytes, reason: str) -> None:
    data = write(tmp_path / "a.fits", fits.ImageHDU(SKY, name="SCI")).read_bytes()
    assert old in data
    files = Files({ROOT: data.replace(old, new.ljust(len(old)))})
    with pytest.raises(ManifestError, match=reason):
        files.open()


def test_long_text_continues_over_cards() -> None:
    cards = ["SIMPLE  =                    T", "BITPIX  =                    8", "NAXIS   =                    0"]
    cards += ["LONG    = 'first&'", *["CONTINUE  'more&'"] * 20_000, "CONTINUE  'last'", "CONTINUE  'stray'", "END"]
    data = b"".join(card.ljust(80).encode() for card in cards)
    data += b" " * (-len(data) % 2880)
    assert parse_header(data, 0, len(data), "x").cards["LONG"] == "first" + "more" * 20_000 + "last"
