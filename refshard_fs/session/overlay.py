"""The old name of `refshard_fs.source.transaction`, for earlier pickles."""

from refshard_fs.source.transaction import OverlayCopy

__all__ = ["OverlayCopy"]
