"""Each request is one record at DEBUG, with the facts about the request as attributes."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.targets.logs import log_request
from tests.servers.http import RangeServer

NAMES = ("method", "range", "status", "bytes")


def records(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if record.name == "refshard_fs.targets"]


def test_http_records_agree_with_the_server(http_server: RangeServer, caplog: pytest.LogCaptureFixture) -> None:
    url = http_server.put("x", b"0123456789")
    refs = {"a": [url, 2, 3], "whole": [url], "gone": [f"{http_server.url}/gone?token=hush", 0, 1]}
    fs = RefShardFileSystem(refs, skip_instance_cache=True)
    with caplog.at_level(logging.DEBUG, "refshard_fs"):
        assert (fs.cat_file("a"), fs.cat_file("whole")) == (b"234", b"0123456789")
        assert isinstance(fs.cat(["gone"], on_error="return")["gone"], Exception)
    found = records(caplog)
    assert len(found) == len(http_server.requests())
    assert [tuple(getattr(record, name) for name in NAMES) for record in found[:2]] == [
        ("GET", "bytes=2-4", 206, 3),
        ("GET", None, 200, 10),
    ]
    assert (found[0].url, found[2].url, found[2].status) == (url, f"{http_server.url}/gone?token=...", 404)
    assert all(0 < record.seconds < 60 for record in found)
    assert found[0].getMessage().startswith(f"GET {url} bytes=2-4: 206, 3 bytes in ")


def test_each_try_and_each_redirect_is_logged(http_server: RangeServer, caplog: pytest.LogCaptureFixture) -> None:
    target = http_server.put("there", b"abc")
    http_server.fault("redirect", "/here", to=target)
    http_server.fault(503, "/there", times=1, retry_after=0)
    with caplog.at_level(logging.DEBUG, "refshard_fs"):
        fs = RefShardFileSystem({"a": [f"{http_server.url}/here", 0, 3]}, skip_instance_cache=True)
        assert fs.cat_file("a") == b"abc"
    statuses = [record.status for record in records(caplog)]
    assert len(statuses) == len(http_server.requests())
    assert statuses[0] // 100 == 3
    assert 503 in statuses
    assert statuses[-1] == 206


def test_local_reads_and_listings_are_logged_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "s.zarr").mkdir()
    (tmp_path / "s.zarr" / ".zgroup").write_text('{"zarr_format": 2}')
    fs = RefShardFileSystem(str(tmp_path / "s.zarr"), skip_instance_cache=True)
    with caplog.at_level(logging.DEBUG, "refshard_fs"):
        fs.find("")
        fs.cat_file(".zgroup")
    methods = [record.method for record in records(caplog)]
    assert fs.stats()["listings"] == methods.count("LIST") > 0
    (read,) = [record for record in records(caplog) if record.url.endswith(".zgroup") and record.bytes]
    assert (read.method, read.bytes, read.error) == ("READ", 18, None)


def test_written_local_files_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fs = RefShardFileSystem({"a": "x"}, skip_instance_cache=True)
    with caplog.at_level(logging.DEBUG, "refshard_fs"):
        fs.save(str(tmp_path / "set.json"))
    [record] = records(caplog)
    assert (record.method, record.url, record.error) == ("WRITE", str(tmp_path / "set.json"), None)


def test_failed_or_cancelled_request_has_its_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "refshard_fs"):
        for error in (OSError("lost ?token=hush"), asyncio.CancelledError()):
            with pytest.raises(type(error)), log_request("READ", "gs://b/x"):
                raise error
    assert [record.error for record in records(caplog)] == ["OSError('lost ?token=...')", "CancelledError()"]


def test_nothing_is_recorded_above_debug(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "refshard_fs"), log_request("READ", "gs://b/x"):
        pass
    assert records(caplog) == []
