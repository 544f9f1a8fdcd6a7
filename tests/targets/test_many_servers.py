"""As many connections as the process may have, however many servers a set names."""

from __future__ import annotations

import contextlib

import pytest
from fsspec.asyn import get_loop

from refshard_fs import RefShardFileSystem
from refshard_fs.targets import connections
from tests.servers.http import RangeServer


def test_connections_that_nobody_uses_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "most_open", lambda: 4)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(RangeServer()) for _ in range(12)]
        fs = RefShardFileSystem({f"k{i}": [server.put("/x", b"x"), 0, 1] for i, server in enumerate(servers)})
        for i in range(len(servers)):
            assert fs.cat_file(f"k{i}") == b"x"
            known = getattr(get_loop(), connections._NAME)._connectors.values()
            assert sum(len(kept) for connector in known for kept in connector._conns.values()) <= 4


def test_half_of_the_files_that_may_be_open_are_left_to_others() -> None:
    resource = pytest.importorskip("resource")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert connections.most_open() == (4096 if soft == resource.RLIM_INFINITY else max(soft // 3, 16))
