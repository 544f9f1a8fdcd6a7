"""NetCDF-3 files: classic, 64-bit offset and 64-bit data (CDF-5). A file is recognised by its first four bytes."""

from __future__ import annotations

from refshard_fs.core.format import Format, begins_with

MAGICS = (b"CDF\1", b"CDF\2", b"CDF\5")


FORMAT = Format("netcdf3", begins_with(*MAGICS), "refshard_fs.formats.netcdf3.source")
