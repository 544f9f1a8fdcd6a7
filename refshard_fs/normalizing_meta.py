"""The metaclass of the filesystem, which converts its arguments before fsspec stores and compares them."""

from __future__ import annotations

from typing import Any

import fsspec
from fsspec.asyn import AsyncFileSystem

from refshard_fs.source.normalizing import collect_keywords, make_portable, resolve_source, stands_for_many


class NormalizingMeta(type(AsyncFileSystem)):  # type: ignore[misc]  # fsspec is untyped: its metaclass is Any
    """Convert ``fo`` to a value that means the same in every process; join several sources to one."""

    def __call__(cls, fo: Any = None, *args: Any, **kwargs: Any) -> Any:
        fo, named = resolve_source(fo, collect_keywords(args, kwargs))
        if stands_for_many(fo, named):
            from refshard_fs.sets.join_sources import join_sources  # imported only for several sources

            fo, named = join_sources(fo, named)
        source, named = make_portable(fo, named)
        if "fo" in (fsspec.config.conf.get("refshard") or {}):  # fsspec would add the configured source
            return super().__call__(fo=source, **named)
        return super().__call__(source, **named)
