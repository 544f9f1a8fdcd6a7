"""For the checker of real data: the class that leaves sharded arrays as they are, so that an archive's members are."""

from __future__ import annotations

from typing import Any

from refshard_fs import RefShardFileSystem

__all__ = ["WholeShards"]


class WholeShards(RefShardFileSystem):
    """The filesystem with ``shards="whole"``."""

    def __init__(self, fo: Any, **options: Any) -> None:
        super().__init__(fo, **{**options, "shards": "whole"})
