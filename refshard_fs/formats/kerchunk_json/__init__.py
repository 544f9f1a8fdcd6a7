"""Recognise reference sets in JSON, kerchunk's format, by a brace or by compression, if no other format fits."""

from __future__ import annotations

from refshard_fs.core.compression import is_compressed
from refshard_fs.core.format import Format, Probe

__all__ = ["FORMAT"]


def _recognises(probe: Probe) -> bool:
    return is_compressed(probe.head) or probe.head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")


FORMAT = Format("kerchunk-json", _recognises, "refshard_fs.formats.kerchunk_json.source", is_general=True)
