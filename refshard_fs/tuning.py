"""Settings of zarr: the pipeline that hands us whole selections, and the number of concurrent requests for chunks."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import AbstractContextManager
from typing import Any, cast

PIPELINE = "refshard_fs.zarr_pipeline"
VARIABLE = "REFSHARD_ZARR_PIPELINE"  # an environment variable: 0 keeps zarr's own pipeline

_hooked = False  # whether zarr's pipeline was set: only once in a process, so that a later setting by the user stays
_problem: str | None = None


def hook_zarr(*, wait: bool = True) -> None:
    """Make zarr 3, if it is imported, pass whole selections of our arrays to `refshard_fs.zarr_pipeline`.

    Without this setting, zarr reads one chunk at a time. Methods that zarr calls for reading call this function; the
    constructor of the filesystem does not, since making a filesystem must not change settings of zarr. If a thread is
    trying whether this version of zarr works with the pipeline, ``wait=True`` waits for the end of the thread.
    """
    global _hooked, _problem
    if _hooked or "zarr.core.array" not in sys.modules:
        if wait and sys.modules.get(PIPELINE) is not None:
            _import_pipeline().wait_for_trial()  # if another thread is importing the module, this waits for it
        return
    _hooked = True
    if os.environ.get(VARIABLE, "1").lower() in ("0", "false", "no", "off"):
        _problem = f"turned off by {VARIABLE}"
        return
    try:
        _import_pipeline().install()
        if wait:
            _import_pipeline().wait_for_trial()
    except Exception as e:  # noqa: BLE001  # reading must work with any later version of zarr
        _problem = _describe_change(e)


def _describe_change(error: Exception) -> str:
    return f"refshard's pipeline does not work with this version of zarr: {type(error).__name__}: {error}"


def find_pipeline_problem() -> str | None:
    """Return the reason why zarr 3 does not pass us whole selections; None if it does, or is not imported."""
    module = sys.modules.get(PIPELINE)
    if not _hooked or (module is not None and module.is_set()):
        return None
    if module is not None and (error := module.wait_for_trial()) is not None:
        return _describe_change(error)
    return _problem or "zarr.config's codec_pipeline.path names another pipeline"


def _import_pipeline() -> Any:
    return importlib.import_module(PIPELINE)


def tune_zarr(concurrency: int | None = 128, *, pipeline: bool | None = None) -> AbstractContextManager[object]:
    """Set how zarr 3 reads chunks; as a context manager, restore the old settings at the end.

    ``concurrency`` is the number of chunks that zarr requests at a time (its ``async.concurrency``, 10 by default;
    None does not change it). Arrays in a `RefShardFileSystem` do not need it, since their selections are read as a
    whole. ``pipeline=False`` turns off the reading of whole selections for arrays that are opened from now on, and
    ``pipeline=True`` turns it on. Raises NotImplementedError with zarr 2, which requests all chunks at once.

    >>> import refshard_fs, zarr
    >>> with refshard_fs.tune_zarr(64):
    ...     zarr.config.get("async.concurrency")
    64
    """
    try:
        import zarr
    except ImportError as e:
        raise ImportError('tune_zarr needs zarr: pip install "refshard_fs[zarr]"') from e
    global _hooked
    config = getattr(zarr, "config", None)
    if config is None:
        raise NotImplementedError(
            f"tune_zarr needs zarr 3, found {zarr.__version__}, which already requests all chunks at once"
        )
    changes: dict[str, Any] = {} if concurrency is None else {"async.concurrency": concurrency}
    if pipeline is not None:
        _hooked = True
        changes |= _import_pipeline().make_setting(pipeline)
    return cast("AbstractContextManager[object]", config.set(changes))
