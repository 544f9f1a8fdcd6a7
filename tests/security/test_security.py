"""Attacks by strangers' manifests are refused, and the error says how to permit the access."""

from __future__ import annotations

import base64
import itertools
import json
import logging
import math
import os
import pickle
import pickletools
from pathlib import Path
from typing import Any

import fsspec
import pytest
from aiohttp import DefaultResolver

from refshard_fs import (
    ManifestError,
    ReferenceNotReachable,
    RefShardError,
    RefShardFileSystem,
    SourceNotReachable,
    TargetNotAllowed,
)
from refshard_fs.security import admission
from refshard_fs.targets import connections as guarded
from tests.servers.http import RangeServer
from tests.support.zip_archives import make_zip


def manifest(server: RangeServer, refs: dict[str, Any], **more: Any) -> str:
    return server.put("/set/refs.json", json.dumps({"version": 1, "refs": refs, **more}).encode())


@pytest.fixture
def secret(tmp_path: Path) -> str:
    (tmp_path / "secret").write_text("do not tell")
    return str(tmp_path / "secret")


@pytest.mark.parametrize(
    "how", ["{path}", "file://{path}", "local://{path}", "simplecache::file://{path}", "../../..{path}"]
)
@pytest.mark.case(id="P3")
def test_remote_set_cannot_read_local_files(how: str, secret: str, http_server: RangeServer) -> None:
    fs = RefShardFileSystem(fo=manifest(http_server, {"a/0": [how.format(path=secret)]}))
    for read in (fs.cat_file, fs.info, fs.cat, lambda key: fs.open(key).read()):
        with pytest.raises((TargetNotAllowed, ReferenceNotReachable)) as caught:
            read("a/0")
        assert "do not tell" not in str(caught.value)
    if ".." not in how:
        assert isinstance(caught.value, TargetNotAllowed)
        assert caught.value.key == "a/0"
        assert "allow=" in str(caught.value)


@pytest.mark.case(id="P3")
def test_remote_set_cannot_use_memory_urls_chains_or_ssh(http_server: RangeServer) -> None:
    urls = ["memory://x", "zip://x::file:///x.zip", "refshard::" + http_server.url + "/x.json", "ssh://host/x"]
    fs = RefShardFileSystem(fo=manifest(http_server, {f"k{i}": [url] for i, url in enumerate(urls)}))
    for i in range(len(urls)):
        with pytest.raises(TargetNotAllowed):
            fs.cat_file(f"k{i}")


@pytest.mark.case(id="P11")
def test_local_and_in_memory_sets_may_point_to_local_files(secret: str, tmp_path: Path) -> None:
    refs = {"k": [secret]}
    (tmp_path / "refs.json").write_text(json.dumps(refs))
    for fo in (refs, tmp_path / "refs.json", json.dumps(refs).encode()):
        assert RefShardFileSystem(fo=fo).cat_file("k") == b"do not tell"


@pytest.mark.parametrize("option", [{"allow": "any"}, {"remote_protocol": "file"}, {"fs": "file"}, {"allow": ["DIR"]}])
@pytest.mark.case(id="P7")
def test_user_named_targets_are_permitted(option: dict[str, Any], secret: str, http_server: RangeServer) -> None:
    import fsspec

    if option.get("fs"):
        option = {"fs": {"file": fsspec.filesystem("file")}}
    if option.get("allow") == ["DIR"]:
        option = {"allow": [os.path.dirname(secret) + "/"]}
    fs = RefShardFileSystem(fo=manifest(http_server, {"k": [secret]}), **option)
    assert fs.cat_file("k") == b"do not tell"


@pytest.mark.case(id="P15")
def test_link_cannot_leave_the_allow_list(secret: str, tmp_path: Path) -> None:
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


