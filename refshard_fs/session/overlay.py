"""Where pickles that were made before look for what is in `refshard_fs.source.transaction` now."""

from refshard_fs.source.transaction import OverlayCopy

__all__ = ["OverlayCopy"]
