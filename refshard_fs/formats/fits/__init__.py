"""Recognise FITS files by their first card. Their images and the columns of their tables are shown as arrays."""

from __future__ import annotations

from refshard_fs.core.format import Format, Probe


def _recognises(probe: Probe) -> bool:
    return probe.head[:10] == b"SIMPLE  = " and b"T" in probe.head[10:30]


FORMAT = Format("fits", _recognises, "refshard_fs.formats.fits.source")
