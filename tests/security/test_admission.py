"""URLs in a remote manifest are admitted or refused, in the same spelling in which they are opened."""

from __future__ import annotations

import contextlib
import pickle
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refshard_fs import TargetNotAllowed
from refshard_fs.security.admission import Access, Admission, _encode_host, canonicalize, is_private, is_trusted
from refshard_fs.security.policy import directory_of, make_locator, resolve, split_chain

REMOTE = Admission.of("https://pub.example/sets/refs.json", None, (), ())
BUCKET = Admission.of("s3://data/sets/refs.json", None, (), ())


@pytest.mark.parametrize("source", [None, "/home/me/refs.json", "file:///refs.json", "memory://refs.json",
                                    "zip://refs.json::/home/me/x.zip"])  # fmt: skip
@pytest.mark.parametrize(
    "url", ["/etc/hosts", "s3://b/k", "http://127.0.0.1/x", "zip://a::http://h/z.zip", "ssh://h/x"]
)
def test_own_sets_may_point_to_private_places(source: str | None, url: str) -> None:
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
@pytest.mark.case(id="P1")
def test_remote_set_may_point_to_its_own_and_public_servers(url: str, access: Access) -> None:
    assert REMOTE.admit(url)[1] is access


def test_only_the_own_bucket_gets_credentials() -> None:
    assert BUCKET.admit("s3://data/x.nc")[1] is Access.OWN
    assert BUCKET.admit("s3://data-private/x.nc")[1] is Access.NONE
    assert BUCKET.admit("gs://data/x.nc")[1] is Access.NONE


@pytest.mark.parametrize(
    "url",
    [
        "/etc/passwd", "file:///etc/passwd", "FILE:///etc/passwd", "local:///etc/passwd", "etc/passwd", "~/.ssh/id",
        "memory://x", "MEMORY://x", "ssh://h/x", "sftp://h/x", "ftp://h/x", "smb://h/x", "github://o:r@/x",
        "reference://x", "refshard::https://other/x.json", "zip://a::file:///etc/x.zip", "simplecache::s3://b/k",
        "data::file:///etc/x", "data:x::s3://b/k",
        "filecache::https://h/x", "dir::file:///etc",
        "http://127.0.0.1/x", "http://localhost/x", "http://LOCALHOST./x", "http://127.1/x", "http://2130706433/x",
        "http://0x7f000001/x", "http://0177.0.0.1/x", "http://0/x", "http://[::1]/x", "http://[::ffff:127.0.0.1]/x",
        "http://169.254.169.254/latest/meta-data/", "http://[fe80::1]/x", "http://10.0.0.1/x", "http://192.168.1.1/x",
        "http://172.16.0.1/x", "http://metadata.google.internal/x", "http://[::ffff:a9fe:a9fe]/x",
        "http://100.64.0.1/x", "http://224.0.0.1/x", "http://[2002:7f00:1::]/x",
        "http://[::127.0.0.1]/x", "http://[64:ff9b::7f00:1]/x", "http://[64:ff9b::a9fe:a9fe]/x",
        "http://[64:ff9b:1::7f00:1]/x", "http://[::ffff:0:127.0.0.1]/x", "http://[fec0::1]/x",
        "http://[2a00:1450::5efe:7f00:1]/x", "http://[ff02::1]/x", "http://127.0.0.1\u3002/x", "http://localhost\uff0e/x",
        "http://[2001:0:808:808::80ff:fffe]/x", "http://[fd00::1]/x", "http://[::]/x",
        "http://127。0。0。1/x", "http://①②⑦.⓪.⓪.①/x", "http://ⓛocalhost/x", "http://0X7F.1/x", "http://127.0.0.1:80/x",
        "http://user@127.0.0.1/x", "http://%31%32%37.0.0.1/x", "http://pub.example:80@127.0.0.1/x",
        "http://pub.example%2f@127.0.0.1/x", "https:////127.0.0.1/x", "http://localhost.localdomain.localhost/x",
        "https://user:password@other.example/x", "https://pub.example@127.0.0.1/x", "https://pub.example\\@evil/x",
        "https://pub.example/../../x", "https://pub.example/%2e%2e/x", "https://pub.example/a/%2E./x", "s3://data/../x",
        "s3://AKID:SECRET@data/x", "https://other.example/a\tb", "https://other.example/\x00", "https:///x", "https://%31/x",
    ],
)  # fmt: skip
@pytest.mark.parametrize("rule", [REMOTE, BUCKET], ids=["web", "bucket"])
@pytest.mark.case(id="P3")
def test_remote_set_may_not_point_to_private_places(rule: Admission, url: str) -> None:
    with pytest.raises(TargetNotAllowed) as caught:
        rule.admit(url)
    assert caught.value.url
    assert "allow=" in str(caught.value)
    assert "not satisfiable" not in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("url", "spelled"),
    [
        ("HTTPS://Pub.EXAMPLE:443/A//b", "https://pub.example/A//b"),
        ("https://pub.example./x", "https://pub.example/x"),
        ("https://bücher.example/x", "https://xn--bcher-kva.example/x"),
        ("http://h.example:080/x", "http://h.example/x"),
        ("http://[2606:4700:0:0:0:0:0:1111]:80/x", "http://[2606:4700:0:0:0:0:0:1111]/x"),
        ("S3://Bucket//k", "s3://Bucket//k"),
        ("https://h.example/a b", "https://h.example/a%20b"),
    ],
)
@pytest.mark.case(id="P34")
def test_admitted_url_has_its_canonical_spelling(url: str, spelled: str) -> None:
    assert canonicalize(url) == spelled
    assert REMOTE.admit(url)[0] == spelled


