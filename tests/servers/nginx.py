"""nginx for a directory, on 127.0.0.1, to test against a server that we did not write."""

from __future__ import annotations

import http.client
import shutil
from pathlib import Path

from tests.servers.child import ChildServer
from tests.servers.ports import free_ports

__all__ = ["NginxServer", "nginx_binary"]

# nginx's defaults, except that all files that it writes stay in its folder, and that it forks no worker process.
_CONFIG = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/client_body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    default_type application/octet-stream;
    server {{
        listen 127.0.0.1:{port};
        {listen}
        root "{root}";
        autoindex on;
        {settings}
    }}
}}
"""


def nginx_binary() -> str | None:
    """Return the path of nginx; None if it is not installed. Debian installs it outside of an ordinary user's PATH."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/sbin")


class NginxServer(ChildServer):
    """Serve ``directory`` within a ``with`` block; folders are answered with a page of links.

    ``settings`` are further lines of nginx's configuration; ``tls`` is a file with a certificate and its key, for
    `secure_url`.
    """

    name = "nginx"

    def __init__(self, directory: str | Path, settings: str = "", tls: Path | None = None) -> None:
        super().__init__()
        self.directory = Path(directory).resolve()
        self.port = self._secure_port = 0
        self._settings = settings
        self._tls = tls

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def secure_url(self) -> str:
        """The same over TLS: ``https://localhost:PORT``."""
        return f"https://localhost:{self._secure_port}"

    def requests(self) -> list[str]:
        """Return nginx's access log, a line for each request; nginx writes a line shortly after the answer."""
        log = self._folder / "access.log" if self._folder else None
        return log.read_text().splitlines() if log and log.exists() else []

    def _start(self) -> None:
        binary = nginx_binary()
        if binary is None:
            raise FileNotFoundError("nginx is not installed")
        folder = self._new_folder()
        self.port, self._secure_port = free_ports(2)
        config, listen = folder / "nginx.conf", ""
        if self._tls is not None:
            listen = f"listen 127.0.0.1:{self._secure_port} ssl;"
            listen += f" ssl_certificate {self._tls}; ssl_certificate_key {self._tls};"
        config.write_text(
            _CONFIG.format(folder=folder, port=self.port, root=self.directory, listen=listen, settings=self._settings)
        )
        self._run([binary, "-p", folder, "-c", config, "-e", "stderr"])
        self._await(self._answers)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("HEAD", "/")
            return "nginx" in (connection.getresponse().headers["Server"] or "")
        except OSError:
            return False
        finally:
            connection.close()
