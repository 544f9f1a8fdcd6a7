"""A stranger's manifest, tried for real: what it may not do, it cannot, and the refusal says what would permit it."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from aiohttp import DefaultResolver

from refshard_fs import ReferenceNotReachable, RefShardError, RefShardFileSystem, TargetNotAllowed
from refshard_fs.targets import guarded
from tests.servers.http import RangeServer


def manifest(server: RangeServer, refs: dict[str, Any], **more: Any) -> str:
    return server.put("/set/refs.json", json.dumps({"version": 1, "refs": refs, **more}).encode())


@pytest.fixture
def secret(tmp_path: Path) -> str:
    (tmp_path / "secret").write_text("do not tell")
    return str(tmp_path / "secret")


@pytest.mark.parametrize(
    "how", ["{path}", "file://{path}", "local://{path}", "simplecache::file://{path}", "../../..{path}"]
)
def test_a_remote_set_cannot_read_local_files(how: str, secret: str, http_server: RangeServer) -> None:
    fs = RefShardFileSystem(fo=manifest(http_server, {"a/0": [how.format(path=secret)]}))
    for read in (fs.cat_file, fs.info, fs.cat, lambda key: fs.open(key).read()):
        with pytest.raises((TargetNotAllowed, ReferenceNotReachable)) as caught:
            read("a/0")
        assert "do not tell" not in str(caught.value)
    if ".." not in how:
        assert isinstance(caught.value, TargetNotAllowed)
        assert caught.value.key == "a/0"
        assert "allow=" in str(caught.value)


def test_a_remote_set_cannot_read_this_process_memory_or_chain(http_server: RangeServer, tmp_path: Path) -> None:
    urls = ["memory://x", "zip://x::file:///x.zip", "refshard::" + http_server.url + "/x.json", "ssh://host/x"]
    fs = RefShardFileSystem(fo=manifest(http_server, {f"k{i}": [url] for i, url in enumerate(urls)}))
    for i in range(len(urls)):
        with pytest.raises(TargetNotAllowed):
            fs.cat_file(f"k{i}")


def test_local_and_held_sets_point_anywhere(secret: str, tmp_path: Path) -> None:
    refs = {"k": [secret]}
    (tmp_path / "refs.json").write_text(json.dumps(refs))
    for fo in (refs, tmp_path / "refs.json", json.dumps(refs).encode()):
        assert RefShardFileSystem(fo=fo).cat_file("k") == b"do not tell"


@pytest.mark.parametrize("option", [{"allow": "any"}, {"remote_protocol": "file"}, {"fs": "file"}, {"allow": ["DIR"]}])
def test_what_the_user_names_is_permitted(option: dict[str, Any], secret: str, http_server: RangeServer) -> None:
    import fsspec

    if option.get("fs"):
        option = {"fs": {"file": fsspec.filesystem("file")}}
    if option.get("allow") == ["DIR"]:
        option = {"allow": [os.path.dirname(secret) + "/"]}
    fs = RefShardFileSystem(fo=manifest(http_server, {"k": [secret]}), **option)
    assert fs.cat_file("k") == b"do not tell"


def test_a_link_does_not_lead_out_of_what_is_allowed(secret: str, tmp_path: Path) -> None:
    (tmp_path / "pub").mkdir()
    (tmp_path / "pub" / "fine").write_text("fine")
    (tmp_path / "pub" / "link").symlink_to(secret)
    (tmp_path / "alias").symlink_to(tmp_path / "pub")
    refs = {"fine": [f"{tmp_path}/pub/fine"], "link": [f"{tmp_path}/pub/link"], "up": [f"{tmp_path}/pub/../secret"]}
    for allowed in ("pub", "alias"):
        named = {k: [v[0].replace("/pub/", f"/{allowed}/")] for k, v in refs.items()}
        fs = RefShardFileSystem(fo=named, allow=[f"{tmp_path}/{allowed}/"])
        assert fs.cat_file("fine") == b"fine"
        for key in ("link", "up"):
            with pytest.raises(TargetNotAllowed):
                fs.cat_file(key)


def test_a_list_excludes_all_else_also_for_the_users_own_sets(http_server: RangeServer) -> None:
    url = http_server.put("/pub/x", b"fine")
    other = http_server.put("/public/x", b"other")
    fs = RefShardFileSystem(fo={"in": [url], "out": [other]}, allow=[f"{http_server.url}/pub/"])
    assert fs.cat_file("in") == b"fine"
    with pytest.raises(TargetNotAllowed, match="'out'"):
        fs.cat_file("out")
    assert len(http_server.requests("/public/*")) == 0


def test_a_redirect_is_held_to_the_same_rule(http_server: RangeServer) -> None:
    with RangeServer() as private:
        target = private.put("/x", b"inside")
        http_server.put("/pub/x", b"outside")
        http_server.fault("redirect", "/pub/x", to=target)
        allowed = RefShardFileSystem(fo={"k": [f"{http_server.url}/pub/x"]})
        assert allowed.cat_file("k") == b"inside"
        fs = RefShardFileSystem(fo={"k": [f"{http_server.url}/pub/x"]}, allow=[f"{http_server.url}/pub/"])
        private.clear()
        with pytest.raises(TargetNotAllowed, match="'k'"):
            fs.cat_file("k")
        assert private.requests() == []


class FakeResolver(DefaultResolver):
    """Resolves two made-up names to loopback."""

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> Any:
        place = {"hostname": host, "host": "127.0.0.1", "port": port, "family": 2, "proto": 6, "flags": 0}
        return [place] if host.endswith(".example") else await super().resolve(host, port, family)


def test_a_name_that_resolves_to_a_private_address_is_refused(
    http_server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded.aiohttp, "DefaultResolver", FakeResolver)
    port = http_server.url.rpartition(":")[2]
    http_server.put("/x", b"inside")
    source = manifest(http_server, {"k": [f"http://rebound.example:{port}/x"]})
    http_server.clear()
    with pytest.raises(TargetNotAllowed, match="private networks, and rebound.example is 127"):
        RefShardFileSystem(fo=source).cat_file("k")
    assert http_server.requests("/x") == []
    named = RefShardFileSystem(fo=source, allow=[f"http://rebound.example:{port}/"])
    assert named.cat_file("k") == b"inside"


def test_ambient_credentials_stay_at_home(http_server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set from a web server points to S3: the request goes out unsigned, unless the user names s3."""
    with RangeServer() as store:
        store.put("/bucket/x", b"public")
        for name, value in {
            "AWS_ACCESS_KEY_ID": "AKIDAMBIENT", "AWS_SECRET_ACCESS_KEY": "hush", "AWS_ENDPOINT_URL": store.url,
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        source = manifest(http_server, {"k": ["s3://bucket/x", 0, 6]})
        assert RefShardFileSystem(fo=source).cat_file("k") == b"public"
        assert not any("AKIDAMBIENT" in repr(r) for r in store.requests())
        store.fault(403, "/bucket/x", times=1)
        with pytest.raises(ReferenceNotReachable, match="without credentials.*remote_protocol="):
            RefShardFileSystem(fo=source).cat_file("k")
        store.clear()
        assert RefShardFileSystem(fo=source, remote_protocol="s3").cat_file("k") == b"public"
        assert any("AKIDAMBIENT" in repr(r) for r in store.requests())


def test_options_without_a_protocol_are_no_word_for_local_files(secret: str, http_server: RangeServer) -> None:
    fs = RefShardFileSystem(fo=manifest(http_server, {"k": [f"file://{secret}"]}), remote_options={"anon": True})
    with pytest.raises(TargetNotAllowed):
        fs.cat_file("k")


def test_templates_reach_nothing(http_server: RangeServer) -> None:
    for template in (
        "{{f.__globals__}}",
        "{{ ''.__class__ }}",
        "{f.__globals__}",
        "{{ range(9) }}",
        "{{ 9 ** 9 ** 9 }}",
    ):
        source = manifest(http_server, {"k": [template, 0, 1]}, templates={"f": "{{c}}"})
        with pytest.raises((RefShardError, FileNotFoundError)) as caught:
            RefShardFileSystem(fo=source).cat_file("k")
        assert "environ" not in str(caught.value)


def test_get_writes_nothing_outside_its_target(tmp_path: Path) -> None:
    for key in ("../evil", "a/../../evil", "/../evil", "a/\0", "..\\evil"):
        with pytest.raises(ValueError, match="key"):
            RefShardFileSystem(fo={key: "data"})
    RefShardFileSystem(fo={"/abs": "data", "b//c": "data"}).get("", str(tmp_path / "out"), recursive=True)
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()} == {"out/abs", "out/b/c"}