@pytest.mark.case(id="P15")
def test_allow_list_excludes_links_out_of_a_local_source(tmp_path: Path) -> None:
    """With ``allow=``, links out of the source's folder are refused; links within it, and to it, are followed."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "1").write_text("secret")
    root = tmp_path / "up" / "a.zarr"
    (root / "a").mkdir(parents=True)
    (root / ".zgroup").write_text('{"zarr_format": 2}')
    (root / "a" / ".zarray").write_text(json.dumps(ARRAY))
    (root / "a" / "0").write_text("fine")
    (root / "a" / "1").symlink_to(tmp_path / "secret" / "1")
    (root / "b").symlink_to(tmp_path / "secret")
    (root / "c").symlink_to(root / "a")
    (tmp_path / "alias").symlink_to(tmp_path / "up")
    for source in (root, tmp_path / "alias" / "a.zarr"):
        fs = RefShardFileSystem(str(source), allow=[])
        assert fs.cat_file("c/0") == fs.cat_file("a/0") == b"fine"
        for key in ("a/1", "b/1"):
            with pytest.raises(TargetNotAllowed, match="symbolic link"):
                fs.cat_file(key)
        assert RefShardFileSystem(str(source)).cat_file("b/1") == b"secret"
        assert RefShardFileSystem(str(source), allow=[f"{tmp_path}/secret/"]).cat_file("a/1") == b"secret"
    (tmp_path / "refs.json").write_text(json.dumps({"x": [f"{root}/a/1"], "y": [f"{root}/a/0"]}))
    fs = RefShardFileSystem(str(tmp_path / "refs.json"), allow=[f"{root}/"])
    assert fs.cat_file("y") == b"fine"
    with pytest.raises(TargetNotAllowed, match="symbolic link"):
        fs.cat_file("x")


@pytest.mark.case(id="P9")
def test_allow_list_limits_own_sets_too(http_server: RangeServer) -> None:
    url = http_server.put("/pub/x", b"fine")
    other = http_server.put("/public/x", b"other")
    fs = RefShardFileSystem(fo={"in": [url], "out": [other]}, allow=[f"{http_server.url}/pub/"])
    assert fs.cat_file("in") == b"fine"
    with pytest.raises(TargetNotAllowed, match="'out'"):
        fs.cat_file("out")
    assert len(http_server.requests("/public/*")) == 0


@pytest.mark.case(id="P14")
def test_redirect_outside_the_allow_list_is_refused(http_server: RangeServer) -> None:
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


SYSTEM = DefaultResolver.resolve


async def resolve_to_loopback(self: Any, host: str, port: int = 0, family: Any = 0) -> Any:
    """Resolve made-up names to loopback."""
    place = {"hostname": host, "host": "127.0.0.1", "port": port, "family": 2, "proto": 6, "flags": 0}
    return [place] if host.endswith(".example") else await SYSTEM(self, host, port, family)


@pytest.mark.case(id="P14")
def test_name_that_resolves_to_a_private_address_is_refused(
    http_server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DefaultResolver, "resolve", resolve_to_loopback)
    port = http_server.url.rpartition(":")[2]
    http_server.put("/x", b"inside")
    source = manifest(http_server, {"k": [f"http://rebound.example:{port}/x"]})
    http_server.clear()
    with pytest.raises(TargetNotAllowed, match="private networks, and rebound.example is 127"):
        RefShardFileSystem(fo=source).cat_file("k")
    assert http_server.requests("/x") == []
    named = RefShardFileSystem(fo=source, allow=[f"http://rebound.example:{port}/"])
    assert named.cat_file("k") == b"inside"


@pytest.mark.case(id="P14")
@pytest.mark.parametrize("chain", ["", "zip://m::"])
def test_named_protocol_does_not_reach_private_addresses(
    chain: str, http_server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for archives, too, whose link gets the access of the whole chain."""
    monkeypatch.setattr(DefaultResolver, "resolve", resolve_to_loopback)
    port = http_server.url.rpartition(":")[2]
    http_server.put("/a.zip", make_zip({"m": b"inside"}))
    source = manifest(http_server, {"k": [f"{chain}http://rebound.example:{port}/a.zip"]})
    fs = RefShardFileSystem(fo=source, fs={"zip": {}, "http": {}})
    with pytest.raises(TargetNotAllowed, match="private networks, and rebound.example is 127"):
        fs.cat_file("k")
    assert http_server.requests("/a.zip") == []


