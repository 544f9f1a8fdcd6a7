"""The command ``serve`` on a port of loopback."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from refshard_fs.cli import main
from tests.servers.ports import free_ports

pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")


def test_serve_answers_until_it_is_interrupted(tmp_path: Path) -> None:
    (tmp_path / "refs.json").write_text('{".zgroup": "{\\"zarr_format\\": 2}", "a/0": "abc"}')
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "refshard_fs", "serve", str(tmp_path / "refs.json"), "--port", str(port)]
    with subprocess.Popen([*command, "--token", "secret"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            for _ in range(600):
                try:
                    answer = httpx.get(f"http://127.0.0.1:{port}/a/0", headers={"Authorization": "Bearer secret"})
                    break
                except httpx.TransportError:
                    time.sleep(0.05)
            assert answer.content == b"abc"
            assert httpx.get(f"http://127.0.0.1:{port}/a/0").status_code == 401
        finally:
            process.terminate()
        assert b"GET /a/0" in process.communicate(timeout=30)[0]


def test_sources_of_one_name_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "refs.json").write_text("{}")
    assert main(["serve", str(tmp_path / "a/refs.json"), str(tmp_path / "b/refs.json")]) == 2
    assert "two have one: refs, refs" in capsys.readouterr().err