def test_nothing_secret_is_shown(http_server: RangeServer) -> None:
    secrets = {"key": "AKIDHIDDEN", "secret": "HUSHHUSH", "token": "TOKENTOKEN"}
    fs = RefShardFileSystem(
        fo={"k": ["s3://b/x"]}, remote_protocol="s3", remote_options=secrets, options={"s3://c/": secrets}
    )
    for text in (repr(fs), str(fs)):
        assert not any(value in text for value in secrets.values())
    with pytest.raises(ReferenceNotReachable) as caught:
        RefShardFileSystem(
            fo={"k": [f"{http_server.url}/gone", 0, 1]},
            remote_protocol="http",
            remote_options={"headers": {"Authorization": "HUSHHUSH"}},
        ).cat_file("k")
    assert "HUSHHUSH" not in str(caught.value)


def test_a_refusal_survives_pickling(secret: str, http_server: RangeServer) -> None:
    fs = RefShardFileSystem(fo=manifest(http_server, {"k": [secret]}))
    with pytest.raises(TargetNotAllowed) as caught:
        fs.cat_file("k")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.key, again.url) == (str(caught.value), "k", secret)
    assert isinstance(again, PermissionError)


@pytest.mark.parametrize(
    "url",
    [
        "http://me:HUSH@{host}/gone", "http://HUSH@{host}/gone", "http://{host}/gone?token=HUSH&a=1",
        "http://{host}/gone?a=1&X-Amz-Signature=HUSH&X-Amz-Credential=HUSH", "http://{host}/gone?sig=HUSH",
        "http://{host}/gone?AWSAccessKeyId=HUSH&Signature=HUSH&Expires=1",
    ],
)  # fmt: skip
def test_what_gives_access_in_a_url_is_not_in_errors(url: str, http_server: RangeServer) -> None:
    full = url.format(host=http_server.url.removeprefix("http://"))
    with pytest.raises(ReferenceNotReachable) as caught:
        RefShardFileSystem(fo={"k": [full, 0, 1]}).cat_file("k")
    assert "HUSH" not in str(caught.value)
    assert "/gone" in str(caught.value)
    with pytest.raises(TargetNotAllowed) as refused:
        RefShardFileSystem(fo={"k": [full, 0, 1]}, allow=["s3://b/"]).cat_file("k")
    assert "HUSH" not in repr(refused.value)


def test_a_set_in_a_remote_archive_cannot_read_local_files(
    secret: str, http_server: RangeServer, tmp_path: Path
) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.zip", "w") as z:
        z.writestr("refs.json", json.dumps({"k": [f"file://{secret}::{http_server.url}/a.zip"]}))
    url = http_server.put("/a.zip", (tmp_path / "a.zip").read_bytes())
    with pytest.raises(TargetNotAllowed):
        RefShardFileSystem(fo=f"zip://refs.json::{url}").cat_file("k")
