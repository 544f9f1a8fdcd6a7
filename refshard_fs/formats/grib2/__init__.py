"""Recognise GRIB files of edition 1 and 2, which become groups: a variable for each parameter and kind of level.

A rule is a document that describes an archive of such files; it begins with the member ``"refshard": "rule"``.
"""

from __future__ import annotations

import re

from refshard_fs.core.format import Format, Probe

NAME = "rule"
_START = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"refshard"\s*:\s*"' + NAME.encode() + b'"')
TEXT = bytes((*range(14), *range(32, 127)))  # zeros, control characters that frame bulletins, and ASCII


def _recognises(probe: Probe) -> bool:
    """Return whether a message begins within the first bytes, after zeros or text (the header of a bulletin)."""
    start = probe.head.find(b"GRIB")
    return (
        start >= 0
        and probe.head[start + 7 : start + 8] in (b"\1", b"\2")
        and not probe.head[:start].translate(None, TEXT)
    )


FORMAT = Format("grib2", _recognises, "refshard_fs.formats.grib2.source")
RULE = Format("grib-rule", lambda probe: _START.match(probe.head) is not None, "refshard_fs.formats.grib2.rule")