@pytest.mark.case(id="P2")
def test_environment_credentials_go_only_to_own_buckets(
    http_server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a set on a web server points to S3, the request is not signed, unless the user names s3."""
    with RangeServer() as store:
        store.put("/bucket/x", b"public")
        for name, value in {
            "AWS_ACCESS_KEY_ID": "AKIDAMBIENT", "AWS_SECRET_ACCESS_KEY": "hush", "AWS_ENDPOINT_URL": store.url,
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        source = manifest(http_server, {"k": ["s3://bucket/x", 0, 6]})
        for options in ({}, {"remote_protocol": "s3"}):
            with pytest.raises(TargetNotAllowed, match=rf"private networks, where its endpoint {store.url} is"):
                RefShardFileSystem(fo=source, **options).cat_file("k")
        assert store.requests() == []
        assert RefShardFileSystem(fo=source, options={"s3://bucket/": {}}).cat_file("k") == b"public"
        store.clear()
        for module in (admission, guarded):
            monkeypatch.setattr(module, "find_network", lambda host: admission.Network.PUBLIC)
        assert RefShardFileSystem(fo=source).cat_file("k") == b"public"
        assert not any("AKIDAMBIENT" in repr(r) for r in store.requests())
        store.fault(403, "/bucket/x", times=1)
        with pytest.raises(ReferenceNotReachable, match="without credentials.*remote_protocol="):
            RefShardFileSystem(fo=source).cat_file("k")
        store.clear()
        assert RefShardFileSystem(fo=source, remote_protocol="s3").cat_file("k") == b"public"
        assert any("AKIDAMBIENT" in repr(r) for r in store.requests())


@pytest.mark.case(id="P2")
def test_fsspec_headers_go_only_to_own_and_allowed_servers(
    http_server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers that fsspec's configuration adds to all of HTTP must not reach servers that a manifest names."""
    given = {"headers": {"X-Token": "HUSHHUSH"}, "client_kwargs": {"headers": {"Authorization": "HUSHHUSH"}}}
    monkeypatch.setitem(fsspec.config.conf, "http", given)
    for module in (admission, guarded):
        monkeypatch.setattr(module, "find_network", lambda host: admission.Network.PUBLIC)
    with RangeServer() as other:
        other.put("/x", b"public")
        url = other.url.replace("127.0.0.1", "localhost") + "/x"
        source = manifest(http_server, {"k": [url, 0, 6], "own": [f"{http_server.url}/own", 0, 3]})
        http_server.put("/own", b"own")
        assert RefShardFileSystem(fo=source).cat(["k", "own"]) == {"k": b"public", "own": b"own"}
        assert "HUSHHUSH" not in repr([request.headers for request in other.requests()])
        assert "HUSHHUSH" in repr([request.headers for request in http_server.requests("/own")])
        assert RefShardFileSystem(fo=source, allow=[url, http_server.url]).cat_file("k") == b"public"
        assert "HUSHHUSH" in repr([request.headers for request in other.requests()])


@pytest.mark.parametrize(
    "name", [f"AZURE_STORAGE_{what}" for what in ("ACCOUNT_KEY", "CLIENT_ID", "CONNECTION_STRING", "SAS_TOKEN")]
)
@pytest.mark.parametrize("protocol", ["az", "abfs", "abfss"])
@pytest.mark.case(id="P2")
def test_environment_credentials_are_refused_for_a_remote_set(
    http_server: RangeServer, monkeypatch: pytest.MonkeyPatch, name: str, protocol: str
) -> None:
    monkeypatch.setenv(name, "HUSHHUSH")
    source = manifest(http_server, {"k": [f"{protocol}://container/x", 0, 6]})
    with pytest.raises(
        TargetNotAllowed,
        match=rf"{name}. To read it with these credentials, pass options=.'{protocol}://container/'",
    ) as e:
        RefShardFileSystem(fo=source).cat_file("k")
    assert "HUSHHUSH" not in str(e.value)


@pytest.mark.case(id="P6")
def test_options_without_a_protocol_do_not_permit_local_files(secret: str, http_server: RangeServer) -> None:
    fs = RefShardFileSystem(fo=manifest(http_server, {"k": [f"file://{secret}"]}), remote_options={"anon": True})
    with pytest.raises(TargetNotAllowed):
        fs.cat_file("k")


@pytest.mark.case(id="P17")
def test_templates_cannot_reach_python(http_server: RangeServer) -> None:
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


@pytest.mark.case(id="P13")
def test_jinja_runs_templates_of_own_and_allowed_sets_only(http_server: RangeServer, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    http_server.put("/data", b"0123456789")
    templates, refs = {"u": http_server.url}, {"k": ["{{ u|lower }}/data", 2, 3]}
    source = manifest(http_server, refs, templates=templates)

    def open_set(fo: Any, **options: Any) -> RefShardFileSystem:
        return RefShardFileSystem(fo=fo, simple_templates=False, skip_instance_cache=True, **options)

    for options in ({}, {"allow": ["s3://bucket/"]}, {"options": {http_server.url + "/": {}}}):
        with pytest.raises(TargetNotAllowed, match=r"jinja2 .* not trusted\. Add the set's own URL to allow="):
            open_set(source, **options).cat_file("k")
    for allow in ("any", [http_server.url + "/"]):
        assert open_set(source, allow=allow).cat_file("k") == b"234"
    document = {"version": 1, "templates": templates, "refs": refs}
    (tmp_path / "refs.json").write_text(json.dumps(document))
    for mine in (document, json.dumps(document).encode(), str(tmp_path / "refs.json")):
        assert open_set(mine).cat_file("k") == b"234"


@pytest.mark.case(id="P13")
def test_jinja_does_not_run_for_remote_parts(http_server: RangeServer, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    remote = manifest(http_server, {"k": ["{{ u|lower }}", 2, 3]}, templates={"u": "x"})
    (tmp_path / "joined.json").write_text(
        json.dumps({"refshard": "concat", "dim": "time", "axes": {}, "sets": [[remote, 1]]})
    )
    with pytest.raises(TargetNotAllowed, match="jinja2"):
        RefShardFileSystem(fo=str(tmp_path / "joined.json"), simple_templates=False).cat_file("k")


@pytest.mark.case(id="P20")
def test_get_writes_nothing_outside_its_target(tmp_path: Path) -> None:
    for key in ("../evil", "a/../../evil", "/../evil", "a/\0", "..\\evil"):
        with pytest.raises(ValueError, match="key"):
            RefShardFileSystem(fo={key: "data"})
    keys = ("/abs", "b//c", "C:\\d", "\\\\host\\share", "e:f")
    RefShardFileSystem(fo=dict.fromkeys(keys, "data")).get("", str(tmp_path / "out"), recursive=True)
    written = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert written == {"out/abs", "out/b/c", "out/C:/d", "out/host/share", "out/e:f"}


@pytest.mark.case(id="P17")
def test_pickle_imports_only_fsspec_and_the_package() -> None:
    """Beside them, a pickle names only `_codecs` and `exceptions`, by which protocol 2 spells bytes and exceptions."""
    options = {"remote_protocol": "s3", "remote_options": {"anon": True}, "options": {"s3://c/": {"anon": True}}}
    fs = RefShardFileSystem(fo={"a/0": ["s3://b/x", 0, 5], "t": "text"}, **options)
    for pickled in (pickle.dumps(fs, protocol=2), pickle.dumps(fs.get_mapper(""), protocol=2)):
        found = {arg for op, arg, _ in pickletools.genops(pickled) if op.name in ("GLOBAL", "INST")}
        assert found
        assert {str(name).split(".")[0].split()[0] for name in found} <= {
            "fsspec",
            "refshard_fs",
            "_codecs",
            "exceptions",
        }
        assert not any(op.name in ("BUILD", "NEWOBJ_EX") for op, _, _ in pickletools.genops(pickled))


@pytest.mark.case(id="P23")
def test_repr_and_errors_contain_no_secrets(http_server: RangeServer) -> None:
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


@pytest.mark.case(id="P31")
def test_refusal_survives_pickling(secret: str, http_server: RangeServer) -> None:
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
@pytest.mark.case(id="P23")
def test_secrets_of_urls_are_not_in_errors(url: str, http_server: RangeServer) -> None:
    full = url.format(host=http_server.url.removeprefix("http://"))
    with pytest.raises(ReferenceNotReachable) as caught:
        RefShardFileSystem(fo={"k": [full, 0, 1]}).cat_file("k")
    assert "HUSH" not in str(caught.value)
    assert "/gone" in str(caught.value)
    with pytest.raises(TargetNotAllowed) as refused:
        RefShardFileSystem(fo={"k": [full, 0, 1]}, allow=["s3://b/"]).cat_file("k")
    assert "HUSH" not in repr(refused.value)


@pytest.mark.case(id="P3")
def test_set_in_a_remote_archive_cannot_read_local_files(secret: str, http_server: RangeServer, tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.zip", "w") as z:
        z.writestr("refs.json", json.dumps({"k": [f"file://{secret}::{http_server.url}/a.zip"]}))
    url = http_server.put("/a.zip", (tmp_path / "a.zip").read_bytes())
    with pytest.raises(TargetNotAllowed):
        RefShardFileSystem(fo=f"zip://refs.json::{url}").cat_file("k")


ARRAY = {"zarr_format": 2, "shape": [2], "chunks": [1], "dtype": "|u1", "compressor": None, "fill_value": 0}
ARRAY |= {"order": "C", "filters": None}
ARRAY_3 = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [2],
    "data_type": "uint8",
    "fill_value": 0,
    "attributes": {},
}
ARRAY_3 |= {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}}, "codecs": [{"name": "bytes"}]}
ARRAY_3 |= {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}}


