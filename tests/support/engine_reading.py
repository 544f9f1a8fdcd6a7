"""Open filesystems over a chunked object."""

from __future__ import annotations

from typing import Any

from refshard_fs import RefShardFileSystem
from tests.support.chunked import Chunked


def open_fs(chunked: Chunked, **options: Any) -> RefShardFileSystem:
    return RefShardFileSystem(fo=chunked.refs(), skip_instance_cache=True, **options)


def select_options(fs: RefShardFileSystem) -> dict[str, Any]:
    return {k: v for k, v in fs.storage_options.items() if k in ("readahead", "max_memory", "block_cache")}
