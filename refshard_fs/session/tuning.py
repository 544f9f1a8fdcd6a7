"""An explicit switch for zarr's own concurrency; nothing of it is changed otherwise."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import cast

__all__ = ["tune_zarr"]


def tune_zarr(concurrency: int = 128) -> AbstractContextManager[object]:
    """Let zarr 3 ask for ``concurrency`` chunks at a time (its default is 10); works as a context manager, too.

    Helps where what is read follows no pattern and was not announced (`RefShardFileSystem.prefetch`). It sets zarr's
    ``async.concurrency``. NotImplementedError with zarr 2, which asks for all chunks at once.

    >>> import refshard_fs, zarr
    >>> with refshard_fs.tune_zarr(64):
    ...     zarr.config.get("async.concurrency")
    64
    """
    import zarr  # it may not be installed

    config = getattr(zarr, "config", None)
    if config is None:
        raise NotImplementedError(f"zarr {zarr.__version__} asks for all chunks at a time, and has nothing to tune")
    return cast("AbstractContextManager[object]", config.set({"async.concurrency": concurrency}))