def declare(manifest: Any) -> dict[str, Any]:
    return {"storage_transformers": [{"name": "chunk-manifest-json", "configuration": {"manifest": manifest}}]}


def sources(url: str) -> dict[str, tuple[str, dict[str, bytes], str]]:
    """Return a source of each format that points to ``url``: its path, its files, and the key that points there."""
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    whole = {"a/c/0": {"path": url}, "zarr.json": {"data": group}}
    prefixes = {"prefix": {"a/c/": {"path": url.rpartition("/")[0] + "/"}}}
    found: dict[str, tuple[str, dict[str, Any], str]] = {
        "chunk manifest": ("", {"zarr.json": ARRAY_3 | declare({"0": {"path": url}})}, "c/0"),
        "a manifest elsewhere": ("", {"zarr.json": ARRAY_3 | declare(url)}, "c/0"),
        "prefixes of chunks": ("", {"zarr.json": ARRAY_3 | declare({"prefix": {"": {"path": url}}})}, "c/0"),
        "key map": ("map", {"map": {"name": "chunk-manifest-json", "configuration": {"manifest": whole}}}, "a/c/0"),
        "prefix map": (
            "map",
            {"map": {"name": "chunk-manifest-json", "configuration": {"manifest": prefixes}}},
            "a/c/" + url.rpartition("/")[2],
        ),
        "group's map": ("", {"zarr.json": group | declare(whole)}, "a/c/0"),
        "templates": ("t", {"t": {"version": 1, "templates": {"u": url}, "refs": {"k": ["{{u}}"]}}}, "k"),
        "gen": ("g", {"g": {"version": 1, "gen": [{"key": "k", "url": url, "dimensions": {}}], "refs": {}}}, "k"),
    }
    return {
        kind: (
            f"/{kind}/{path}".rstrip("/"),
            {f"/{kind}/{name}": json.dumps(d).encode() for name, d in docs.items()},
            key,
        )
        for kind, (path, docs, key) in found.items()
    }


