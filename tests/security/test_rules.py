"""One rule decides for all targets where names and redirects may lead, and with whose credentials."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import ftplib
import json
import re
import socket
import ssl
from collections.abc import Iterator
from http.cookies import SimpleCookie
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
import trustme
from aiohttp import ClientSession, CookieJar, DefaultResolver, TCPConnector
from yarl import URL

from refshard_fs import RefShardError, RefShardFileSystem, TargetNotAllowed
from refshard_fs.errors import contains_credentials, sanitize
from refshard_fs.security import admission
from refshard_fs.security.admission import Access, Admission, Network, find_network
from refshard_fs.targets import connections
from refshard_fs.targets.generic import GuardedFtp, take_turn
from refshard_fs.targets.http import _make_bare_tls
from tests.servers.http import RangeServer

SECRET = "HUSHHUSH"
OWN = connections.Guard(own=True)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Return a table of host names and addresses, which tests change; 127.0.0.9 counts as public."""
    known: dict[str, str] = {}
    is_public, resolve = admission._is_public, DefaultResolver.resolve

    async def resolved(self: Any, host: str, port: int = 0, family: Any = socket.AF_INET) -> Any:
        found = await resolve(self, "127.0.0.1", port, family)
        shown = known.get(host)
        return found if shown is None else [{**place, "host": shown} for place in found]

    monkeypatch.setattr(DefaultResolver, "resolve", resolved)
    monkeypatch.setattr(admission, "_is_public", lambda found: str(found) == "127.0.0.9" or is_public(found))
    connections._first.clear()
    yield known
    connections._first.clear()


def manifest(server: RangeServer, refs: dict[str, Any]) -> str:
    return server.put("/set/refs.json", json.dumps({"version": 1, "refs": refs}).encode())


@pytest.mark.case(id="P1")
def test_other_port_of_the_sets_host_is_refused(http_server: RangeServer) -> None:
    with RangeServer() as other:
        url = other.put("/x", b"inside")
        fs = RefShardFileSystem(manifest(http_server, {"k": [url]}))
        with pytest.raises(TargetNotAllowed, match="private networks"):
            fs.cat_file("k")
        assert other.requests() == []
        assert RefShardFileSystem(manifest(http_server, {"k": [url]}), allow=[other.url]).cat_file("k") == b"inside"


@pytest.mark.case(id="P8")
def test_option_admits_only_its_path(http_server: RangeServer) -> None:
    with RangeServer() as named:
        refs = {"in": [named.put("/data/x", b"data")], "out": [named.put("/admin", b"admin")]}
        fs = RefShardFileSystem(manifest(http_server, refs), options={f"{named.url}/data/": {"headers": {"A": "b"}}})
        assert fs.cat_file("in") == b"data"
        with pytest.raises(TargetNotAllowed, match="private networks"):
            fs.cat_file("out")


@pytest.mark.parametrize("where", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1"])
@pytest.mark.case(id="P14")
def test_host_that_was_public_must_stay_public(where: str, names: dict[str, str]) -> None:
    names["stranger.test"] = "127.0.0.9"
    assert _resolve(OWN, "stranger.test") == "127.0.0.9"
    names["stranger.test"] = where
    with pytest.raises(TargetNotAllowed, match="outside that network at its first use"):
        _resolve(OWN, "stranger.test")


@pytest.mark.case(id="P14")
def test_private_host_must_stay_in_its_network(names: dict[str, str]) -> None:
    names["intranet.test"] = "10.0.0.1"
    assert _resolve(OWN, "intranet.test") == "10.0.0.1"
    names["intranet.test"] = "10.0.0.2"
    assert _resolve(OWN, "intranet.test") == "10.0.0.2"
    for where in ("127.0.0.1", "169.254.169.254"):
        names["intranet.test"] = where
        with pytest.raises(TargetNotAllowed):
            _resolve(OWN, "intranet.test")
    with pytest.raises(TargetNotAllowed):
        _resolve(connections.Guard(own=False), "other.test")


def _resolve(guard: connections.Guard, host: str) -> str:
    async def go() -> str:
        return (await connections.GuardedResolver(guard).resolve(host, 80))[0]["host"]

    return asyncio.run(go())


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("8.8.8.8", Network.PUBLIC), ("10.0.0.1", Network.PRIVATE), ("192.168.1.1", Network.PRIVATE),
        ("127.0.0.1", Network.MACHINE), ("169.254.169.254", Network.MACHINE), ("0.0.0.0", Network.MACHINE),
        ("localhost", Network.MACHINE), ("x.internal", Network.PRIVATE), ("fd00::1", Network.PRIVATE),
        ("::1", Network.MACHINE), ("::ffff:127.0.0.1", Network.MACHINE), ("fe80::1", Network.MACHINE),
        ("64:ff9b::a9fe:a9fe", Network.MACHINE), ("64:ff9b::a00:1", Network.PRIVATE), ("example.org", Network.PUBLIC),
    ],
)  # fmt: skip
@pytest.mark.case(id="P14")
def test_network_of_a_host_is_found(host: str, network: Network) -> None:
    assert find_network(host) is network


