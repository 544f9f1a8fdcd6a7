"""The old name of `refshard_fs.source.files`, for earlier pickles."""

from refshard_fs.source.files import RefShardMap

__all__ = ["RefShardMap"]