@pytest.mark.parametrize(
    "url", ["https://pub.exаmple/x", "https://pub.example.evil.example/x", "https://pub-example.net/x"]
)
@pytest.mark.case(id="P34")
def test_similar_host_names_are_other_hosts(url: str) -> None:
    """The first name has a Cyrillic letter."""
    assert REMOTE.admit(url)[1] is Access.NONE


@pytest.mark.parametrize("protocol", ["http", "https", "ftp", "sftp", "smb"])
@pytest.mark.parametrize(
    "host", ["10.0.0.5", "printer", "nas.local", "db.internal", "x.corp", "router.lan", "x.home.arpa", "168.63.129.16",
             "192.0.0.192", "192.0.0.8"]
)  # fmt: skip
@pytest.mark.case(id="P7")
def test_remote_protocol_does_not_open_private_networks(protocol: str, host: str) -> None:
    url = f"{protocol}://{host}/x"
    named = Admission.of("https://pub.example/refs.json", None, [protocol], ())
    with pytest.raises(TargetNotAllowed, match="private networks") as caught:
        named.admit(url)
    prefix = re.search(r"options=\{'(.*?)': \{\}\}", str(caught.value))
    assert prefix is not None
    assert Admission.of(named.source, None, [protocol], [prefix[1]]).admit(url)[1] is Access.OWN
    assert named.admit(f"{protocol}://data.example/x")[1] is Access.LENT
    assert Admission.of("refs.json", None, [protocol], ()).admit(url)[1] is Access.OWN


def test_set_on_a_private_host_may_point_to_that_host_only() -> None:
    rule = Admission.of("http://10.0.0.5:8000/refs.json", None, (), ())
    assert rule.admit("http://10.0.0.5:8000/x.nc")[1] is Access.OWN
    with pytest.raises(TargetNotAllowed, match="private"):
        rule.admit("http://10.0.0.6:8000/x.nc")


@pytest.mark.parametrize("url", ["s3://pub/x", "s3://pub/deep/er", "https://h.example/a/b"])
def test_allow_list_admits_its_prefixes(url: str) -> None:
    rule = Admission.of("https://pub.example/refs.json", ["s3://pub", "https://H.example:443/a/"], (), ())
    assert rule.admit(url) == (url, Access.OWN)


