"""Chunks of a stranger's set cannot harm the check that decodes them: harmful ones are left out."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numcodecs
import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.tools import trial
from refshard_fs.tools.check import Report, check
from tests.servers.http import RangeServer

pytest.importorskip("zarr")

pytestmark = pytest.mark.case(id="P27")

CODEC = """
import os
from numcodecs.abc import Codec

class Odd(Codec):
    codec_id = "odd"

    def encode(self, buf):
        return buf

    def decode(self, buf, out=None):
        kind = bytes(buf)
        if kind == b"exit":
            os._exit(3)
        if kind == b"huge":
            return bytearray(3 << 30)
        while kind == b"loop":
            pass
        os.write(1, b"\\x1b[31m\\n")
        return kind
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a codec, for this process and later ones, that does what the bytes of a chunk tell it to do."""
    (tmp_path / "odd_codec.py").write_text(CODEC)
    (tmp_path / "odd_codec-1.0.dist-info").mkdir()
    (tmp_path / "odd_codec-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: odd_codec\nVersion: 1.0\n")
    (tmp_path / "odd_codec-1.0.dist-info/entry_points.txt").write_text("[numcodecs.codecs]\nodd = odd_codec:Odd\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(numcodecs.registry.codec_registry, "odd", runpy.run_path(str(tmp_path / "odd_codec.py"))["Odd"])


def run_check(server: RangeServer, chunks: list[str], codec: str = "odd", **options: Any) -> Report:
    meta = {"zarr_format": 2, "shape": [4 * len(chunks)], "chunks": [4], "dtype": "|u1", "order": "C"}
    meta |= {"fill_value": 0, "filters": None, "compressor": {"id": codec}}
    refs = {".zgroup": '{"zarr_format": 2}', "a/.zarray": json.dumps(meta)}
    refs |= {f"a/{number}": chunk for number, chunk in enumerate(chunks)}
    url = server.put("/refs.json", json.dumps({"version": 1, "refs": refs}).encode())
    return check(RefShardFileSystem(url, skip_instance_cache=True, **options), "full")


def test_chunk_that_crashes_its_process_is_left_out(http_server: RangeServer) -> None:
    report = run_check(http_server, ["good", "exit", "huge", "good"])
    assert report.decoded == 2
    assert [(finding.severity, finding.kind, finding.key) for finding in report.findings] == [
        ("warning", "not-decoded", "a/1"),
        ("warning", "not-decoded", "a/2"),
    ]
    ended, large = [finding.text for finding in report.findings]
    assert "not decoded, because decoding it ends its process" in ended
    assert "not decoded, because decoding it takes more than 2,147,483,648 bytes" in large


def test_chunk_that_takes_too_long_is_left_out(http_server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "PATIENCE", 0.2)
    report = run_check(http_server, ["loop"])
    assert [(finding.severity, finding.key) for finding in report.findings] == [("warning", "a/0")]
    assert "not decoded, because decoding it takes more than 0.2 s" in report.findings[0].text


def test_decoding_errors_equal_those_in_process(http_server: RangeServer) -> None:
    there = run_check(http_server, ["good"], codec="packbits")
    here = run_check(http_server, ["good"], codec="packbits", allow=[http_server.url + "/refs.json"])
    assert there.findings == here.findings
    assert there.findings


def test_gzip_is_decoded_without_another_process(http_server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial.subprocess, "run", lambda *arguments, **options: pytest.fail("a process begins"))
    report = run_check(http_server, ["good"], codec="gzip")
    assert [finding.kind for finding in report.findings] == ["undecodable"]
