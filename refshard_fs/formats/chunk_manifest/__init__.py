"""Chunk manifests (``chunk-manifest-json``, see FORMATS.md) map the chunks of an array, or the keys of a source.

An array or a group of any source may declare a manifest; `view` resolves it. A manifest that maps the keys of a source
may also be a separate document: this module recognises it, and `prefix_map` opens it.
"""

from __future__ import annotations

import re

from refshard_fs.core.format import Format, Probe

NAME = "chunk-manifest-json"
_START = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"name"\s*:\s*"' + NAME.encode() + b'"')


def _recognises(probe: Probe) -> bool:
    return _START.match(probe.head) is not None


FORMAT = Format(NAME, _recognises, "refshard_fs.formats.chunk_manifest.prefix_map")
