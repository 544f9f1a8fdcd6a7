"""What each client of S3 reads anew, read once a process: 0.1 s of CPU time for each of some hundred clients."""

from __future__ import annotations

import ssl
from functools import cache
from typing import Any

import pytest
from aiobotocore.httpsession import AIOHTTPSession
from botocore.loaders import Loader

__all__ = ["share_models"]


def share_models(patch: pytest.MonkeyPatch) -> None:
    """Let all clients of this process share the models of services and the certificates, until ``patch`` is undone."""
    found: dict[Any, Any] = {}
    original = Loader.__init__

    def init(self: Loader, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        self._cache = found

    usual = cache(ssl.create_default_context)
    own = getattr(AIOHTTPSession, "_build_verify_context", None)  # of its newer versions

    def verifying(self: AIOHTTPSession) -> ssl.SSLContext:
        context: ssl.SSLContext = usual() if own is None or self._verify is True else own(self)
        return context

    patch.setattr(Loader, "__init__", init)
    patch.setattr(AIOHTTPSession, "_build_verify_context", verifying, raising=False)
