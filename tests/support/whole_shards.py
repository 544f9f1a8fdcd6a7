"""A filesystem class that leaves sharded arrays whole, for tests that compare members of archives."""

from __future__ import annotations

from typing import Any

from refshard_fs import RefShardFileSystem

__all__ = ["WholeShards"]


class WholeShards(RefShardFileSystem):
    """RefShardFileSystem with ``shards="whole"``."""

    def __init__(self, fo: Any, **options: Any) -> None:
        super().__init__(fo, **{**options, "shards": "whole"})
