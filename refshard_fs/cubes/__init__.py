"""Documents that join sets along a dimension (see FORMATS.md), plain or compressed.

Their first member, ``"refshard": "concat"``, identifies them.
"""

from __future__ import annotations

import re

from refshard_fs.core.compression import inflate_head
from refshard_fs.core.format import LEAST_HEAD, Format, Probe

__all__ = ["FORMAT", "NAME"]

NAME = "concat"
_START = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"refshard"\s*:\s*"' + NAME.encode() + b'"')


def _recognises(probe: Probe) -> bool:
    return _START.match(inflate_head(probe.head, LEAST_HEAD)) is not None


FORMAT = Format("refshard-concat", _recognises, "refshard_fs.cubes.keyspace")