def parquet(url: str) -> tuple[str, dict[str, bytes], str]:
    from refshard_fs.core.chunks import Chunks
    from refshard_fs.core.columns import Ranges
    from refshard_fs.formats.kerchunk_parquet.writing import encode_checked_partition

    pytest.importorskip("pyarrow")
    import numpy as np

    spans = Ranges(np.zeros(2, np.uint32), np.zeros(2, np.uint64), np.full(2, 5, np.uint64))
    document = {"metadata": {"a/.zarray": ARRAY}, "record_size": 2}
    files = {
        "/p/.zmetadata": json.dumps(document).encode(),
        "/p/a/refs.0.parq": encode_checked_partition(Chunks([url], spans, {})),
    }
    return "/p", files, "a/0"


@pytest.mark.parametrize("how", ["{path}", "file://{path}", "memory://x", "simplecache::file://{path}"])
@pytest.mark.parametrize("kind", [*sources("x/y"), "parquet"])
@pytest.mark.case(id="P3")
def test_remote_manifest_reaches_no_local_file(kind: str, how: str, secret: str, http_server: RangeServer) -> None:
    url = how.format(path=secret)
    path, files, key = parquet(url) if kind == "parquet" else sources(url)[kind]
    for name, data in files.items():
        http_server.put(name, data)
    with pytest.raises((TargetNotAllowed, ReferenceNotReachable, SourceNotReachable, ManifestError)) as caught:
        RefShardFileSystem(fo=http_server.url + path.replace(" ", "%20"), skip_instance_cache=True).cat_file(key)
    assert "do not tell" not in str(caught.value)
    if kind in ("parquet", "templates", "gen", "chunk manifest", "key map"):
        assert isinstance(caught.value, TargetNotAllowed)


