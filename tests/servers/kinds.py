"""Servers of other protocols, of which the tests need little: FTP, SFTP and WebDAV, each over a directory."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

USER, PASSWORD = "user", "not-a-secret"


class Served(NamedTuple):
    """What is needed to read ``directory`` by way of a server."""

    url: str
    options: dict[str, Any]
    directory: Path


@contextlib.contextmanager
def ftp(directory: Path) -> Iterator[Served]:
    """Serve ``directory`` by FTP."""
    pytest.importorskip("pyftpdlib", reason="the FTP server of the tests")
    from pyftpdlib.authorizers import DummyAuthorizer
    from pyftpdlib.handlers import FTPHandler
    from pyftpdlib.servers import ThreadedFTPServer

    logging.getLogger("pyftpdlib").setLevel(logging.CRITICAL)
    users = DummyAuthorizer()
    users.add_user(USER, PASSWORD, str(directory), perm="elradfmwMT")
    handler = type("Handler", (FTPHandler,), {"authorizer": users})
    server = ThreadedFTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        port = server.address[1]
        yield Served(f"ftp://127.0.0.1:{port}", {"username": USER, "password": PASSWORD}, directory)
    finally:
        server.close_all()
        thread.join(5)


@contextlib.contextmanager
def webdav(directory: Path) -> Iterator[Served]:
    """Serve ``directory`` by WebDAV."""
    wsgi = pytest.importorskip("cheroot.wsgi", reason="the WebDAV server of the tests")
    pytest.importorskip("webdav4", reason="fsspec's filesystem of WebDAV")
    application = pytest.importorskip("wsgidav.wsgidav_app", reason="the WebDAV server of the tests")
    users = {"*": {USER: {"password": PASSWORD}}}
    config = {
        "provider_mapping": {"/": str(directory)},
        "simple_dc": {"user_mapping": users},
        "http_authenticator": {"accept_basic": True, "accept_digest": False, "default_to_digest": False},
        "logging": {"enable": False},
        "verbose": 0,
    }
    server = wsgi.Server(("127.0.0.1", 0), application.WsgiDAVApp(config))
    server.prepare()
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.bind_addr[1]}"
        yield Served("webdav://", {"base_url": address, "auth": (USER, PASSWORD)}, directory)
    finally:
        server.stop()
        thread.join(5)


@contextlib.contextmanager
def sftp(directory: Path) -> Iterator[Served]:
    """Serve ``directory`` by SFTP."""
    paramiko = pytest.importorskip("paramiko", reason="the SFTP server of the tests")
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    key = paramiko.ECDSAKey.generate()
    listening = socket.create_server(("127.0.0.1", 0))

    class Login(paramiko.ServerInterface):  # type: ignore[misc]  # paramiko has no types
        def check_auth_password(self, username: str, password: str) -> Any:
            is_right = (username, password) == (USER, PASSWORD)
            return paramiko.AUTH_SUCCESSFUL if is_right else paramiko.AUTH_FAILED

        def check_channel_request(self, kind: str, chanid: int) -> Any:
            return paramiko.OPEN_SUCCEEDED

    def accept() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            transport = paramiko.Transport(client)
            transport.add_server_key(key)
            transport.set_subsystem_handler("sftp", paramiko.SFTPServer, _directory_server(paramiko, directory))
            with contextlib.suppress(paramiko.SSHException, EOFError):
                transport.start_server(server=Login())
            transports.append(transport)

    transports: list[Any] = []
    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        port = listening.getsockname()[1]
        options = {"port": port, "username": USER, "password": PASSWORD, "allow_agent": False, "look_for_keys": False}
        yield Served("sftp://127.0.0.1", options, directory)
    finally:
        listening.shutdown(socket.SHUT_RDWR)  # which wakes who accepts
        listening.close()
        for transport in transports:
            transport.close()
        thread.join(5)


def _directory_server(paramiko: Any, directory: Path) -> Any:
    """Return what answers requests for the files of ``directory``."""

    class Handle(paramiko.SFTPHandle):  # type: ignore[misc]
        def stat(self) -> Any:
            return paramiko.SFTPAttributes.from_stat(os.fstat(self.readfile.fileno()))

    def told(call: Any) -> Any:
        def answer(self: Any, *arguments: Any) -> Any:
            try:
                found = call(self, *arguments)
            except OSError as e:
                return paramiko.SFTPServer.convert_errno(e.errno)
            return paramiko.SFTP_OK if found is None else found

        return answer

    class Files(paramiko.SFTPServerInterface):  # type: ignore[misc]
        def real(self, path: str) -> str:
            return str(directory) + self.canonicalize(path)

        @told
        def list_folder(self, path: str) -> Any:
            found = []
            for entry in os.scandir(self.real(path)):
                attributes = paramiko.SFTPAttributes.from_stat(entry.stat())
                attributes.filename = entry.name
                found.append(attributes)
            return found

        @told
        def stat(self, path: str) -> Any:
            return paramiko.SFTPAttributes.from_stat(os.stat(self.real(path)))

        lstat = stat

        @told
        def open(self, path: str, flags: int, attr: Any) -> Any:
            mode = "r+b" if flags & os.O_RDWR else "wb" if flags & os.O_WRONLY else "rb"
            if flags & os.O_CREAT and mode == "r+b":
                mode = "w+b"
            file = os.fdopen(os.open(self.real(path), flags, 0o644), mode if not mode.startswith("w") else "wb")
            handle = Handle(flags)
            handle.filename, handle.readfile, handle.writefile = path, file, file
            return handle

        @told
        def remove(self, path: str) -> None:
            os.remove(self.real(path))

        @told
        def rename(self, old: str, new: str) -> None:
            os.rename(self.real(old), self.real(new))

        @told
        def posix_rename(self, old: str, new: str) -> None:
            os.replace(self.real(old), self.real(new))

        @told
        def mkdir(self, path: str, attr: Any) -> None:
            os.mkdir(self.real(path))

        @told
        def rmdir(self, path: str) -> None:
            os.rmdir(self.real(path))

    return Files


KINDS = {"ftp": ftp, "sftp": sftp, "webdav": webdav}
