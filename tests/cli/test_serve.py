"""The command ``serve`` on a port of loopback."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import refshard_fs
from refshard_fs.cli import main
from refshard_fs.cli.serve import _listen
from tests.servers.ports import free_ports

uvicorn = pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")
starlette = pytest.importorskip("starlette.testclient")


def test_serve_answers_requests_with_its_token_and_logs_them(tmp_path: Path) -> None:
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


def test_each_of_several_sources_has_its_url(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / "days.json", tmp_path / "a month.json"]
    for path in paths:
        path.write_text('{".zgroup": "{\\"zarr_format\\": 2}"}')
    answers = []

    def answer(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        client = starlette.TestClient(server.config.app)
        answers.extend(client.get(f"/{name}/.zgroup").status_code for name in ("days", "a%20month"))

    monkeypatch.setattr(uvicorn.Server, "run", answer)
    assert main(["serve", *map(str, paths), "--port", "0"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("/days/")
    assert second.endswith("/a%20month/")
    assert answers == [200, 200]


def test_serving_two_sources_of_one_name_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "refs.json").write_text("{}")
    assert main(["serve", str(tmp_path / "a/refs.json"), str(tmp_path / "b/refs.json")]) == 2
    assert "sources with different names" in capsys.readouterr().err


def test_used_port_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "refs.json").write_text('{".zgroup": "{\\"zarr_format\\": 2}"}')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(tmp_path / "refs.json"), "--port", str(port)]) == 2
    assert f"cannot listen on port {port} of 127.0.0.1" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_listening_sockets_state_the_protocol_tcp(host: str) -> None:
    """asyncio sets TCP_NODELAY only on sockets with the protocol TCP: without it, answers wait 40 ms for the client."""
    if host == "::1" and not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    with _listen(host, 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP


class _Without:
    """An importer that makes one package look as if it were not installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == self._name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize("absent", ["uvicorn", "starlette"])
def test_error_names_a_missing_package(
    absent: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "refs.json").write_text('{".zgroup": "{\\"zarr_format\\": 2}"}')
    for name in [name for name in sys.modules if name.partition(".")[0] == absent]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "refshard_fs.serving", raising=False)
    monkeypatch.delattr(refshard_fs, "serving", raising=False)
    monkeypatch.setattr(sys, "meta_path", [_Without(absent), *sys.meta_path])
    assert main(["serve", str(tmp_path / "refs.json"), "--port", "0"]) == 2
    assert f'{absent}: pip install "refshard_fs[serve]"' in capsys.readouterr().err


def test_unusable_port_or_host_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "refs.json").write_text('{".zgroup": "{\\"zarr_format\\": 2}"}')
    with pytest.raises(SystemExit):
        main(["serve", str(tmp_path / "refs.json"), "--port", "99999"])
    assert "expected a number from 0 to 65535, got '99999'" in capsys.readouterr().err
    assert main(["serve", str(tmp_path / "refs.json"), "--host", "no host"]) == 2
    assert "cannot listen on 'no host': expected an address of this machine for --host" in capsys.readouterr().err
