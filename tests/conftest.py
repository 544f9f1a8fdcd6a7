"""Fixtures for all tests: real servers, and the real data that lies beside the clone."""

from __future__ import annotations

from collections.abc import Iterator

import fsspec
import pytest

from tests.servers.http import RangeServer


@pytest.fixture
def http_server() -> Iterator[RangeServer]:
    """An empty HTTP server: fill it with ``put``, harm it with ``fault``, read its log."""
    with RangeServer() as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def _registered() -> None:
    """Make the protocol known where the package is not installed."""
    fsspec.register_implementation("refshard", "refshard_fs.fs.RefShardFileSystem", clobber=True)
