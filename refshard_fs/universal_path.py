"""`universal_pathlib`'s paths of ours, for ``UPath("refshard://array", fo=...)``."""

from __future__ import annotations

import fsspec
from upath import UPath

from refshard_fs.fs import RefShardFileSystem

__all__ = ["RefShardPath"]

# It asks fsspec's registry how paths are spelled, and takes a guess, with a warning, where the class is not loaded yet.
fsspec.register_implementation("refshard", RefShardFileSystem, clobber=True)


class RefShardPath(UPath):
    """A key or a directory of a source as a `pathlib` path: what `UPath` makes of ``refshard://`` URLs."""

    __slots__ = ()
