"""What a manifest from elsewhere may make this machine fetch, judged on the URL that is opened."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refshard_fs import TargetNotAllowed
from refshard_fs.admission import Access, Admission, canonical, is_private

REMOTE = Admission.of("https://pub.example/sets/refs.json", None, (), ())
BUCKET = Admission.of("s3://data/sets/refs.json", None, (), ())


@pytest.mark.parametrize("source", [None, "/home/me/refs.json", "file:///refs.json", "memory://refs.json",
                                    "zip://refs.json::/home/me/x.zip"])  # fmt: skip
@pytest.mark.parametrize(
    "url", ["/etc/hosts", "s3://b/k", "http://127.0.0.1/x", "zip://a::http://h/z.zip", "ssh://h/x"]
)
def test_the_users_own_sets_may_point_anywhere(source: str | None, url: str) -> None:
    assert Admission.of(source, None, (), ()).admit(url) == (url, Access.OWN)


@pytest.mark.parametrize(
    ("url", "access"),
    [
        ("https://pub.example/x.nc", Access.OWN),
        ("https://PUB.example:443/x.nc", Access.OWN),
        ("https://other.example/x.nc", Access.NONE),
        ("http://other.example:8080/x.nc", Access.NONE),
        ("s3://any/x.nc", Access.NONE),
        ("gs://any/x.nc", Access.NONE),
        ("data:;base64,AAAA", Access.NONE),
    ],
)
def test_a_remote_set_may_point_home_and_to_public_places(url: str, access: Access) -> None:
    assert REMOTE.admit(url)[1] is access


def test_the_manifests_own_bucket_is_read_with_the_users_credentials_and_no_other() -> None:
    assert BUCKET.admit("s3://data/x.nc")[1] is Access.OWN
    assert BUCKET.admit("s3://data-private/x.nc")[1] is Access.NONE
    assert BUCKET.admit("gs://data/x.nc")[1] is Access.NONE


@pytest.mark.parametrize(
    "url",
    [
        "/etc/passwd", "file:///etc/passwd", "FILE:///etc/passwd", "local:///etc/passwd", "etc/passwd", "~/.ssh/id",
        "memory://x", "MEMORY://x", "ssh://h/x", "sftp://h/x", "ftp://h/x", "smb://h/x", "github://o:r@/x",
        "reference://x", "refshard::https://other/x.json", "zip://a::file:///etc/x.zip", "simplecache::s3://b/k",
        "filecache::https://h/x", "dir::file:///etc",
        "http://127.0.0.1/x", "http://localhost/x", "http://LOCALHOST./x", "http://127.1/x", "http://2130706433/x",
        "http://0x7f000001/x", "http://0177.0.0.1/x", "http://0/x", "http://[::1]/x", "http://[::ffff:127.0.0.1]/x",
        "http://169.254.169.254/latest/meta-data/", "http://[fe80::1]/x", "http://10.0.0.1/x", "http://192.168.1.1/x",
        "http://172.16.0.1/x", "http://metadata.google.internal/x", "http://[::ffff:a9fe:a9fe]/x",
        "http://100.64.0.1/x", "http://224.0.0.1/x", "http://[2002:7f00:1::]/x",
        "https://user:password@other.example/x", "https://pub.example@127.0.0.1/x", "https://pub.example\\@evil/x",
        "https://pub.example/../../x", "https://pub.example/%2e%2e/x", "https://pub.example/a/%2E./x", "s3://data/../x",
        "s3://AKID:SECRET@data/x", "https://other.example/a b", "https://other.example/\x00", "https:///x", "https://%31/x",
    ],
)  # fmt: skip
@pytest.mark.parametrize("rule", [REMOTE, BUCKET], ids=["web", "bucket"])
def test_a_remote_set_may_not_point_elsewhere(rule: Admission, url: str) -> None:
    with pytest.raises(TargetNotAllowed) as caught:
        rule.admit(url)
    assert caught.value.url
    assert "allow=" in str(caught.value)
    assert "not satisfiable" not in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_set_on_a_private_host_may_point_to_that_host_only() -> None:
    rule = Admission.of("http://10.0.0.5:8000/refs.json", None, (), ())
    assert rule.admit("http://10.0.0.5:8000/x.nc")[1] is Access.OWN
    with pytest.raises(TargetNotAllowed, match="private"):
        rule.admit("http://10.0.0.6:8000/x.nc")


@pytest.mark.parametrize("url", ["s3://pub/x", "s3://pub/deep/er", "https://h.example/a/b"])
def test_what_is_listed_is_allowed(url: str) -> None:
    rule = Admission.of("https://pub.example/refs.json", ["s3://pub", "https://H.example:443/a/"], (), ())
    assert rule.admit(url) == (url, Access.OWN)


@pytest.mark.parametrize("url", ["s3://public/x", "s3://pubx", "https://h.example/ab", "https://h.example/a/../b",
                                 "https://h.example.evil/a/b", "https://pub.example/x.nc", "/etc/passwd"])  # fmt: skip
@pytest.mark.parametrize("source", ["https://pub.example/refs.json", None, "/home/me/refs.json"])
def test_nothing_but_what_is_listed_is_allowed(url: str, source: str | None) -> None:
    rule = Admission.of(source, ["s3://pub", "https://H.example:443/a/"], (), ())
    with pytest.raises(TargetNotAllowed):
        rule.admit(url)


def test_what_an_option_names_is_the_users_word() -> None:
    rule = Admission.of("https://pub.example/refs.json", None, ["file", "S3"], ["http://10.0.0.7/data/"])
    assert rule.admit("file:///data/x.nc")[1] is Access.OWN
    assert rule.admit("/data/x.nc")[1] is Access.OWN
    assert rule.admit("s3://any/x")[1] is Access.OWN
    assert rule.admit("http://10.0.0.7/data/x")[1] is Access.OWN
    with pytest.raises(TargetNotAllowed):
        rule.admit("memory://x")


def test_the_source_itself_and_what_lies_below_it_are_its_own() -> None:
    store = Admission.of("https://pub.example/store.zarr", [], (), ())
    assert store.admit("https://pub.example/store.zarr/a/0")[1] is Access.OWN
    for url in ("https://pub.example/store.zarr/../x", "https://pub.example/store.zarrs/x"):
        with pytest.raises(TargetNotAllowed):
            store.admit(url)
    archive = Admission.of("zip://set/refs.json::https://pub.example/a.zip", None, (), ())
    assert archive.admit("zip://set/x.bin::https://pub.example/a.zip")[1] is Access.OWN
    with pytest.raises(TargetNotAllowed, match="chain"):
        archive.admit("zip://set/x.bin::https://pub.example/b.zip")


def test_a_list_is_of_prefixes() -> None:
    with pytest.raises(TypeError, match="prefix"):
        Admission.of(None, "s3://pub/", (), ())
    with pytest.raises(ValueError, match="prefix"):
        Admission.of(None, ["pub"], (), ())
    assert Admission.of("https://h/refs.json", "any", (), ()).admit("/etc/hosts") == ("/etc/hosts", Access.OWN)


@given(st.from_regex(r"https?://[a-zA-Z0-9.\-:\[\]@]{1,12}(/[a-z%.2eE/]{0,8})?", fullmatch=True))
def test_canonical_is_idempotent(url: str) -> None:
    try:
        once = canonical(url)
    except ValueError:
        return
    assert canonical(once) == once


@given(st.ip_addresses())
def test_addresses_are_private_unless_global(address: object) -> None:
    assert is_private(str(address)) or getattr(address, "is_global", False)


@pytest.mark.parametrize(
    "source", ["zip://refs.json::https://pub.example/a.zip", "simplecache::https://pub.example/a.zip"]
)
@pytest.mark.parametrize(
    "first", ["file:///etc/passwd", "local:///etc/passwd", "dir:///etc", "memory://x", "reference://x"]
)
def test_sharing_the_sources_last_links_does_not_make_a_chain_its_own(source: str, first: str) -> None:
    with pytest.raises(TargetNotAllowed):
        Admission.of(source, None, (), ()).admit(f"{first}::https://pub.example/a.zip")


@pytest.mark.parametrize(
    "url", ["zip://x::file:///secret.zip", "zip://x::https://pub.example/a.zip::file:///x", "s3://pub/x::file:///etc"]
)
def test_a_chain_is_named_only_if_each_of_its_links_is(url: str) -> None:
    rule = Admission.of("https://pub.example/refs.json", None, ["zip", "https"], ["s3://pub/"])
    with pytest.raises(TargetNotAllowed):
        rule.admit(url)
    assert rule.admit("zip://x::https://other.example/a.zip")[1] is Access.OWN
    assert rule.admit("zip://x::s3://pub/a.zip")[1] is Access.OWN
