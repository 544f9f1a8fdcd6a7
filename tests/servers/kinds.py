"""Servers of other protocols: FTP, SFTP and WebDAV for a directory, and emulators of GCS and Azure."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import pytest

from tests.servers.ports import free_ports

USER, PASSWORD = "user", "not-a-secret"
# The key of every Azurite, from its documentation.
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Served(NamedTuple):
    """The URL and the options to read from a server, and the served directory, if there is one."""

    url: str
    options: dict[str, Any]
    directory: Path | None

    def below(self, name: str) -> Served:
        """Return the folder ``name`` below this URL."""
        slash = "" if self.url.endswith("/") else "/"
        return Served(f"{self.url}{slash}{name}", self.options, self.directory and self.directory / name)

    def put(self, name: str, data: bytes) -> None:
        """Write the object ``name``, and make its directories."""
        if self.directory is not None:
            (self.directory / name).parent.mkdir(parents=True, exist_ok=True)
            (self.directory / name).write_bytes(data)
            return
        fs, path = fsspec.core.url_to_fs(f"{self.url}/{name}", **self.options)
        fs.pipe_file(path, data)


# It runs in a new process, because asyncore shares one table of sockets in a process. The first read of a file whose
# name starts with "busy" is answered 450, that of "hangs-up" closes the connection. Each read of "logged-out" is
# answered 530.
_FTP_SERVER = """
import sys, warnings
warnings.simplefilter("ignore")
from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.handlers import FTPHandler
from pyftpdlib.servers import FTPServer

user, password, directory = sys.argv[1:]
asked = set()

class Handler(FTPHandler):
    authorizer = DummyAuthorizer()

    def ftp_RETR(self, file):
        name = file.rsplit("/", 1)[-1]
        first, _ = file not in asked, asked.add(file)
        if first and name.startswith("busy"):
            return self.respond("450 Busy.")
        if first and name.startswith("hangs-up"):
            return self.close()
        if name.startswith("logged-out"):
            return self.respond("530 Please login.")
        return super().ftp_RETR(file)

Handler.authorizer.add_user(user, password, directory, perm="elradfmwMT")
server = FTPServer(("127.0.0.1", 0), Handler)
print(server.address[1], flush=True)
server.serve_forever()
"""


@contextlib.contextmanager
def ftp(directory: Path) -> Iterator[Served]:
    """Serve ``directory`` by FTP."""
    pytest.importorskip("pyftpdlib", reason="the FTP server of the tests")
    command = [sys.executable, "-c", _FTP_SERVER, USER, PASSWORD, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            yield Served(f"ftp://127.0.0.1:{port}", {"username": USER, "password": PASSWORD}, directory)
        finally:
            server.kill()


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
        listening.shutdown(socket.SHUT_RDWR)  # ends the call of accept in the thread
        listening.close()
        for transport in transports:
            transport.close()
        thread.join(5)


def _directory_server(paramiko: Any, directory: Path) -> Any:
    """Return a class that answers SFTP requests for the files of ``directory``."""

    class Handle(paramiko.SFTPHandle):  # type: ignore[misc]
        def stat(self) -> Any:
            return paramiko.SFTPAttributes.from_stat(os.fstat(self.readfile.fileno()))

    def report_errors(call: Any) -> Any:
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

        @report_errors
        def list_folder(self, path: str) -> Any:
            found = []
            for entry in os.scandir(self.real(path)):
                attributes = paramiko.SFTPAttributes.from_stat(entry.stat())
                attributes.filename = entry.name
                found.append(attributes)
            return found

        @report_errors
        def stat(self, path: str) -> Any:
            return paramiko.SFTPAttributes.from_stat(os.stat(self.real(path)))

        lstat = stat

        @report_errors
        def open(self, path: str, flags: int, attr: Any) -> Any:
            mode = "r+b" if flags & os.O_RDWR else "wb" if flags & os.O_WRONLY else "rb"
            if flags & os.O_CREAT and mode == "r+b":
                mode = "w+b"
            file = os.fdopen(os.open(self.real(path), flags, 0o644), mode if not mode.startswith("w") else "wb")
            handle = Handle(flags)
            handle.filename, handle.readfile, handle.writefile = path, file, file
            return handle

        @report_errors
        def remove(self, path: str) -> None:
            os.remove(self.real(path))

        @report_errors
        def rename(self, old: str, new: str) -> None:
            os.rename(self.real(old), self.real(new))

        @report_errors
        def posix_rename(self, old: str, new: str) -> None:
            os.replace(self.real(old), self.real(new))

        @report_errors
        def mkdir(self, path: str, attr: Any) -> None:
            os.mkdir(self.real(path))

        @report_errors
        def rmdir(self, path: str) -> None:
            os.rmdir(self.real(path))

    return Files


@contextlib.contextmanager
def gcs(directory: Path) -> Iterator[Served]:
    """Serve a bucket by an emulator of Google Cloud Storage."""
    emulator = pytest.importorskip("gcp_storage_emulator.server", reason="the GCS server of the tests")
    gcsfs = pytest.importorskip("gcsfs.core", reason="fsspec's filesystem of GCS")
    [port] = free_ports(1)
    server = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket")
    registry = sys.modules["fsspec.registry"]._registry
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry, "gs", gcsfs.GCSFileSystem)  # gcsfs' default class uses gRPC with TLS
        server.start()
        try:
            url = f"http://127.0.0.1:{port}"
            yield Served("gs://bucket", {"endpoint_url": url, "token": "anon", "project": "tests"}, None)
        finally:
            server.stop()


@contextlib.contextmanager
def azure(directory: Path) -> Iterator[Served]:
    """Serve a container by Azurite, an emulator of Azure Blob Storage, which is on the PATH or at $AZURITE_BLOB."""
    pytest.importorskip("adlfs", reason="fsspec's filesystem of Azure")
    binary = os.environ.get("AZURITE_BLOB") or shutil.which("azurite-blob")
    if binary is None:
        pytest.skip("azurite-blob is not installed, the Azure server of the tests (npm install azurite)")
    [port] = free_ports(1)
    command = [binary, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--silent"]
    command += ["--skipApiVersionCheck", "--disableTelemetry"]
    child = subprocess.Popen(command, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 30
        while not _listens(port) and time.monotonic() < until:
            time.sleep(0.05)
        account = f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={AZURITE_KEY};"
        options = {"connection_string": f"{account}BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1;"}
        fsspec.filesystem("az", **options).mkdir("container")
        yield Served("az://container", options, None)
    finally:
        child.kill()
        child.wait()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


KINDS = {"ftp": ftp, "sftp": sftp, "webdav": webdav, "gcs": gcs, "azure": azure}
