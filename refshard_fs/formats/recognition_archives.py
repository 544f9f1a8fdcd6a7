"""What tells archives and packed arrays from other sources. No I/O here.

What opens a source is imported when there is one to open: see `formats.reader`.
"""

from __future__ import annotations

from typing import Final

from refshard_fs.core.format import Format, Probe, by_head, reader

__all__ = ["BCOLZ_COLUMNS", "BCOLZ_STORAGE", "BLOSCPACK", "FORMATS", "PRECOMPUTED", "ZIP_END", "ZIP_MEMBER"]

BCOLZ_COLUMNS: Final = "__rootdirs__"  # a table's list of columns
BCOLZ_STORAGE: Final = "meta/storage"  # an array's parameters
BLOSCPACK: Final = b"blpk"
PRECOMPUTED: Final = "info"
ZIP_END: Final = b"PK\5\6"
ZIP_MEMBER: Final = b"PK\3\4"


def _is_bcolz(probe: Probe) -> bool:
    storage = probe.documents.get(BCOLZ_STORAGE)
    if storage is not None:
        return not storage.data or b'"chunklen"' in storage.data
    return BCOLZ_COLUMNS in probe.documents


def _is_precomputed(probe: Probe) -> bool:
    document = probe.documents.get(PRECOMPUTED)
    return document is not None and b'"scales"' in document.data and b'"data_type"' in document.data


_BCOLZ: Final = (BCOLZ_STORAGE, BCOLZ_COLUMNS)


def _is_bloscpack(head: bytes) -> bool:
    return head.startswith(BLOSCPACK)


def _is_zip(head: bytes) -> bool:
    return head.startswith((ZIP_MEMBER, ZIP_END))


FORMATS: Final = (
    Format("bcolz", _is_bcolz, reader("refshard_fs.formats.bcolz.rootdir"), markers=_BCOLZ, documents=_BCOLZ),
    Format("bloscpack", by_head(_is_bloscpack), reader("refshard_fs.formats.bcolz.bloscpack")),
    Format(
        "neuroglancer-precomputed",
        _is_precomputed,
        reader("refshard_fs.formats.neuroglancer.volume"),
        markers=(PRECOMPUTED,),
        documents=(PRECOMPUTED,),
    ),
    Format("zip", by_head(_is_zip), reader("refshard_fs.formats.zip.source")),
)