@pytest.mark.parametrize("options", [{"headers": {"Authorization": SECRET}}, {"cookies": {"a": SECRET}}])
@pytest.mark.case(id="P6")
def test_options_without_protocol_go_only_to_the_set_server(
    options: dict[str, Any], http_server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "_is_public", lambda address: True)
    with RangeServer() as other:
        refs = {"k": [other.put("/x", b"public"), 0, 6], "own": [http_server.put("/own", b"own"), 0, 3]}
        fs = RefShardFileSystem(manifest(http_server, refs), remote_options=options)
        assert fs.cat(["k", "own"]) == {"k": b"public", "own": b"own"}
        assert SECRET not in repr([request.headers for request in other.requests()])
        assert SECRET in repr([request.headers for request in http_server.requests("/own")])
        fs = RefShardFileSystem(manifest(http_server, refs), remote_options=options, remote_protocol="http")
        assert fs.cat_file("k") == b"public"
        assert SECRET in repr([request.headers for request in other.requests()])


@pytest.mark.parametrize("options", [{"asynchronous": True}, {"skip_instance_cache": True}, {"timeout": 5}])
@pytest.mark.case(id="P6")
def test_options_without_credentials_open_no_private_network(
    options: dict[str, Any], http_server: RangeServer, names: dict[str, str]
) -> None:
    with RangeServer() as inside:
        target = inside.put("/secret", b"inside")
        named = target.replace("127.0.0.1", "intranet.test")
        http_server.put("/r", b"x")
        http_server.fault("redirect", "/r", to=target)
        refs = {"name": [named], "address": [target], "redirect": [f"{http_server.url}/r"]}
        fs = RefShardFileSystem(manifest(http_server, refs), remote_options=options, retries=0)
        for key in refs:
            with pytest.raises(TargetNotAllowed):
                fs.cat_file(key)
        assert inside.requests() == []
    rule = Admission.of("https://pub.example/refs.json", None, (), ())
    assert rule.admit("s3://b/k")[1] is Access.NONE


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("status", [301, 302, 307])
@pytest.mark.case(id="P16")
def test_signed_request_follows_no_redirect(status: int, fast: bool, http_server: RangeServer) -> None:
    """This holds for our requests and for those of s3fs: only the user's endpoint gets signature and token."""
    pytest.importorskip("s3fs")
    with RangeServer() as other:
        other.put("/bucket/x", b"0123")
        http_server.put("/bucket/x", b"0123")
        http_server.fault("redirect", "/bucket/x", to=other.url + "/bucket/x", status=status)
        given = {"key": "AKIAOWN", "secret": "x", "token": SECRET, "endpoint_url": http_server.url}
        fs = RefShardFileSystem(
            {"k": ["s3://bucket/x", 0, 4]}, options={"s3://bucket/": given}, retries=0, timeout=10, fast_s3=fast
        )
        with pytest.raises(RefShardError):
            fs.cat_file("k")
        assert SECRET in repr([request.headers for request in http_server.requests()])
        assert other.requests() == []


