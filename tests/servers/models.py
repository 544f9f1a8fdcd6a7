"""What botocore knows of S3, read once a process: it parses half a megabyte anew for each client, 0.1 s of CPU time."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.loaders import Loader

__all__ = ["share_models"]


def share_models(patch: pytest.MonkeyPatch) -> None:
    """Let all clients of this process share what their loaders have found, until ``patch`` is undone."""
    cache: dict[Any, Any] = {}
    original = Loader.__init__

    def init(self: Loader, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        self._cache = cache

    patch.setattr(Loader, "__init__", init)
