"""What is set in zarr: that it hands whole selections to us, and how many chunks it asks for at a time."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import AbstractContextManager
from typing import Any, cast

PIPELINE = "refshard_fs.zarr_pipeline"
VARIABLE = "REFSHARD_ZARR_PIPELINE"  # 0 in the environment leaves zarr's own pipeline

_hooked = False  # once in a process: whoever sets zarr's pipeline after that is left alone
_problem: str | None = None


def hook_zarr(*, wait: bool = True) -> None:
    """Have zarr 3 hand us whole selections of our arrays (`refshard_fs.zarr_pipeline`), if it has been imported.

    Called by reads that may be zarr's, and never by making a filesystem: this sets a setting of zarr's. Reading works
    without it too, a chunk at a time. With ``wait``, it is known afterwards whether this zarr can do so.
    """
    global _hooked, _problem
    if _hooked or "zarr.core.array" not in sys.modules:
        if wait and sys.modules.get(PIPELINE) is not None:
            _pipeline().problem()  # the import waits where another thread is importing it
        return
    _hooked = True
    if os.environ.get(VARIABLE, "1").lower() in ("0", "false", "no", "off"):
        _problem = f"turned off by {VARIABLE}"
        return
    try:
        _pipeline().install()
        if wait:
            _pipeline().problem()
    except Exception as e:  # noqa: BLE001  # whatever a later zarr has changed, reading goes on
        _problem = _changed(e)


def _changed(error: Exception) -> str:
    return f"this zarr has changed: {type(error).__name__}: {error}"


def pipeline_problem() -> str | None:
    """Return why zarr does not hand us whole selections, where it has been imported and could."""
    module = sys.modules.get(PIPELINE)
    if not _hooked or (module is not None and module.is_set()):
        return None
    if module is not None and (error := module.problem()) is not None:
        return _changed(error)
    return _problem or "another pipeline is set: zarr.config's codec_pipeline.path"


def _pipeline() -> Any:
    return importlib.import_module(PIPELINE)


def tune_zarr(concurrency: int | None = 128, *, pipeline: bool | None = None) -> AbstractContextManager[object]:
    """Set how zarr 3 reads; works as a context manager, too, which sets back what was.

    ``concurrency``: chunks that zarr asks for at a time (its ``async.concurrency``, 10 by default; None leaves that).
    Arrays in a `RefShardFileSystem` do not need it: of these, whole selections are read at once. ``pipeline`` turns
    that off (False) and on (True) for arrays that are opened from now on. NotImplementedError with zarr 2, which asks
    for all chunks at once.

    >>> import refshard_fs, zarr
    >>> with refshard_fs.tune_zarr(64):
    ...     zarr.config.get("async.concurrency")
    64
    """
    try:
        import zarr
    except ImportError as e:
        raise ImportError('there is no zarr to tune: pip install "refshard_fs[zarr]"') from e
    global _hooked
    config = getattr(zarr, "config", None)
    if config is None:
        raise NotImplementedError(f"zarr {zarr.__version__} asks for all chunks at a time, and has nothing to tune")
    changes: dict[str, Any] = {} if concurrency is None else {"async.concurrency": concurrency}
    if pipeline is not None:
        _hooked = True
        changes |= _pipeline().setting(pipeline)
    return cast("AbstractContextManager[object]", config.set(changes))