@pytest.mark.case(id="P17")
def test_sets_cannot_read_the_environment(
    http_server: RangeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HUSH", "do-not-tell")
    monkeypatch.chdir(tmp_path)
    spelled = [
        "$HUSH",
        "${HUSH}",
        "%HUSH%",
        "{{HUSH}}",
        "{{environ}}",
        "{HUSH}",
        "{{ 'a'.format }}",
        "~HUSH",
        "{0.__class__}",
    ]
    for engine, text in itertools.product((True, False), spelled):
        if not engine:
            pytest.importorskip("jinja2")
        url = f"{http_server.url}/x-{text}"
        source = manifest(http_server, {"k": [url, 0, 1]}, templates={"f": "{{c}}"})
        with pytest.raises(RefShardError):
            RefShardFileSystem(fo=source, simple_templates=engine, skip_instance_cache=True).cat_file("k")
        assert not any("do-not-tell" in request.path for request in http_server.requests())


@pytest.mark.parametrize(
    "to", ["http://localhost:{port}/x", "http://[::ffff:127.0.0.1]:{port}/x", "http://2130706433:{port}/x",
           "http://0x7f.1:{port}/x", "http://169.254.169.254/latest/meta-data/", "file:///etc/hostname",
           "http://me:me@localhost:{port}/x"]
)  # fmt: skip
@pytest.mark.case(id="P14")
def test_redirect_to_a_private_network_or_file_is_refused(to: str, http_server: RangeServer) -> None:
    port = http_server.url.rpartition(":")[2]
    http_server.put("/x", b"inside")
    source = manifest(http_server, {"k": [http_server.put("/away", b"outside"), 0, 6]})
    http_server.fault("redirect", "/away", to=to.format(port=port))
    http_server.clear()
    with pytest.raises((TargetNotAllowed, ReferenceNotReachable)):
        RefShardFileSystem(fo=source, retries=0, skip_instance_cache=True).cat_file("k")
    assert http_server.requests("/x") == []


@pytest.mark.case(id="P14")
def test_archive_at_an_own_url_may_redirect(http_server: RangeServer, tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("refs.json", json.dumps({"k": ["data", 2, 3]}))
        archive.writestr("data", b"0123456789")
    with RangeServer() as store:
        url = store.put("/a.zip", (tmp_path / "a.zip").read_bytes())
        http_server.fault("redirect", "/a.zip", to=url + "?signature=1")
        fs = RefShardFileSystem(f"zip://refs.json::{http_server.url}/a.zip", skip_instance_cache=True)
        assert fs.cat_file("k") == b"234"


@pytest.mark.case(id="P14")
def test_own_url_may_redirect_to_a_port_of_its_private_host(http_server: RangeServer) -> None:
    with RangeServer() as store, RangeServer() as third:
        document = json.dumps({"k": "inline", "beside": ["beside", 0, 1], "direct": [f"{store.url}/refs.json"]})
        signed = store.put("/refs.json", document.encode()) + "?signature=1"
        http_server.fault("redirect", "/set/refs.json", to=signed)
        http_server.fault("redirect", "/set/beside", to=signed)
        http_server.fault("redirect", "/further.json", to=store.url + "/further.json")
        store.fault("redirect", "/further.json", to=third.put("/refs.json", document.encode()))
        options = {"target_options": {"headers": {"Authorization": "HUSH"}}, "skip_instance_cache": True}
        fs = RefShardFileSystem(f"{http_server.url}/set/refs.json", **options)
        assert fs.cat_file("k") == b"inline"
        assert len(store.requests()) > 0
        store.clear()
        for key in ("beside", "direct"):  # URLs that the author of the manifest chose
            with pytest.raises(TargetNotAllowed, match="private networks"):
                fs.cat_file(key)
        assert store.requests() == []
        with pytest.raises(TargetNotAllowed, match="private networks"):
            RefShardFileSystem(f"{http_server.url}/further.json", **options).cat_file("k")
        assert third.requests() == []
        assert {r.headers.get("authorization") for r in http_server.requests()} == {"HUSH"}
        assert not any("authorization" in r.headers for r in store.requests())


@pytest.mark.case(id="P14")
def test_host_with_a_public_and_a_private_address_is_refused(
    http_server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(self: Any, name: str, port: int = 0, family: Any = 0) -> Any:
        places = await resolve_to_loopback(self, name, port, family)
        public = {**places[0], "host": "93.184.215.14"}
        return [public, *places] if name.startswith("both") else places

    monkeypatch.setattr(DefaultResolver, "resolve", resolve)
    port = http_server.url.rpartition(":")[2]
    http_server.put("/x", b"inside")
    source = manifest(http_server, {"k": [f"http://both.example:{port}/x"]})
    with pytest.raises(TargetNotAllowed, match="private networks"):
        RefShardFileSystem(fo=source, skip_instance_cache=True).cat_file("k")
    assert http_server.requests("/x") == []


SIGNED = "http://me:HUSH@127.0.0.1:1/x?token=HUSH&X-Amz-Signature=HUSH"


@pytest.mark.parametrize("url", [SIGNED, "s3://AKID:HUSH@bucket/k"])
@pytest.mark.case(id="P23")
def test_secrets_are_not_logged(url: str, caplog: pytest.LogCaptureFixture) -> None:
    options = {"options": {"http://127.0.0.1:1/": {"headers": {"Authorization": "HUSH"}}}}
    with caplog.at_level(logging.DEBUG), pytest.raises(ReferenceNotReachable) as caught:
        RefShardFileSystem(fo={"k": [url, 0, 1]}, retries=1, skip_instance_cache=True, **options).cat_file("k")
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("refshard")]
    assert ours or url.startswith("s3:"), "this bucket is refused before a request"
    assert not [text for text in ours if "HUSH" in text]
    assert "HUSH" not in str(caught.value)
    assert "HUSH" not in repr(caught.value)


@pytest.mark.case(id="P23")
def test_commands_print_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from refshard_fs.cli import main

    refs = {".zgroup": {"zarr_format": 2}, "a/.zarray": ARRAY, "a/0": [SIGNED, 0, 1], "a/1": ["s3://AKID:HUSH@b/k"]}
    path = tmp_path / "refs.json"
    path.write_text(json.dumps({"version": 1, "refs": refs}))
    options = ["--remote-options", json.dumps({"headers": {"Authorization": "HUSH"}}), "--remote-protocol", "http"]
    for command in (["info"], ["info", "--json"], ["ls", "-l"], ["check"], ["check", "--full", "--json"]):
        try:
            main([command[0], str(path), *command[1:], *options])
        except SystemExit:
            pass
        out = capsys.readouterr()
        assert "HUSH" not in out.out + out.err, command


PICKLED = {
    "filter": {"filters": [{"id": "pickle"}]},
    "compressor": {"compressor": {"id": "pickle"}},
    "nested": {"filters": [{"id": "x", "codecs": [{"name": "numcodecs.pickle"}]}], "fill_value": math.nan},
}


@pytest.mark.parametrize("member", PICKLED)
@pytest.mark.parametrize("document", [".zarray", ".zmetadata"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "escaped"])
@pytest.mark.case(id="P17")
def test_pickle_codec_of_a_remote_set_is_refused_unless_allowed(
    member: str, document: str, encoding: str, http_server: RangeServer
) -> None:
    """Old versions of zarr and numcodecs unpickle chunks, and fill values when they open an array."""
    array: dict[str, Any] = {"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|O", "order": "C"}
    array |= {"fill_value": None, "compressor": None, "filters": None, **PICKLED[member]}
    made: Any = array if document == ".zarray" else {"zarr_consolidated_format": 1, "metadata": {"t/.zarray": array}}
    text = json.dumps(made)
    stored = text.replace("pickle", r"\u0070ickle").encode() if encoding == "escaped" else text.encode(encoding)
    key = "t/.zarray" if document == ".zarray" else document
    source = manifest(
        http_server, {key: "base64:" + base64.b64encode(stored).decode(), "u/.zattrs": '{"id": "pickle"}'}
    )
    fs = RefShardFileSystem(source)
    reads = (fs.cat_file, fs.cat, lambda key: fs.cat([key, "u/.zattrs"]), lambda key: fs.open(key).read())
    for read in (
        *reads,
        lambda key: fs.cat_file(key, start=0, end=9),
        lambda key: fs.cat_ranges([key], [0], [9], on_error="raise"),
    ):
        with pytest.raises(ManifestError, match="pickles, which may run code"):
            read(key)
    assert fs.cat_file("u/.zattrs")
    assert RefShardFileSystem(source, allow=[source]).cat_file(key) == stored
    assert RefShardFileSystem({key: stored}).cat_file(key) == stored
