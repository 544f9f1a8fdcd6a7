"""Arrays that are compressed with blosc: directories of bcolz (an array or a table), and bloscpack files (an array)."""

from __future__ import annotations

from refshard_fs.core.format import Format, Probe, begins_with

COLUMNS = "__rootdirs__"  # the file with the names of a table's columns
STORAGE = "meta/storage"  # the file with the parameters of an array
MAGIC = b"blpk"  # the first bytes of a bloscpack file


def _is_bcolz(probe: Probe) -> bool:
    storage = probe.documents.get(STORAGE)
    if storage is not None:
        return not storage.data or b'"chunklen"' in storage.data
    return COLUMNS in probe.documents


FORMAT = Format(
    "bcolz", _is_bcolz, "refshard_fs.formats.bcolz.rootdir", markers=(STORAGE, COLUMNS), documents=(STORAGE, COLUMNS)
)
BLOSCPACK = Format("bloscpack", begins_with(MAGIC), "refshard_fs.formats.bcolz.bloscpack")
