"""``zarr.open("s3://bucket/scene.tif|refshard:")``: what zarr finds by its entry points in ``zarr.url_adapters``.

zarr asks for it once its URL pipelines are released (zarr-python's pull request 4192; no release has them yet).

Source: https://github.com/jbms/url-pipeline
"""

from __future__ import annotations

import importlib
from typing import Any

from refshard_fs.zarr_store import Store

abc: Any = importlib.import_module("zarr.abc.url_pipeline")  # which type checkers do not find in released versions


class RefShardAdapter(abc.URLPipelineAdapter):
    """Resolves ``SOURCE|refshard:PATH``: PATH is a group or an array in SOURCE, which may be a pipeline itself.

    ``storage_options`` are those of `RefShardFileSystem`. What is written is not committed by zarr: with the
    option ``mode="a"`` the store takes writes, and ``store.fs.commit()`` has to follow.
    """

    @classmethod
    async def open_pipeline_segment(cls, segment: Any, context: Any) -> Any:
        """Return the store of the source to the left of ``segment``, and the path in it."""
        options: dict[str, Any] = dict(context.storage_options or {})
        source = f"{context.preceding_url}|refshard:" if context.preceding else options.pop("fo", None)
        if context.mode in ("w", "w-", "r+") and "mode" not in options:
            raise ValueError(
                f"mode={context.mode!r}: zarr does not commit what it writes to this source; with "
                "storage_options={'mode': 'a'} the store takes writes, and store.fs.commit() commits them"
            )
        store = await Store.open(source, read_only=context.read_only or None, **options)
        return abc.AdapterResolution(store, segment.body.strip("/"))
