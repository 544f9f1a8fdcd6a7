"""CDF files of NASA, whose variables are arrays. A file is recognised by its first eight bytes."""

from __future__ import annotations

from refshard_fs.core.format import Format, begins_with

PLAIN = b"\x00\x00\xff\xff"
COMPRESSED = b"\xcc\xcc\x00\x01"
# The first bytes of files of version 3, of version 2.6 and 2.7, and of older versions.
MAGICS = (b"\xcd\xf3\x00\x01", b"\xcd\xf2\x60\x02", PLAIN)

FORMAT = Format(
    "cdf",
    begins_with(*(magic + PLAIN for magic in MAGICS), *(magic + COMPRESSED for magic in MAGICS[:2])),
    "refshard_fs.formats.cdf.source",
)
