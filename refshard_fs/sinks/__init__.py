"""The formats in which sets of references are written, a file for each. `writing.save` calls them.

Sinks of other packages are registered in the group of entry points ``refshard.sinks``: see `sinks.sink`.
"""

from __future__ import annotations

from functools import cache

from refshard_fs.core.format import load_plugins
from refshard_fs.sinks.chunk_manifest import ChunkManifestSink
from refshard_fs.sinks.icechunk import IcechunkSink
from refshard_fs.sinks.kerchunk_json import JsonSink
from refshard_fs.sinks.kerchunk_parquet import ParquetSink
from refshard_fs.sinks.sink import Sink

BUILT_IN: tuple[Sink, ...] = (ParquetSink(), JsonSink(), ChunkManifestSink(), IcechunkSink())


@cache
def load_sinks() -> dict[str, Sink]:
    """Return all sinks, by name."""
    return load_plugins("refshard.sinks", Sink, BUILT_IN)


def find_sink(name: str) -> Sink:
    """Return the sink called ``name``; ValueError, with the known names, if there is none."""
    known = load_sinks()
    if name not in known:
        raise ValueError(f"unknown format={name!r}: expected {', '.join(map(repr, known))}")
    return known[name]
