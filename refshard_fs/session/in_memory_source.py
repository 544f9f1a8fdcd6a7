"""The old name of `refshard_fs.source.in_memory_source`, for earlier pickles."""

from refshard_fs.source.in_memory_source import InMemorySource, _unpickled

__all__ = ["InMemorySource", "_unpickled"]
