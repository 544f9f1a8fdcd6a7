"""Share botocore's parsed documents in a process, because parsing them takes 0.1 s of CPU time for each client."""

from __future__ import annotations

import ssl
from functools import cache
from typing import Any

import pytest
from aiobotocore.httpsession import AIOHTTPSession
from botocore.loaders import Loader

__all__ = ["share_models"]


def share_models(patch: pytest.MonkeyPatch) -> None:
    """Share models of services and TLS contexts among all clients of this process, until ``patch`` is undone."""
    found: dict[Any, Any] = {}
    original = Loader.__init__

    def init(self: Loader, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        self._cache = found

    usual = cache(ssl.create_default_context)
    own = getattr(AIOHTTPSession, "_build_verify_context", None)  # only newer versions have it
    contexts: dict[object, ssl.SSLContext] = {}  # by the option `verify`: False, or a file of certificates

    def verifying(self: AIOHTTPSession) -> ssl.SSLContext:
        if own is None or self._verify is True:
            return usual()
        if self._cert_file:  # it is loaded into the context, which cannot be shared then
            made: ssl.SSLContext = own(self)
            return made
        return contexts.setdefault(self._verify, contexts.get(self._verify) or own(self))

    patch.setattr(Loader, "__init__", init)
    patch.setattr(AIOHTTPSession, "_build_verify_context", verifying, raising=False)
