"""Documents that join sets along a dimension (see FORMATS.md). Told by their first member, ``"refshard": "concat"``."""

from __future__ import annotations

import re

from refshard_fs.core.format import Format, Probe

__all__ = ["FORMAT", "NAME"]

NAME = "concat"
_START = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"refshard"\s*:\s*"' + NAME.encode() + b'"')


def _recognises(probe: Probe) -> bool:
    return _START.match(probe.head) is not None


FORMAT = Format("refshard-concat", _recognises, "refshard_fs.cubes.keyspace")
