"""Data is read from nginx, with TLS, basic authentication, compression, and signed links behind redirects."""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.client
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme

from refshard_fs import ReferenceNotReachable, RefShardFileSystem
from tests.servers.http import RangeServer
from tests.servers.nginx import NginxServer
from tests.support.target_reading import Reader

DATA = bytes(i * 31 % 251 for i in range(30_000))
SETTINGS = """
location /private/ {{ auth_basic "data"; auth_basic_user_file {folder}/users; }}
location /compressed/ {{ gzip on; gzip_types *; gzip_min_length 0; }}
location /signed/ {{
    secure_link $arg_signature,$arg_expires;
    secure_link_md5 "$secure_link_expires$uri not-a-secret";
    if ($secure_link = "") {{ return 403; }}
    if ($secure_link = "0") {{ return 403; }}
    if (-f {folder}/over/$arg_signature) {{ return 403; }}  # so that a test can make a link expire at once
}}
"""


class Served(NamedTuple):
    """A running server, the authority of its certificate, and the directory that names the expired links."""

    nginx: NginxServer
    authority: ssl.SSLContext
    over: Path


@pytest.fixture
def served(nginx_server: Callable[..., NginxServer], tmp_path: Path) -> Served:
    for name in ("plain", "private", "compressed", "signed"):
        (tmp_path / "root" / name).mkdir(parents=True)
        (tmp_path / "root" / name / "x.bin").write_bytes(DATA)
    (tmp_path / "over").mkdir()
    (tmp_path / "users").write_text("me:{PLAIN}not-a-secret\n")
    authority = trustme.CA()
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    settings = SETTINGS.format(folder=tmp_path)
    return Served(nginx_server(tmp_path / "root", settings, tmp_path / "both.pem"), context, tmp_path / "over")


def signed(served: Served, expires: int) -> tuple[str, str]:
    """Return a link to ``/signed/x.bin`` that is valid until ``expires``, and its signature."""
    digest = hashlib.md5(f"{expires}/signed/x.bin not-a-secret".encode()).digest()  # the signature that nginx expects
    signature = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    return f"{served.nginx.url}/signed/x.bin?signature={signature}&expires={expires}", signature


@pytest.mark.evidence(id="T4")
def test_tls_is_verified_by_an_authority_in_options(served: Served) -> None:
    url = f"{served.nginx.secure_url}/plain/x.bin"
    trusting = Reader(by_prefix={served.nginx.secure_url: {"ssl": served.authority}})
    assert trusting.read(url, 5, 50) == DATA[5:50]
    assert trusting.read(url, -9, None) == DATA[-9:]
    with pytest.raises(OSError, match="certificate"):
        Reader().read(url, 5, 50)


@pytest.mark.parametrize("how", ["headers", "in the URL"])
@pytest.mark.evidence(id="T4")
def test_basic_authentication_is_sent(served: Served, how: str) -> None:
    url = f"{served.nginx.url}/private/x.bin"
    options: dict[str, Any] = {"headers": {"Authorization": "Basic " + base64.b64encode(b"me:not-a-secret").decode()}}
    if how == "in the URL":
        url, options = url.replace("://", "://me:not-a-secret@"), {}
    fs = RefShardFileSystem({"k": [url, 5, 45]}, options={served.nginx.url: options}, skip_instance_cache=True)
    assert fs.cat_file("k") == DATA[5:50]
    denied = f"{served.nginx.url}/private/x.bin"
    with pytest.raises(ReferenceNotReachable, match="401"):
        RefShardFileSystem({"k": [denied, 5, 45]}, skip_instance_cache=True).cat_file("k")


@pytest.mark.evidence(id="T4")
def test_requests_forbid_compression(served: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.nginx.port, timeout=20)
    connection.request("GET", "/compressed/x.bin", headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    assert answer.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(answer.read()) == DATA
    connection.close()
    url = f"{served.nginx.url}/compressed/x.bin"
    for start, stop in ((5, 50), (-9, None), (0, None)):
        assert Reader().read(url, start, stop) == DATA[start:stop]


@pytest.mark.evidence(id="T5")
@pytest.mark.usefixtures("large_files")
def test_expired_signed_links_are_requested_again(served: Served, http_server: RangeServer) -> None:
    (first, signature), (second, _) = signed(served, 1 << 40), signed(served, 2 << 40)
    http_server.fault("redirect", "/x.bin", to=first, times=1)
    http_server.fault("redirect", "/x.bin", to=second)
    fs = RefShardFileSystem({"k": [f"{http_server.url}/x.bin", 5, 45]}, skip_instance_cache=True)
    assert fs.cat_file("k") == DATA[5:50]
    assert fs.cat_file("k", 1, 5) == DATA[6:10]
    assert len(http_server.requests()) == 1, "the target of the redirect is remembered"
    (served.over / signature).touch()
    assert fs.cat_file("k", 2, 6) == DATA[7:11]
    assert len(http_server.requests()) == 2


def test_expired_link_in_a_manifest_is_not_a_missing_key(served: Served) -> None:
    for url in (signed(served, 1)[0], signed(served, 1 << 40)[0] + "0"):
        with pytest.raises(ReferenceNotReachable, match="403"):
            RefShardFileSystem({"k": [url, 5, 45]}, skip_instance_cache=True).cat_file("k")
