"""An explicit switch for zarr's own concurrency; nothing of it is changed otherwise."""

from __future__ import annotations

from typing import Any

__all__ = ["tune_zarr"]


def tune_zarr(concurrency: int = 128) -> Any:
    """Let zarr 3 ask for ``concurrency`` chunks at a time (its default is 10); works as a context manager, too.

    Helps where what is read follows no pattern and was not announced (`RefShardFileSystem.prefetch`).
    """
    import zarr  # it may not be installed

    config = getattr(zarr, "config", None)
    if config is None:
        raise NotImplementedError(f"zarr {zarr.__version__} asks for all chunks at a time, and has nothing to tune")
    return config.set({"async.concurrency": concurrency})