@pytest.mark.case(id="P5")
def test_plain_arguments_go_only_to_the_sources_server(
    http_server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments of the source's filesystem work as in ``storage_options``; unknown ones are errors."""
    monkeypatch.setattr(admission, "_is_public", lambda address: True)
    with RangeServer() as other:
        refs = {"k": [other.put("/x", b"public"), 0, 6], "own": [http_server.put("/own", b"own"), 0, 3]}
        fs = RefShardFileSystem(manifest(http_server, refs), headers={"Authorization": SECRET})
        assert fs.cat(["k", "own"]) == {"k": b"public", "own": b"own"}
        assert SECRET not in repr([request.headers for request in other.requests()])
        for path in ("/own", "/set/refs.json"):
            assert SECRET in repr([request.headers for request in http_server.requests(path)])
        with pytest.raises(TypeError, match="no argument endpoint_url="):
            RefShardFileSystem(manifest(http_server, refs), endpoint_url="x")


@pytest.mark.parametrize("given", ["protocol", "instance"])
@pytest.mark.case(id="P7")
def test_remote_protocol_does_not_open_private_networks(
    given: str, http_server: RangeServer, names: dict[str, str]
) -> None:
    """The option that the error advises opens the private server."""
    with RangeServer() as inside:
        refs = {"address": [inside.put("/x", b"inside")], "own": [http_server.put("/own", b"own")]}
        refs["name"] = [inside.url.replace("127.0.0.1", "intranet.test") + "/x"]
        headers = {"headers": {"Authorization": SECRET}}
        named: dict[str, Any] = {"remote_protocol": "http", "remote_options": headers}
        if given == "instance":
            named = {"fs": fsspec.filesystem("http", **headers)}
        fs = RefShardFileSystem(manifest(http_server, refs), retries=0, **named)
        hints = []
        for key in ("address", "name"):
            with pytest.raises(TargetNotAllowed, match="private networks") as caught:
                fs.cat_file(key)
            hints += re.findall(r"options=\{('.*?'): \{\}\}", str(caught.value))
        assert inside.requests() == []
        assert fs.cat_file("own") == b"own"
        fs = RefShardFileSystem(
            manifest(http_server, refs), retries=0, options={ast.literal_eval(hint): {} for hint in hints}, **named
        )
        assert set(fs.cat([*refs]).values()) == {b"own", b"inside"}


@pytest.mark.parametrize("prefix", ["S3://bucket/", "s3://bucket", "s3://bucket/"])
@pytest.mark.parametrize("spelling", ["s3://bucket/x", "S3://bucket/x"])
@pytest.mark.case(id="P8")
def test_options_of_a_prefix_apply_to_other_spellings_of_it(
    prefix: str, spelling: str, http_server: RangeServer
) -> None:
    http_server.put("/bucket/x", b"0123")
    given = {"key": "AKIAOWN", "secret": "x", "token": SECRET, "endpoint_url": http_server.url}
    fs = RefShardFileSystem({"k": [spelling, 0, 4]}, options={prefix: given}, retries=0)
    assert fs.cat_file("k") == b"0123"
    assert SECRET in repr([request.headers for request in http_server.requests()])


@pytest.mark.case(id="P14")
def test_ftp_host_that_becomes_private_gets_no_login(names: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """All connections, even fsspec's own, lead to the address that was checked."""
    now = "127.0.0.9"
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(2, 1, 6, "", (now, 21))])
    asked = []

    class Ftp(ftplib.FTP):
        def connect(self, host: str = "", *_: object, **__: object) -> str:
            asked.append(host)
            return ""

        def login(self, *_: object, **__: object) -> str:
            return ""

    monkeypatch.setattr("fsspec.implementations.ftp.FTP", Ftp)
    fs = GuardedFtp("stranger.test", guard=OWN)
    now = "127.0.0.2"
    fs._connect()
    with pytest.raises(TargetNotAllowed, match="outside that network at its first use"), take_turn(fs, "/"):
        pass
    assert asked == ["127.0.0.9", "127.0.0.9"]


@pytest.mark.parametrize("how", ["update_cookies", "update_cookies_from_headers"])
@pytest.mark.parametrize("domain", ["", "; Domain=co.test", "; Domain=test"])
@pytest.mark.case(id="P16")
def test_cookie_of_a_server_goes_to_no_other_port_or_host(domain: str, how: str) -> None:
    """aiohttp 3.12.0 calls `update_cookies`, later versions call `update_cookies_from_headers`."""
    if not hasattr(CookieJar, how):
        pytest.skip("this aiohttp parses the headers itself")

    async def go() -> list[int]:
        jar = connections.OriginCookies()
        jar.update_cookies({"given": "1"})
        header = f"set=2{domain}; Path=/"
        value = SimpleCookie(header) if how == "update_cookies" else [header]
        getattr(jar, how)(value, URL("http://a.co.test:81/x"))
        asked = ("http://a.co.test:81/y", "http://a.co.test:82/y", "https://a.co.test:81/", "http://b.co.test:81/")
        return [len(jar.filter_cookies(URL(url))) for url in asked]

    assert asyncio.run(go()) == [2, 1, 1, 1]


@pytest.mark.case(id="P16")
def test_client_certificate_is_not_sent_after_a_redirect() -> None:
    """The server of a redirect is verified by the same authorities, but gets no client certificate."""
    authority = trustme.CA()
    context = ssl.create_default_context()
    authority.configure_trust(context)
    authority.issue_cert("me@example.test").configure_cert(context)
    plain = connections.drop_certificate(context)
    assert plain.get_ca_certs(binary_form=True) == context.get_ca_certs(binary_form=True)
    assert (plain.verify_mode, plain.check_hostname) == (ssl.CERT_REQUIRED, True)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.verify_mode = ssl.CERT_OPTIONAL
    authority.configure_trust(server)
    authority.issue_cert("h.test").configure_cert(server)
    assert [_sends_certificate(client, server) for client in (context, plain)] == [True, False]


