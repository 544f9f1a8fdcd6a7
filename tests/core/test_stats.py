"""Keys, requests and bytes are counted."""

from __future__ import annotations

from typing import Any

import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.core.stats import Stats, format_bytes
from tests.support.fs_references import DATA


def test_counters_have_keys_requests_and_bytes(http_server: Any) -> None:
    url = http_server.put("/x.bin", DATA)
    fs = RefShardFileSystem(fo={f"k{i}": [url, 10 * i, 10] for i in range(10)})
    fs.cat([f"k{i}" for i in range(10)])
    stats = fs.stats()
    assert (stats["keys"], stats["requests"], stats["bytes_wanted"], stats["bytes_fetched"]) == (10, 1, 100, 100)
    assert len(http_server.requests("/x.bin")) == 1


def test_unrequested_bytes_are_reported_once_per_server() -> None:
    stats = Stats()
    stats.add(requests=2, keys=1)
    stats.add_read(10)
    told = [stats.add_unasked("https://host", 1 << 30) for _ in range(2)]
    assert told == [True, False]
    assert stats.ignores_ranges("https://host")
    assert not stats.ignores_ranges("https://other")
    counts = stats.snapshot()
    assert (counts["keys"], counts["requests"], counts["bytes_fetched"]) == (2, 3, 10 + (2 << 30))
    stats.clear()
    assert not any(stats.snapshot().values())


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 KiB"), (10_240, "10 KiB"), (2**60, "1.0 EiB")]
)
def test_byte_counts_are_formatted_with_a_binary_unit(count: int, text: str) -> None:
    assert format_bytes(count) == text
