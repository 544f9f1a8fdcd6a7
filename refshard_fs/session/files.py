"""Where pickles that were made before look for what is in `refshard_fs.source.files` now."""

from refshard_fs.source.files import RefShardMap

__all__ = ["RefShardMap"]
