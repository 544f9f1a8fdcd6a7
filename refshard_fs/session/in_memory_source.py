"""Where pickles that were made before look for what is in `refshard_fs.source.in_memory_source` now."""

from refshard_fs.source.in_memory_source import InMemorySource, _unpickled

__all__ = ["InMemorySource", "_unpickled"]