LOCAL_SPELLINGS = ["{}", "file://{}", "local://{}"]


@pytest.mark.parametrize("spelled", LOCAL_SPELLINGS)
@pytest.mark.parametrize("source", ["https://pub.example/refs.json", None, "/home/me/refs.json"])
def test_local_folder_is_admitted_in_all_spellings(spelled: str, source: str | None) -> None:
    rules = [
        Admission.of(source, [spelled.format("/data/")], (), ()),
        Admission.of(source, ["s3://pub"], (), [spelled.format("/data")]),
    ]
    for rule in rules:
        for other in LOCAL_SPELLINGS:
            url = other.format("/data/deep/x.nc")
            assert rule.admit(url) == (url, Access.OWN)
            with pytest.raises(TargetNotAllowed):
                rule.admit(other.format("/database/x.nc"))
        rule.admit_real("/data/x.nc", lambda path: path)
        with pytest.raises(TargetNotAllowed):
            rule.admit_real("/database/x.nc", lambda path: path)


@pytest.mark.parametrize("root", ["/", "file://", "file:///", "local://"])
def test_prefix_of_the_root_admits_all_local_files(root: str) -> None:
    rule = Admission.of("https://pub.example/refs.json", [root], (), ())
    for spelled in LOCAL_SPELLINGS:
        assert rule.admit(spelled.format("/data/x.nc"))[1] is Access.OWN
    rule.admit_real("/data/x.nc", lambda path: path)
    with pytest.raises(TargetNotAllowed):
        rule.admit("memory://x")


@pytest.mark.parametrize("url", ["s3://public/x", "s3://pubx", "https://h.example/ab", "https://h.example/a/../b",
                                 "https://h.example.evil/a/b", "https://pub.example/x.nc", "/etc/passwd"])  # fmt: skip
@pytest.mark.parametrize("source", ["https://pub.example/refs.json", None, "/home/me/refs.json"])
@pytest.mark.case(id="P9")
def test_allow_list_excludes_other_urls(url: str, source: str | None) -> None:
    rule = Admission.of(source, ["s3://pub", "https://H.example:443/a/"], (), ())
    with pytest.raises(TargetNotAllowed):
        rule.admit(url)


@pytest.mark.case(id="P7")
def test_options_admit_named_protocols_and_prefixes() -> None:
    rule = Admission.of("https://pub.example/refs.json", None, ["file", "S3"], ["http://10.0.0.7/data/"])
    assert rule.admit("file:///data/x.nc")[1] is Access.OWN
    assert rule.admit("/data/x.nc")[1] is Access.OWN
    assert rule.admit("s3://any/x")[1] is Access.LENT
    assert rule.admit("http://10.0.0.7/data/x")[1] is Access.OWN
    with pytest.raises(TargetNotAllowed):
        rule.admit("memory://x")


def test_source_may_point_below_itself() -> None:
    store = Admission.of("https://pub.example/store.zarr", [], (), ())
    assert store.admit("https://pub.example/store.zarr/a/0")[1] is Access.OWN
    for url in ("https://pub.example/store.zarr/../x", "https://pub.example/store.zarrs/x"):
        with pytest.raises(TargetNotAllowed):
            store.admit(url)
    archive = Admission.of("zip://set/refs.json::https://pub.example/a.zip", None, (), ())
    assert archive.admit("zip://set/x.bin::https://pub.example/a.zip")[1] is Access.OWN
    with pytest.raises(TargetNotAllowed, match="chain"):
        archive.admit("zip://set/x.bin::https://pub.example/b.zip")


