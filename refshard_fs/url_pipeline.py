"""zarr's URL pipelines: ``zarr.open("s3://bucket/scene.tif|refshard:")``.

A release of zarr with URL pipelines (zarr-python's pull request 4192) will find this adapter by an entry point in
``zarr.url_adapters``.

Source: https://github.com/jbms/url-pipeline
"""

from __future__ import annotations

import importlib
from typing import Any

from refshard_fs.zarr_store import Store

abc: Any = importlib.import_module("zarr.abc.url_pipeline")  # type checkers do not find it: no release has it yet


class RefShardAdapter(abc.URLPipelineAdapter):
    """Resolve ``SOURCE|refshard:PATH``: PATH is a group or an array in SOURCE, which may be a pipeline itself.

    ``storage_options`` are options of `RefShardFileSystem`. With ``mode="a"`` among them, the store takes writes; call
    ``store.fs.commit()`` to save them, since zarr does not commit.
    """

    @classmethod
    async def open_pipeline_segment(cls, segment: Any, context: Any) -> Any:
        """Open the source to the left of ``segment``; return its store, and the path in it."""
        options: dict[str, Any] = dict(context.storage_options or {})
        source = f"{context.preceding_url}|refshard:" if context.preceding else options.pop("fo", None)
        if context.mode in ("w", "w-", "r+") and "mode" not in options:
            raise ValueError(
                f"mode={context.mode!r} needs storage_options={{'mode': 'a'}}; call store.fs.commit() after writing, "
                "since zarr does not commit"
            )
        store = await Store.open(source, read_only=context.read_only or None, **options)
        return abc.AdapterResolution(store, segment.body.strip("/"))
