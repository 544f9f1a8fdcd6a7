"""Paths for `universal_pathlib`: ``UPath("refshard://array", fo=...)``."""

from __future__ import annotations

from typing import Any

import fsspec
from upath import UPath

from refshard_fs.fs import RefShardFileSystem

# `UPath` gets the syntax of paths from fsspec's registry; if the class is not loaded yet, it guesses and warns.
fsspec.register_implementation("refshard", RefShardFileSystem, clobber=True)


class RefShardPath(UPath):
    """Represent a key or a directory of a source as a `pathlib` path, for `UPath` of ``refshard://`` URLs."""

    __slots__ = ()

    @classmethod
    def _transform_init_args(
        cls, args: tuple[Any, ...], protocol: str, storage_options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], str, dict[str, Any]]:
        """Make ``refshard::SOURCE`` the root of SOURCE, as fsspec does; `UPath` itself would treat SOURCE as a key."""
        match args:
            case (str(url), *rest) if url.startswith("refshard::"):
                args = (url.replace("refshard::", "refshard://::", 1), *rest)
        return super()._transform_init_args(args, protocol, storage_options)