def test_connector_of_unknown_kind_sends_no_certificate() -> None:
    """The first assertion fails if aiohttp stores the context elsewhere; the second shows what happens then."""
    context = ssl.create_default_context()

    async def options(*, is_known: bool) -> Any:
        async with ClientSession(connector=TCPConnector(ssl=context)) as session:
            return _make_bare_tls({}, session if is_known else SimpleNamespace(connector=object()))  # type: ignore[arg-type]

    assert asyncio.run(options(is_known=True))["ssl"] is connections.drop_certificate(context)
    assert asyncio.run(options(is_known=False)) == {"ssl": True}


def test_environment_emulator_is_not_used_for_remote_sets(
    http_server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gcsfs")
    with RangeServer() as inside:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", inside.url)
        fs = RefShardFileSystem(manifest(http_server, {"k": ["gs://bucket/x", 0, 4]}), retries=0)
        with pytest.raises(TargetNotAllowed, match="where its endpoint"):
            fs.cat_file("k")
        assert inside.requests() == []


def _sends_certificate(client: ssl.SSLContext, server: ssl.SSLContext) -> bool:
    """Return whether the client sends a certificate to the server."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up, server_hostname="h.test"), server.wrap_bio(up, down, server_side=True)]
    for _ in range(4):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return bool(ends[1].getpeercert())


@pytest.mark.parametrize(
    "parameter",
    ["?auth.token=", "?auth[token]=", "?user%5Btoken%5D=", "?to%6ben=", "?to%256ben=", "#access_token=", "?x#token=",
     "?user[sid]=", "?account_key=", "?session[id]=", "?Authorization=", "?x-api-key=", "?Ocp-Apim-Subscription-Key=",
     "?session=", "?PHPSESSID=", "?jsessionid="],
)  # fmt: skip
@pytest.mark.case(id="P23")
def test_token_is_hidden_in_unusual_spellings_of_parameters(parameter: str) -> None:
    url = f"https://h.example/x{parameter}{SECRET}"
    assert SECRET not in sanitize(f"no {url}: failed")
    assert sanitize(url).startswith("https://h.example/x")
    assert contains_credentials(url.encode())
    assert sanitize("https://h.example/x?page=7#part=2") == "https://h.example/x?page=7#part=2"


@pytest.mark.case(id="P23")
def test_to_json_without_passwords_has_no_secret() -> None:
    nested = {"s3://b/": {"key": SECRET, "client_kwargs": {"headers": {"X": SECRET}, "aws_secret_access_key": SECRET}}}
    nested[f"https://user:{SECRET}@h.example/"] = {}
    fs = RefShardFileSystem(
        {"k": ["https://h.example/x"]},
        options=nested,
        target_options={"token": SECRET},
        remote_options={"client_kwargs": {"params": [("page", "1"), ("token", SECRET)]}},
        retries=1,
        skip_instance_cache=True,
    )
    for text in (fs.to_json(include_password=False), repr(fs.to_dict(include_password=False))):
        assert SECRET not in text
        assert "s3://b/" in text
    assert SECRET in fs.to_json()


@pytest.mark.parametrize("letter", "\xad\u115f\u180e\u200b\u200d\u2060\u2062\u3164\ue000\ufe0f\ufeff\ufff9\U000e0041")
def test_invisible_letters_are_escaped(letter: str) -> None:
    assert letter not in sanitize(f"temp{letter}erature")
    assert sanitize("Größe 東京 ₂ é") == "Größe 東京 ₂ é"


def test_proxy_of_the_environment_is_used(http_server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's set cannot reach a name that only the proxy resolves; no_proxy= is respected."""
    for name in ("no_proxy", "NO_PROXY", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", http_server.url)
    with contextlib.suppress(RefShardError):
        RefShardFileSystem({"k": ["http://data.invalid/x", 0, 4]}, retries=0).cat_file("k")
    assert [request.path for request in http_server.requests()]
    http_server.clear()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for url in ("http://intranet/x", "http://db.internal/x"):
        with pytest.raises(TargetNotAllowed, match="private networks"):
            RefShardFileSystem(manifest(http_server, {"k": [url]}), retries=0).cat_file("k")
    assert {request.path for request in http_server.requests()} == {"/set/refs.json"}
