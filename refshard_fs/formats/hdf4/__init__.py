"""HDF4 and HDF-EOS2 files, whose scientific data sets are arrays. A file is recognised by its first bytes."""

from __future__ import annotations

from refshard_fs.core.format import Format, begins_with

MAGIC = b"\x0e\x03\x13\x01"

FORMAT = Format("hdf4", begins_with(MAGIC), "refshard_fs.formats.hdf4.source")
