"""HDF4 files, also of HDF-EOS2: their scientific data sets as arrays. They are recognised by their first bytes."""

from __future__ import annotations

from refshard_fs.core.format import Format, begins_with

MAGIC = b"\x0e\x03\x13\x01"

FORMAT = Format("hdf4", begins_with(MAGIC), "refshard_fs.formats.hdf4.source")
