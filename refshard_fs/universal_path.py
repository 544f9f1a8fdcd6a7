"""`universal_pathlib`'s paths of ours, for ``UPath("refshard://array", fo=...)``."""

from __future__ import annotations

from typing import Any

import fsspec
from upath import UPath

from refshard_fs.fs import RefShardFileSystem

# It asks fsspec's registry how paths are spelled, and takes a guess, with a warning, where the class is not loaded yet.
fsspec.register_implementation("refshard", RefShardFileSystem, clobber=True)


class RefShardPath(UPath):
    """A key or a directory of a source as a `pathlib` path: what `UPath` makes of ``refshard://`` URLs."""

    __slots__ = ()

    @classmethod
    def _transform_init_args(
        cls, args: tuple[Any, ...], protocol: str, storage_options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], str, dict[str, Any]]:
        """Take ``refshard::SOURCE`` for the root of SOURCE, as fsspec does; `UPath` itself takes SOURCE for a key."""
        match args:
            case (str(url), *rest) if url.startswith("refshard::"):
                args = (url.replace("refshard::", "refshard://::", 1), *rest)
        return super()._transform_init_args(args, protocol, storage_options)