@pytest.mark.case(id="P10")
def test_error_for_prefix_with_a_login_hides_the_login() -> None:
    with pytest.raises(
        ValueError, match=r"'http://\.\.\.@h\.org/x/' in allow= .* credentials; give them as options"
    ) as e:
        Admission.of("http://h.org/refs.json", None, (), ["http://user:hidden@h.org/x/"])
    assert "hidden" not in str(e.value)


def test_allow_list_must_have_url_prefixes() -> None:
    with pytest.raises(TypeError, match="prefix"):
        Admission.of(None, "s3://pub/", (), ())
    with pytest.raises(ValueError, match="prefix"):
        Admission.of(None, ["pub"], (), ())
    assert Admission.of("https://h/refs.json", "any", (), ()).admit("/etc/hosts") == ("/etc/hosts", Access.OWN)


@given(st.from_regex(r"https?://[a-zA-Z0-9.。．\-:\[\]@]{1,12}(/[a-z%.2eE/]{0,8})?", fullmatch=True))
@pytest.mark.case(id="P34")
def test_canonical_form_is_idempotent(url: str) -> None:
    try:
        once = canonicalize(url)
    except ValueError:
        return
    assert canonicalize(once) == once


@pytest.mark.parametrize(
    "address",
    ["::127.0.0.1", "0:0:0:0:0:0:7f00:1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "::ffff:10.0.0.1",
     "2002:0a00:0001::", "2001:0:5ef5:79fb:0:59f:f5ff:fffe",
     "2001:0:7f00:1:0:0:f7f7:f7f7", "0:0:0:0:0:ffff:a9fe:a9fe", "fe80::1", "::"],
)  # fmt: skip
@pytest.mark.case(id="P14")
def test_embedded_private_addresses_are_private(address: str) -> None:
    assert is_private(address)


@pytest.mark.parametrize("address", ["2606:4700::1111", "64:ff9b::808:808", "8.8.8.8", "134744072"])
def test_public_addresses_in_several_notations_are_public(address: str) -> None:
    assert not is_private(address)


@given(st.ip_addresses())
def test_addresses_are_private_unless_global(address: object) -> None:
    assert is_private(str(address)) or getattr(address, "is_global", False)


@pytest.mark.parametrize(
    "source", ["zip://refs.json::https://pub.example/a.zip", "simplecache::https://pub.example/a.zip"]
)
@pytest.mark.parametrize(
    "first", ["file:///etc/passwd", "local:///etc/passwd", "dir:///etc", "memory://x", "reference://x"]
)
def test_other_chain_with_the_sources_last_link_is_refused(source: str, first: str) -> None:
    with pytest.raises(TargetNotAllowed):
        Admission.of(source, None, (), ()).admit(f"{first}::https://pub.example/a.zip")


@pytest.mark.parametrize(
    "url", ["zip://x::file:///secret.zip", "zip://x::https://pub.example/a.zip::file:///x", "s3://pub/x::file:///etc"]
)
@pytest.mark.case(id="P9")
def test_chain_is_admitted_only_if_each_link_is(url: str) -> None:
    rule = Admission.of("https://pub.example/refs.json", None, ["zip", "https"], ["s3://pub/"])
    with pytest.raises(TargetNotAllowed):
        rule.admit(url)
    assert rule.admit("zip://x::https://other.example/a.zip")[1] is Access.LENT
    assert rule.admit("zip://x::s3://pub/a.zip")[1] is Access.OWN


SIX = "http://[2001:4860::8888]"


def test_ipv6_address_is_not_a_chain() -> None:
    assert split_chain(f"{SIX}:80/a::b") == [
        "http://[2001:4860",
        "8888]:80/a",
        "b",
    ]  # fsspec takes this URL for a chain
    assert split_chain(f"zip://a::{SIX}/x.zip") == ["zip://a", "http://[2001:4860", "8888]/x.zip"]
    assert split_chain("http://[zip::x]/a") == ["http://[zip", "x]/a"]
    for url in (SIX, f"{SIX}/a", f"{SIX}:8080/a?b#c", "HTTPS://[::1]/a"):
        assert split_chain(url) == [url]
    assert directory_of(f"{SIX}/a/refs.json") == f"{SIX}/a"
    assert make_locator(f"{SIX}/a")("k/0") == f"{SIX}/a/k/0"
    assert resolve("../x.nc", f"{SIX}/a/b", None) == f"{SIX}/a/x.nc"


