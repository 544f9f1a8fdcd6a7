"""Pictures show the requests that a read sends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.core.selection import select_chunk_numbers
from refshard_fs.tools.array_selection import parse_selection
from refshard_fs.tools.picture import Picture
from tests.servers.http import RangeServer


def test_error_of_a_selection_as_array_has_a_remedy() -> None:
    fs = RefShardFileSystem({"a/.zarray": '{"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1"}'})
    with pytest.raises(FileNotFoundError, match=r"no array 'a\[0\]'.*select='a\[0\]' \(--select\)"):
        fs.visualize("a[0]")


def list_requests(server: RangeServer) -> list[tuple[str, int, int]]:
    """Return path, start and stop of each request for bytes since the log was cleared."""
    found = [(r.path, r.start, r.stop) for r in server.log.requests() if r.method == "GET"]
    assert all(start is not None for _, start, _ in found)
    return sorted(found)  # type: ignore[arg-type]  # as asserted


def list_drawn(made: Picture, server: RangeServer) -> list[tuple[str, int, int]]:
    assert made.map.selection is not None
    return sorted((r.url.removeprefix(server.url.rstrip("/")), r.start, r.stop) for r in made.map.selection.requests)  # type: ignore[misc]  # ends are known


@pytest.mark.parametrize("how", ["cat", "prefetch"])
@pytest.mark.parametrize("selection", ["[0:3, 2:9]", "[:, 4]", "[7]", "[...]", "[::3, ::4]"])
def test_drawn_requests_of_references_equal_a_read(http_server: RangeServer, selection: str, how: str) -> None:
    files = 4
    for i in range(files):
        http_server.put(f"/f{i}", np.random.default_rng(i).bytes(3_000_000))
    meta = {"zarr_format": 2, "shape": [12, 10], "chunks": [1, 1], "dtype": "|u1", "order": "C"}
    refs: dict[str, Any] = {
        "a/.zarray": json.dumps(meta | {"fill_value": 0, "filters": None, "compressor": None}),
        **{
            f"a/{n // 10}.{n % 10}": [f"{http_server.url}/f{n // 30}", (n * 7 % 30) * 90_000, 50_000 + 1000 * (n % 7)]
            for n in range(120)
            if n % 11
        },
    }
    fs = RefShardFileSystem(refs)
    made = fs.visualize("a", selection)
    assert list_requests(http_server) == []
    chosen = parse_selection(selection)[1]
    if how == "prefetch":
        fs.prefetch("a", chosen)
    else:
        fs.cat([f"a/{n // 10}.{n % 10}" for n in select_chunk_numbers(chosen, (12, 10), (1, 1)).tolist() if n % 11])
    assert list_requests(http_server) == list_drawn(made, http_server)


def test_drawn_requests_of_inner_chunks_equal_a_read(http_server: RangeServer, shared_data: Path) -> None:
    folder = shared_data / "shards" / "zarrs-rust-8x8"
    refs: dict[str, Any] = {"zarr.json": (folder / "zarr.json").read_text()}
    for file in folder.glob("c/*/*"):
        key = file.relative_to(folder).as_posix()
        refs[key] = [http_server.put(key, file.read_bytes())]
    fs = RefShardFileSystem(refs)
    made = fs.visualize("", "[0:5, 2:7]")
    http_server.log.clear()
    fs.cat(["c/0/0", "c/0/1", "c/1/0", "c/1/1"])
    assert list_requests(http_server) == list_drawn(made, http_server)
    assert len(list_drawn(made, http_server)) == 2
