"""Fixtures for all tests: real servers, and the real data that lies beside the clone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.http import RangeServer


@pytest.fixture
def http_server() -> Iterator[RangeServer]:
    """An empty HTTP server: fill it with ``put``, harm it with ``fault``, read its log."""
    with RangeServer() as server:
        yield server