def test_relative_url_in_an_archive_names_another_member() -> None:
    for folder in ("", "set/", "a/b/"):
        base = directory_of(f"zip://{folder}refs.json::s3://b/a.zip")
        assert resolve("x.bin", base, None) == f"zip://{folder}x.bin::s3://b/a.zip"


def test_set_from_an_ipv6_address_is_remote() -> None:
    assert not is_trusted(f"{SIX}/refs.json")
    rule = Admission.of(f"{SIX}/refs.json", None, (), ())
    assert rule.admit(f"{SIX}/x.nc") == (f"{SIX}/x.nc", Access.OWN)
    assert rule.admit("https://other.example/x.nc")[1] is Access.NONE
    assert rule.admit(f"{SIX}:8080/x.nc")[1] is Access.NONE
    for url in ("/etc/hosts", "http://[::1]/x", "http://[::ffff:10.0.0.1]:80/x", f"zip://a::{SIX}/x.zip", "s3://u@b/x"):
        with pytest.raises(TargetNotAllowed):
            rule.admit(url)


def test_port_of_an_ipv6_address_is_compared() -> None:
    assert REMOTE.admit(f"{SIX}:80/x.nc") == (f"{SIX}/x.nc", Access.NONE)
    allowing = Admission.of("https://pub.example/refs.json", ["http://[::1]:9/"], (), ())
    assert allowing.admit("http://[::1]:9/x") == ("http://[::1]:9/x", Access.OWN)
    with pytest.raises(TargetNotAllowed):
        allowing.admit("http://[::1]:90/x")


LOGIN = "http://user:pass@host.example:81/sets/refs.json"


@pytest.mark.parametrize("url", ["http://user:pass@host.example:81/x.bin", "http://user:pass@host.example:81/sets/a"])
@pytest.mark.case(id="P4")
def test_set_may_point_to_its_own_server_with_the_users_login(url: str) -> None:
    assert Admission.of(LOGIN, None, (), ()).admit(url) == (url, Access.OWN)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:pass@host.example/x", "http://user:pass@other.example:81/x", "https://user:pass@host.example:81/x",
        "http://user:guess@host.example:81/x", "http://user@host.example:81/x", "http://user:pass@host.example:81/../x",
        "http://user:pass@host.example:81@other.example/x", "http://user:pass@host.example:81\\@other.example/x",
        "http://us\ner:pass@host.example:81/x", "zip://a::http://user:pass@host.example:81/x",
    ],
)  # fmt: skip
@pytest.mark.case(id="P4")
def test_login_for_another_server_or_user_is_refused(url: str) -> None:
    with pytest.raises(TargetNotAllowed):
        Admission.of(LOGIN, None, (), ()).admit(url)
    with pytest.raises(TargetNotAllowed):
        Admission.of(LOGIN, ["http://host.example:81/"], (), ()).admit("http://user:pass@host.example:81/x")


def test_host_names_are_encoded_as_by_python() -> None:
    rng = random.Random(7)
    letters = "aZ09-_.%é。ß\u00ad"
    hosts = ["".join(rng.choices(letters, k=rng.randint(0, 9))) for _ in range(2000)]
    for host in [*hosts, "a" * 63, "a" * 64, f"{'a' * 64}.b", f"{'é' * 60}.b"]:
        plain = host.rstrip(".")
        try:
            expected: str | None = plain.encode("idna").decode("ascii").lower().rstrip(".")
        except UnicodeError:
            expected = None
        found = None
        with contextlib.suppress(ValueError):
            found = _encode_host(plain)
        assert found == expected, host
